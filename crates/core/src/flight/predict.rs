//! Predicts the time of a plan on engines that have nothing else to do, and what takes it.

mod load;

use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::sync::Arc;
use core::cmp::Reverse;

pub use load::{Load, Prediction, Resource};
use load::{Loads, busiest_first};

use super::{Action, Flight, FlightSpec, PlanError, Settled};
use crate::planner::loaded_ns;
use crate::{EngineId, Instant, Plan};

/// Returns the time that `len_bytes` bytes take over `plan`, and how busy they keep what they use, by a dry run of the
/// flight itself.
///
/// Each engine executes its operations in the order of submission, each for the step's cost, or longer where the steps of
/// several engines keep the host busy; every ring has all its slots. So the answer holds for the pipeline as it is
/// executed, partial last chunk included, and no formula must follow changes of the state machine. It takes time
/// proportional to the number of chunks: use it for explanations and reports, not for planning. Beyond thousands of
/// chunks the rest counts at the rate of the second half of them.
///
/// # Errors
/// When the plan cannot be run.
pub fn predict(plan: &Arc<Plan>, len_bytes: u64) -> Result<Prediction, PlanError> {
    let chunks = || plan.lanes.iter().map(|lane| lane.chunk_bytes);
    let (least, largest) = (chunks().min().unwrap_or(0), chunks().max().unwrap_or(0));
    // Each lane comes to its steady state.
    let all = largest.saturating_mul(LEAST_CHUNKS * plan.lanes.len() as u64);
    let most = least.saturating_mul(MOST_CHUNKS).max(all);
    if len_bytes <= most {
        return dry_run(plan, len_bytes);
    }
    // Both are many chunks, so what differs is the steady state.
    let (half, mut whole) = (dry_run(plan, most / 2)?, dry_run(plan, most)?);
    let further = |half_ns: u64, whole_ns: u64| {
        let rest = u128::from(len_bytes - most) * u128::from(whole_ns.saturating_sub(half_ns));
        let ns = u128::from(whole_ns) + rest / u128::from((most / 2).max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    };
    for load in &mut whole.loads {
        let of_half = half.loads.iter().find(|other| other.of == load.of);
        load.ns = further(of_half.map_or(load.ns, |load| load.ns), load.ns);
    }
    whole.ns = further(half.ns, whole.ns);
    let most_ns = whole.ns;
    for load in &mut whole.loads {
        // Each part was rounded by itself.
        load.ns = load.ns.min(most_ns);
    }
    busiest_first(&mut whole.loads);
    Ok(whole)
}

/// A dry run of so many chunks takes some milliseconds.
const MOST_CHUNKS: u64 = 4096;
const LEAST_CHUNKS: u64 = 64;

fn dry_run(plan: &Arc<Plan>, len_bytes: u64) -> Result<Prediction, PlanError> {
    let mut loads = Loads::default();
    let mut flight = Flight::new(FlightSpec {
        len_bytes,
        plan: plan.clone(),
        verify: None,
        in_place: false,
        deadline: None,
    })?;
    let mut now = Instant(0);
    let mut free_at: BTreeMap<EngineId, Instant> = BTreeMap::new();
    // When the host's processors and memory bus have done their part of all steps so far.
    let mut host_free_at = Instant(0);
    let mut ends = BinaryHeap::new();
    let mut submitted = 0u64;
    loop {
        while let Some(action) = flight.poll_action(now) {
            match action {
                Action::Lease => {
                    flight.handle_admitted();
                    grant_all(&mut flight, plan);
                }
                Action::Submit(task) => {
                    let step = &plan.lanes[usize::from(task.id.lane)].steps[usize::from(task.step)];
                    let ns = step.cost.part_of(task.span.len, len_bytes);
                    loads.add(plan, &task, ns);
                    let free = free_at.entry(step.engine).or_default();
                    let start = now.max(*free);
                    let host_ns = loaded_ns(ns, step.host_load);
                    let mut end = start.plus_ns(ns);
                    // A step that leaves the host alone holds up none of it, though it starts later than the host is free.
                    if host_ns > 0 {
                        host_free_at = host_free_at.max(start).plus_ns(host_ns);
                        end = end.max(host_free_at);
                    }
                    *free = end;
                    submitted += 1;
                    ends.push(Reverse((end, submitted, task.id)));
                }
                Action::Return(_) => {}
                Action::Finish(_) => return Ok(loads.predict(plan, len_bytes, now.0)),
                Action::Route(_) => flight.handle_route(None),
                Action::Compare => flight.handle_compared(true),
            }
        }
        let Some(Reverse((end, _, task))) = ends.pop() else {
            // Nothing is under way and nothing is left to do: the flight has finished above.
            return Ok(loads.predict(plan, len_bytes, now.0));
        };
        now = end;
        flight.handle_settled(task, Settled::Done);
    }
}

/// Returns the time of [`predict`] in nanoseconds.
///
/// # Errors
/// When the plan cannot be run.
pub fn predict_ns(plan: &Arc<Plan>, len_bytes: u64) -> Result<u64, PlanError> {
    predict(plan, len_bytes).map(|prediction| prediction.ns)
}

fn grant_all(flight: &mut Flight, plan: &Plan) {
    for (lane, pipeline) in plan.lanes.iter().enumerate() {
        for ring in 0..pipeline.rings.len() {
            while flight.wanted_slots(lane as u8, ring as u8) > 0 {
                flight.handle_grant(lane as u8, ring as u8);
            }
        }
    }
}
