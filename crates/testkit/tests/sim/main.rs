//! The simulated machine keeps its promises: exact times, bytes at the end, six ways to settle, scripted faults,
//! counted memory.

mod faults;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use support::{Log, copy, machine, mem, part};
use transload_hal::Instant;
use transload_hal::defaults::visible_cost;
use transload_hal::{
    AllocError, AllocSpec, Backend, DeviceId, DeviceKind, ErrorClass, Fault, Fence, Layout,
    MemoryId, Op, Outcome, Shape, Span, Transform, Waited,
};
use transload_testkit::sim::{
    Call, Completion, HostSide, OpKind, POISON, Rule, Script, Sim, Violation,
};

struct Setup {
    sim: Sim,
    log: Arc<Log>,
}

fn setup(completion: Completion, script: Script) -> Setup {
    let sim = Sim::builder(&machine())
        .completion(completion)
        .script(script)
        .build()
        .unwrap();
    let log = Arc::new(Log::default());
    sim.attach(log.clone());
    Setup { sim, log }
}

fn timed() -> Setup {
    setup(Completion::Timed, Script::new())
}

impl Setup {
    fn buffer(&self, memory: &str, fill: &[u8]) -> transload_hal::Buffer {
        let spec = AllocSpec::bytes(fill.len() as u64);
        let buffer = self.sim.allocate(mem(memory), &spec).unwrap();
        self.sim.write(&buffer, 0, fill).unwrap();
        buffer
    }

    fn bytes(&self, buffer: &transload_hal::Buffer) -> Vec<u8> {
        let mut bytes = vec![0; buffer.len() as usize];
        self.sim.read(buffer, 0, &mut bytes).unwrap();
        bytes
    }
}

// In the machine of `support`, every link takes 1000 ns and 1 ns a byte.

#[test]
fn a_copy_takes_what_its_link_costs_and_moves_bytes_at_the_end() {
    let setup = timed();
    let src = setup.buffer("cpu:0/pinned", &[7; 100]);
    let dst = setup.buffer("sim:0/device", &[0; 100]);
    let fence = copy(&setup.sim, &src, &dst, &[]).unwrap();
    assert_eq!(setup.sim.next_event(), Some(Instant(1100)));
    setup.sim.run_until(Instant(1099));
    assert_eq!(setup.bytes(&dst), [0; 100]);
    assert!(setup.log.outcomes().is_empty());
    setup.sim.write(&src, 0, &[8; 100]).unwrap();
    setup.sim.run_until(Instant(1100));
    assert_eq!(
        setup.bytes(&dst),
        [8; 100],
        "the source was read at the end"
    );
    assert_eq!(setup.log.outcomes(), [(fence, Outcome::Done)]);
    assert_eq!(setup.sim.clock().now_ns(), 1100);
}

#[test]
fn an_engine_works_first_in_first_out_and_engines_work_at_once() {
    let setup = timed();
    let host = setup.buffer("cpu:0/pinned", &[1; 400]);
    let dst = setup.buffer("sim:0/device", &[0; 400]);
    let other = setup.buffer("sim:1/device", &[0; 400]);
    let piece = |at: u64| host.slice(at, 100).unwrap();
    let a = copy(&setup.sim, &piece(0), &dst.slice(0, 100).unwrap(), &[]).unwrap();
    let b = copy(&setup.sim, &piece(100), &dst.slice(100, 100).unwrap(), &[]).unwrap();
    let c = copy(&setup.sim, &piece(200), &other.slice(0, 100).unwrap(), &[]).unwrap();
    setup.sim.run_until_idle();
    assert_eq!(setup.log.fences(), [a, c, b]);
    assert_eq!(setup.sim.clock().now_ns(), 2200);
    let used = setup.sim.engine_use();
    assert_eq!(used.iter().map(|engine| engine.operations).sum::<u64>(), 3);
}

#[test]
fn an_operation_starts_when_the_fences_before_it_have_settled() {
    let setup = timed();
    let host = setup.buffer("cpu:0/pinned", &[5; 50]);
    let middle = setup.buffer("sim:0/device", &[0; 50]);
    let back = setup.buffer("cpu:0/pinned", &[0; 50]);
    let first = copy(&setup.sim, &host, &middle, &[]).unwrap();
    let second = copy(&setup.sim, &middle, &back, &[first]).unwrap();
    setup.sim.run_until_idle();
    assert_eq!(setup.log.fences(), [first, second]);
    assert_eq!(setup.sim.clock().now_ns(), 2100);
    assert_eq!(setup.bytes(&back), [5; 50]);
    assert!(setup.sim.violations().is_empty());
}

#[test]
fn what_is_made_visible_waits_for_all_that_its_device_is_doing_and_for_nobody_else() {
    let setup = timed();
    let managed = setup.buffer("sim:0/managed", &[0; 100]);
    let visible = Op::MakeVisible {
        part: part(&managed),
    };
    // SAFETY: the buffer outlives the operation, which moves nothing.
    let ask = || unsafe { setup.sim.submit(None, &[visible], &[]) }.unwrap();
    ask();
    let cost = visible_cost(managed.memory().kind).at(0);
    let idle = setup.sim.run_until_idle();
    assert_eq!(idle, Instant(cost), "nothing is under way");
    let mut kept = Vec::new();
    let mut start = |src: &str, dst: &str, len| {
        let [src, dst] = [src, dst].map(|memory| setup.buffer(memory, &vec![7; len]));
        copy(&setup.sim, &src, &dst, &[]).unwrap();
        kept.extend([src, dst]);
    };
    start("cpu:0/pinned", "sim:0/device", 100);
    start("sim:0/device", "cpu:0/pinned", 1200);
    // A copy on another device, and a copy of another device's engine to this memory.
    start("cpu:0/pinned", "sim:1/device", 90_000);
    start("cpu:0/pageable", "sim:0/managed", 90_000);
    let asked = ask();
    start("sim:0/device", "cpu:0/pinned", 5000);
    let end = idle.plus_ns(2200 + cost);
    setup.sim.run_until(Instant(end.0 - 1));
    assert!(!setup.log.fences().contains(&asked));
    setup.sim.run_until(end);
    assert!(setup.log.fences().contains(&asked));
    setup.sim.run_until_idle();
    assert_eq!(setup.sim.violations(), []);
}

#[test]
fn unordered_operations_on_the_same_bytes_are_seen_as_a_race() {
    let setup = timed();
    let host = setup.buffer("cpu:0/pinned", &[5; 50]);
    let middle = setup.buffer("sim:0/device", &[0; 50]);
    let back = setup.buffer("cpu:0/pinned", &[0; 50]);
    copy(&setup.sim, &host, &middle, &[]).unwrap();
    copy(&setup.sim, &middle, &back, &[]).unwrap();
    setup.sim.run_until_idle();
    assert_eq!(
        setup.sim.violations(),
        [Violation::Race {
            memory: mem("cpu:0/pinned")
        }]
    );
}

#[test]
fn a_buffer_freed_in_flight_is_seen_and_harms_nobody() {
    let setup = timed();
    let host = setup.buffer("cpu:0/pinned", &[5; 50]);
    let dst = setup.buffer("sim:0/device", &[0; 50]);
    copy(&setup.sim, &host, &dst, &[]).unwrap();
    drop(dst);
    setup.sim.run_until_idle();
    assert_eq!(
        setup.sim.violations(),
        [Violation::FreedInFlight {
            memory: mem("sim:0/device")
        }]
    );
}

#[test]
fn wait_moves_the_clock_to_the_fence_and_no_further() {
    let setup = timed();
    let src = setup.buffer("cpu:0/pinned", &[1; 100]);
    let dst = setup.buffer("sim:0/device", &[0; 100]);
    let fence = copy(&setup.sim, &src, &dst, &[]).unwrap();
    let short = setup.sim.wait(fence, Duration::from_nanos(600));
    assert_eq!((short, setup.sim.clock().now_ns()), (Waited::TimedOut, 600));
    let long = setup.sim.wait(fence, Duration::from_secs(9));
    assert_eq!((long, setup.sim.clock().now_ns()), (Waited::Settled, 1100));
    assert_eq!(setup.log.outcomes(), [(fence, Outcome::Done)]);
    assert_eq!(setup.sim.wait(fence, Duration::ZERO), Waited::Settled);
}

#[test]
fn at_once_the_clock_has_moved_when_submit_returns() {
    let setup = setup(Completion::AtOnce, Script::new());
    let src = setup.buffer("cpu:0/pinned", &[3; 100]);
    let dst = setup.buffer("sim:0/device", &[0; 100]);
    let fence = copy(&setup.sim, &src, &dst, &[]).unwrap();
    assert!(fence.is_immediate());
    assert_eq!(setup.sim.clock().now_ns(), 1100);
    assert_eq!(setup.bytes(&dst), [3; 100]);
    assert!(setup.log.outcomes().is_empty());
    assert_eq!(setup.sim.in_flight(), 0);
    setup.sim.add_rule(Rule::fail_after(0));
    let fence = copy(&setup.sim, &src, &dst, &[]).unwrap();
    assert!(!fence.is_immediate());
    assert!(matches!(setup.log.only(), (told, Outcome::Failed(_)) if told == fence));
}

#[test]
fn out_of_order_each_fence_is_told_once_and_not_in_order() {
    let setup = setup(Completion::OutOfOrder { seed: 3 }, Script::new());
    let src = setup.buffer("cpu:0/pinned", &[3; 64]);
    let dst = setup.buffer("sim:0/device", &[0; 64]);
    let fences: Vec<Fence> = (0..32)
        .map(|at| {
            let piece = |of: &transload_hal::Buffer| of.slice(2 * at, 2).unwrap();
            copy(&setup.sim, &piece(&src), &piece(&dst), &[]).unwrap()
        })
        .collect();
    setup.sim.run_until_idle();
    let mut told = setup.log.fences();
    assert_ne!(told, fences);
    told.sort();
    assert_eq!(told, fences);
    assert_eq!(setup.bytes(&dst), [3; 64]);
}

#[test]
fn only_a_pump_or_a_wait_tells_what_has_settled() {
    let setup = setup(Completion::Pumped, Script::new());
    let src = setup.buffer("cpu:0/pinned", &[3; 64]);
    let dst = setup.buffer("sim:0/device", &[0; 64]);
    let fence = copy(&setup.sim, &src, &dst, &[]).unwrap();
    setup.sim.run_until(Instant(5000));
    assert_eq!(setup.bytes(&dst), [3; 64]);
    assert!(setup.log.outcomes().is_empty());
    setup.sim.pump();
    assert_eq!(setup.log.outcomes(), [(fence, Outcome::Done)]);
    let fence = copy(&setup.sim, &src, &dst, &[]).unwrap();
    assert_eq!(setup.sim.wait(fence, Duration::MAX), Waited::Settled);
    assert_eq!(setup.log.outcomes().len(), 2);
}

#[test]
fn a_callback_may_submit_wait_and_pump() {
    let setup = setup(Completion::Reentrant, Script::new());
    let src = setup.buffer("cpu:0/pinned", &[3; 64]);
    let dst = setup.buffer("sim:0/device", &[0; 64]);
    let again = setup.buffer("sim:1/device", &[0; 64]);
    let (sim, from, to) = (setup.sim.clone(), src.clone(), again.clone());
    setup.sim.set_hook(move |fence: Fence, _: &Outcome| {
        assert_eq!(sim.wait(fence, Duration::ZERO), Waited::Settled);
        if sim.clock().now_ns() < 10_000 {
            let next = copy(&sim, &from, &to, &[fence]).unwrap();
            assert_eq!(sim.wait(next, Duration::MAX), Waited::Settled);
            sim.pump();
        }
    });
    copy(&setup.sim, &src, &dst, &[]).unwrap();
    setup.sim.run_until_idle();
    assert_eq!(setup.bytes(&again), [3; 64]);
    assert_eq!(setup.log.outcomes().len(), 2);
}

#[test]
fn never_means_that_a_wait_only_spends_its_limit() {
    let setup = setup(Completion::Never, Script::new());
    let src = setup.buffer("cpu:0/pinned", &[3; 64]);
    let dst = setup.buffer("sim:0/device", &[0; 64]);
    let fence = copy(&setup.sim, &src, &dst, &[]).unwrap();
    assert_eq!(
        setup.sim.wait(fence, Duration::from_millis(2)),
        Waited::TimedOut
    );
    assert_eq!(setup.sim.clock().now_ns(), 2_000_000);
    assert!(!setup.sim.step());
    assert_eq!(setup.bytes(&dst), [0; 64]);
    assert!(setup.sim.lose_device(DeviceId::new(DeviceKind::SIM, 0)));
    assert!(matches!(setup.log.only(), (told, Outcome::Lost(_)) if told == fence));
}

#[test]
fn memory_is_counted_limited_and_poisoned() {
    let setup = timed();
    let device = mem("sim:0/device");
    let before = setup.sim.use_of(device).unwrap();
    assert_eq!((before.live_bytes, before.total_bytes), (0, 1_000_000));
    let one = setup
        .sim
        .allocate(device, &AllocSpec::bytes(600_000))
        .unwrap();
    assert_eq!(setup.bytes(&one)[599_999], POISON);
    assert!(one.host(0, 1).is_none());
    let error = setup.sim.allocate(device, &AllocSpec::bytes(400_001));
    assert!(matches!(
        error,
        Err(AllocError::OutOfMemory {
            len_bytes: 400_001,
            ..
        })
    ));
    let error = setup.sim.allocate(device, &AllocSpec::bytes(1_000_001));
    assert!(matches!(
        error,
        Err(AllocError::TooLarge {
            limit_bytes: 1_000_000,
            ..
        })
    ));
    let two = setup
        .sim
        .allocate(device, &AllocSpec::bytes(400_000))
        .unwrap();
    drop(one);
    let used = setup.sim.use_of(device).unwrap();
    assert_eq!((used.live_bytes, used.peak_bytes), (400_000, 1_000_000));
    assert_eq!(setup.sim.leaks().len(), 1);
    drop(two);
    assert!(setup.sim.leaks().is_empty());
    setup
        .sim
        .add_rule(Rule::out_of_memory().nth(2).in_memory(device));
    let one = AllocSpec::bytes(1);
    assert!(setup.sim.allocate(device, &one).is_ok());
    assert!(setup.sim.allocate(mem("cpu:0/pinned"), &one).is_ok());
    let error = setup.sim.allocate(device, &one).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Exhausted);
}

#[test]
fn beside_a_real_host_only_devices_are_simulated() {
    let sim = Sim::builder(&machine())
        .host(HostSide::Real)
        .build()
        .unwrap();
    let inventory = sim.inventory();
    let is_sim = |memory: MemoryId| memory.device.kind == DeviceKind::SIM;
    assert!(inventory.devices.iter().all(|device| device.simulated));
    assert!(inventory.memories.iter().all(|memory| is_sim(memory.id)));
    assert!(inventory.transform.is_none());
    assert!(inventory.links.iter().any(|link| !is_sim(link.id.src)));
    assert!(
        inventory
            .links
            .iter()
            .all(|link| is_sim(link.id.src) || is_sim(link.id.dst))
    );

    let log = Arc::new(Log::default());
    sim.attach(log.clone());
    let host = support::host_buffer(vec![9; 32]);
    let dst = sim
        .allocate(mem("sim:0/device"), &AllocSpec::bytes(32))
        .unwrap();
    let fence = copy(&sim, &host, &dst, &[]).unwrap();
    assert_eq!(sim.wait(fence, Duration::MAX), Waited::Settled);
    let mut bytes = [0; 32];
    sim.read(&dst, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 32]);
}

#[test]
fn everything_it_prints_says_simulated() {
    let setup = timed();
    let printed = [
        setup.sim.to_string(),
        format!("{:?}", setup.sim),
        format!("{:?}", setup.sim.clock()),
        Completion::Timed.to_string(),
        Completion::Never.to_string(),
    ];
    for text in printed {
        assert!(text.contains("simulated"), "{text}");
    }
    for device in setup.sim.inventory().devices {
        assert!(device.name.contains("simulated") && device.simulated);
    }
}

#[test]
fn faults_of_pitched_copies_count_payload_bytes() {
    let script = Script::new()
        .with(Rule::fail_after(6).kind(OpKind::Pitched))
        .with(Rule::corrupt(5).kind(OpKind::Pitched).nth(2));
    let setup = setup(Completion::Timed, script);
    let src = setup.buffer("cpu:0/pinned", &[3; 64]);
    let dst = setup.buffer("sim:0/device", &[0; 64]);
    let rows = Shape::pitched(4, 4, 16).unwrap();
    let pitched = |buffer| Layout {
        buffer,
        offset: 0,
        shape: rows,
    };
    let op = Op::Pitched {
        src: pitched(&src),
        dst: pitched(&dst),
        span: Span::new(0, 16),
    };
    // SAFETY: the buffers outlive the test, and no other code touches them.
    unsafe { setup.sim.submit(None, &[op], &[]) }.unwrap();
    setup.sim.run_until_idle();
    assert_eq!(setup.sim.clock().now_ns(), 1016);
    let seen = setup.bytes(&dst);
    assert_eq!(
        (&seen[..4], &seen[16..20]),
        (&[3; 4][..], &[3, 3, 0, 0][..])
    );
    // SAFETY: as above.
    unsafe { setup.sim.submit(None, &[op], &[]) }.unwrap();
    setup.sim.run_until_idle();
    let seen = setup.bytes(&dst);
    assert_eq!(seen[16..20], [3, !3, 3, 3]);
    assert_eq!(seen[4..16], [0; 12]);
}

#[test]
fn a_transform_runs_on_its_engine_and_may_panic() {
    struct Sees(std::sync::atomic::AtomicU64);
    impl Transform for Sees {
        fn inspect(&self, bytes: &[u8], position: u64) -> Result<(), Fault> {
            assert!(position < 1000, "a transform that panics");
            let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
            self.0.fetch_add(sum, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        }
    }
    let setup = timed();
    let bytes = setup.buffer("cpu:0/pageable", &[2; 100]);
    let sees = Sees(Default::default());
    let transform = |position| Op::Transform {
        at: part(&bytes).into(),
        span: Span::new(0, bytes.len()),
        transform: &sees,
        position,
    };
    // SAFETY: buffer and transform outlive the machine's work on them.
    let fine = unsafe { setup.sim.submit(None, &[transform(0)], &[]) }.unwrap();
    // SAFETY: as above.
    let panics = unsafe { setup.sim.submit(None, &[transform(5000)], &[fine]) }.unwrap();
    assert_eq!(setup.sim.run_until_idle(), Instant(2200));
    assert_eq!(sees.0.load(std::sync::atomic::Ordering::Relaxed), 200);
    let outcomes = setup.log.outcomes();
    assert_eq!(outcomes[0], (fine, Outcome::Done));
    assert_eq!(outcomes[1].0, panics);
    assert!(matches!(&outcomes[1].1, Outcome::Failed(fault) if fault.message.contains("panicked")));
}

#[cfg(transload_local)]
#[test]
fn a_local_sim_is_not_send_and_settles_all_the_same() {
    trait AmbiguousIfSend<A> {
        fn probe() {}
    }
    impl<T: ?Sized> AmbiguousIfSend<()> for T {}
    impl<T: ?Sized + Send> AmbiguousIfSend<u8> for T {}
    // The name is unambiguous only while the sim is not `Send`.
    <Sim as AmbiguousIfSend<_>>::probe();

    let setup = setup(Completion::Local, Script::new());
    let src = setup.buffer("cpu:0/pinned", &[7; 100]);
    let dst = setup.buffer("sim:0/device", &[0; 100]);
    let fence = copy(&setup.sim, &src, &dst, &[]).unwrap();
    assert_eq!(setup.sim.wait(fence, Duration::MAX), Waited::Settled);
    assert_eq!(setup.bytes(&dst), [7; 100]);
}

#[test]
fn a_sink_that_panics_leaves_no_waiter_behind() {
    struct Panics;
    impl transload_hal::CompletionSink for Panics {
        fn settle(&self, _: Fence, _: Outcome) {
            panic!("a sink that panics");
        }
    }
    let sim = Sim::new(&machine()).unwrap();
    sim.attach(Arc::new(Panics));
    let spec = AllocSpec::bytes(8);
    let src = sim.allocate(mem("cpu:0/pinned"), &spec).unwrap();
    let dst = sim.allocate(mem("sim:0/device"), &spec).unwrap();
    let fence = copy(&sim, &src, &dst, &[]).unwrap();
    let run = std::panic::AssertUnwindSafe(|| sim.wait(fence, Duration::MAX));
    assert!(std::panic::catch_unwind(run).is_err());
    assert_eq!(sim.wait(fence, Duration::ZERO), Waited::Settled);
}

#[cfg(not(transload_local))]
#[test]
fn many_threads_wait_on_one_machine() {
    let sim = Sim::new(&machine()).unwrap();
    let log = Arc::new(Log::default());
    sim.attach(log.clone());
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let sim = sim.clone();
            scope.spawn(move || {
                let gpu = format!("sim:{}/device", thread % 2);
                let spec = AllocSpec::bytes(100);
                for round in 0..50u8 {
                    let src = sim.allocate(mem("cpu:0/pinned"), &spec).unwrap();
                    let dst = sim.allocate(mem(&gpu), &spec).unwrap();
                    sim.write(&src, 0, &[round; 100]).unwrap();
                    let fence = copy(&sim, &src, &dst, &[]).unwrap();
                    assert_eq!(sim.wait(fence, Duration::from_secs(1)), Waited::Settled);
                    let mut seen = [0; 100];
                    sim.read(&dst, 0, &mut seen).unwrap();
                    assert_eq!(seen, [round; 100]);
                }
            });
        }
    });
    assert_eq!(log.outcomes().len(), 400);
    assert!(sim.violations().is_empty() && sim.leaks().is_empty());
}
