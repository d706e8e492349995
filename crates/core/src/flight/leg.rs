//! One attempt to carry a payload over one plan.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Settled;
use super::lane::LaneRun;
use super::task::{SlotId, Task, TaskId};
use crate::{Instant, Plan, Span};

/// Why a leg was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No lanes, or more than can run at once.
    #[error("a plan has 1 to {} lanes, not {lanes}", Leg::MAX_LANES)]
    Lanes {
        /// How many it has.
        lanes: usize,
    },
    /// A lane without steps, or with too many rings.
    #[error(
        "lane {lane} has {steps} steps and {rings} rings; 1 to 8 steps and up to {} rings can be run",
        super::lane::MAX_RINGS
    )]
    Steps {
        /// The lane.
        lane: usize,
        /// Its steps.
        steps: usize,
        /// Its rings.
        rings: usize,
    },
    /// Transforms see the payload in order, which several lanes cannot keep.
    #[error("lane {lane} has a transform and is one of {lanes}")]
    SplitTransform {
        /// The lane.
        lane: usize,
        /// How many the plan has.
        lanes: usize,
    },
    /// A payload that has to move as one chunk, over several lanes or through smaller slots.
    #[error(
        "{len_bytes} bytes have to move as one, and the plan has {lanes} lanes and slots of \
         {slot_bytes} bytes"
    )]
    Divided {
        /// The payload.
        len_bytes: u64,
        /// How many lanes the plan has.
        lanes: usize,
        /// The slots of the first lane.
        slot_bytes: u64,
    },
    /// A step that reads a slot before one writes it, or names a ring that is not there.
    #[error("lane {lane} uses a slot of ring {ring} before any step fills it")]
    EmptySlot {
        /// The lane.
        lane: usize,
        /// The ring.
        ring: u8,
    },
}

/// The state of an attempt.
#[derive(Clone, Debug, Default)]
pub(super) struct Leg {
    plan: Option<Arc<Plan>>,
    lanes: Vec<LaneRun>,
    span: Span,
    /// Where each lane's part ends, rising.
    bounds: [u64; Leg::MAX_LANES],
    /// When each of several lanes was seen to be done.
    ends: [Option<Instant>; Leg::MAX_LANES],
    stopping: bool,
}

impl Leg {
    pub(super) const MAX_LANES: usize = 4;

    /// Starts over with `plan` on the payload bytes `span`; `whole` moves them as one chunk.
    pub(super) fn start(
        &mut self,
        plan: Arc<Plan>,
        span: Span,
        whole: bool,
    ) -> Result<(), PlanError> {
        check(&plan)?;
        if whole {
            check_undivided(&plan, span.len)?;
        }
        let total: u64 = plan.lanes.iter().map(|lane| u64::from(lane.share)).sum();
        self.lanes.resize_with(plan.lanes.len(), LaneRun::default);
        let (mut offset, mut shares) = (span.offset, 0);
        let end = span.offset + span.len;
        let last = plan.lanes.len() - 1;
        for (i, lane) in plan.lanes.iter().enumerate() {
            shares += u64::from(lane.share);
            let until = if i == last {
                end
            } else {
                part_end(span, shares, total, lane.chunk_bytes).clamp(offset, end)
            };
            let part = Span::new(offset, until - offset);
            self.lanes[i].reset(i as u8, lane, part, whole);
            self.bounds[i] = until;
            offset = until;
        }
        self.span = span;
        self.ends = [None; Leg::MAX_LANES];
        self.stopping = false;
        self.plan = Some(plan);
        Ok(())
    }

    pub(super) fn plan(&self) -> Option<&Arc<Plan>> {
        self.plan.as_ref()
    }

    /// Submits nothing more from now on.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
    }

    pub(super) fn is_done(&self) -> bool {
        self.lanes.iter().all(LaneRun::is_done)
    }

    /// Notes which of several lanes are done. Lanes do not end together.
    #[inline]
    pub(super) fn note_ends(&mut self, now: Instant) {
        if self.lanes.len() > 1 {
            for (end, lane) in self.ends.iter_mut().zip(&self.lanes) {
                if end.is_none() && lane.is_done() {
                    *end = Some(now);
                }
            }
        }
    }

    /// Returns when each lane was done, `now` where it was not seen to be.
    pub(super) fn ends(&self, now: Instant) -> impl Iterator<Item = Instant> + '_ {
        let lanes = self.lanes.iter().zip(self.ends);
        lanes.map(move |(_, end)| end.unwrap_or(now))
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.lanes.iter().all(LaneRun::is_quiet)
    }

    /// Returns whether no operation is left to be started.
    pub(super) fn is_out(&self) -> bool {
        let lanes = self.plan.iter().flat_map(|plan| plan.lanes.iter());
        !self.stopping && lanes.zip(&self.lanes).all(|(lane, run)| run.is_out(lane))
    }

    pub(super) fn holds_no_slot(&self) -> bool {
        self.lanes.iter().all(LaneRun::holds_no_slot)
    }

    /// Returns how many payload bytes have arrived, in any order: all before the leg's part, and what it moved.
    pub(super) fn arrived_bytes(&self) -> u64 {
        let moved: u64 = self.lanes.iter().map(LaneRun::done_bytes).sum();
        self.span.offset + moved
    }

    /// Returns the first payload byte that has not arrived.
    pub(super) fn arrived_until(&self) -> u64 {
        for (lane, bound) in self.lanes.iter().zip(self.bounds) {
            if lane.arrived_until() < bound {
                return lane.arrived_until();
            }
        }
        self.span.offset + self.span.len
    }

    /// Returns every ring of every lane that is going to move something.
    pub(super) fn rings(&self) -> impl Iterator<Item = (u8, u8)> + '_ {
        let lanes = self.plan.iter().flat_map(|plan| plan.lanes.iter());
        lanes
            .zip(&self.lanes)
            .enumerate()
            .filter(|(_, (_, run))| !run.is_done())
            .flat_map(|(i, (lane, _))| (0..lane.rings.len()).map(move |ring| (i as u8, ring as u8)))
    }

    pub(super) fn slot_bytes(&self, lane: u8) -> u64 {
        let lane = self.lanes.get(usize::from(lane));
        lane.map_or(0, LaneRun::slot_bytes)
    }

    pub(super) fn handle_grant(&mut self, lane: u8, ring: u8) -> SlotId {
        self.lanes[usize::from(lane)].handle_grant(ring)
    }

    pub(super) fn wanted(&self, lane: u8, ring: u8) -> u16 {
        match &self.plan {
            Some(plan) if !self.stopping => {
                let lane = usize::from(lane);
                self.lanes[lane].wanted(&plan.lanes[lane], ring)
            }
            _ => 0,
        }
    }

    pub(super) fn poll_task(&mut self, there: u64) -> Option<Task> {
        let plan = self.plan.as_ref().filter(|_| !self.stopping)?;
        let mut lanes = self.lanes.iter_mut().zip(&plan.lanes);
        lanes.find_map(|(run, lane)| run.poll_task(lane, there))
    }

    pub(super) fn poll_return(&mut self) -> Option<SlotId> {
        let plan = self.plan.as_ref()?;
        let all = self.stopping;
        if all {
            self.lanes.iter_mut().for_each(LaneRun::abandon);
        }
        let mut lanes = self.lanes.iter_mut().zip(&plan.lanes);
        lanes.find_map(|(run, lane)| run.poll_return(lane, all))
    }

    pub(super) fn handle_settled(&mut self, id: TaskId, settled: Settled) -> Option<(u8, Span)> {
        let plan = self.plan.as_ref()?;
        let lane = usize::from(id.lane);
        let run = self.lanes.get_mut(lane)?;
        run.handle_settled(&plan.lanes[lane], id, settled)
    }

    /// Returns the payload bytes of the operation's chunk.
    pub(super) fn span_of(&self, id: TaskId) -> Option<Span> {
        self.lanes.get(usize::from(id.lane))?.span_of(id)
    }

    /// Returns whether the operation is under way and is the last step of its chunk.
    pub(super) fn is_last_step(&self, id: TaskId) -> bool {
        let lanes = self.plan.as_ref().map(|plan| plan.lanes.as_slice());
        let lane = lanes.and_then(|lanes| lanes.get(usize::from(id.lane)));
        let run = self.lanes.get(usize::from(id.lane));
        run.zip(lane)
            .is_some_and(|(run, lane)| run.is_last_step(lane, id))
    }

    /// For comparing states: all but the plan.
    #[cfg(test)]
    pub(super) fn state(&self) -> impl Ord + core::hash::Hash + core::fmt::Debug + Clone + use<> {
        (self.lanes.clone(), self.span, self.stopping)
    }
}

/// Returns where the parts of the lanes so far end: `shares` of `total`, at a multiple of the chunk size.
fn part_end(span: Span, shares: u64, total: u64, chunk_bytes: u64) -> u64 {
    let exact = u128::from(span.len) * u128::from(shares) / u128::from(total.max(1));
    let exact = exact as u64;
    let rounded = exact - exact % chunk_bytes.max(1);
    span.offset + rounded
}

pub(super) fn check(plan: &Plan) -> Result<(), PlanError> {
    let lanes = plan.lanes.len();
    if lanes == 0 || lanes > Leg::MAX_LANES {
        return Err(PlanError::Lanes { lanes });
    }
    for (i, lane) in plan.lanes.iter().enumerate() {
        let (steps, rings) = (lane.steps.len(), lane.rings.len());
        if steps == 0 || steps > 8 || rings > super::lane::MAX_RINGS {
            return Err(PlanError::Steps {
                lane: i,
                steps,
                rings,
            });
        }
        let mut filled = [false; super::lane::MAX_RINGS];
        for step in &lane.steps {
            let (read, written) = match step.kind {
                crate::StepKind::Copy { from, to } => (from, Some(to)),
                crate::StepKind::Transform { .. } if lanes > 1 => {
                    return Err(PlanError::SplitTransform { lane: i, lanes });
                }
                crate::StepKind::Transform { at } | crate::StepKind::MakeVisible { at } => {
                    (at, None)
                }
            };
            if let crate::Role::Slot(ring) = read
                && !filled.get(usize::from(ring)).is_some_and(|filled| *filled)
            {
                return Err(PlanError::EmptySlot { lane: i, ring });
            }
            if let Some(crate::Role::Slot(ring)) = written {
                if usize::from(ring) >= rings {
                    return Err(PlanError::EmptySlot { lane: i, ring });
                }
                filled[usize::from(ring)] = true;
            }
        }
    }
    Ok(())
}

fn check_undivided(plan: &Plan, len_bytes: u64) -> Result<(), PlanError> {
    match plan.lanes.as_slice() {
        [lane] if lane.rings.is_empty() || len_bytes <= lane.chunk_bytes => Ok(()),
        lanes => Err(PlanError::Divided {
            len_bytes,
            lanes: lanes.len(),
            slot_bytes: plan.chunk_bytes(),
        }),
    }
}
