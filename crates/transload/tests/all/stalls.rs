//! A third party's operation that does not end holds up only its own transfer.
#![cfg(not(any(loom, transload_local)))]

use crate::plain;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::plain::Desk;
use crate::within::within_limit;
use transload::{Buffer, Report, Request, Transfer, TransferError, TransferManager};

/// The length of the copy that stalls.
const STALLED: u64 = 1000;
/// The length of a copy that the test ends, on a backend that reports outcomes only when asked.
const LATER: u64 = 2000;

/// The handle of the transfer that stalls.
#[derive(Clone, Copy, Debug)]
enum Handle {
    WaitedFor,
    Awaited,
    Dropped,
}

const HANDLES: [Handle; 3] = [Handle::WaitedFor, Handle::Awaited, Handle::Dropped];

/// A manager with some plain backends; on the first of them an operation has stalled.
struct Scene {
    manager: TransferManager,
    kinds: Vec<&'static str>,
    desks: Vec<Arc<Desk>>,
    stalled: Vec<(Buffer, Buffer)>,
    waiter: Option<JoinHandle<Result<Report, TransferError>>>,
}

impl Scene {
    fn new(kinds: &[&'static str], handle: Handle) -> Scene {
        let (manager, desks) = plain::manager(kinds);
        let mut scene = Scene {
            manager,
            kinds: kinds.to_vec(),
            desks,
            stalled: Vec::new(),
            waiter: None,
        };
        let transfer = scene.stall(0);
        scene.waiter = match handle {
            Handle::WaitedFor => Some(thread::spawn(|| transfer.wait())),
            Handle::Awaited => Some(thread::spawn(|| pollster::block_on(transfer))),
            Handle::Dropped => None,
        };
        scene.desks[0].linger();
        scene
    }

    fn ends(&self, backend: usize, len: u64) -> (Buffer, Buffer) {
        let kind = self.kinds[backend];
        let filled = |byte| plain::filled(&self.manager, kind, len, byte);
        (filled(7), filled(0))
    }

    fn stall(&mut self, backend: usize) -> Transfer {
        self.desks[backend].stall(STALLED);
        let (src, dst) = self.ends(backend, STALLED);
        let transfer = self.manager.copy(&src, &dst);
        self.stalled.push((src, dst));
        transfer
    }

    /// A copy that is in flight when this returns, and ends at [`Desk::release`] of its length.
    fn submit_later(&self, backend: usize) -> (Transfer, Buffer) {
        self.desks[backend].stall(LATER);
        let (src, dst) = self.ends(backend, LATER);
        (self.manager.copy(&src, &dst), dst)
    }

    /// Ends the stalled operation.
    fn finish(self) {
        for desk in &self.desks {
            desk.release(STALLED);
        }
        if let Some(waiter) = self.waiter {
            waiter.join().unwrap().unwrap();
        }
        self.manager.wait_idle();
        for (src, dst) in &self.stalled {
            assert_eq!(*src.read().unwrap(), *dst.read().unwrap());
        }
    }
}

/// Runs the case next to an operation that stalls, for each treatment of its handle.
fn beside(kinds: &'static [&'static str], case: fn(&mut Scene)) {
    for handle in HANDLES {
        within_limit(&format!("{handle:?}"), move || {
            let mut scene = Scene::new(kinds, handle);
            case(&mut scene);
            scene.finish();
        });
    }
}

/// Calls `f` on a thread of its own.
fn elsewhere<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> Receiver<R> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(f()));
    told
}

/// Futures of that backend become ready, one after the other.
fn futures_are_told(scene: &Scene, backend: usize) {
    for _ in 0..8 {
        a_future_is_told(scene, backend);
    }
}

fn a_future_is_told(scene: &Scene, backend: usize) {
    let (transfer, dst) = scene.submit_later(backend);
    let told = elsewhere(|| pollster::block_on(transfer));
    scene.desks[backend].linger();
    scene.desks[backend].release(LATER);
    told.recv().unwrap().unwrap();
    assert!(dst.read().unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn a_future_of_the_same_backend_is_told() {
    beside(&["one"], |scene| futures_are_told(scene, 0));
}

#[test]
fn a_future_of_another_backend_is_told() {
    beside(&["one", "two"], |scene| futures_are_told(scene, 1));
}

#[test]
fn a_wait_for_a_transfer_of_the_same_backend_returns() {
    beside(&["one"], |scene| {
        let (transfer, _) = scene.submit_later(0);
        let told = elsewhere(|| transfer.wait());
        scene.desks[0].release(LATER);
        told.recv().unwrap().unwrap();
    });
}

#[test]
fn transfers_that_are_only_looked_at_end_on_each_backend() {
    beside(&["one", "two"], |scene| {
        for backend in 0..2 {
            let (transfer, _) = scene.submit_later(backend);
            scene.desks[backend].release(LATER);
            while !transfer.is_over() {
                thread::yield_now();
            }
            transfer.wait().unwrap();
        }
    });
}

#[test]
fn one_thread_that_only_turns_the_engine_sees_each_backend() {
    beside(&["one", "two"], |scene| {
        for backend in 0..2 {
            let (transfer, _) = scene.submit_later(backend);
            scene.desks[backend].release(LATER);
            while !transfer.is_over() {
                scene.manager.turn();
                thread::yield_now();
            }
        }
    });
}

#[test]
fn a_follower_by_event_starts_and_ends() {
    beside(&["one", "two"], |scene| {
        let event = scene.manager.event();
        scene.desks[1].stall(LATER);
        let [first, second] = [(); 2].map(|()| scene.ends(1, LATER));
        drop(
            scene
                .manager
                .submit(&Request::new(&first.0, &first.1).then(&event)),
        );
        let follower = scene
            .manager
            .submit(&Request::new(&second.0, &second.1).after(&event));
        let told = elsewhere(|| pollster::block_on(follower));
        scene.desks[1].linger();
        scene.desks[1].release(LATER);
        told.recv().unwrap().unwrap();
    });
}

#[test]
fn copies_of_the_heap_end() {
    beside(&["one"], |scene| {
        for len in [4 << 10, 8 << 20].repeat(8) {
            let src = scene.manager.adopt(vec![7u8; len]).unwrap();
            let dst = scene.manager.adopt(vec![0u8; len]).unwrap();
            scene.manager.copy(&src, &dst).wait().unwrap();
            let back = scene.manager.copy(&dst, &src);
            elsewhere(|| pollster::block_on(back))
                .recv()
                .unwrap()
                .unwrap();
            assert!(*dst.read().unwrap() == vec![7; len]);
        }
    });
}

#[test]
fn a_deadline_of_another_transfer_is_told_to_each_sort_of_handle() {
    beside(&["one", "two"], |scene| {
        for backend in 0..2 {
            let never = scene.manager.event();
            let (src, dst) = scene.ends(backend, LATER);
            let submit = || {
                let deadline = scene.manager.now() + Duration::from_millis(5);
                let request = Request::new(&src, &dst).after(&never).deadline(deadline);
                scene.manager.submit(&request)
            };
            let (waited, awaited, watched) = (submit(), submit(), submit());
            let told = [
                elsewhere(|| waited.wait()),
                elsewhere(|| pollster::block_on(awaited)),
            ];
            while !watched.is_over() {
                thread::yield_now();
            }
            let told = told.map(|told| told.recv().unwrap());
            for answer in told.into_iter().chain([watched.wait()]) {
                assert_eq!(answer, Err(TransferError::Deadline { leading_bytes: 0 }));
            }
        }
    });
}

#[test]
fn a_limit_and_a_deadline_of_the_stalled_transfer_itself_are_kept() {
    beside(&["one"], |scene| {
        let mut limited = scene.stall(0);
        assert!(limited.wait_timeout(Duration::from_millis(50)).is_none());
        let (src, dst) = scene.ends(0, STALLED);
        let deadline = scene.manager.now() + Duration::from_millis(50);
        let request = Request::new(&src, &dst).deadline(deadline);
        let error = scene.manager.submit(&request).wait().unwrap_err();
        assert_eq!(error, TransferError::Deadline { leading_bytes: 0 });
        scene.stalled.push((src, dst));
    });
}

#[test]
fn a_manager_is_not_idle_and_says_so_within_the_limit() {
    beside(&["one", "two"], |scene| {
        let limit = Duration::from_millis(50);
        assert!(!scene.manager.wait_idle_timeout(limit));
    });
}

const NINE: &[&str] = &[
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
];

#[test]
fn the_ninth_backend_is_heard_beside_eight_that_stall() {
    beside(NINE, |scene| {
        let stalled: Vec<_> = (1..8).map(|backend| scene.stall(backend)).collect();
        futures_are_told(scene, 8);
        drop(stalled);
    });
}

#[test]
fn the_ninth_backend_is_seen_by_a_thread_that_only_turns_the_engine() {
    beside(NINE, |scene| {
        let stalled: Vec<_> = (1..8).map(|backend| scene.stall(backend)).collect();
        let (transfer, _) = scene.submit_later(8);
        scene.desks[8].release(LATER);
        while !transfer.is_over() {
            scene.manager.turn();
            thread::yield_now();
        }
        drop((transfer, stalled));
    });
}

#[test]
fn nine_backends_that_stalled_end_all_their_transfers() {
    beside(NINE, |scene| {
        let stalled: Vec<_> = (1..9).map(|backend| scene.stall(backend)).collect();
        // Each future becomes ready though the others still stall; the test releases the last one first.
        for (backend, transfer) in (1..9).zip(stalled).rev() {
            let told = elsewhere(|| pollster::block_on(transfer));
            scene.desks[backend].release(STALLED);
            told.recv().unwrap().unwrap();
        }
    });
}
