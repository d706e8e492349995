//! The action at the end of work, and its time.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc;

use super::*;

fn act(engine: &Engine, after: &[&Ticket], duration_ns: u64, action: Action) -> Ticket {
    engine.submit(Work {
        action,
        ..work(after, &[], duration_ns)
    })
}

#[test]
fn a_destination_read_before_the_end_has_the_old_bytes() {
    let engine = Engine::new(Clock::Virtual);
    let byte = Arc::new(AtomicU8::new(1));
    let target = Arc::clone(&byte);
    let copy = act(
        &engine,
        &[],
        100,
        Action::Move(Box::new(move || target.store(2, Ordering::Relaxed))),
    );
    engine.advance(99);
    assert_eq!((byte.load(Ordering::Relaxed), copy.is_done()), (1, false));
    engine.advance(1);
    assert_eq!((byte.load(Ordering::Relaxed), copy.is_done()), (2, true));
}

#[test]
fn a_source_is_read_at_the_end() {
    let engine = Engine::new(Clock::Virtual);
    let source = Arc::new(AtomicU8::new(1));
    let target = Arc::new(AtomicU8::new(0));
    let (from, to) = (Arc::clone(&source), Arc::clone(&target));
    let copy = act(
        &engine,
        &[],
        100,
        Action::Move(Box::new(move || {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        })),
    );
    engine.advance(50);
    source.store(9, Ordering::Relaxed);
    engine.wait(&copy);
    assert_eq!(target.load(Ordering::Relaxed), 9);
}

#[test]
fn actions_run_without_the_lock_while_the_clock_stands_still() {
    let engine = Engine::new(Clock::Virtual);
    let seen = Arc::new(Mutex::new(None));
    let (inner, report) = (engine.clone(), Arc::clone(&seen));
    let copy = act(
        &engine,
        &[],
        100,
        Action::Move(Box::new(move || {
            // Submitting takes the lock; so does another thread's look at the clock.
            let more = inner.submit(work(&[], &[], 7));
            let elsewhere = inner.clone();
            let now = std::thread::spawn(move || elsewhere.now_ns());
            *report.lock().unwrap() = Some((now.join().unwrap(), more));
        })),
    );
    engine.wait(&copy);
    let (now, more) = seen.lock().unwrap().take().unwrap();
    assert_eq!(now, 100);
    engine.wait(&more);
    assert_eq!(more.done_at_ns(), Some(107));
}

#[test]
fn what_never_ends_holds_up_its_successors_alone() {
    let engine = Engine::new(Clock::Virtual);
    let up = engine.channel("up");
    let stuck = engine.submit(Work {
        action: Action::Never,
        ..work(&[], &[up], 10)
    });
    let successor = engine.submit(work(&[&stuck], &[], 1));
    let other = engine.submit(work(&[], &[up], 10));
    engine.wait(&other);
    assert_eq!(other.done_at_ns(), Some(20));
    engine.advance(1_000_000);
    assert!(!stuck.is_done() && !successor.is_done());
    assert_eq!(engine.pending(), 2);
    assert!(!engine.step());
}

#[test]
fn a_gate_that_opens_later_ends_the_work() {
    let engine = Engine::new(Clock::Virtual);
    let gate = engine.gate();
    let acquire = act(&engine, &[], 10, Action::Until(gate.bar()));
    let next = act(&engine, &[&acquire], 5, Action::Nothing);
    engine.advance(40);
    assert!(!acquire.is_done());
    gate.open();
    gate.open();
    assert_eq!(acquire.done_at_ns(), Some(40));
    engine.wait(&next);
    assert_eq!(next.done_at_ns(), Some(45));
}

#[test]
fn a_gate_that_is_open_lets_work_pass_at_its_end() {
    let engine = Engine::new(Clock::Virtual);
    let gate = engine.gate();
    gate.open();
    let acquire = act(&engine, &[], 10, Action::Until(gate.bar()));
    assert!(!acquire.is_done());
    engine.wait(&acquire);
    assert_eq!(acquire.done_at_ns(), Some(10));
}

#[test]
fn a_gate_that_opens_while_work_runs_does_not_shorten_it() {
    let engine = Engine::new(Clock::Virtual);
    let gate = engine.gate();
    let acquire = act(&engine, &[], 10, Action::Until(gate.bar()));
    engine.advance(4);
    gate.open();
    assert!(!acquire.is_done());
    engine.wait(&acquire);
    assert_eq!(acquire.done_at_ns(), Some(10));
}

#[test]
fn an_action_may_open_a_gate() {
    for clock in [Clock::Virtual, Clock::Real] {
        let engine = Engine::new(clock);
        let gate = engine.gate();
        let acquire = act(&engine, &[], 1, Action::Until(gate.bar()));
        let release = act(
            &engine,
            &[],
            20,
            Action::Move(Box::new(move || gate.open())),
        );
        engine.wait_all(&[release.clone(), acquire.clone()]);
        assert!(acquire.done_at_ns() >= Some(20));
    }
}

#[test]
fn a_gate_outlives_its_engine_without_harm() {
    let engine = Engine::new(Clock::Virtual);
    let gate = engine.gate();
    act(&engine, &[], 0, Action::Until(gate.bar()));
    engine.advance(0);
    drop(engine);
    gate.open();
}

#[test]
fn functions_and_moves_of_one_chain_run_in_its_order() {
    for clock in [Clock::Virtual, Clock::Real] {
        let engine = Engine::new(clock);
        let log = Log::default();
        let mut last: Option<Ticket> = None;
        for name in 0..100 {
            let action = match name % 3 {
                0 => Action::Host(log.note(name)),
                _ => Action::Move(log.note(name)),
            };
            let after: Vec<&Ticket> = last.iter().collect();
            last = Some(act(&engine, &after, name % 2, action));
        }
        engine.wait(&last.unwrap());
        assert_eq!(log.names(), (0..100).collect::<Vec<_>>(), "{clock:?}");
    }
}

#[test]
fn a_function_that_blocks_holds_up_its_successors_and_no_copy() {
    let engine = Engine::new(Clock::Real);
    let (release, released) = mpsc::channel::<()>();
    let function = act(
        &engine,
        &[],
        0,
        Action::Host(Box::new(move || released.recv().unwrap())),
    );
    let successor = act(&engine, &[&function], 0, Action::Nothing);
    let copy = act(&engine, &[], 0, Action::Move(Box::new(|| {})));
    engine.wait(&copy);
    assert!(!function.is_done() && !successor.is_done());
    release.send(()).unwrap();
    engine.wait(&successor);
    assert!(function.is_done());
}

#[test]
fn in_real_time_bytes_do_not_move_before_their_end() {
    let engine = Engine::new(Clock::Real);
    let up = engine.channel("up");
    let began = engine.now_ns();
    let moved_at = Arc::new(Mutex::new(Vec::new()));
    let copies = [3_000_000, 2_000_000].map(|duration_ns| {
        let (moved_at, clock) = (Arc::clone(&moved_at), engine.clone());
        engine.submit(Work {
            action: Action::Move(Box::new(move || {
                moved_at.lock().unwrap().push(clock.now_ns());
            })),
            ..work(&[], &[up], duration_ns)
        })
    });
    engine.wait_all(&copies);
    let moved_at = moved_at.lock().unwrap();
    assert!(
        moved_at[0] >= began + 3_000_000,
        "{moved_at:?} from {began}"
    );
    assert!(
        moved_at[1] >= began + 5_000_000,
        "{moved_at:?} from {began}"
    );
    // The reported end is the modelled one, which does not depend on the time at which the bytes were moved.
    let [first, second] = copies.map(|copy| copy.done_at_ns().unwrap());
    assert!(second >= first + 2_000_000, "{first} {second}");
    assert!(second <= moved_at[1], "{second} {moved_at:?}");
}

#[test]
fn an_action_that_lets_time_pass_is_told_so() {
    let engine = Engine::new(Clock::Virtual);
    let inner = engine.clone();
    let told = Arc::new(AtomicBool::new(false));
    let report = Arc::clone(&told);
    let host = act(
        &engine,
        &[],
        0,
        Action::Host(Box::new(move || {
            let step = std::panic::AssertUnwindSafe(|| inner.step());
            report.store(std::panic::catch_unwind(step).is_err(), Ordering::Relaxed);
        })),
    );
    engine.wait(&host);
    assert!(told.load(Ordering::Relaxed));
}

#[test]
#[should_panic(expected = "another engine")]
fn a_ticket_of_another_engine_is_refused() {
    let (mine, other) = (Engine::new(Clock::Virtual), Engine::new(Clock::Virtual));
    mine.submit(work(&[], &[], 1));
    let foreign = other.submit(work(&[], &[], 1));
    mine.submit(work(&[&foreign], &[], 1));
}

#[test]
#[should_panic(expected = "passes by itself")]
fn real_time_is_not_stepped() {
    Engine::new(Clock::Real).step();
}

#[test]
fn however_long_the_processor_moves_bytes_the_next_work_follows_the_modelled_end() {
    let engine = Engine::new(Clock::Real);
    let (channel, gate) = (engine.channel("a link"), engine.gate());
    let (go, going) = mpsc::channel::<()>();
    let begin = act(&engine, &[], 0, Action::Until(gate.bar()));
    let slow = engine.submit(Work {
        action: Action::Move(Box::new(move || going.recv().unwrap())),
        ..work(&[&begin], &[channel], 1_000)
    });
    let next = engine.submit(work(&[&slow], &[channel], 1_000_000));
    gate.open();
    // The move goes on past the end of what it models.
    while begin
        .done_at_ns()
        .is_none_or(|at_ns| engine.now_ns() < at_ns + 2_000_000)
    {
        std::thread::yield_now();
    }
    go.send(()).unwrap();
    engine.wait(&next);
    let ends = [&begin, &slow, &next].map(|ticket| ticket.done_at_ns().unwrap());
    assert_eq!([ends[1] - ends[0], ends[2] - ends[1]], [1_000, 1_000_000]);
}
