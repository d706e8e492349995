//! Backends that take only a few operations at a time: further operations wait, and none fails.
#![cfg(not(any(loom, transload_local)))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use crate::fixture::{Outcome, bytes, modes, place, without_peers};
use crate::tight::Tight;
use crate::within::within_limit;
use transload::hal::{Backend, ErrorClass, Fence, Op, SubmitError};
use transload::model::LinkId;
use transload::{
    AllocSpec, Buffer, Cancelled, Clock, Instant, OnFailure, Priority, Request, StagingBudget,
    Transfer, TransferError, TransferManager,
};
use transload_testkit::sim::{Completion, Rule, Sim};
use transload_testkit::topology;

/// A machine that takes three operations at a time.
struct Narrow {
    sim: Sim,
    refused: Arc<AtomicUsize>,
}

const LIMIT: usize = 3;

// SAFETY: the simulated machine executes the operations; the backend refuses all others.
unsafe impl Backend for Narrow {
    left_to_the_sim!(inventory allocate exchange connect attach completes_unattended pump wait wait_any);

    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        if self.sim.in_flight() >= LIMIT {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(SubmitError::Full { limit: LIMIT });
        }
        // SAFETY: the caller keeps the same promise that the machine asks for.
        unsafe { self.sim.submit(via, ops, after) }
    }
}

struct Scene {
    sim: Sim,
    manager: TransferManager,
    refused: Arc<AtomicUsize>,
}

impl Scene {
    fn new(completion: Completion) -> Scene {
        let machine = topology::from_str(&without_peers(2)).unwrap();
        let sim = Sim::builder(&machine).completion(completion).build();
        let sim = sim.unwrap();
        let refused = Arc::new(AtomicUsize::new(0));
        let narrow = Narrow {
            sim: sim.clone(),
            refused: Arc::clone(&refused),
        };
        let manager = TransferManager::builder()
            .clock(Arc::new(sim.clock()))
            .backend(Arc::new(narrow))
            .staging(Arc::new(StagingBudget::new(1 << 20)))
            .build()
            .unwrap();
        Scene {
            sim,
            manager,
            refused,
        }
    }

    /// A pair of buffers; the first is filled with the bytes of `seed`.
    fn pair(&self, to: &str, len: usize, seed: u64) -> (Buffer, Buffer) {
        let allocate = |at| {
            let spec = AllocSpec::bytes(len as u64);
            self.manager.allocate(place(at), spec).unwrap()
        };
        let (src, dst) = (allocate("sim:0"), allocate(to));
        self.sim.write(src.raw(), 0, &bytes(len, seed)).unwrap();
        (src, dst)
    }

    fn has(&self, dst: &Buffer, seed: u64) -> bool {
        let mut found = vec![0; dst.len() as usize];
        self.sim.read(dst.raw(), 0, &mut found).unwrap();
        found == bytes(found.len(), seed)
    }
}

#[test]
fn transfers_wait_for_a_backend_that_is_full() -> Outcome {
    for mode in modes() {
        let scene = Scene::new(mode);
        // Direct copies, and staged copies of several operations each.
        let len = |at: usize| if at.is_multiple_of(3) { 300_000 } else { 100 };
        let to = |at: usize| {
            if at.is_multiple_of(3) {
                "sim:1"
            } else {
                "cpu:0"
            }
        };
        let pairs: Vec<_> = (0..60)
            .map(|at| scene.pair(to(at), len(at), at as u64))
            .collect();
        let requests: Vec<_> = { pairs.iter() }
            .map(|(src, dst)| Request::new(src, dst))
            .collect();
        let batch = scene.manager.copy_batch(&requests, OnFailure::GoOn)?;
        for result in batch.wait() {
            result?;
        }
        for (at, (_, dst)) in pairs.iter().enumerate() {
            assert!(scene.has(dst, at as u64), "{mode}: transfer {at}");
        }
        if mode == Completion::Timed {
            assert!(scene.refused.load(Ordering::Relaxed) > 0, "never full");
        }
        assert_eq!(scene.sim.violations(), []);
    }
    Ok(())
}

#[test]
fn what_waits_for_room_is_cancelled_and_expires_at_once() -> Outcome {
    let scene = Scene::new(Completion::Timed);
    let pairs: Vec<_> = (0..8).map(|at| scene.pair("cpu:0", 100, at)).collect();
    let limit = scene.manager.now() + std::time::Duration::from_nanos(10);
    let submit = |at: usize| {
        let (src, dst) = &pairs[at];
        let request = Request::new(src, dst);
        let request = if at == 6 {
            request.deadline(limit)
        } else {
            request
        };
        scene.manager.submit(&request)
    };
    let mut transfers: Vec<Transfer> = (0..8).map(submit).collect();
    let last = transfers.pop().unwrap();
    let cancelled = last.cancel();
    assert_eq!(cancelled, Cancelled::Stopped { leading_bytes: 0 });
    let late = transfers.pop().unwrap();
    scene.sim.run_until(limit);
    scene.manager.turn();
    assert!(late.is_over(), "it has no room yet");
    let error = late.wait().unwrap_err();
    assert_eq!(error, TransferError::Deadline { leading_bytes: 0 });
    for transfer in transfers {
        transfer.wait()?;
    }
    assert!((0..6).all(|at| scene.has(&pairs[at].1, at as u64)));
    assert!(!scene.has(&pairs[7].1, 7));
    Ok(())
}

#[test]
fn an_urgent_transfer_goes_before_others_that_wait_for_room() {
    let scene = Scene::new(Completion::Timed);
    let pairs: Vec<_> = (0..10).map(|at| scene.pair("cpu:0", 100, at)).collect();
    let submit = |at: usize| {
        let (src, dst) = &pairs[at];
        let priority = if at == 9 {
            Priority::High
        } else {
            Priority::Normal
        };
        let request = Request::new(src, dst).priority(priority);
        scene.manager.submit(&request)
    };
    let transfers: Vec<Transfer> = (0..10).map(submit).collect();
    while !transfers[9].is_over() {
        assert!(scene.sim.step(), "nothing moves");
        scene.manager.turn();
    }
    let over = transfers.iter().filter(|transfer| transfer.is_over());
    assert!(over.count() <= LIMIT + 2, "it waited behind normal ones");
}

#[test]
fn more_copies_of_a_file_are_under_way_than_the_host_takes_at_a_time() -> Outcome {
    const MANY: usize = 30_000;
    let path = std::env::temp_dir().join(format!("transload-backlog-{}", std::process::id()));
    std::fs::write(&path, bytes(8 * MANY, 5))?;
    let manager = TransferManager::builder().host().build()?;
    let src = manager.open_file(&path);
    std::fs::remove_file(&path)?;
    let (src, dst) = (src?, manager.adopt(vec![0u8; 8 * MANY])?);
    let gate = manager.event();
    let submit = |at: usize| {
        let range = 8 * at as u64..8 * at as u64 + 8;
        let request = Request::new(src.slice(range.clone())?, dst.slice(range)?);
        Ok(manager.submit(&request.after(&gate)))
    };
    let transfers = (0..MANY).map(submit);
    let transfers = transfers.collect::<Result<Vec<Transfer>, transload::Error>>()?;
    gate.set();
    for transfer in transfers {
        transfer.wait()?;
    }
    assert!(*dst.read()? == bytes(8 * MANY, 5));
    Ok(())
}

/// A transfer behind an event. The test runs an action while the backend holds up the submission that found no room.
fn refused_while(
    tight: &Tight,
    deadline: Option<Instant>,
    meanwhile: impl FnOnce(&Transfer),
) -> Transfer {
    let call = tight.hold(200);
    let (src, dst) = tight.pair("tight:0", 200);
    let gate = tight.manager.event();
    let mut request = Request::new(&src, &dst).after(&gate);
    if let Some(deadline) = deadline {
        request = request.deadline(deadline);
    }
    let transfer = tight.manager.submit(&request);
    thread::scope(|scope| {
        scope.spawn(|| {
            gate.set();
            tight.manager.turn();
        });
        call.has_begun();
        meanwhile(&transfer);
        drop(call);
    });
    transfer
}

/// A copy that stays in flight and keeps its place in the queue.
fn stalled(tight: &Tight, len: u64) -> Transfer {
    tight.desk.stall(len);
    let (src, dst) = tight.pair("tight:0", len);
    tight.manager.copy(&src, &dst)
}

#[test]
fn a_transfer_that_is_cancelled_while_its_backend_refuses_it_is_over_at_once() {
    within_limit("a cancelled transfer", || {
        let tight = Tight::new(1);
        let held = stalled(&tight, 100);
        let transfer = refused_while(&tight, None, |transfer| {
            transfer.canceller().cancel();
            // The engine has asked the backends to stop the operations in flight.
            assert!(!transfer.is_over());
        });
        let ended = transfer.wait().unwrap_err();
        assert_eq!(ended, TransferError::Cancelled { leading_bytes: 0 });
        assert_eq!(tight.desk.submitted(), [100]);
        tight.desk.release(100);
        held.wait().unwrap();
    });
}

/// A clock that the test sets.
#[derive(Default)]
struct Hands(AtomicU64);

impl Clock for Hands {
    fn now(&self) -> Instant {
        Instant(self.0.load(Ordering::SeqCst))
    }
}

#[test]
fn a_deadline_that_passes_while_the_backend_refuses_the_operation_is_told_at_once() {
    within_limit("a late transfer", || {
        let clock = Arc::new(Hands::default());
        let tight = Tight::timed(1, Some(Arc::clone(&clock) as Arc<dyn Clock>));
        let held = stalled(&tight, 100);
        let transfer = refused_while(&tight, Some(Instant(10)), |_| {
            clock.0.store(11, Ordering::SeqCst);
            tight.manager.turn();
        });
        tight.manager.turn();
        assert!(transfer.is_over());
        let ended = transfer.wait().unwrap_err();
        assert_eq!(ended, TransferError::Deadline { leading_bytes: 0 });
        tight.desk.release(100);
        held.wait().unwrap();
    });
}

#[test]
fn a_transfer_in_the_place_of_a_stopped_one_is_cancelled_while_it_waits_for_room() {
    within_limit("a cancelled transfer", || {
        let tight = Tight::new(2);
        for stopped in [stalled(&tight, 100), stalled(&tight, 101)] {
            stopped.canceller().cancel();
            tight.desk.release(stopped.progress().unwrap().1);
            let _ = stopped.wait();
        }
        tight.set_limit(1);
        let held = stalled(&tight, 102);
        let (src, dst) = tight.pair("tight:0", 200);
        let ended = tight.manager.copy(&src, &dst).cancel();
        assert_eq!(ended, Cancelled::Stopped { leading_bytes: 0 });
        tight.desk.release(102);
        held.wait().unwrap();
    });
}

#[test]
fn an_operation_takes_the_place_that_became_free_while_it_was_refused() {
    within_limit("a lost place", || {
        let tight = Tight::new(2);
        let (held, second) = (stalled(&tight, 100), stalled(&tight, 101));
        let transfer = refused_while(&tight, None, |_| {
            tight.desk.release(101);
            second.wait().unwrap();
        });
        transfer.wait().unwrap();
        assert_eq!(tight.refused(), 1);
        tight.desk.release(100);
        held.wait().unwrap();
    });
}

#[test]
fn an_operation_waits_for_a_submission_that_has_not_returned() {
    within_limit("a busy thread", || {
        let tight = Tight::new(1);
        let call = tight.hold(100);
        let [first, second] = [100, 200].map(|len| tight.pair("tight:0", len));
        thread::scope(|scope| {
            let copy = || tight.manager.copy(&first.0, &first.1).wait();
            let first = scope.spawn(copy);
            call.has_begun();
            let second = tight.manager.copy(&second.0, &second.1);
            let (is_over, refused) = (second.is_over(), tight.refused());
            drop(call);
            assert_eq!((is_over, refused), (false, 1));
            second.wait().unwrap();
            first.join().unwrap().unwrap();
        });
    });
}

#[test]
fn an_operation_waits_for_a_hint_that_has_the_only_place() {
    within_limit("a prefetch", || {
        let tight = Tight::new(1);
        tight.desk.stall(100);
        let call = tight.hold(100);
        let (hinted, _) = tight.pair("tight:0", 100);
        let (src, dst) = tight.pair("tight:0", 200);
        thread::scope(|scope| {
            let prefetch = || tight.manager.prefetch(&hinted, "tight:0".parse().unwrap());
            let prefetch = scope.spawn(prefetch);
            call.has_begun();
            let refused = tight.manager.copy(&src, &dst);
            drop(call);
            let is_over = refused.is_over();
            tight.desk.release(100);
            assert!(!is_over);
            refused.wait().unwrap();
            prefetch.join().unwrap().unwrap();
        });
    });
}

#[test]
fn an_operation_is_refused_once_when_the_engine_has_nothing_in_a_full_backend() {
    let tight = Tight::new(0);
    let (src, dst) = tight.pair("tight:0", 100);
    let error = tight.manager.copy(&src, &dst).wait().unwrap_err();
    assert_eq!(error.class(), ErrorClass::Exhausted);
    assert_eq!(tight.refused(), 1);
    // The engine must not blame the link.
    tight.set_limit(1);
    tight.manager.copy(&src, &dst).wait().unwrap();
}

#[test]
fn operations_that_wait_for_one_engine_hold_up_none_for_another() {
    within_limit("an idle engine", || {
        let tight = Tight::new(1);
        let held = stalled(&tight, 100);
        let (src, dst) = tight.pair("tight:0", 200);
        let waiting = tight.manager.copy(&src, &dst);
        let (src, dst) = tight.pair("tight:0/pinned", 300);
        tight.manager.copy(&src, &dst).wait().unwrap();
        assert!(!waiting.is_over());
        tight.desk.release(100);
        waiting.wait().unwrap();
        held.wait().unwrap();
    });
}

#[test]
fn a_leg_that_fails_does_not_wait_until_its_other_operations_have_room() {
    let scene = Scene::new(Completion::Timed);
    let (device, pinned) = ("sim:0/device".parse(), "cpu:0/pinned".parse());
    let pageable = "cpu:0/pageable".parse().unwrap();
    let (device, pinned) = (device.unwrap(), pinned.unwrap());
    let silence = Rule::never_answer().over(device, pageable);
    scene.sim.add_rule(silence.always());
    scene.sim.add_rule(Rule::fail_after(0).over(device, pinned));
    let silent: Vec<_> = (0..3).map(|at| scene.pair("cpu:0", 100, at)).collect();
    let copy = |at: usize| Request::new(&silent[at].0, &silent[at].1);
    let mut held = vec![
        scene.manager.submit(&copy(0)),
        scene.manager.submit(&copy(1)),
    ];
    // One operation of the copy is in flight, and the next one waits.
    let (src, dst) = scene.pair("sim:1", 300_000, 3);
    let staged = scene.manager.copy(&src, &dst);
    assert!(scene.refused.load(Ordering::Relaxed) > 0);
    // The urgent copy takes the place of the one that fails.
    let urgent = copy(2).priority(Priority::High);
    held.push(scene.manager.submit(&urgent));
    while !staged.is_over() {
        assert!(scene.sim.step(), "it waits for room");
        scene.manager.turn();
    }
    staged.wait().unwrap_err();
    scene.sim.lose_device("sim:0".parse().unwrap());
    for transfer in held {
        transfer.wait().unwrap_err();
    }
}
