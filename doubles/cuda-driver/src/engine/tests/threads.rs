//! Many at once.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::*;

const THREADS: u64 = 8;
const WORKS: u64 = 200;

/// Each thread has a chain of its own, on a channel that it shares with another, and waits at every fifth.
fn many(clock: Clock) -> Engine {
    let engine = Engine::new(clock);
    let channels: Vec<ChannelId> = (0..THREADS / 2)
        .map(|index| engine.channel(format!("{index}")))
        .collect();
    let ran = Arc::new(AtomicU64::new(0));
    thread::scope(|scope| {
        for index in 0..THREADS {
            let (engine, ran) = (engine.clone(), Arc::clone(&ran));
            let channel = channels[index as usize / 2];
            scope.spawn(move || {
                let log = Log::default();
                let mut last: Option<Ticket> = None;
                for name in 0..WORKS {
                    let note = log.note(name);
                    let ran = Arc::clone(&ran);
                    let count = Box::new(move || {
                        note();
                        ran.fetch_add(1, Ordering::Relaxed);
                    });
                    let after: Vec<&Ticket> = last.iter().collect();
                    let action = match name % 7 {
                        0 => Action::Host(count),
                        _ => Action::Move(count),
                    };
                    let ticket = engine.submit(Work {
                        action,
                        ..work(&after, &[channel], 10)
                    });
                    if name % 5 == 0 {
                        engine.wait(&ticket);
                        assert_eq!(log.names().len() as u64, name + 1);
                    }
                    last = Some(ticket);
                }
                engine.wait(&last.unwrap());
                assert_eq!(log.names(), (0..WORKS).collect::<Vec<_>>());
            });
        }
    });
    assert_eq!(ran.load(Ordering::Relaxed), THREADS * WORKS);
    assert_eq!(engine.pending(), 0);
    engine
}

#[test]
fn many_threads_submit_and_wait_in_virtual_time() {
    let engine = many(Clock::Virtual);
    // Two chains on one channel cannot overlap, nor can a chain with itself.
    assert!(engine.now_ns() >= 2 * WORKS * 10);
}

#[test]
fn many_threads_submit_and_wait_in_real_time() {
    many(Clock::Real);
}

#[test]
fn many_wait_for_one_and_time_passes_once() {
    for clock in [Clock::Virtual, Clock::Real] {
        let engine = Engine::new(clock);
        let copy = engine.submit(work(&[], &[], 1_000));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| engine.wait(&copy));
            }
        });
        assert!(copy.is_done());
        if clock == Clock::Virtual {
            assert_eq!(engine.now_ns(), 1_000);
        }
    }
}

#[test]
fn a_wait_with_nothing_to_step_ends_when_another_thread_opens_the_gate() {
    let engine = Engine::new(Clock::Virtual);
    let gate = engine.gate();
    let acquire = engine.submit(Work {
        action: Action::Until(gate.bar()),
        ..work(&[], &[], 10)
    });
    let last = engine.submit(work(&[&acquire], &[], 5));
    let both = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            both.wait();
            engine.wait(&last);
        });
        both.wait();
        gate.open();
    });
    // The gate opened before the wait let time pass, or after it: the work took its time either way.
    assert_eq!(last.done_at_ns(), Some(15));
}

#[test]
fn a_wait_with_nothing_to_step_ends_when_another_thread_submits() {
    let engine = Engine::new(Clock::Virtual);
    let gate = engine.gate();
    let acquire = engine.submit(Work {
        action: Action::Until(gate.bar()),
        ..work(&[], &[], 10)
    });
    let both = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            both.wait();
            engine.wait(&acquire);
        });
        both.wait();
        engine.submit(Work {
            action: Action::Move(Box::new(move || gate.open())),
            ..work(&[], &[], 25)
        });
    });
    assert!(acquire.is_done());
}
