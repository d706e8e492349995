//! Transfers that are cancelled from other threads, or by dropping a future, while another thread waits.
#![cfg(not(any(loom, transload_local)))]

use crate::fixture;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::thread;

use crate::within::within_limit;
use transload::{
    Buffer, Cancelled, Canceller, OnFailure, Request, Transfer, TransferError, TransferManager,
};

const LEN: usize = 64 << 20;

fn host() -> TransferManager {
    TransferManager::builder().host().build().unwrap()
}

fn ends(manager: &TransferManager, len: usize) -> (Buffer, Buffer) {
    let src = manager.adopt(fixture::bytes(len, 1)).unwrap();
    (src, manager.adopt(vec![0u8; len]).unwrap())
}

/// A transfer that cannot begin before the event is set.
fn held_up(manager: &TransferManager) -> (transload::Event, Transfer) {
    let (src, dst) = ends(manager, 1000);
    let gate = manager.event();
    let transfer = manager.submit(&Request::new(&src, &dst).after(&gate));
    (gate, transfer)
}

#[test]
fn a_thread_that_waits_is_told_that_another_one_cancelled() {
    within_limit("a wait", || {
        let manager = host();
        let (_gate, transfer) = held_up(&manager);
        let canceller = transfer.canceller();
        let waiter = thread::spawn(move || transfer.wait());
        canceller.cancel();
        let ended = waiter.join().unwrap();
        assert!(matches!(
            ended,
            Err(TransferError::Cancelled { leading_bytes: 0 })
        ));
    });
}

#[test]
fn a_task_that_awaits_is_told_that_a_clone_cancelled() {
    within_limit("a future", || {
        let manager = host();
        let (_gate, transfer) = held_up(&manager);
        let canceller = transfer.canceller().clone();
        let task = thread::spawn(move || pollster::block_on(transfer));
        canceller.cancel();
        assert!(matches!(
            task.join().unwrap(),
            Err(TransferError::Cancelled { .. })
        ));
    });
}

#[test]
fn leading_bytes_of_a_copy_that_was_stopped_are_in_place() {
    within_limit("heap copies", || {
        let manager = host();
        let (src, dst) = ends(&manager, LEN);
        let mut stopped = 0;
        // Repeats until the cancellation met the copy in the middle a few times; a copy that was too quick succeeds.
        for _ in 0..2000 {
            dst.write().unwrap().fill(0);
            let transfer = manager.copy(&src, &dst);
            while transfer.progress().is_some_and(|(arrived, _)| arrived == 0) {
                thread::yield_now();
            }
            match transfer.cancel() {
                Cancelled::Stopped { leading_bytes } => {
                    let leading = leading_bytes as usize;
                    assert!(dst.read().unwrap()[..leading] == src.read().unwrap()[..leading]);
                    stopped += usize::from(leading > 0 && leading < LEN);
                }
                Cancelled::Finished(result) => drop(result.unwrap()),
                Cancelled::NotStarted => unreachable!("bytes had arrived"),
            }
            if stopped == 3 {
                return;
            }
        }
        panic!("no copy was caught in the middle");
    });
}

#[test]
fn an_awaited_cancel_answers_when_the_transfer_is_quiet() {
    within_limit("an awaited cancel", || {
        let manager = host();
        let (_gate, transfer) = held_up(&manager);
        let ended = pollster::block_on(transfer.cancel_async());
        assert_eq!(ended, Cancelled::NotStarted);
        let (src, dst) = ends(&manager, LEN);
        let ended = pollster::block_on(manager.copy(&src, &dst).cancel_async());
        if let Cancelled::Stopped { leading_bytes } = ended {
            let leading = leading_bytes as usize;
            assert!(dst.read().unwrap()[..leading] == src.read().unwrap()[..leading]);
        }
        assert!(manager.wait_idle_timeout(std::time::Duration::ZERO));
    });
}

#[test]
fn a_dropped_handle_cancels_only_where_it_was_asked_for() {
    within_limit("drops", || {
        let manager = host();
        for cancels in [true, false] {
            let (src, dst) = ends(&manager, 1000);
            let (gate, over) = (manager.event(), manager.event());
            let request = Request::new(&src, &dst).after(&gate).then(&over);
            let request = match cancels {
                true => request.cancel_on_drop(),
                false => request,
            };
            let mut transfer = manager.submit(&request);
            let mut context = Context::from_waker(Waker::noop());
            assert!(
                std::pin::Pin::new(&mut transfer)
                    .poll(&mut context)
                    .is_pending()
            );
            drop(transfer);
            assert_eq!(over.is_set(), cancels);
            gate.set();
            manager.wait_idle();
            assert!(over.is_set());
            let arrived = *dst.read().unwrap() == *src.read().unwrap();
            assert_eq!(arrived, !cancels);
        }
    });
}

#[test]
fn what_is_over_stays_so_and_a_canceller_keeps_nothing_alive() {
    struct Watched(Arc<AtomicBool>, Vec<u8>);
    impl Drop for Watched {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    within_limit("cancellers", || {
        let manager = host();
        let gone = Arc::new(AtomicBool::new(false));
        let owner = Arc::new(Watched(Arc::clone(&gone), vec![7; 1000]));
        let src = transload::OwnedSlice::new(owner, |owner| &owner.1[..]);
        let src = manager.adopt(src).unwrap();
        let dst = manager.adopt(vec![0u8; 1000]).unwrap();
        let transfer = manager.copy(&src, &dst);
        let canceller: Canceller = transfer.canceller();
        transfer.wait().unwrap();
        canceller.cancel();
        assert_eq!(*dst.read().unwrap(), [7; 1000]);
        let (gate, held) = held_up(&manager);
        let of_held = held.canceller();
        drop((manager, src, dst, gate, held));
        while !gone.load(Ordering::Acquire) {
            thread::yield_now();
        }
        canceller.cancel();
        of_held.cancel();
    });
}

#[test]
fn a_batch_is_awaited_tells_its_progress_and_is_cancelled() {
    within_limit("batches", || {
        let manager = host();
        let pairs: Vec<_> = (0..600).map(|_| ends(&manager, 1000)).collect();
        let requests = |after: Option<&transload::Event>| -> Vec<Request> {
            let request = |(src, dst): &(Buffer, Buffer)| match after {
                Some(event) => Request::new(src, dst).after(event),
                None => Request::new(src, dst),
            };
            pairs.iter().map(request).collect()
        };
        let batch = manager.copy_batch(&requests(None), OnFailure::GoOn);
        let batch = batch.unwrap();
        while !batch.is_over() {
            thread::yield_now();
        }
        assert_eq!(batch.progress(), (600_000, 600_000));
        assert!(pollster::block_on(batch).iter().all(Result::is_ok));
        for (src, dst) in &pairs {
            assert!(*src.read().unwrap() == *dst.read().unwrap());
        }

        let gate = manager.event();
        let batch = manager.copy_batch(&requests(Some(&gate)), OnFailure::GoOn);
        let mut batch = batch.unwrap();
        assert_eq!(batch.progress(), (0, 600_000));
        let mut context = Context::from_waker(Waker::noop());
        assert!(
            std::pin::Pin::new(&mut batch)
                .poll(&mut context)
                .is_pending()
        );
        let all = batch.cancel();
        assert_eq!(all, vec![Cancelled::NotStarted; 600]);
        gate.set();
    });
}
