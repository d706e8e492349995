//! The build for one thread: a backend that is not `Send`, and an engine that only the caller turns.
#![cfg(transload_local)]

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::fixture::{Fixture, Outcome, bytes, without_peers};
use transload::{Cancelled, Request};
use transload_testkit::sim::Completion;

fn fixture() -> Fixture {
    Fixture::new(&without_peers(2), Completion::Local, 256 << 10)
}

#[test]
fn a_backend_that_is_not_send_moves_bytes() -> Outcome {
    let fixture = fixture();
    for len in [0, 1, 65_537, 500_001] {
        let wanted = bytes(len, 1);
        let (src, dst) = (
            fixture.filled("sim:0", &wanted),
            fixture.empty("sim:1", len),
        );
        let report = fixture
            .manager
            .submit(&Request::new(&src, &dst).verify())
            .wait()?;
        assert_eq!(report.bytes(), len as u64);
        assert!(fixture.bytes_of(&dst) == wanted);
    }
    assert!(fixture.sim.violations().is_empty());
    assert!(fixture.sim.to_string().contains("simulated"));
    Ok(())
}

#[test]
fn owners_that_are_not_send_are_given_back() -> Outcome {
    let fixture = fixture();
    let wanted = bytes(70_000, 2);
    let near = fixture.manager.adopt(vec![0u8; wanted.len()])?;
    let far = fixture.filled("sim:0", &wanted);
    fixture.manager.copy(&far, &near).wait()?;
    assert_eq!(near.into_inner::<Vec<u8>>()?, wanted);
    Ok(())
}

/// Counts wake-ups.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_future_is_polled_to_its_end_by_its_own_thread() -> Outcome {
    let fixture = fixture();
    let wanted = bytes(300_000, 3);
    let (src, dst) = (
        fixture.filled("sim:0", &wanted),
        fixture.empty("sim:1", wanted.len()),
    );
    let polls = Rc::new(Cell::new(0));
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let counted = Rc::clone(&polls);
    let mut transfer = pin!(fixture.manager.copy(&src, &dst));
    let mut task = std::future::poll_fn(move |context| {
        counted.set(counted.get() + 1);
        transfer.as_mut().poll(context)
    });
    loop {
        let before = woken.0.load(Ordering::Relaxed);
        match Pin::new(&mut task).poll(&mut context) {
            Poll::Ready(report) => {
                assert_eq!(report?.bytes(), wanted.len() as u64);
                break;
            }
            // The executor polls a task again only after a wake-up.
            Poll::Pending => {
                fixture.sim.step();
                assert!(woken.0.load(Ordering::Relaxed) > before);
            }
        }
    }
    assert!(polls.get() > 1);
    assert!(fixture.bytes_of(&dst) == wanted);
    Ok(())
}

#[test]
fn a_detached_transfer_goes_on_in_the_turns_of_others() -> Outcome {
    let fixture = fixture();
    let (first, second) = (bytes(300_000, 4), bytes(300_000, 5));
    let dst = fixture.empty("sim:1", first.len());
    drop(fixture.manager.copy(&fixture.filled("sim:0", &first), &dst));
    let before = fixture
        .manager
        .copy(&dst, &fixture.empty("sim:0", first.len()));
    // This copy follows the transfer without a handle.
    fixture
        .manager
        .copy(&fixture.filled("sim:0", &second), &dst)
        .wait()?;
    assert!(fixture.bytes_of(&dst) == second);
    assert!(matches!(before.cancel(), Cancelled::Finished(Ok(_))));
    assert!(fixture.sim.violations().is_empty());
    Ok(())
}
