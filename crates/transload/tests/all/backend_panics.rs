//! A backend that panics in each of its calls: the caller gets a typed error, no call hangs, and the engine continues
//! with its other backends.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use transload::hal::{
    Access, AllocError, Buffer as RawBuffer, CompletionSink, ConnectError, ErrorClass, External,
    ExternalKind, Fence, ImportError, Inventory, Op, SubmitError, Waited,
};
use transload::host::Host;
use transload::model::LinkId;
use transload::{
    AllocSpec, Backend, Buffer, Cancelled, Error, MemoryId, Method, RegisterError, Request,
    StagingBudget, TransferError, TransferManager,
};
use transload_testkit::sim::{Call, Completion, HostSide, Rule, Sim};

use crate::common::{
    Bench, SLOT, Sketch, expect_scripted_panics, marked, modes, place, two_devices,
};

#[test]
fn registration_survives_a_panic_and_can_be_repeated() {
    expect_scripted_panics();
    for call in [Call::Inventory, Call::Attach] {
        for nth in 1..=2 {
            let sim = Sim::new(&two_devices().machine()).unwrap();
            sim.add_rule(Rule::panic_in(call).nth(nth));
            let manager = TransferManager::new();
            let error = match manager.register_shared(Arc::new(sim.clone())) {
                Err(error) => error,
                // A call that the engine makes only once cannot panic the second time.
                Ok(()) => continue,
            };
            let RegisterError::Panicked { message } = &error else {
                panic!("{call:?}: {error}");
            };
            assert!(message.contains("panics by script"), "{call:?}: {message}");
            assert_eq!(error.class(), ErrorClass::Failed);
            assert_eq!(manager.backends(), []);
            assert_eq!(manager.devices(), []);
            assert!(manager.resolve(place("sim:0")).is_err());
            manager.register_backend(Host::new()).unwrap();
            moves_on_the_host(&manager);
        }
    }
}

#[test]
fn allocations_imports_and_exports_that_panic_are_errors() {
    expect_scripted_panics();
    let bench = Bench::new(&two_devices(), Completion::Timed, 3);
    let src = bench.filled("sim:0", marked(100));

    bench.sim.add_rule(Rule::panic_in(Call::Allocate));
    let error = bench
        .manager
        .allocate(place("sim:0"), AllocSpec::bytes(100))
        .unwrap_err();
    assert!(matches!(error, Error::Alloc(AllocError::Failed { .. })));
    assert!(error.to_string().contains("panicked"), "{error}");

    bench.sim.add_rule(Rule::panic_in(Call::Import));
    // SAFETY: no code writes the bytes.
    let external = unsafe { bench.sim.export(src.raw(), ExternalKind::Object) }.unwrap();
    // SAFETY: the machine itself gave out the external.
    let error = unsafe { bench.manager.import(place("sim:0"), external) }.unwrap_err();
    assert!(matches!(error, Error::Import(ImportError::Failed { .. })));
    assert!(error.to_string().contains("panicked"), "{error}");

    bench.sim.add_rule(Rule::panic_in(Call::Import));
    let error = bench.manager.adopt(marked(10).to_vec()).unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");

    bench.sim.add_rule(Rule::panic_in(Call::Export).always());
    let error = bench.manager.share(&src, place("sim:1")).unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");

    let dst = bench.empty("sim:1", 100);
    bench.manager.copy(&src, &dst).wait().unwrap();
    assert!(bench.read(&dst) == marked(100));
    drop((src, dst));
    bench.manager.clear_cache();
    assert_eq!(bench.sim.leaks(), []);
}

#[test]
fn a_link_whose_connecting_panics_is_avoided() {
    expect_scripted_panics();
    let sketch = two_devices()
        .link("sim:0/device", "sim:1/device", "sim:0#2", "peer")
        .link("sim:1/device", "cpu:0/pageable", "sim:1#1", "native")
        .link("cpu:0/pageable", "sim:0/device", "sim:0#0", "native");
    let bench = Bench::new(&sketch, Completion::Timed, 3);
    bench.sim.add_rule(Rule::panic_in(Call::Connect));
    let (src, dst) = (
        bench.filled("sim:0", marked(SLOT)),
        bench.empty("sim:1", SLOT),
    );
    let report = bench.manager.copy(&src, &dst).wait().unwrap();
    assert_eq!(report.method(), Method::HostStaged);
    let [fallback] = report.fallbacks() else {
        panic!("{report}");
    };
    assert!(fallback.fault.to_string().contains("panicked"), "{report}");
    assert!(bench.read(&dst) == marked(SLOT));
}

/// When a look for outcomes or a wait panics, the engine no longer knows the state of the backend's operations.
#[test]
fn a_backend_that_panics_while_it_is_watched_is_given_up() {
    expect_scripted_panics();
    let mut combinations = 0;
    for mode in modes() {
        for call in [Call::Pump, Call::Wait] {
            for nth in 1..40 {
                let struck = watched_panic(mode, call, nth);
                combinations += u32::from(struck);
                if !struck {
                    break;
                }
            }
        }
    }
    println!("{combinations} combinations of mode, call and number");
    assert!(combinations > 10);
}

/// Returns false when the engine made fewer than `nth` of the calls.
fn watched_panic(mode: Completion, call: Call, nth: u64) -> bool {
    let context = (mode, call, nth);
    let sketch = Sketch::new()
        .device("cpu:0", &["pageable"])
        .device("sim:0", &["device"])
        .device("sim:1", &["device"])
        .link("cpu:0/pageable", "sim:0/device", "sim:0#0", "native")
        .link("sim:0/device", "cpu:0/pageable", "sim:0#1", "native")
        .link("sim:0/device", "sim:1/device", "sim:0#2", "native")
        .link("sim:1/device", "sim:0/device", "sim:1#2", "native");
    let sim = Sim::builder(&sketch.machine())
        .host(HostSide::Real)
        .completion(mode)
        .build()
        .unwrap();
    let manager = TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .staging(Arc::new(StagingBudget::new(3 * SLOT)))
        .backend(Arc::new(Host::new()))
        .backend(Arc::new(sim.clone()))
        .build()
        .unwrap();
    let heap = manager.adopt(marked(SLOT).to_vec()).unwrap();
    let allocate = |at: &str| manager.allocate(place(at), AllocSpec::bytes(SLOT)).unwrap();
    let (first, second) = (allocate("sim:0"), allocate("sim:1"));
    sim.add_rule(Rule::panic_in(call).nth(nth));
    // The second transfer waits for the first; the third is independent of both.
    let transfers = [
        manager.copy(&heap, &first),
        manager.copy(&first, &second),
        manager.copy(&second, &first),
    ];
    let results = transfers.map(|transfer| transfer.wait());
    let struck = sim.script().rules()[0].fired() > 0;
    for result in &results {
        if let Err(error) = result {
            assert!(struck, "{context:?}: {error}");
            let text = error.to_string();
            let told = ["panicked", "not there any more", "is lost"];
            assert!(
                told.iter().any(|told| text.contains(told)),
                "{context:?}: {text}"
            );
        }
    }
    let all_ok = results.iter().all(Result::is_ok);
    assert!(struck || all_ok, "{context:?}: {results:?}");
    if !struck {
        return false;
    }
    // The host goes on, and transfers that need the sim are refused with a reason.
    moves_on_the_host(&manager);
    let refused = manager.copy(&heap, &first).wait();
    if let Err(error) = refused {
        assert!(
            matches!(
                error,
                TransferError::NoRoute { .. } | TransferError::Failed(_)
            ),
            "{context:?}: {error}"
        );
    } else {
        assert!(all_ok, "{context:?}: it was given up, and works");
    }
    // The engine deliberately leaks the memory that operations may still touch, and no other memory.
    drop((heap, first, second));
    manager.clear_cache();
    assert_eq!(manager.staging().used_bytes(), 0, "{context:?}");
    assert_eq!(sim.violations(), [], "{context:?}");
    true
}

#[test]
fn what_hangs_on_a_backend_that_is_given_up_comes_to_an_end() {
    expect_scripted_panics();
    let bench = Bench::new(&two_devices(), Completion::Timed, 3);
    let (src, dst) = (
        bench.filled("sim:0", marked(8 * SLOT)),
        bench.empty("sim:1", 8 * SLOT),
    );
    let event = bench.manager.event();
    let waiting = bench.manager.submit(&Request::new(&src, &dst).then(&event));
    let behind = bench.manager.copy(&dst, &src);
    let mut kept = bench.manager.copy(&src, &dst);
    bench.sim.add_rule(Rule::panic_in(Call::Wait));
    let error = waiting.wait().unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
    assert!(event.is_set(), "it is over, however it ended");
    assert!(behind.wait().is_err());
    assert!(matches!(
        kept.wait_timeout(Duration::ZERO),
        Some(Err(_)) | None
    ));
    assert!(matches!(
        kept.cancel(),
        Cancelled::Finished(Err(_)) | Cancelled::NotStarted
    ));
    let error = bench.manager.copy(&src, &dst).wait().unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unsupported, "{error}");
    assert!(error.to_string().contains("lost"), "{error}");
}

#[test]
fn a_wrapper_that_panics_before_and_after_its_inner_backend_is_survived() {
    expect_scripted_panics();
    for at in 0..Brittle::CALLS {
        let sim = Sim::new(&two_devices().machine()).unwrap();
        let brittle = Arc::new(Brittle {
            sim: sim.clone(),
            countdown: AtomicU32::new(at + 1),
            turned: Mutex::default(),
        });
        let built = TransferManager::builder()
            .clock(Arc::new(sim.clock()))
            .staging(Arc::new(StagingBudget::new(3 * SLOT)))
            .backend(Arc::clone(&brittle) as Arc<dyn Backend>)
            .build();
        let manager = match built {
            Ok(manager) => manager,
            Err(error) => {
                assert!(error.to_string().contains("panicked"), "{at}: {error}");
                continue;
            }
        };
        let allocate = |at| manager.allocate(place(at), AllocSpec::bytes(4 * SLOT));
        let buffers: Result<Vec<Buffer>, Error> =
            ["sim:0", "sim:1"].map(allocate).into_iter().collect();
        let Ok(buffers) = buffers else {
            assert!(brittle.has_panicked(), "{at}");
            continue;
        };
        sim.write(buffers[0].raw(), 0, marked(4 * SLOT)).unwrap();
        match manager.copy(&buffers[0], &buffers[1]).wait() {
            Ok(_) => {
                let mut back = vec![0; 4 * SLOT as usize];
                sim.read(buffers[1].raw(), 0, &mut back).unwrap();
                assert!(back == marked(4 * SLOT), "{at}");
            }
            Err(error) => assert!(error.to_string().contains("panicked"), "{at}: {error}"),
        }
        drop(buffers);
        manager.clear_cache();
        assert_eq!(manager.staging().used_bytes(), 0, "{at}");
    }
}

/// The engine cannot leak a caller's stack frame, so the call returns only when the operation has really ended.
#[test]
fn borrowed_bytes_outlast_a_backend_that_is_given_up() {
    expect_scripted_panics();
    for call in [Call::Pump, Call::Wait] {
        for nth in 1..10 {
            for into in [false, true] {
                let sketch = Sketch::new()
                    .device("cpu:0", &["pageable"])
                    .device("sim:0", &["device"])
                    .link("cpu:0/pageable", "sim:0/device", "sim:0#0", "native")
                    .link("sim:0/device", "cpu:0/pageable", "sim:0#1", "native");
                let bench = Bench::new(&sketch, Completion::Timed, 3);
                let device = bench.filled("sim:0", marked(SLOT));
                bench.sim.add_rule(Rule::panic_in(call).nth(nth));
                let mut bytes = vec![7; SLOT as usize];
                let result = match into {
                    false => bench.manager.copy_from_slice(&bytes, &device),
                    true => bench.manager.copy_into_slice(&device, &mut bytes),
                };
                assert_eq!(
                    bench.sim.in_flight(),
                    0,
                    "{call:?}, {nth}: it returned too early"
                );
                if result.is_ok() {
                    assert!(bench.read(&device) == bytes, "{call:?}, {nth}");
                }
            }
        }
    }
}

/// The engine gives the backend up after `submit` accepted the operations, and before the engine has recorded them.
#[test]
fn what_is_being_submitted_when_its_backend_is_given_up_is_never_freed() {
    expect_scripted_panics();
    for verify in [false, true] {
        let sim = Sim::new(&two_devices().machine()).unwrap();
        let brittle = Arc::new(Brittle {
            sim: sim.clone(),
            countdown: AtomicU32::new(u32::MAX),
            turned: Mutex::default(),
        });
        let manager = TransferManager::builder()
            .clock(Arc::new(sim.clock()))
            .staging(Arc::new(StagingBudget::new(3 * SLOT)))
            .backend(Arc::clone(&brittle) as Arc<dyn Backend>)
            .build()
            .unwrap();
        let [src, dst] = ["cpu:0/pageable", "cpu:0/pinned"].map(|at| {
            let spec = AllocSpec::bytes(100);
            manager.allocate(place(at), spec).unwrap()
        });
        sim.add_rule(Rule::never_answer().always());
        // A turn looks at the backend only while an operation is in flight.
        let other = [
            src.clone(),
            manager
                .allocate(place("cpu:0/pinned"), AllocSpec::bytes(100))
                .unwrap(),
        ];
        let before = manager.copy(&other[0], &other[1]);
        sim.add_rule(Rule::panic_in(Call::Pump).nth(2).always());
        *brittle.turned.lock().unwrap() = Some(manager.clone());
        let mut request = Request::new(&src, &dst);
        if verify {
            request = request.verify();
        }
        let error = manager.submit(&request).wait().unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
        assert!(before.wait().is_err());
        drop((src, dst, other, request));
        manager.clear_cache();
        drop(manager);
        assert_eq!(
            sim.violations(),
            [],
            "it was freed under the machine's feet"
        );
        let held: u64 = sim
            .leaks()
            .iter()
            .map(|memory| memory.live_allocations)
            .sum();
        assert_eq!(held, 3, "what operations may touch, and nothing else");
    }
}

/// Panics at the nth call of one kind, after the call has done its work.
struct Brittle {
    sim: Sim,
    countdown: AtomicU32,
    /// The manager to turn within `submit`, when the machine has accepted the operations.
    turned: Mutex<Option<TransferManager>>,
}

impl Brittle {
    /// More calls than a copy of four slots needs.
    const CALLS: u32 = 60;

    fn has_panicked(&self) -> bool {
        self.countdown.load(Ordering::Relaxed) == 0
    }

    fn count(&self) {
        let before = self
            .countdown
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        assert!(before != Ok(1), "simulated fault: a brittle wrapper");
    }
}

// SAFETY: the simulated machine executes the operations. A panic must not break one promise: a `submit` that unwinds
// has done nothing. In `submit` the panic therefore comes before the work.
unsafe impl Backend for Brittle {
    fn inventory(&self) -> Inventory {
        let inventory = self.sim.inventory();
        self.count();
        inventory
    }

    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<RawBuffer, AllocError> {
        let buffer = self.sim.allocate(memory, spec);
        self.count();
        buffer
    }

    unsafe fn import(
        &self,
        memory: MemoryId,
        external: External,
    ) -> Result<RawBuffer, ImportError> {
        self.count();
        // SAFETY: the caller keeps the same promise that the machine asks for.
        unsafe { self.sim.import(memory, external) }
    }

    unsafe fn export(
        &self,
        buffer: &RawBuffer,
        kind: ExternalKind,
    ) -> Result<External, ImportError> {
        self.count();
        // SAFETY: the caller keeps the same promise that the machine asks for.
        unsafe { self.sim.export(buffer, kind) }
    }

    fn connect(&self, src: MemoryId, dst: MemoryId) -> Result<Access, ConnectError> {
        self.count();
        self.sim.connect(src, dst)
    }

    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        self.count();
        // SAFETY: as in `import`.
        let fence = unsafe { self.sim.submit(via, ops, after) };
        let turned = self.turned.lock().unwrap().take();
        if let Some(manager) = turned {
            manager.turn();
        }
        fence
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        let attached = self.sim.attach(sink);
        self.count();
        attached
    }

    fn completes_unattended(&self) -> bool {
        self.count();
        self.sim.completes_unattended()
    }

    fn pump(&self) {
        self.sim.pump();
        self.count();
    }

    fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        let waited = self.sim.wait(fence, limit);
        self.count();
        waited
    }
}

fn moves_on_the_host(manager: &TransferManager) {
    let src = manager.adopt(marked(3000).to_vec()).unwrap();
    let dst = manager.adopt(vec![0u8; 3000]).unwrap();
    manager.copy(&src, &dst).wait().unwrap();
    assert!(dst.into_inner::<Vec<u8>>().unwrap() == marked(3000));
}
