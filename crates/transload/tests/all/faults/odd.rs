//! Forbidden acts of backends and callers: odd slots, outcomes that are reported twice, calls back into the manager,
//! caches cleared and backends registered in mid-flight, devices lost under many transfers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use transload::hal::{
    AllocError, Buffer as RawBuffer, CompletionSink, ErrorClass, Fence, HostSpan, Outcome,
    StorageId, StorageInfo,
};
use transload::host::Host;
use transload::{
    AllocSpec, Backend, MemoryId, StagingBudget, Transfer, TransferError, TransferManager,
};
use transload_testkit::sim::{BACKEND, Completion, Sim};

use crate::common::{Bench, SLOT, device, marked, modes, place, two_devices};
use crate::faults::scenarios::{PEER, STAGED};

const LEN: u64 = 3 * SLOT + 3;

#[test]
fn slots_that_are_not_what_was_asked_for_are_refused() {
    for oddity in [Oddity::ShortSlots, Oddity::ReadOnlySlots] {
        let (sim, manager, budget) = manage(oddity);
        let result = copy(&sim, &manager);
        let Err(TransferError::Failed(failure)) = &result else {
            panic!("{oddity:?}: {result:?}");
        };
        assert_eq!(failure.step, None, "{failure}");
        assert!(failure.fault.to_string().contains("65536"), "{failure}");
        manager.clear_cache();
        assert_eq!(budget.used_bytes(), 0, "{oddity:?}");
        assert_eq!(sim.leaks(), [], "{oddity:?}");
    }
}

#[test]
fn outcomes_that_are_told_twice_or_of_nobody_change_nothing() {
    for oddity in [Oddity::TellsTwice, Oddity::TellsStrangers] {
        let (sim, manager, budget) = manage(oddity);
        for _ in 0..3 {
            assert!(copy(&sim, &manager).is_ok(), "{oddity:?}");
        }
        manager.clear_cache();
        assert_eq!(budget.used_bytes(), 0, "{oddity:?}");
        assert_eq!(sim.leaks(), [], "{oddity:?}");
        assert_eq!(sim.violations(), [], "{oddity:?}");
    }
}

#[test]
fn callbacks_may_submit_and_let_go() {
    let bench = Bench::new(&two_devices(), Completion::Reentrant, 3);
    let (src, dst) = (
        bench.filled("sim:0", marked(LEN)),
        bench.empty("sim:1", LEN),
    );
    let (small, copies) = (
        bench.filled("sim:1", marked(100)),
        bench.empty("sim:0", 3000),
    );
    let kept: Arc<Mutex<Vec<Transfer>>> = Arc::default();
    let (manager, count) = (bench.manager.clone(), AtomicU64::new(0));
    let (tell, called) = mpsc::channel();
    let list = Arc::clone(&kept);
    bench.sim.set_hook(move |_, _: &_| {
        let n = count.fetch_add(1, Ordering::Relaxed);
        if n >= 30 {
            return;
        }
        let target = copies.slice(n * 100..(n + 1) * 100).unwrap();
        let transfer = manager.copy(&small, target);
        if n % 2 == 0 {
            list.lock().unwrap().push(transfer);
        }
        manager.turn();
        // The send fails only after the waiting test has given up.
        let _ = tell.send(());
    });
    // The hook does not run for outcomes that another thread reports while the hook runs, so a transfer may end after a
    // single call. The test submits more until the hook has run three times.
    let mut calls = 0;
    while calls < 3 {
        bench.manager.copy(&src, &dst).wait().unwrap();
        assert!(bench.read(&dst) == marked(LEN));
        calls += called.try_iter().count();
    }
    bench.sim.set_hook(|_, _: &_| {});
    let kept = std::mem::take(&mut *kept.lock().unwrap());
    assert!(!kept.is_empty());
    for transfer in kept {
        transfer.wait().unwrap();
    }
    assert_eq!(bench.sim.violations(), []);
}

#[test]
fn caches_may_be_cleared_at_every_point() {
    for scenario in [STAGED, PEER] {
        let machine = scenario.machine(false);
        for mode in modes() {
            for events in 0..60 {
                let context = (scenario.name, mode, events);
                let bench = scenario.bench(&machine, mode);
                let (src, dst) = scenario.ends(&bench);
                let transfer = bench.manager.copy(src.region(), dst.region());
                let mut more = true;
                for _ in 0..events {
                    more = bench.sim.step();
                    bench.manager.turn();
                }
                bench.manager.clear_cache();
                bench.manager.reset_stats();
                transfer.wait().unwrap();
                assert!(
                    dst.inner(&bench, &context) == marked(scenario.len),
                    "{context:?}"
                );
                drop((src, dst));
                bench.manager.clear_cache();
                assert_eq!(bench.budget.used_bytes(), 0, "{context:?}");
                assert_eq!(bench.sim.leaks(), [], "{context:?}");
                assert_eq!(bench.sim.violations(), [], "{context:?}");
                if !more {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_backend_may_be_registered_while_others_are_at_work() {
    let sketch = crate::common::Sketch::new()
        .device("sim:0", &["device"])
        .device("sim:1", &["device"])
        .link("sim:0/device", "sim:1/device", "sim:0#0", "native");
    let bench = Bench::new(&sketch, Completion::Timed, 3);
    let (src, dst) = (
        bench.filled("sim:0", marked(LEN)),
        bench.empty("sim:1", LEN),
    );
    let transfer = bench.manager.copy(&src, &dst);
    bench.manager.register_backend(Host::new()).unwrap();
    let heap = bench.manager.adopt(marked(50).to_vec()).unwrap();
    let other = bench.manager.adopt(vec![0u8; 50]).unwrap();
    bench.manager.copy(&heap, &other).wait().unwrap();
    transfer.wait().unwrap();
    assert!(bench.read(&dst) == marked(LEN));
}

#[test]
fn a_device_that_goes_under_a_crowd_answers_everybody() {
    for mode in modes() {
        let bench = Bench::new(&two_devices(), mode, 6);
        let src = bench.filled("cpu:0/pinned", marked(100 * 1000));
        let [near, far] = ["sim:0", "sim:1"].map(|at| bench.empty(at, 100 * 1000));
        let part = |buffer: &transload::Buffer, n: u64| buffer.slice(n * 1000..(n + 1) * 1000);
        let mut near_ones = Vec::new();
        let mut far_ones = Vec::new();
        for n in 0..100 {
            let src = part(&src, n).unwrap();
            near_ones.push(bench.manager.copy(&src, part(&near, n).unwrap()));
            far_ones.push(bench.manager.copy(&src, part(&far, n).unwrap()));
        }
        for _ in 0..20 {
            bench.sim.step();
            bench.manager.turn();
        }
        bench.sim.lose_device(device("sim:0"));
        let (mut arrived, mut lost) = (0, 0);
        for transfer in near_ones {
            match transfer.wait() {
                Ok(_) => arrived += 1,
                Err(error) => {
                    let class = error.class();
                    let told = [ErrorClass::Lost, ErrorClass::Unsupported].contains(&class);
                    assert!(told, "{mode}: {error}");
                    lost += 1;
                }
            }
        }
        assert_eq!(arrived + lost, 100);
        assert!(lost > 0 || mode == Completion::AtOnce, "{mode}");
        for transfer in far_ones {
            transfer.wait().unwrap();
        }
        assert!(bench.read(&far) == marked(100 * 1000), "{mode}");
        drop((src, near, far));
        bench.manager.clear_cache();
        assert_eq!(bench.sim.leaks(), [], "{mode}");
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Oddity {
    ShortSlots,
    ReadOnlySlots,
    TellsTwice,
    TellsStrangers,
}

fn manage(oddity: Oddity) -> (Sim, TransferManager, Arc<StagingBudget>) {
    let sim = Sim::new(&two_devices().machine()).unwrap();
    let budget = Arc::new(StagingBudget::new(3 * SLOT));
    let manager = TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .staging(Arc::clone(&budget))
        .backend(Arc::new(Odd {
            sim: sim.clone(),
            oddity,
        }))
        .build()
        .unwrap();
    (sim, manager, budget)
}

fn copy(sim: &Sim, manager: &TransferManager) -> Result<(), TransferError> {
    let [src, dst] = ["sim:0", "sim:1"].map(|at| {
        let spec = AllocSpec::bytes(LEN);
        manager.allocate(place(at), spec).unwrap()
    });
    sim.write(src.raw(), 0, marked(LEN)).unwrap();
    manager.copy(&src, &dst).wait()?;
    let mut back = vec![0; LEN as usize];
    sim.read(dst.raw(), 0, &mut back).unwrap();
    assert!(back == marked(LEN));
    Ok(())
}

/// A simulated machine that breaks rules on purpose.
struct Odd {
    sim: Sim,
    oddity: Oddity,
}

struct OddSink {
    sink: Arc<dyn CompletionSink>,
    oddity: Oddity,
}

impl CompletionSink for OddSink {
    fn settle(&self, fence: Fence, outcome: Outcome) {
        if self.oddity == Oddity::TellsStrangers {
            let stranger = Fence::new(BACKEND, u64::MAX - fence.number());
            self.sink.settle(stranger, Outcome::Done);
        }
        self.sink.settle(fence, outcome.clone());
        if self.oddity == Oddity::TellsTwice {
            self.sink.settle(fence, outcome);
        }
    }
}

// SAFETY: the simulated machine executes the operations. The broken rules include no promise that memory safety needs:
// slots are valid for the length that they state, and fences are reported after they have settled.
unsafe impl Backend for Odd {
    left_to_the_sim!(inventory exchange connect submit pump wait);

    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<RawBuffer, AllocError> {
        let buffer = self.sim.allocate(memory, spec)?;
        match self.oddity {
            Oddity::ShortSlots if spec.staging => Ok(buffer.slice(0, spec.len_bytes / 2).unwrap()),
            Oddity::ReadOnlySlots if spec.staging => Ok(read_only(memory, spec.len_bytes)),
            _ => Ok(buffer),
        }
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        let oddity = self.oddity;
        self.sim.attach(Arc::new(OddSink { sink, oddity }))
    }
}

fn read_only(memory: MemoryId, len: u64) -> RawBuffer {
    let bytes = vec![0u8; len as usize];
    let host = HostSpan::of(&bytes);
    let info = StorageInfo {
        id: StorageId::Host,
        base: host.addr(),
        len_bytes: len,
        memory,
        backend: BACKEND,
        writable: false,
        host: Some(host),
    };
    // SAFETY: the vector's block stays where it is and no other code touches it.
    unsafe { RawBuffer::new(info, Box::new(bytes)) }
}
