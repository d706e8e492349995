//! User code that the engine runs when a transfer ends, and the thread that turns the engine for futures.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::{self, ThreadId};

use transload::{Event, Request, Transfer, TransferManager};
use transload_testkit::sim::{Completion, Script, Sim};

use crate::regressions::gate::{Gate, Keeper};
use crate::regressions::{HANG, bytes, bytes_of, empty, ends, filled, simulated, workstation};

/// Sends a message when it is woken.
struct Bell(Sender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

/// Sends a message when it is woken, and panics.
struct Bomb(Sender<()>);

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
        // `resume_unwind` prints nothing.
        std::panic::resume_unwind(Box::new("a user's waker"));
    }
}

fn is_pending(transfer: &mut Transfer, waker: &Waker) -> bool {
    let mut context = Context::from_waker(waker);
    Pin::new(transfer).poll(&mut context).is_pending()
}

fn bell() -> (Waker, Receiver<()>) {
    let (ring, rung) = mpsc::channel();
    (Waker::from(Arc::new(Bell(ring))), rung)
}

fn bomb() -> (Waker, Receiver<()>) {
    let (ring, rung) = mpsc::channel();
    (Waker::from(Arc::new(Bomb(ring))), rung)
}

/// Blocks every other thread where it waits for a fence, runs one event where the test's own thread waits, and sets the
/// user's event at the next submission.
struct Stepwise {
    sim: Sim,
    here: ThreadId,
    entered: Sender<()>,
    go: Mutex<Receiver<()>>,
    event: Mutex<Option<Event>>,
}

impl Keeper for Stepwise {
    fn submit(&self) {
        let event = self.event.lock().unwrap().take();
        event.iter().for_each(Event::set);
    }

    fn wait(&self) -> bool {
        if thread::current().id() == self.here {
            self.sim.step();
            return true;
        }
        let _ = self.entered.send(());
        // Blocks until the test drops the other end.
        let _ = self.go.lock().unwrap().recv();
        false
    }
}

#[test]
fn a_waker_that_panics_ends_no_borrow_early() {
    let sim = simulated("workstation.toml", Completion::Timed, Script::new());
    let (entered, driver) = mpsc::channel();
    let (let_go, go) = mpsc::channel();
    let gate = Arc::new(Gate {
        sim: sim.clone(),
        keeper: Stepwise {
            sim: sim.clone(),
            here: thread::current().id(),
            entered,
            go: Mutex::new(go),
            event: Mutex::new(None),
        },
    });
    let manager = TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .backend(Arc::clone(&gate) as Arc<dyn transload::Backend>)
        .build()
        .unwrap();
    let src = empty(&manager, "cpu:0", 8);
    let [first, second] = [(), ()].map(|()| empty(&manager, "cpu:0", 8));
    let big = empty(&manager, "sim:0", 1 << 20);

    // The decoy keeps the thread that turns the engine for futures busy.
    let mut decoy = manager.copy(&src, &first);
    assert!(is_pending(&mut decoy, Waker::noop()));
    driver.recv_timeout(HANG).expect("no thread drives it");
    // This future ends while the borrowed copy is in flight.
    let (waker, rung) = bomb();
    let event = manager.event();
    let mut future = manager.submit(&Request::new(&src, &second).after(&event));
    assert!(is_pending(&mut future, &waker));
    *gate.keeper.event.lock().unwrap() = Some(event);

    let wanted = bytes(1 << 20);
    let copy = || manager.copy_from_slice(&wanted, &big);
    let copied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(copy));
    assert!(
        rung.try_recv().is_ok(),
        "the waker was not called meanwhile"
    );
    assert!(copied.expect("the borrow ended by a panic").is_ok());
    assert!(bytes_of(&sim, &big) == wanted);
    drop(let_go);
    decoy.wait().unwrap();
    future.wait().unwrap();
}

#[test]
fn a_waker_that_panics_leaves_the_thread_that_drives_alive() {
    let (sim, manager) = workstation(Completion::Timed, Script::new());
    let src = filled(&sim, &manager, "cpu:0", &bytes(4096));
    for waker in [bomb(), bell()] {
        let (waker, rung) = waker;
        let dst = empty(&manager, "cpu:0", 4096);
        let event = manager.event();
        let mut transfer = manager.submit(&Request::new(&src, &dst).after(&event));
        assert!(is_pending(&mut transfer, &waker));
        event.set();
        rung.recv_timeout(HANG).expect("no thread drives it");
        assert!(transfer.wait().is_ok());
        assert!(bytes_of(&sim, &dst) == bytes(4096));
    }
}

/// A task that owns a transfer.
struct Owner(#[allow(dead_code, reason = "held for its drop")] Mutex<Option<Transfer>>);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_replaced_waker_may_take_a_transfer_with_it() {
    let delivered = ends(|| {
        let (sim, manager) = workstation(Completion::Timed, Script::new());
        let src = filled(&sim, &manager, "cpu:0", &bytes(64));
        let [dst, other] = [(), ()].map(|()| empty(&manager, "cpu:0", 64));
        let event = manager.event();
        let mut transfer = manager.submit(&Request::new(&src, &dst).after(&event));
        let owned = manager.submit(&Request::new(&src, &other).after(&event));
        let owner = Waker::from(Arc::new(Owner(Mutex::new(Some(owned)))));
        assert!(is_pending(&mut transfer, &owner));
        drop(owner);
        // The waker in the engine was the last owner of the other transfer.
        assert!(is_pending(&mut transfer, Waker::noop()));
        event.set();
        transfer.wait().unwrap();
        // The other transfer was detached and keeps its place in the order.
        assert_eq!(*other.read().unwrap(), bytes(64)[..]);
        bytes_of(&sim, &dst)
    });
    assert_eq!(delivered, bytes(64));
}

#[test]
fn a_future_behind_a_guard_is_driven_where_only_pumping_completes() {
    let sim = simulated("workstation.toml", Completion::Pumped, Script::new());
    let manager = TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .backend(Arc::new(sim.clone()))
        .build()
        .unwrap();
    let src = filled(&sim, &manager, "cpu:0", &bytes(4096));
    let dst = empty(&manager, "cpu:0", 4096);
    let guard = src.write().unwrap();
    let mut transfer = manager.copy(&src, &dst);
    let (waker, rung) = bell();
    assert!(is_pending(&mut transfer, &waker));
    // The manager's own thread waits for outcomes, and was not woken: there was no work.
    drop(guard);
    rung.recv_timeout(HANG).expect("no thread pumps");
    assert!(transfer.wait().is_ok());
    assert!(bytes_of(&sim, &dst) == bytes(4096));
}
