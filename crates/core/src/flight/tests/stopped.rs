//! Operations that their backend stopped before their end.

use super::*;

const PART: Settled = Settled::Stopped { leading_bytes: 5 };

fn stopped(leading_bytes: u64) -> Option<Action> {
    Some(Action::Finish(Verdict::Stopped {
        reason: StopReason::Cancelled,
        leading_bytes,
        started: true,
    }))
}

/// Returns a flight of four chunks, three of which are under way when it is cancelled.
fn cancelled() -> (Flight, [Task; 3]) {
    let mut flight = Flight::new(spec(4 * CHUNK, direct(3))).unwrap();
    let tasks = [(); 3].map(|()| submit(&mut flight));
    flight.handle_cancel();
    (flight, tasks)
}

#[test]
fn the_leading_bytes_of_the_first_chunk_that_was_stopped_count() {
    let (mut flight, [a, b, c]) = cancelled();
    assert_eq!(flight.handle_settled(b.id, PART), None);
    assert_eq!(flight.leading_bytes(), 0, "the first chunk is under way");
    settle(&mut flight, a);
    assert_eq!(flight.leading_bytes(), CHUNK + 5);
    assert_eq!(flight.handle_settled(c.id, PART), None);
    assert_eq!(flight.copied_bytes(), CHUNK + 10);
    assert_eq!(flight.poll_action(Instant(0)), stopped(CHUNK + 5));
}

#[test]
fn bytes_behind_a_gap_do_not_lead() {
    let (mut flight, [a, b, c]) = cancelled();
    assert_eq!(flight.handle_settled(a.id, PART), None);
    settle(&mut flight, b);
    settle(&mut flight, c);
    assert_eq!(flight.copied_bytes(), 2 * CHUNK + 5);
    assert_eq!(flight.poll_action(Instant(0)), stopped(5));
}

#[test]
fn a_backend_cannot_claim_more_than_the_operation() {
    let (mut flight, [a, b, c]) = cancelled();
    let all = Settled::Stopped {
        leading_bytes: u64::MAX,
    };
    assert_eq!(flight.handle_settled(a.id, all), None);
    for task in [b, c] {
        assert_eq!(flight.handle_settled(task.id, Settled::Failed), None);
    }
    assert_eq!(flight.copied_bytes(), CHUNK);
    assert_eq!(flight.poll_action(Instant(0)), stopped(CHUNK));
}

#[test]
fn a_first_hop_that_was_stopped_brings_no_byte_to_the_destination() {
    let mut flight = Flight::new(spec(CHUNK, staged(1, Cost::ZERO, Cost::ZERO))).unwrap();
    assert_eq!(flight.poll_action(Instant(0)), Some(Action::Lease));
    assert!(flight.handle_admitted());
    let hop = submit(&mut flight);
    assert!(!flight.is_last_step(hop.id));
    flight.handle_cancel();
    assert_eq!(flight.handle_settled(hop.id, PART), None);
    let returned = flight.poll_action(Instant(0));
    assert!(matches!(returned, Some(Action::Return(_))), "{returned:?}");
    assert_eq!(flight.copied_bytes(), 0);
    assert_eq!(flight.poll_action(Instant(0)), stopped(0));
}

#[test]
fn in_a_flight_that_goes_on_a_stopped_operation_failed() {
    let mut flight = Flight::new(spec(2 * CHUNK, direct(1))).unwrap();
    let a = submit(&mut flight);
    let failure = flight.handle_settled(a.id, PART);
    assert_eq!(failure.map(|of| of.span), Some(a.span));
    assert_eq!((flight.leading_bytes(), flight.copied_bytes()), (0, 0));
    assert_eq!(flight.poll_action(Instant(0)), failure.map(Action::Route));
    flight.handle_route(Some(direct(1)));
    assert_eq!(submit(&mut flight).span, a.span);
}

#[test]
fn what_was_stopped_is_forgotten_when_the_flight_is_used_again() {
    let (mut flight, tasks) = cancelled();
    for task in tasks {
        assert_eq!(flight.handle_settled(task.id, PART), None);
    }
    assert_eq!(flight.poll_action(Instant(0)), stopped(5));
    flight.restart(spec(4 * CHUNK, direct(3))).unwrap();
    assert_eq!((flight.leading_bytes(), flight.copied_bytes()), (0, 0));
    assert_eq!(submit(&mut flight).span, Span::new(0, CHUNK));
}

#[test]
fn only_what_is_under_way_at_its_last_step_adds_to_progress() {
    let mut flight = Flight::new(spec(CHUNK, direct(1))).unwrap();
    let only = submit(&mut flight);
    assert!(flight.is_last_step(only.id));
    for stray in [
        TaskId { lane: 9, ..only.id },
        TaskId {
            chunk: 9,
            ..only.id
        },
    ] {
        assert!(!flight.is_last_step(stray));
    }
    settle(&mut flight, only);
    assert!(!flight.is_last_step(only.id), "it has been counted");

    let verify = Some(Verify {
        src: direct(1),
        dst: direct(1),
    });
    let mut checked = Flight::new(FlightSpec {
        verify,
        ..spec(CHUNK, direct(1))
    })
    .unwrap();
    let copy = submit(&mut checked);
    settle(&mut checked, copy);
    let check = submit(&mut checked);
    assert!(!checked.is_last_step(check.id), "it moves nothing");
}
