//! Durations are exact.

use super::*;

#[test]
fn sixteen_mib_take_exactly_their_time() {
    let engine = Engine::new(Clock::Virtual);
    let up = engine.channel("up");
    let copy = engine.submit(work(&[], &[up], SIXTEEN_MIB_NS));
    assert_eq!((copy.done_at_ns(), engine.now_ns()), (None, 0));
    engine.wait(&copy);
    assert_eq!(copy.done_at_ns(), Some(SIXTEEN_MIB_NS));
    assert_eq!(engine.now_ns(), SIXTEEN_MIB_NS);
    assert_eq!(engine.pending(), 0);
}

#[test]
fn two_at_once_on_one_channel_take_twice_as_long() {
    let engine = Engine::new(Clock::Virtual);
    let up = engine.channel("up");
    let first = engine.submit(work(&[], &[up], SIXTEEN_MIB_NS));
    let second = engine.submit(work(&[], &[up], SIXTEEN_MIB_NS));
    engine.wait_all(&[second.clone(), first.clone()]);
    assert_eq!(first.done_at_ns(), Some(SIXTEEN_MIB_NS));
    assert_eq!(second.done_at_ns(), Some(2 * SIXTEEN_MIB_NS));
}

#[test]
fn both_directions_of_a_duplex_link_overlap() {
    let engine = Engine::new(Clock::Virtual);
    let (up, down) = (engine.channel("up"), engine.channel("down"));
    let there = engine.submit(work(&[], &[up], SIXTEEN_MIB_NS));
    let back = engine.submit(work(&[], &[down], SIXTEEN_MIB_NS));
    engine.wait_all(&[there.clone(), back.clone()]);
    assert_eq!(there.done_at_ns(), Some(SIXTEEN_MIB_NS));
    assert_eq!(back.done_at_ns(), Some(SIXTEEN_MIB_NS));
}

#[test]
fn work_on_two_channels_waits_for_both_and_holds_both() {
    let engine = Engine::new(Clock::Virtual);
    let (a, b) = (engine.channel("a"), engine.channel("b"));
    let short = engine.submit(work(&[], &[a], 10));
    let long = engine.submit(work(&[], &[b], 30));
    // A channel that is named twice is held once.
    let both = engine.submit(work(&[], &[a, b, a], 5));
    // It has its place in both queues, so no work passes it on the one that is free.
    let behind = engine.submit(work(&[], &[a], 1));
    let tickets = [short, long, both, behind];
    engine.wait_all(&tickets);
    let ends = tickets.map(|ticket| ticket.done_at_ns());
    assert_eq!(ends, [Some(10), Some(30), Some(35), Some(36)]);
}

#[test]
fn work_without_channels_overlaps_everything() {
    let engine = Engine::new(Clock::Virtual);
    let up = engine.channel("up");
    let held = engine.submit(work(&[], &[up], 100));
    let free = engine.submit(work(&[], &[], 40));
    engine.wait(&free);
    assert_eq!(engine.now_ns(), 40);
    assert!(!held.is_done());
}

#[test]
fn work_joins_its_queues_when_it_is_ready_and_not_before() {
    let engine = Engine::new(Clock::Virtual);
    let up = engine.channel("up");
    let gate = engine.submit(work(&[], &[], 50));
    let early = engine.submit(work(&[&gate], &[up], 10));
    let late = engine.submit(work(&[], &[up], 10));
    engine.wait_all(&[early.clone(), late.clone()]);
    assert_eq!(late.done_at_ns(), Some(10));
    assert_eq!(early.done_at_ns(), Some(60));
}

#[test]
fn what_becomes_ready_at_one_instant_goes_in_the_order_of_submission() {
    let engine = Engine::new(Clock::Virtual);
    let up = engine.channel("up");
    let second_cause = engine.submit(work(&[], &[], 50));
    let first_cause = engine.submit(work(&[], &[], 50));
    let first = engine.submit(work(&[&first_cause], &[up], 10));
    let second = engine.submit(work(&[&second_cause], &[up], 10));
    engine.wait(&second);
    assert_eq!(first.done_at_ns(), Some(60));
    assert_eq!(second.done_at_ns(), Some(70));
}

#[test]
fn work_after_several_waits_for_the_last_of_them() {
    let engine = Engine::new(Clock::Virtual);
    let a = engine.submit(work(&[], &[], 10));
    let b = engine.submit(work(&[&a], &[], 10));
    let c = engine.submit(work(&[], &[], 5));
    let d = engine.submit(work(&[&c, &b, &b, &a], &[], 1));
    engine.wait(&d);
    assert_eq!(d.done_at_ns(), Some(21));
    let later = engine.submit(work(&[&a, &d], &[], 0));
    engine.wait(&later);
    assert_eq!(later.done_at_ns(), Some(21));
}

#[test]
fn a_step_does_one_instant_with_all_that_it_causes() {
    let engine = Engine::new(Clock::Virtual);
    let a = engine.submit(work(&[], &[], 10));
    let b = engine.submit(work(&[&a], &[], 0));
    let c = engine.submit(work(&[&b], &[], 0));
    let d = engine.submit(work(&[&c], &[], 1));
    assert!(engine.step());
    assert_eq!((engine.now_ns(), c.done_at_ns()), (10, Some(10)));
    assert!(!d.is_done());
    assert!(engine.step());
    assert_eq!(d.done_at_ns(), Some(11));
    assert!(!engine.step());
    assert_eq!(engine.now_ns(), 11);
}

#[test]
fn advancing_goes_exactly_that_far() {
    let engine = Engine::new(Clock::Virtual);
    let up = engine.channel("up");
    let copies = [10, 20, 30].map(|ns| engine.submit(work(&[], &[up], ns)));
    engine.advance(9);
    assert_eq!(engine.now_ns(), 9);
    assert!(copies.iter().all(|copy| !copy.is_done()));
    engine.advance(1);
    assert!(copies[0].is_done());
    engine.advance(49);
    let done = copies.each_ref().map(Ticket::is_done);
    assert_eq!((engine.now_ns(), done), (59, [true, true, false]));
    // Work that is submitted now starts now, after the running work.
    let next = engine.submit(work(&[], &[up], 5));
    engine.advance(0);
    assert_eq!(engine.now_ns(), 59);
    engine.advance(1_000);
    assert_eq!(next.done_at_ns(), Some(65));
    assert_eq!(engine.now_ns(), 1_059);
    let after_a_pause = engine.submit(work(&[], &[up], 5));
    engine.wait(&after_a_pause);
    assert_eq!(after_a_pause.done_at_ns(), Some(1_064));
}

#[test]
fn advancing_by_nothing_does_what_is_due() {
    let engine = Engine::new(Clock::Virtual);
    let at_once = engine.submit(work(&[], &[], 0));
    assert!(!at_once.is_done());
    engine.advance(0);
    assert_eq!(at_once.done_at_ns(), Some(0));
}

#[test]
fn a_duration_beyond_all_time_ends_at_the_end_of_time() {
    let engine = Engine::new(Clock::Virtual);
    engine.advance(5);
    let endless = engine.submit(work(&[], &[], u64::MAX));
    assert!(engine.step());
    assert_eq!(engine.now_ns(), u64::MAX);
    assert!(endless.is_done());
}
