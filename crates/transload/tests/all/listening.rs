//! A thread receives outcomes for every transfer that needs it, even while the thread that did so before is busy
//! elsewhere.
#![cfg(not(any(loom, transload_local)))]

use crate::plain;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::fixture::{Fixture, without_peers};
use crate::within::within_limit;
use transload::{Event, Request, StagingBudget, Transfer, TransferError, TransferManager};
use transload_testkit::sim::{Completion, Rule};

/// Runs a closure when a task is woken.
struct Hook<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Hook<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// A manager of the host's memories, and a thread that waits for an event that the test sets last.
struct Scene {
    manager: TransferManager,
    last: Event,
    waiting: JoinHandle<()>,
}

impl Scene {
    fn new() -> Scene {
        let manager = TransferManager::builder().host().build().unwrap();
        let last = manager.event();
        let held = manager.submit(&small(&manager).after(&last));
        let waiting = thread::spawn(move || drop(held.wait().unwrap()));
        let scene = Scene {
            manager,
            last,
            waiting,
        };
        settle();
        scene
    }

    /// Submits a copy behind an event, and polls it with that waker.
    fn polled(&self, waker: impl Fn() + Send + Sync + 'static) -> (Transfer, Event) {
        let gate = self.manager.event();
        let mut polled = self.manager.submit(&small(&self.manager).after(&gate));
        poll(&mut polled, &Waker::from(Arc::new(Hook(waker))));
        (polled, gate)
    }

    fn end(self) {
        self.last.set();
        self.waiting.join().unwrap();
    }
}

fn small(manager: &TransferManager) -> Request {
    let buffer = |byte| manager.adopt(vec![byte; 100]).unwrap();
    Request::new(buffer(1u8), buffer(2))
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) {
    let mut context = Context::from_waker(waker);
    assert!(Pin::new(future).poll(&mut context).is_pending());
}

/// Gives threads a moment to park. Too short a moment can hide a fault, but cannot cause a failure.
fn settle() {
    (0..1000).for_each(|_| thread::yield_now());
}

#[test]
fn a_deadline_that_comes_while_the_listener_runs_a_waker_is_kept() {
    within_limit("a waker that submits", || {
        let scene = Scene::new();
        let (tell, told) = mpsc::channel();
        let tell = Mutex::new(tell);
        let (manager, late, last) = (
            scene.manager.clone(),
            small(&scene.manager),
            scene.last.clone(),
        );
        let (polled, gate) = scene.polled(move || {
            let at = manager.now() + Duration::from_millis(5);
            let late = late.clone().after(&last).deadline(at);
            let _ = tell.lock().unwrap().send(manager.submit(&late));
        });
        gate.setter()();
        let late = told.recv().unwrap();
        let error = thread::spawn(move || late.wait().unwrap_err()).join();
        assert_eq!(error.unwrap(), TransferError::Deadline { leading_bytes: 0 });
        polled.wait().unwrap();
        scene.end();
    });
}

#[test]
fn a_listener_that_is_kept_by_a_waker_holds_up_no_other_thread() {
    within_limit("a waker that waits for another thread's transfer", || {
        let scene = Scene::new();
        let (tell, told) = mpsc::channel();
        let told = Mutex::new(told);
        let (is_called, called) = mpsc::channel();
        let (polled, gate) = scene.polled(move || {
            let _ = is_called.send(thread::current().id());
            let _ = told.lock().unwrap().recv();
        });
        let other = scene.manager.event();
        let waited = scene.manager.submit(&small(&scene.manager).after(&other));
        let waiting = thread::spawn(move || waited.wait().map(drop));
        settle();
        gate.setter()();
        // The called thread itself may be the one that the test keeps busy.
        if called.recv().unwrap() == waiting.thread().id() {
            let _ = tell.send(());
        }
        other.setter()();
        waiting.join().unwrap().unwrap();
        let _ = tell.send(());
        polled.wait().unwrap();
        scene.end();
    });
}

#[test]
fn a_thread_that_is_kept_in_a_backend_that_was_given_up_looks_after_nothing() {
    within_limit("a backend that panics while a thread waits in it", || {
        let (manager, desks) = plain::manager(&["plain", "other"]);
        let (stalls, desk) = (5_000, &desks[0]);
        desk.stall(stalls);
        let buffer = |kind, byte| plain::filled(&manager, kind, stalls, byte);
        let stalled = manager.copy(buffer("plain", 1), buffer("plain", 2));
        let waiting = thread::spawn(move || stalled.wait().map(drop));
        settle();
        desk.arm(plain::Call::Pump, || "given up");
        manager.submit(&small(&manager)).wait().unwrap();
        let then = manager.event();
        let others = Request::new(buffer("other", 1), buffer("other", 2));
        drop(manager.submit(&others.then(&then)));
        while !then.is_set() {
            thread::yield_now();
        }
        desk.release(stalls);
        assert!(waiting.join().unwrap().is_err());
    });
}

#[test]
fn slots_of_a_transfer_that_nobody_looks_at_go_to_other_managers() {
    within_limit("two managers with one budget", || {
        let budget = Arc::new(StagingBudget::new(256 << 10));
        let [one, two] = [(); 2].map(|()| {
            let text = without_peers(2);
            Fixture::advancing_on(&text, Completion::AtOnce, &budget)
        });
        let staged = |fixture: &Fixture| {
            let (src, dst) = (
                fixture.empty("sim:0", 60_000),
                fixture.empty("sim:1", 60_000),
            );
            fixture.manager.copy(&src, &dst)
        };
        staged(&one).wait().unwrap();
        let [from, to] = ["cpu:0/pinned", "sim:1/device"].map(|memory| memory.parse().unwrap());
        one.sim
            .add_rule(Rule::never_answer().over(from, to).always());
        let held = [staged(&one), staged(&one)];
        let waited = staged(&two);
        settle();
        assert!(!waited.is_over());
        let waiting = thread::spawn(move || waited.wait().map(drop));
        one.sim.lose_device("sim:1".parse().unwrap());
        waiting.join().unwrap().unwrap();
        drop(held);
    });
}

#[test]
fn a_task_is_woken_although_a_thread_waited_for_a_while() {
    within_limit("a limited wait after a poll", || {
        let manager = TransferManager::builder().host().build().unwrap();
        let (tell, told) = mpsc::channel();
        let tell = Mutex::new(tell);
        let gate = manager.event();
        let mut polled = manager.submit(&small(&manager).after(&gate));
        let waker = Waker::from(Arc::new(Hook(move || {
            tell.lock().unwrap().send(()).unwrap()
        })));
        poll(&mut polled, &waker);
        for _ in 0..2 {
            assert!(polled.wait_timeout(Duration::from_millis(1)).is_none());
        }
        gate.set();
        told.recv().unwrap();
        polled.wait().unwrap();
    });
}

#[test]
fn a_posted_copy_of_a_backend_that_must_be_looked_at_moves() {
    within_limit("a backend with every default", || {
        let (manager, desks) = plain::manager(&["plain"]);
        desks[0].stall(5_000);
        let buffer = |byte| plain::filled(&manager, "plain", 5_000, byte);
        let held = manager.copy(buffer(1), buffer(2));
        desks[0].release(5_000);
        while !desks[0].is_idle() {
            thread::yield_now();
        }
        held.wait().unwrap();
    });
}

#[test]
fn guards_that_were_to_come_keep_no_manager() {
    within_limit("futures of guards that are dropped", || {
        for is_first in [true, false].repeat(10) {
            let (manager, mut desks) = plain::manager(&["plain"]);
            let canary = desks.remove(0);
            // The manager's own thread starts and parks.
            let (buffer, then) = (manager.adopt(vec![1u8; 100]).unwrap(), manager.event());
            drop(manager.submit(&small(&manager).then(&then)));
            let guard = buffer.write().unwrap();
            while !then.is_set() {
                thread::yield_now();
            }
            settle();
            let mut coming = buffer.read_async();
            poll(&mut coming, Waker::noop());
            match is_first {
                true => (drop(coming), drop(guard)),
                false => (drop(guard), drop(coming)),
            };
            drop((buffer, then, manager));
            while Arc::strong_count(&canary) > 1 {
                thread::yield_now();
            }
        }
    });
}
