//! A flight stepped by hand.

mod out;
mod stopped;

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::{
    BackendId, Cost, DeviceId, DeviceKind, EngineId, Lane, MemoryKind, Method, Name, Plan, Ring,
    Role, Step, StepKind,
};

const CHUNK: u64 = 16;

pub(super) fn step(from: Role, to: Role, engine: u16, cost: Cost) -> Step {
    Step {
        kind: StepKind::Copy { from, to },
        backend: BackendId(Name::constant("sim")),
        engine: EngineId {
            device: DeviceId::new(DeviceKind::SIM, 0),
            index: engine,
        },
        cost: cost.into(),
        host_load: 0,
        link: None,
    }
}

pub(super) fn direct(depth: u16) -> Arc<Plan> {
    plan(
        Method::DirectCopy,
        vec![lane(
            vec![step(Role::Src, Role::Dst, 0, Cost::new(5, 1_000_000))],
            0,
            depth,
        )],
    )
}

pub(super) fn staged(slots: u16, first: Cost, second: Cost) -> Arc<Plan> {
    let steps = vec![
        step(Role::Src, Role::Slot(0), 0, first),
        step(Role::Slot(0), Role::Dst, 1, second),
    ];
    plan(Method::HostStaged, vec![lane(steps, slots, 1)])
}

pub(super) fn lane(steps: Vec<Step>, slots: u16, depth: u16) -> Lane {
    let rings = steps
        .iter()
        .filter(|step| {
            matches!(
                step.kind,
                StepKind::Copy {
                    to: Role::Slot(_),
                    ..
                }
            )
        })
        .map(|_| Ring {
            memory: DeviceId::CPU0.memory(MemoryKind::Pinned),
            slots,
        })
        .collect();
    Lane {
        route: None,
        steps,
        rings,
        chunk_bytes: CHUNK,
        depth,
        share: 1,
    }
}

pub(super) fn plan(method: Method, lanes: Vec<Lane>) -> Arc<Plan> {
    Arc::new(Plan {
        method,
        lanes,
        estimate: Cost::ZERO.into(),
        correction: crate::Correction::default(),
    })
}

pub(super) fn spec(len_bytes: u64, plan: Arc<Plan>) -> FlightSpec {
    FlightSpec {
        len_bytes,
        plan,
        verify: None,
        in_place: false,
        deadline: None,
    }
}

fn submit(flight: &mut Flight) -> Task {
    match flight.poll_action(Instant(0)) {
        Some(Action::Submit(task)) => task,
        other => panic!("expected an operation, got {other:?}"),
    }
}

fn settle(flight: &mut Flight, task: Task) {
    assert_eq!(flight.handle_settled(task.id, Settled::Done), None);
}

#[test]
fn an_empty_payload_is_done_without_any_operation() {
    for plan in [direct(2), staged(2, Cost::ZERO, Cost::ZERO)] {
        let mut flight = Flight::new(spec(0, plan)).unwrap();
        assert_eq!(
            flight.poll_action(Instant(0)),
            Some(Action::Finish(Verdict::Done))
        );
        assert_eq!(flight.poll_action(Instant(0)), None);
    }
}

#[test]
fn a_direct_copy_keeps_its_depth_and_covers_each_byte_once() {
    let mut flight = Flight::new(spec(3 * CHUNK + 1, direct(2))).unwrap();
    let a = submit(&mut flight);
    let b = submit(&mut flight);
    assert_eq!(flight.poll_action(Instant(0)), None);
    settle(&mut flight, b);
    assert_eq!(flight.copied_bytes(), CHUNK);
    let c = submit(&mut flight);
    settle(&mut flight, a);
    let d = submit(&mut flight);
    assert_eq!(
        [a, b, c, d].map(|task| task.span),
        [
            Span::new(0, CHUNK),
            Span::new(CHUNK, CHUNK),
            Span::new(2 * CHUNK, CHUNK),
            Span::new(3 * CHUNK, 1)
        ]
    );
    settle(&mut flight, c);
    assert_eq!(flight.poll_action(Instant(0)), None);
    settle(&mut flight, d);
    assert_eq!(
        flight.poll_action(Instant(0)),
        Some(Action::Finish(Verdict::Done))
    );
}

#[test]
fn a_staged_copy_moves_nothing_before_its_lease() {
    let mut flight = Flight::new(spec(2 * CHUNK, staged(2, Cost::ZERO, Cost::ZERO))).unwrap();
    assert_eq!(flight.poll_action(Instant(0)), Some(Action::Lease));
    assert_eq!(flight.poll_action(Instant(0)), None);
    assert!(flight.handle_admitted());
    let fill = submit(&mut flight);
    assert_eq!(
        fill.work,
        Work::Copy {
            from: Endpoint::Src,
            to: Endpoint::Slot(SlotId {
                lane: 0,
                ring: 0,
                slot: 0
            })
        }
    );
    assert_eq!(flight.poll_action(Instant(0)), None, "one slot, one chunk");
    assert_eq!(flight.wanted_slots(0, 0), 1);
    let second = flight.handle_grant(0, 0);
    assert_eq!(flight.wanted_slots(0, 0), 0);
    let next = submit(&mut flight);
    assert_eq!(
        next.work,
        Work::Copy {
            from: Endpoint::Src,
            to: Endpoint::Slot(second)
        }
    );
    settle(&mut flight, fill);
    let drain = submit(&mut flight);
    assert_eq!((drain.step, drain.span), (1, Span::new(0, CHUNK)));
    settle(&mut flight, drain);
    assert!(matches!(
        flight.poll_action(Instant(0)),
        Some(Action::Return(SlotId { slot: 0, .. }))
    ));
    settle(&mut flight, next);
    let drain = submit(&mut flight);
    settle(&mut flight, drain);
    assert!(matches!(
        flight.poll_action(Instant(0)),
        Some(Action::Return(SlotId { slot: 1, .. }))
    ));
    assert_eq!(
        flight.poll_action(Instant(0)),
        Some(Action::Finish(Verdict::Done))
    );
}

#[test]
fn another_route_goes_on_from_the_first_byte_that_did_not_arrive() {
    let mut flight = Flight::new(spec(4 * CHUNK, direct(2))).unwrap();
    let a = submit(&mut flight);
    settle(&mut flight, a);
    let b = submit(&mut flight);
    let c = submit(&mut flight);
    settle(&mut flight, c);
    let failure = flight.handle_settled(b.id, Settled::Failed).unwrap();
    assert_eq!(failure.span, b.span);
    assert_eq!(flight.poll_action(Instant(0)), Some(Action::Route(failure)));
    flight.handle_route(Some(direct(1)));
    let again = submit(&mut flight);
    assert_eq!(again.span, Span::new(CHUNK, CHUNK));
}

#[test]
fn a_failed_leg_waits_until_its_operations_are_quiet() {
    let mut flight = Flight::new(spec(4 * CHUNK, direct(2))).unwrap();
    let a = submit(&mut flight);
    let b = submit(&mut flight);
    flight.handle_settled(a.id, Settled::Failed).unwrap();
    assert_eq!(flight.poll_action(Instant(0)), None, "b is still writing");
    settle(&mut flight, b);
    let Some(Action::Route(failure)) = flight.poll_action(Instant(0)) else {
        panic!()
    };
    flight.handle_route(None);
    assert_eq!(
        flight.poll_action(Instant(0)),
        Some(Action::Finish(Verdict::Failed(failure)))
    );
}

#[test]
fn an_overlapping_copy_is_one_chunk_and_is_retried_only_when_it_was_refused() {
    for (settled, retried) in [(Settled::Refused, true), (Settled::Failed, false)] {
        let mut flight = Flight::new(FlightSpec {
            in_place: true,
            ..spec(4 * CHUNK, direct(2))
        })
        .unwrap();
        let task = submit(&mut flight);
        assert_eq!(task.span, Span::new(0, 4 * CHUNK));
        flight.handle_settled(task.id, settled).unwrap();
        let asked = matches!(flight.poll_action(Instant(0)), Some(Action::Route(_)));
        assert_eq!(asked, retried);
    }
}

#[test]
fn cancel_tells_how_far_it_came() {
    let stopped = |leading_bytes, started| {
        Some(Action::Finish(Verdict::Stopped {
            reason: StopReason::Cancelled,
            leading_bytes,
            started,
        }))
    };
    let mut fresh = Flight::new(spec(CHUNK, direct(1))).unwrap();
    fresh.handle_cancel();
    assert_eq!(fresh.poll_action(Instant(0)), stopped(0, false));

    let mut midway = Flight::new(spec(3 * CHUNK, direct(1))).unwrap();
    let a = submit(&mut midway);
    settle(&mut midway, a);
    let b = submit(&mut midway);
    midway.handle_cancel();
    assert_eq!(midway.poll_action(Instant(0)), None);
    settle(&mut midway, b);
    assert_eq!(midway.poll_action(Instant(0)), stopped(2 * CHUNK, true));

    let mut last = Flight::new(spec(CHUNK, direct(1))).unwrap();
    let a = submit(&mut last);
    last.handle_cancel();
    settle(&mut last, a);
    assert_eq!(
        last.poll_action(Instant(0)),
        Some(Action::Finish(Verdict::Done))
    );
}

#[test]
fn a_deadline_stops_the_flight_when_time_reaches_it() {
    let mut flight = Flight::new(FlightSpec {
        deadline: Some(Instant(10)),
        ..spec(3 * CHUNK, direct(1))
    })
    .unwrap();
    let a = submit(&mut flight);
    settle(&mut flight, a);
    assert!(matches!(
        flight.poll_action(Instant(9)),
        Some(Action::Submit(_))
    ));
    assert_eq!(
        flight.poll_action(Instant(10)),
        None,
        "an operation is under way"
    );
    assert_eq!(flight.deadline(), None);
}

#[test]
fn a_difference_sends_the_copy_over_another_route_from_the_start() {
    let digest = plan(
        Method::DirectCopy,
        vec![lane(
            vec![Step {
                kind: StepKind::Transform { at: Role::Src },
                ..step(Role::Src, Role::Dst, 3, Cost::ZERO)
            }],
            0,
            2,
        )],
    );
    let verify = Some(Verify {
        src: digest.clone(),
        dst: digest,
    });
    let mut flight = Flight::new(FlightSpec {
        verify,
        ..spec(2 * CHUNK, direct(1))
    })
    .unwrap();
    for phase in [Phase::Copy, Phase::CheckSrc, Phase::CheckDst] {
        for _ in 0..2 {
            let task = submit(&mut flight);
            assert_eq!(flight.phase(), phase);
            settle(&mut flight, task);
        }
    }
    assert_eq!(flight.poll_action(Instant(0)), Some(Action::Compare));
    flight.handle_compared(false);
    assert!(matches!(
        flight.poll_action(Instant(0)),
        Some(Action::Route(Failure {
            at: None,
            phase: Phase::Copy,
            ..
        }))
    ));
    flight.handle_route(Some(direct(1)));
    assert_eq!(submit(&mut flight).span, Span::new(0, CHUNK));
}

#[test]
fn chunks_pass_a_transform_one_by_one_and_in_order() {
    let steps = vec![
        step(Role::Src, Role::Slot(0), 0, Cost::ZERO),
        Step {
            kind: StepKind::Transform { at: Role::Slot(0) },
            ..step(Role::Src, Role::Dst, 2, Cost::ZERO)
        },
        step(Role::Slot(0), Role::Dst, 1, Cost::ZERO),
    ];
    let mut flight = Flight::new(spec(
        3 * CHUNK,
        plan(Method::HostStaged, vec![lane(steps, 3, 1)]),
    ))
    .unwrap();
    assert_eq!(flight.poll_action(Instant(0)), Some(Action::Lease));
    flight.handle_admitted();
    flight.handle_grant(0, 0);
    flight.handle_grant(0, 0);
    let (a, b, c) = (
        submit(&mut flight),
        submit(&mut flight),
        submit(&mut flight),
    );
    settle(&mut flight, c);
    settle(&mut flight, b);
    assert_eq!(
        flight.poll_action(Instant(0)),
        None,
        "the first chunk is still being read"
    );
    settle(&mut flight, a);
    let seen = submit(&mut flight);
    assert_eq!((seen.step, seen.span.offset), (1, 0));
    assert_eq!(flight.poll_action(Instant(0)), None, "one at a time");
    settle(&mut flight, seen);
    let tasks = [submit(&mut flight), submit(&mut flight)];
    assert_eq!(
        tasks.map(|task| (task.step, task.span.offset)),
        [(2, 0), (1, CHUNK)]
    );
}

#[test]
fn lanes_share_the_payload_and_leave_no_byte_out() {
    let one = |engine, share| Lane {
        share,
        ..lane(vec![step(Role::Src, Role::Dst, engine, Cost::ZERO)], 0, 8)
    };
    let two = plan(Method::PeerToPeer, vec![one(0, 3), one(1, 1)]);
    for len in [1, CHUNK, 4 * CHUNK, 8 * CHUNK + 5] {
        let mut flight = Flight::new(spec(len, two.clone())).unwrap();
        let mut spans = Vec::new();
        while let Some(Action::Submit(task)) = flight.poll_action(Instant(0)) {
            spans.push(task.span);
            settle(&mut flight, task);
        }
        spans.sort();
        let mut next = 0;
        for span in &spans {
            assert_eq!(span.offset, next);
            next += span.len;
        }
        assert_eq!(next, len);
    }
}

#[test]
fn a_prediction_is_the_pipeline_rule_at_multiples_of_the_chunk() {
    // 16 bytes at 1 ns a byte and 2 ns a byte: the second engine is the bottleneck.
    let (first, second) = (Cost::new(4, 1_000_000), Cost::new(1, 2_000_000));
    let plan = staged(2, first, second);
    for chunks in 1..6 {
        let wanted = first.at(CHUNK) + chunks * second.at(CHUNK);
        assert_eq!(predict_ns(&plan, chunks * CHUNK), Ok(wanted));
    }
    let tail = first.at(CHUNK) + 2 * second.at(CHUNK) + second.at(3);
    assert_eq!(predict_ns(&plan, 2 * CHUNK + 3), Ok(tail));
}

#[test]
fn the_largest_payload_is_predicted_at_the_rate_of_large_ones() {
    let (first, second) = (Cost::new(4, 1_000_000), Cost::new(1, 2_000_000));
    let plan = staged(2, first, second);
    let ns = |chunks: u64| predict_ns(&plan, chunks * CHUNK).unwrap();
    // A chunk takes 20 ns and 33 ns.
    let whole = |chunks: u64| 20 + 33 * chunks;
    for chunks in [4096, 4097, 1 << 40] {
        assert_eq!(ns(chunks), whole(chunks), "{chunks} chunks");
    }
    assert!(predict_ns(&plan, u64::MAX).unwrap() > ns(1 << 40));
}

#[test]
fn a_prediction_lists_what_bounds_it_the_busiest_first() {
    // A chunk takes 20 ns and 33 ns; the first engine takes half of the host.
    let (first, second) = (Cost::new(4, 1_000_000), Cost::new(1, 2_000_000));
    let mut plan = Arc::unwrap_or_clone(staged(2, first, second));
    plan.lanes[0].steps[0].host_load = 512;
    let plan = Arc::new(plan);
    let loads = |bytes| {
        let predicted = predict(&plan, bytes).unwrap();
        let loads = predicted.loads.iter().map(|load| (load.of, load.ns));
        (predicted.ns, loads.collect::<Vec<_>>())
    };
    let engine = |index: usize| Resource::Engine(plan.lanes[0].steps[index].engine);
    let slots = Resource::Slots(plan.lanes[0].rings[0].memory);
    let several = [
        (engine(1), 132),
        (slots, 106),
        (engine(0), 80),
        (Resource::Chunk, 53),
        (Resource::Host, 40),
    ];
    assert_eq!(loads(4 * CHUNK), (152, several.to_vec()));
    // No engine is busy all the time while there is one chunk.
    assert_eq!(loads(CHUNK).1[0], (Resource::Chunk, 53));
    assert_eq!(loads(0), (0, Vec::new()));
}

#[test]
fn plans_that_cannot_run_are_refused() {
    assert!(matches!(
        Flight::new(spec(1, plan(Method::DirectCopy, vec![]))),
        Err(PlanError::Lanes { lanes: 0 })
    ));
    let empty = plan(Method::DirectCopy, vec![lane(vec![], 0, 1)]);
    assert!(matches!(
        Flight::new(spec(1, empty)),
        Err(PlanError::Steps { .. })
    ));
    let unfilled = plan(
        Method::HostStaged,
        vec![lane(
            vec![step(Role::Slot(0), Role::Dst, 0, Cost::ZERO)],
            1,
            1,
        )],
    );
    assert!(matches!(
        Flight::new(spec(1, unfilled)),
        Err(PlanError::EmptySlot { lane: 0, ring: 0 })
    ));
}

#[test]
fn a_flight_with_a_verification_that_cannot_run_is_refused() {
    let unfit = Verify {
        src: direct(1),
        dst: plan(Method::DirectCopy, vec![]),
    };
    let spec = FlightSpec {
        verify: Some(unfit),
        ..spec(1, direct(1))
    };
    assert!(matches!(
        Flight::new(spec),
        Err(PlanError::Lanes { lanes: 0 })
    ));
}

#[test]
fn a_transform_over_several_lanes_is_refused() {
    let read = Step {
        kind: StepKind::Transform { at: Role::Src },
        ..step(Role::Src, Role::Dst, 0, Cost::ZERO)
    };
    let lanes = vec![lane(vec![read.clone()], 0, 1), lane(vec![read], 0, 1)];
    let refused = Flight::new(spec(1, plan(Method::DirectCopy, lanes)));
    assert!(matches!(
        refused,
        Err(PlanError::SplitTransform { lane: 0, lanes: 2 })
    ));
}

#[test]
fn an_overlapping_copy_that_would_be_divided_is_refused() {
    let begin = |len, plan| {
        Flight::new(FlightSpec {
            in_place: true,
            ..spec(len, plan)
        })
    };
    let whole = lane(vec![step(Role::Src, Role::Dst, 0, Cost::ZERO)], 0, 8);
    let two_lanes = plan(Method::PeerToPeer, vec![whole.clone(), whole]);
    assert!(matches!(
        begin(CHUNK, two_lanes),
        Err(PlanError::Divided { lanes: 2, .. })
    ));
    let slots = staged(2, Cost::ZERO, Cost::ZERO);
    assert!(begin(CHUNK, slots.clone()).is_ok());
    assert!(matches!(
        begin(CHUNK + 1, slots),
        Err(PlanError::Divided {
            len_bytes: 17,
            lanes: 1,
            slot_bytes: CHUNK
        })
    ));
}

#[test]
fn progress_counts_each_byte_once() {
    let mut flight = Flight::new(spec(4 * CHUNK, direct(2))).unwrap();
    let a = submit(&mut flight);
    settle(&mut flight, a);
    let b = submit(&mut flight);
    let c = submit(&mut flight);
    settle(&mut flight, c);
    flight.handle_settled(b.id, Settled::Failed).unwrap();
    assert!(matches!(
        flight.poll_action(Instant(0)),
        Some(Action::Route(_))
    ));
    assert_eq!(flight.copied_bytes(), 2 * CHUNK);
    flight.handle_route(Some(direct(1)));
    assert_eq!(flight.copied_bytes(), CHUNK, "it goes on from here");
    while let Some(Action::Submit(task)) = flight.poll_action(Instant(0)) {
        settle(&mut flight, task);
    }
    assert!(flight.is_over());
    assert_eq!(flight.copied_bytes(), 4 * CHUNK);
}

#[test]
fn a_flight_stopped_after_its_last_byte_tells_which_plan_moved_it() {
    let plan = direct(1);
    let mut flight = Flight::new(spec(CHUNK, plan.clone())).unwrap();
    let only = submit(&mut flight);
    settle(&mut flight, only);
    flight.handle_cancel();
    assert_eq!(
        flight.poll_action(Instant(0)),
        Some(Action::Finish(Verdict::Done))
    );
    assert!(flight.copied_by().is_some_and(|by| Arc::ptr_eq(by, &plan)));
}

#[test]
fn an_operation_that_is_not_under_way_is_ignored() {
    let mut flight = Flight::new(spec(2 * CHUNK, direct(1))).unwrap();
    let stray = TaskId { lane: 0, chunk: 7 };
    assert_eq!(flight.handle_settled(stray, Settled::Failed), None);
    let a = submit(&mut flight);
    settle(&mut flight, a);
    assert_eq!(
        flight.handle_settled(a.id, Settled::Failed),
        None,
        "settled twice"
    );
    assert!(matches!(
        flight.poll_action(Instant(0)),
        Some(Action::Submit(_))
    ));
}
