//! Slots that arrive late: after the leg that wanted them is over, or after its transfer is gone.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, ThreadId};

use transload::hal::{AllocError, ErrorClass};
use transload::{Backend, Cancelled, MemoryId, OnFailure, Request, StagingBudget, TransferManager};
use transload_testkit::sim::{Call, Completion, Rule, Script};

use crate::regressions::gate::{Gate, Keeper, Watched};
use crate::regressions::{HANG, bytes, bytes_of, empty, filled, simulated};

/// Blocks the submitting thread at its second slot until another thread asks for a slot. Blocks that thread until the
/// engine has the first thread's slot.
struct Late {
    submitter: Arc<Submitter>,
    slots: AtomicU32,
    entered: Sender<()>,
    go: Mutex<Receiver<()>>,
    let_go: Sender<()>,
    recorded: Mutex<Receiver<()>>,
    crossed: AtomicBool,
}

#[derive(Default)]
struct Submitter {
    thread: OnceLock<ThreadId>,
    has_slot: AtomicBool,
    looks: AtomicU32,
}

impl Submitter {
    fn is_here(&self) -> bool {
        self.thread.get() == Some(&thread::current().id())
    }

    /// Whether the late slot has been recorded by this look at the clock: a thread looks once between executing its
    /// order and recording the result.
    fn has_recorded(&self) -> bool {
        self.is_here()
            && self.has_slot.load(Ordering::SeqCst)
            && self.looks.fetch_add(1, Ordering::SeqCst) == 1
    }
}

impl Keeper for Late {
    fn slot(&self, _: MemoryId) -> Result<(), AllocError> {
        if self.submitter.thread.get().is_none() {
            return Ok(());
        }
        if self.submitter.is_here() {
            if self.slots.fetch_add(1, Ordering::SeqCst) == 1 {
                let _ = self.entered.send(());
                let _ = self.go.lock().unwrap().recv();
                self.submitter.has_slot.store(true, Ordering::SeqCst);
            }
        } else if self.slots.load(Ordering::SeqCst) == 2
            && !self.crossed.swap(true, Ordering::SeqCst)
        {
            let _ = self.let_go.send(());
            let _ = self.recorded.lock().unwrap().recv_timeout(HANG);
        }
        Ok(())
    }
}

/// Returns whether a slot of the first leg arrived while the second leg waited for its own. The `others` small copies
/// set where the rounds of the submitting thread end.
fn crosses(others: u64) -> bool {
    // No bytes can go from device to device directly.
    let script = Script::new().with(Rule::refuse(Call::Connect, ErrorClass::Unsupported).always());
    let sim = simulated("eight-gpu.toml", Completion::Timed, script);
    let submitter = Arc::new(Submitter::default());
    let (entered, has_entered) = mpsc::channel();
    let (let_go, go) = mpsc::channel();
    let (record, recorded) = mpsc::channel();
    let looking = Arc::clone(&submitter);
    let clock = Watched {
        clock: sim.clock(),
        look: move || {
            if looking.has_recorded() {
                let _ = record.send(());
            }
        },
    };
    let gate = Arc::new(Gate {
        sim: sim.clone(),
        keeper: Late {
            submitter: Arc::clone(&submitter),
            slots: AtomicU32::new(0),
            entered: entered.clone(),
            go: Mutex::new(go),
            let_go: let_go.clone(),
            recorded: Mutex::new(recorded),
            crossed: AtomicBool::new(false),
        },
    });
    let manager = TransferManager::builder()
        .clock(Arc::new(clock))
        .staging(Arc::new(StagingBudget::new(64 << 20)))
        .backend(Arc::clone(&gate) as Arc<dyn Backend>)
        .build()
        .unwrap();
    let wanted = bytes(8 << 20);
    let src = filled(&sim, &manager, "sim:0", &wanted);
    let dst = empty(&manager, "sim:1", src.len());
    let warm = (src.slice(..64).unwrap(), dst.slice(..64).unwrap());
    manager.copy(&warm.0, &warm.1).wait().unwrap();
    let (device, pinned) = ("sim:0/device".parse(), "cpu:0/pinned".parse());
    let first = Rule::fail_after(0).over(device.unwrap(), pinned.unwrap());
    sim.add_rule(first.always());

    let far = filled(&sim, &manager, "cpu:0", &bytes(8 * others as usize));
    let near = empty(&manager, "cpu:0", far.len());
    let part = |i| 8 * i..8 * (i + 1);
    let mut requests = vec![Request::new(&src, &dst)];
    requests.extend(
        (0..others)
            .map(|i| Request::new(far.slice(part(i)).unwrap(), near.slice(part(i)).unwrap())),
    );
    let batch = manager.clone();
    let submitting = thread::spawn(move || {
        submitter.thread.set(thread::current().id()).unwrap();
        let batch = batch.copy_batch(&requests, OnFailure::GoOn).unwrap();
        let _ = entered.send(());
        batch.wait()
    });
    has_entered
        .recv_timeout(HANG)
        .expect("the submitting thread hangs");
    // Meanwhile the first leg fails, and this thread plans the second one.
    sim.run_until_idle();
    manager.turn();
    let _ = let_go.send(());
    for result in submitting.join().unwrap() {
        result.unwrap();
    }
    assert!(bytes_of(&sim, &dst) == wanted);
    assert_eq!(bytes_of(&sim, &near), bytes_of(&sim, &far));
    assert_eq!(sim.violations(), []);
    gate.keeper.crossed.load(Ordering::SeqCst)
}

#[test]
fn a_late_slot_is_never_taken_for_one_of_the_next_leg() {
    // A thread takes up to 32 orders a round: one of these counts ends a round between the first
    // operation of the leg and its next slot.
    let crossed: Vec<u64> = (58..66).filter(|others| crosses(*others)).collect();
    assert!(!crossed.is_empty(), "no late slot met the next leg");
}

/// Blocks each thread that allocates a slot, and may then refuse the slot.
struct Held {
    entered: Sender<()>,
    go: Mutex<Receiver<()>>,
    refuses: bool,
}

impl Keeper for Held {
    fn slot(&self, memory: MemoryId) -> Result<(), AllocError> {
        let _ = self.entered.send(());
        let _ = self.go.lock().unwrap().recv();
        match self.refuses {
            true => Err(AllocError::UnknownMemory { memory }),
            false => Ok(()),
        }
    }
}

#[test]
fn a_slot_of_a_transfer_that_has_gone_is_given_back() {
    for refuses in [true, false] {
        let sim = simulated("workstation.toml", Completion::Timed, Script::new());
        let (entered, has_entered) = mpsc::channel();
        let (let_go, go) = mpsc::channel();
        let gate = Gate {
            sim: sim.clone(),
            keeper: Held {
                entered,
                go: Mutex::new(go),
                refuses,
            },
        };
        let budget = Arc::new(StagingBudget::new(64 << 20));
        let manager = TransferManager::builder()
            .clock(Arc::new(sim.clock()))
            .staging(Arc::clone(&budget))
            .backend(Arc::new(gate))
            .build()
            .unwrap();
        let src = empty(&manager, "sim:0", 4 << 20);
        let dst = empty(&manager, "sim:1", 4 << 20);
        let event = manager.event();
        let transfer = manager.submit(&Request::new(&src, &dst).after(&event));
        let setting = thread::spawn(move || event.set());
        has_entered
            .recv_timeout(HANG)
            .expect("no slot is allocated");
        assert!(budget.used_bytes() > 0, "the slot is reserved");
        assert_eq!(transfer.cancel(), Cancelled::NotStarted);
        drop(let_go);
        setting.join().unwrap();
        manager.turn();
        // The next transfer takes the place of the old one, but gets no part of its allocation.
        let next = manager.copy(src.slice(..64).unwrap(), src.slice(64..128).unwrap());
        assert_eq!(next.fences().map(|fences| fences.len()), Some(1));
        drop(next);
        sim.run_until_idle();
        manager.clear_cache();
        assert_eq!(budget.used_bytes(), 0, "refuses: {refuses}");
        assert_eq!(sim.violations(), []);
    }
}
