//! The search: visits each state once, and from each state every possible next one.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use std::collections::hash_map::{Entry, HashMap};

use super::model::{Model, Question};
use super::scenario::Scenario;
use super::staging::{Check, hold};
use crate::flight::{Flight, Settled, TaskId};
use crate::{Method, Plan};

/// A flight that has more states than this in one scenario is running in circles.
const MOST_STATES: usize = 4_000_000;

/// The result of an exploration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Explored {
    pub(super) states: usize,
    pub(super) transitions: usize,
    /// The states in which the flight is over.
    pub(super) ends: usize,
    /// The most events from the first state to a new one.
    pub(super) depth: usize,
}

/// Something that can happen to a flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Poll,
    Settle(TaskId, Settled),
    Admit,
    Grant { lane: u8, ring: u8 },
    Route { found: bool },
    Compare { equal: bool },
    Cancel,
    DeadlinePasses,
}

/// Visits every state that a scenario can reach. An owner that drops the handle causes no event: the search also checks
/// that the flight ends nevertheless.
///
/// # Panics
/// With the events that lead to the state, when a promise is broken in a state.
pub(super) fn explore(scenario: &Scenario) -> Explored {
    let root = (scenario.flight(), Model::new());
    let mut seen = HashMap::from([((root.0.state_key(), root.1.clone()), 0u32)]);
    // How each state was first reached.
    let mut origins = vec![(0u32, Event::Poll)];
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut frontier = vec![(0u32, root)];
    let (mut transitions, mut ends, mut depth) = (0, 0, 0);
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for (from, (flight, model)) in frontier {
            if let Err(why) = ignores_strays(&flight, &model, scenario) {
                fail(scenario, &why, &trail(&origins, from), &model);
            }
            if model.over {
                ends += 1;
                continue;
            }
            for event in events(&flight, &model, scenario) {
                let (mut flight, mut model) = (flight.clone(), model.clone());
                if let Err(why) = happen(event, scenario, &mut flight, &mut model) {
                    let mut trail = trail(&origins, from);
                    trail.push(event);
                    fail(scenario, &why, &trail, &model);
                }
                transitions += 1;
                let fresh = seen.len() as u32;
                let to = match seen.entry((flight.state_key(), model)) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(place) => {
                        let model = place.key().1.clone();
                        place.insert(fresh);
                        origins.push((from, event));
                        next.push((fresh, (flight, model)));
                        fresh
                    }
                };
                if to != from {
                    edges.push((from, to));
                }
            }
            if seen.len() > MOST_STATES {
                let trail = trail(&origins, from);
                fail(scenario, "no end of states", &trail, &model);
            }
        }
        depth += usize::from(!next.is_empty());
        frontier = next;
    }
    check_no_circle(seen.len(), &edges, &scenario.title());
    Explored {
        states: seen.len(),
        transitions,
        ends,
        depth,
    }
}

/// Returns all events that can happen in a state.
fn events(flight: &Flight, model: &Model, scenario: &Scenario) -> Vec<Event> {
    let mut events = vec![Event::Poll];
    for (id, span) in model.leg.spans_running() {
        for settled in [Settled::Done, Settled::Failed, Settled::Refused] {
            events.push(Event::Settle(id, settled));
        }
        // The engine stops operations of flights that it stops. A backend may misbehave and stop others.
        let partial = Settled::Stopped {
            leading_bytes: span.len / 2,
        };
        events.push(Event::Settle(id, partial));
    }
    match model.owed {
        Some(Question::Lease) => events.push(Event::Admit),
        Some(Question::Route) => {
            events.push(Event::Route { found: false });
            if model.routes_left > 0 {
                events.push(Event::Route { found: true });
            }
        }
        Some(Question::Compare) => {
            events.extend([true, false].map(|equal| Event::Compare { equal }));
        }
        None => {}
    }
    for (lane, pipeline) in model.plan(scenario).lanes.iter().enumerate() {
        for ring in 0..pipeline.rings.len() {
            let (lane, ring) = (lane as u8, ring as u8);
            if flight.wanted_slots(lane, ring) > 0 {
                events.push(Event::Grant { lane, ring });
            }
        }
    }
    if !model.cancelled {
        events.push(Event::Cancel);
    }
    if !model.late {
        events.push(Event::DeadlinePasses);
    }
    events
}

/// Applies an event to the flight and to the model.
fn happen(event: Event, scenario: &Scenario, flight: &mut Flight, model: &mut Model) -> Check {
    match event {
        Event::Poll => {
            let action = flight.poll_action(model.now());
            model.polled(scenario, flight, action)?;
        }
        Event::Settle(id, settled) => {
            let told = flight.handle_settled(id, settled);
            model.settled(scenario, id, settled, told)?;
        }
        Event::Admit => {
            let rings: Vec<_> = flight.rings().collect();
            let taken = flight.handle_admitted();
            model.admitted(scenario, &rings, taken)?;
        }
        Event::Grant { lane, ring } => {
            let slot = flight.handle_grant(lane, ring);
            hold!((slot.lane, slot.ring) == (lane, ring), "granted {slot:?}");
            model.granted(scenario, slot)?;
        }
        Event::Route { found } => {
            let plan = model.second_plan(scenario);
            flight.handle_route(found.then(|| plan.clone()));
            model.routed(scenario, flight, found)?;
        }
        Event::Compare { equal } => {
            flight.handle_compared(equal);
            model.compared(scenario, equal);
        }
        Event::Cancel => {
            flight.handle_cancel();
            model.cancelled();
        }
        Event::DeadlinePasses => model.late = true,
    }
    model.agrees(scenario, flight)
}

/// Unexpected inputs change nothing: answers without a question, operations that are not under way, and any input after
/// the end.
fn ignores_strays(flight: &Flight, model: &Model, scenario: &Scenario) -> Check {
    let mut probed = flight.clone();
    let mut running = model.leg.running();
    let lane = running.next().map_or(0, |(id, _)| id.lane);
    for id in [TaskId { lane, chunk: 99 }, TaskId { lane: 99, chunk: 0 }] {
        let told = probed.handle_settled(id, Settled::Failed);
        hold!(told.is_none(), "a stray operation failed it: {told:?}");
    }
    if model.owed != Some(Question::Lease) || model.over {
        hold!(!probed.handle_admitted(), "takes slots unasked");
    }
    if model.owed != Some(Question::Route) || model.over {
        let plan = Plan {
            method: Method::DirectCopy,
            lanes: Vec::new(),
            estimate: crate::Cost::ZERO.into(),
            correction: crate::Correction::default(),
        };
        probed.handle_route(Some(Arc::new(plan)));
    }
    if model.owed != Some(Question::Compare) || model.over {
        probed.handle_compared(false);
        probed.handle_compared(true);
    }
    if model.over {
        probed.handle_cancel();
        let action = probed.poll_action(model.now());
        hold!(action.is_none(), "after its end: {action:?}");
    }
    hold!(
        probed.state_key() == flight.state_key(),
        "a stray input was not ignored"
    );
    if model.over {
        let (spec, fresh) = (scenario.spec(), scenario.flight());
        hold!(probed.restart(spec).is_ok(), "cannot be used again");
        hold!(
            probed.state_key() == fresh.state_key(),
            "used again, it is not like new: {probed:?}"
        );
    }
    Ok(())
}

/// Returns the events that lead to a state, the first ones first.
fn trail(origins: &[(u32, Event)], state: u32) -> Vec<Event> {
    let mut trail = Vec::new();
    let mut at = state;
    while at != 0 {
        let (before, event) = origins[at as usize];
        trail.push(event);
        at = before;
    }
    trail.reverse();
    trail
}

fn fail(scenario: &Scenario, why: &str, trail: &[Event], model: &Model) -> ! {
    panic!(
        "{}: {why}\nafter {trail:#?}\nand then {model:#?}",
        scenario.title()
    )
}

/// No state is reached twice on one path. As every state without a next one is an end (the model
/// refuses any other), every path comes to an end.
fn check_no_circle(states: usize, edges: &[(u32, u32)], title: &str) {
    let mut incoming = vec![0u32; states];
    let mut first = vec![0usize; states + 1];
    for &(from, to) in edges {
        incoming[to as usize] += 1;
        first[from as usize + 1] += 1;
    }
    for state in 0..states {
        first[state + 1] += first[state];
    }
    // Breadth first: the edges of a state lie together, in the order of the states.
    let mut ready = vec![0u32];
    let mut passed = 0;
    while let Some(state) = ready.pop() {
        passed += 1;
        for &(_, to) in &edges[first[state as usize]..first[state as usize + 1]] {
            incoming[to as usize] -= 1;
            if incoming[to as usize] == 0 {
                ready.push(to);
            }
        }
    }
    assert_eq!(passed, states, "{title}: a path runs in a circle");
}
