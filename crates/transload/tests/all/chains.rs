//! Long chains of transfers of the same bytes: their order, and which thread makes them.
#![cfg(not(any(loom, transload_local)))]

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use transload::{
    Cancelled, Event, Instant, OnFailure, Request, Transfer, TransferError, TransferManager,
};
use transload_testkit::sim::Completion;

use crate::dice::Dice;
use crate::fixture::{Fixture, bytes, without_peers};
use crate::within::within_limit;

/// More than any step or any call does at once.
const LONG: usize = 5000;

/// Copies of the same bytes behind one transfer that waits for an event, and an event that the last one sets.
struct Chain {
    first: Event,
    transfers: Vec<Transfer>,
    last: Event,
}

impl Chain {
    fn new(manager: &TransferManager, request: &Request) -> Chain {
        let (first, last) = (manager.event(), manager.event());
        let transfers = (0..LONG).map(|at| {
            manager.submit(&match at {
                0 => request.clone().after(&first),
                at if at == LONG - 1 => request.clone().then(&last),
                _ => request.clone(),
            })
        });
        Chain {
            transfers: transfers.collect(),
            first,
            last,
        }
    }

    fn wait(self) -> usize {
        let results = self.transfers.into_iter().map(Transfer::wait);
        let done = results.filter(|result| result.is_ok()).count();
        assert!(self.last.is_set());
        done
    }
}

/// Keeps the thread that wakes a task until the test sends.
struct Keeper {
    is_called: mpsc::Sender<()>,
    told: Mutex<mpsc::Receiver<()>>,
}

impl Wake for Keeper {
    fn wake(self: Arc<Self>) {
        let _ = self.is_called.send(());
        let _ = self.told.lock().unwrap().recv();
    }
}

/// More copies than a call makes that does not wait: it stops after the step in which it has made 512.
const MOST: u64 = 1024;

/// Calls `begin` on a chain while the manager's own thread is kept, and checks that the call leaves most of the chain.
fn leaves_most(begin: fn(&TransferManager, &mut Chain)) {
    within_limit("a long chain beside a thread that is kept", move || {
        // Each copy is over when it was submitted, so that a thread that goes on finds more to do.
        let fixture = Fixture::advancing(&without_peers(1), Completion::AtOnce, 1 << 20);
        let manager = &fixture.manager;
        let gate = manager.event();
        let [src, dst] = [(); 2].map(|()| fixture.empty("sim:0", 64));
        let request = Request::new(&src, &dst);
        let mut polled = manager.submit(&request.clone().after(&gate));
        let (is_called, called) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let told = Mutex::new(told);
        let waker = Waker::from(Arc::new(Keeper { is_called, told }));
        assert!(
            Pin::new(&mut polled)
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        gate.setter()();
        called.recv().unwrap();
        let mut chain = Chain::new(manager, &request);
        manager.reset_stats();
        begin(manager, &mut chain);
        // The thread that would go on is kept, so what is over now was made by the call.
        let paths = manager.stats().paths;
        let made: u64 = paths.iter().map(|path| path.total.transfers).sum();
        assert!(made < MOST, "the call made {made} copies");
        assert!(!chain.last.is_set());
        tell.send(()).unwrap();
        assert!(chain.wait() >= LONG - 1);
        polled.wait().unwrap();
    });
}

#[test]
fn setting_an_event_leaves_a_long_chain_to_the_manager_s_own_thread() {
    leaves_most(|_, chain| chain.first.set());
}

#[test]
fn cancelling_the_head_of_a_long_chain_leaves_it_to_the_manager_s_own_thread() {
    leaves_most(|_, chain| drop(chain.transfers.remove(0).cancel()));
}

#[test]
fn a_wait_until_nothing_is_under_way_leaves_a_long_chain_once_its_time_is_over() {
    leaves_most(|manager, chain| {
        chain.first.setter()();
        assert!(!manager.wait_idle_timeout(Duration::ZERO));
    });
}

#[test]
fn cancelling_a_whole_chain_starts_none_of_it() {
    within_limit("a cancelled chain", || {
        let manager = TransferManager::builder().host().build().unwrap();
        let src = manager.adopt(vec![7u8; 64]).unwrap();
        let dst = manager.adopt(vec![0u8; 64]).unwrap();
        let never = manager.event();
        let request = Request::new(&src, &dst);
        let mut requests = vec![request.clone(); LONG];
        requests[0] = request.after(&never);
        let batch = manager.copy_batch(&requests, OnFailure::GoOn).unwrap();
        for cancelled in batch.cancel() {
            assert!(matches!(cancelled, Cancelled::NotStarted), "{cancelled:?}");
        }
        assert_eq!(*dst.read().unwrap(), [0u8; 64]);
    });
}

#[test]
fn an_event_for_which_many_wait_is_set_for_all_of_them() {
    within_limit("many transfers behind one event", || {
        let manager = TransferManager::builder().host().build().unwrap();
        let (gate, bytes) = (manager.event(), LONG as u64);
        let src = manager.adopt(bytes_of_many()).unwrap();
        let dst = manager.adopt(vec![0u8; LONG]).unwrap();
        let others = (0..bytes).map(|at| {
            let part = |of: &transload::Buffer| of.slice(at..=at).unwrap();
            manager.submit(&Request::new(part(&src), part(&dst)).after(&gate))
        });
        let others: Vec<Transfer> = others.collect();
        gate.set();
        for transfer in others {
            transfer.wait().unwrap();
        }
        assert!(*dst.read().unwrap() == bytes_of_many()[..]);
    });
}

fn bytes_of_many() -> Vec<u8> {
    bytes(LONG, 3)
}

#[test]
fn a_manager_without_a_thread_makes_all_that_an_event_starts() {
    let fixture = Fixture::new(&without_peers(1), Completion::AtOnce, 1 << 20);
    let (src, dst) = (
        fixture.filled("sim:0", &bytes(64, 1)),
        fixture.empty("sim:0", 64),
    );
    let (first, last) = (fixture.manager.event(), fixture.manager.event());
    let request = Request::new(&src, &dst);
    drop(fixture.manager.submit(&request.clone().after(&first)));
    for _ in 0..LONG {
        drop(fixture.manager.submit(&request));
    }
    drop(fixture.manager.submit(&request.clone().then(&last)));
    first.set();
    assert!(last.is_set());
    assert_eq!(fixture.bytes_of(&dst), bytes(64, 1));
}

#[test]
fn a_deadline_that_many_transfers_have_ends_all_of_them() {
    let fixture = Fixture::new(&without_peers(1), Completion::AtOnce, 1 << 20);
    let (src, dst) = (fixture.empty("sim:0", 64), fixture.empty("sim:0", 64));
    let never = fixture.manager.event();
    let request = Request::new(&src, &dst).after(&never).deadline(Instant(5));
    let transfers: Vec<Transfer> = (0..LONG)
        .map(|_| fixture.manager.submit(&request))
        .collect();
    fixture.sim.run_until(Instant(5));
    assert_eq!(fixture.manager.turn(), None);
    for transfer in transfers {
        let error = transfer.wait().unwrap_err();
        assert!(matches!(error, TransferError::Deadline { .. }), "{error}");
    }
}

#[test]
fn a_chain_in_a_batch_that_stops_ends_behind_the_one_that_failed() {
    within_limit("a batch that stops", || {
        let manager = TransferManager::builder().host().build().unwrap();
        let [src, dst] = [(); 2].map(|()| manager.adopt(vec![1u8; 64]).unwrap());
        let never = manager.event();
        let request = Request::new(&src, &dst);
        let mut requests = vec![request.clone(); LONG];
        requests[10] = request.after(&never).deadline(Instant(0));
        let batch = manager.copy_batch(&requests, OnFailure::Stop).unwrap();
        let results = batch.wait();
        let is_stopped = |result: &Result<_, _>| matches!(result, Err(TransferError::BatchStopped));
        assert!(
            results[..10]
                .iter()
                .all(|result| result.is_ok() || is_stopped(result))
        );
        assert!(matches!(results[10], Err(TransferError::Deadline { .. })));
        assert!(results[11..].iter().all(is_stopped));
    });
}

#[test]
fn a_chain_keeps_its_order_whatever_of_it_is_cancelled() {
    within_limit("a chain of which parts are cancelled", || {
        for seed in 1..=4 {
            let mut dice = Dice(seed);
            let manager = TransferManager::builder().host().build().unwrap();
            let cells = manager.adopt((0..8u8).collect::<Vec<u8>>()).unwrap();
            let cell = |at: u64| cells.slice(at..=at).unwrap();
            let gate = manager.event();
            let mut transfers = Vec::new();
            for _ in 0..LONG {
                let (src, by) = (dice.below(8), 1 + dice.below(7));
                let dst = (src + by) % 8;
                let request = Request::new(cell(src), cell(dst));
                let request = match dice.below(16) {
                    0 => request.after(&gate),
                    _ => request,
                };
                transfers.push((src, dst, Some(manager.submit(&request)), false));
            }
            for _ in 0..LONG / 2 {
                let at = dice.below(LONG as u64) as usize;
                if let Some(transfer) = transfers[at].2.take_if(|_| dice.below(2) == 0) {
                    // One that was over by then has moved its byte.
                    transfers[at].3 = matches!(transfer.cancel(), Cancelled::Finished(Ok(_)));
                }
            }
            gate.set();
            let mut wanted: Vec<u8> = (0..8).collect();
            for (src, dst, transfer, mut has_moved) in transfers {
                if let Some(transfer) = transfer {
                    transfer.wait().unwrap();
                    has_moved = true;
                }
                if has_moved {
                    wanted[dst as usize] = wanted[src as usize];
                }
            }
            assert_eq!(*cells.read().unwrap(), wanted[..], "seed {seed}");
        }
    });
}
