//! Backends that take only so many operations at a time: the others wait, and none fails.
#![cfg(not(any(loom, transload_local)))]

#[macro_use]
mod over_sim;
mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rig::{Outcome, bytes, modes, place, without_peers};
use transload::hal::{Backend, Fence, Op, SubmitError};
use transload::model::LinkId;
use transload::{
    AllocSpec, Buffer, Cancelled, OnFailure, Priority, Request, StagingBudget, Transfer,
    TransferError, TransferManager,
};
use transload_testkit::sim::{Completion, Sim};
use transload_testkit::topology;

/// A machine that takes three operations at a time.
struct Narrow {
    sim: Sim,
    refused: Arc<AtomicUsize>,
}

const LIMIT: usize = 3;

// SAFETY: the simulated machine does it all; what it is not asked to do is refused.
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
        // SAFETY: the caller's promise is the one that the machine asks for.
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

    /// A pair of buffers, the first with bytes of its own.
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
        // Direct ones, and staged ones of several operations each.
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
