//! The lifetimes of works, tickets and threads.

use std::sync::Weak;

use super::*;

const LONG: usize = 100_000;

#[test]
fn a_long_chain_is_worked_off_in_flat_memory() {
    let engine = Engine::new(Clock::Virtual);
    let mut last = engine.submit(work(&[], &[], 1));
    for _ in 1..LONG {
        last = engine.submit(work(&[&last], &[], 1));
    }
    assert_eq!(engine.pending(), LONG);
    engine.wait(&last);
    assert_eq!(last.done_at_ns(), Some(LONG as u64));
    assert_eq!(engine.pending(), 0);
}

#[test]
fn a_long_chain_that_never_ran_is_dropped_without_recursion() {
    let engine = Engine::new(Clock::Virtual);
    let mut last = engine.submit(Work {
        action: Action::Never,
        ..work(&[], &[], 0)
    });
    for _ in 1..LONG {
        last = engine.submit(work(&[&last], &[], 1));
    }
    drop(engine);
    assert!(!last.is_done());
    drop(last);
}

#[test]
fn a_stream_that_goes_on_for_long_holds_only_what_is_not_done() {
    let engine = Engine::new(Clock::Virtual);
    let mut last: Option<Ticket> = None;
    let mut seen: Vec<Weak<()>> = Vec::new();
    for _ in 0..100 {
        let carried = Arc::new(());
        seen.push(Arc::downgrade(&carried));
        let after: Vec<&Ticket> = last.iter().collect();
        let copy = engine.submit(Work {
            action: Action::Move(Box::new(move || drop(carried))),
            ..work(&after, &[], 1)
        });
        engine.wait(&copy);
        // The ticket before it is let go here; the work before it was let go when it was done.
        last = Some(copy);
        assert_eq!(engine.pending(), 0);
        assert!(seen.iter().all(|carried| carried.strong_count() == 0));
    }
}

#[test]
fn a_finished_ticket_keeps_no_other_alive() {
    let engine = Engine::new(Clock::Virtual);
    let first = engine.submit(work(&[], &[], 1));
    let done = Arc::downgrade(&first.done);
    let second = engine.submit(work(&[&first], &[], 1));
    drop(first);
    assert_eq!(done.strong_count(), 1, "the engine's own");
    engine.advance(1);
    assert_eq!(done.strong_count(), 0);
    assert!(!second.is_done());
}

#[test]
fn threads_end_with_the_last_clone() {
    let engine = Engine::new(Clock::Real);
    let shared = Arc::downgrade(&engine.owner.shared);
    let clone = engine.clone();
    let host = engine.submit(Work {
        action: Action::Host(Box::new(|| {})),
        ..work(&[], &[], 0)
    });
    engine.wait(&host);
    // An end that is an hour away does not keep the thread.
    engine.submit(work(&[], &[], 3_600_000_000_000));
    drop(engine);
    assert!(shared.strong_count() > 0);
    drop(clone);
    // Both threads have been joined, so no thread holds it.
    assert_eq!(shared.strong_count(), 0);
}

#[test]
fn the_last_clone_may_go_with_an_action() {
    let engine = Engine::new(Clock::Real);
    let gone = Arc::downgrade(&engine.owner);
    let (inner, gate) = (engine.clone(), engine.gate());
    let (tell, told) = std::sync::mpsc::channel();
    let wait_for_drop = engine.submit(Work {
        action: Action::Until(gate.bar()),
        ..work(&[], &[], 0)
    });
    engine.submit(Work {
        action: Action::Move(Box::new(move || {
            drop(inner);
            tell.send(()).unwrap();
        })),
        ..work(&[&wait_for_drop], &[], 0)
    });
    // Opened first, for a gate alone does not keep the engine; the move may run before or after the drop.
    gate.open();
    drop(engine);
    told.recv().unwrap();
    assert_eq!(gone.strong_count(), 0);
}

#[test]
fn an_engine_without_work_has_no_thread() {
    for clock in [Clock::Real, Clock::Virtual] {
        let engine = Engine::new(clock);
        engine.channel("up");
        assert_eq!(Arc::strong_count(&engine.owner.shared), 1, "{clock:?}");
    }
    let engine = Engine::new(Clock::Virtual);
    engine.wait(&engine.submit(work(&[], &[], 1)));
    assert_eq!(Arc::strong_count(&engine.owner.shared), 1);
}
