//! When nothing of a flight is left to be submitted.

use super::*;

#[test]
fn a_direct_copy_is_out_with_its_last_operation() {
    let mut flight = Flight::new(spec(3 * CHUNK, direct(2))).unwrap();
    assert!(!flight.is_out(), "nothing was submitted");
    let a = submit(&mut flight);
    let b = submit(&mut flight);
    assert_eq!(flight.poll_action(Instant(0)), None);
    assert!(!flight.is_out(), "a chunk waits for its turn");
    settle(&mut flight, a);
    assert!(!flight.is_out());
    let c = submit(&mut flight);
    assert!(flight.is_out());
    settle(&mut flight, b);
    assert!(flight.is_out());
    settle(&mut flight, c);
    assert!(flight.is_out());
    let over = Some(Action::Finish(Verdict::Done));
    assert_eq!(flight.poll_action(Instant(0)), over);
    assert!(!flight.is_out());
}

#[test]
fn a_staged_copy_is_out_when_the_last_hop_of_its_last_chunk_is() {
    let mut flight = Flight::new(spec(CHUNK, staged(1, Cost::ZERO, Cost::ZERO))).unwrap();
    assert_eq!(flight.poll_action(Instant(0)), Some(Action::Lease));
    assert!(flight.handle_admitted());
    let first = submit(&mut flight);
    assert!(!flight.is_out(), "a hop follows");
    settle(&mut flight, first);
    assert!(!flight.is_out());
    let second = submit(&mut flight);
    assert!(flight.is_out());
    assert_eq!(
        flight
            .handle_settled(second.id, Settled::Failed)
            .map(|of| of.phase),
        Some(Phase::Copy)
    );
    assert!(!flight.is_out(), "it goes another way");
}

#[test]
fn a_copy_that_is_verified_is_never_out() {
    let verify = Some(Verify {
        src: direct(1),
        dst: direct(1),
    });
    let verified = FlightSpec {
        verify,
        ..spec(CHUNK, direct(1))
    };
    let mut flight = Flight::new(verified).unwrap();
    for phase in [Phase::Copy, Phase::CheckSrc, Phase::CheckDst] {
        let task = submit(&mut flight);
        assert_eq!((flight.phase(), flight.is_out()), (phase, false));
        settle(&mut flight, task);
    }
}

#[test]
fn a_flight_that_was_told_to_stop_is_not_out() {
    let mut flight = Flight::new(spec(2 * CHUNK, direct(2))).unwrap();
    let [_, _] = [submit(&mut flight), submit(&mut flight)];
    assert!(flight.is_out());
    flight.handle_cancel();
    assert!(!flight.is_out());
}
