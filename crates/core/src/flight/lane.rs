//! One pipeline under way: chunks that take the lane's steps in turn, holding slots.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::Settled;
use super::task::{Endpoint, SlotId, Task, TaskId, Work};
use crate::{Lane, Role, Span, StepKind};

/// The most rings of a lane: two staged hops and one to spare.
pub(super) const MAX_RINGS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Progress {
    Ready,
    Running,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Chunk {
    index: u32,
    span: Span,
    step: u8,
    progress: Progress,
    slots: [Option<u16>; MAX_RINGS],
    /// Leading bytes that arrived although the chunk did not: its last step was stopped.
    leading_bytes: u64,
}

impl Chunk {
    fn is_at_last_step(&self, lane: &Lane) -> bool {
        usize::from(self.step) + 1 == lane.steps.len()
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
struct RingState {
    /// Slots that hold nothing, the one to use next last.
    free: Vec<u16>,
    granted: u16,
    returned: u16,
}

/// The state of a lane. The lane itself (steps, chunk size) is passed in, so that the state stays
/// small and can be compared.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) struct LaneRun {
    index: u8,
    end: u64,
    /// The first payload byte that no chunk has taken up yet.
    next: u64,
    chunk_bytes: u64,
    next_index: u32,
    chunks: VecDeque<Chunk>,
    rings: [RingState; MAX_RINGS],
    running: u16,
    done_bytes: u64,
}

impl LaneRun {
    /// Starts over on `span`, keeping what was allocated.
    pub(super) fn reset(&mut self, index: u8, lane: &Lane, span: Span, whole: bool) {
        self.index = index;
        self.next = span.offset;
        self.end = span.offset + span.len;
        self.chunk_bytes = if whole {
            span.len.max(1)
        } else {
            lane.chunk_bytes.max(1)
        };
        self.next_index = 0;
        self.chunks.clear();
        for ring in &mut self.rings {
            ring.free.clear();
            ring.granted = 0;
            ring.returned = 0;
        }
        self.running = 0;
        self.done_bytes = 0;
    }

    pub(super) fn is_done(&self) -> bool {
        self.next == self.end && self.chunks.is_empty()
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.running == 0
    }

    /// Returns whether every operation of the lane that has not ended is under way, and none follows.
    pub(super) fn is_out(&self, lane: &Lane) -> bool {
        let is_last =
            |chunk: &Chunk| chunk.progress == Progress::Running && chunk.is_at_last_step(lane);
        self.next == self.end && self.chunks.iter().all(is_last)
    }

    /// Returns the payload bytes of the operation's chunk.
    pub(super) fn span_of(&self, id: TaskId) -> Option<Span> {
        let chunk = self.chunks.iter().find(|chunk| chunk.index == id.chunk)?;
        Some(chunk.span)
    }

    /// Returns whether the operation is under way and is the last step of its chunk.
    pub(super) fn is_last_step(&self, lane: &Lane, id: TaskId) -> bool {
        self.chunks.iter().any(|chunk| {
            chunk.index == id.chunk
                && chunk.progress == Progress::Running
                && chunk.is_at_last_step(lane)
        })
    }

    pub(super) fn done_bytes(&self) -> u64 {
        self.done_bytes
    }

    /// Returns the first payload byte of the lane that has not arrived.
    pub(super) fn arrived_until(&self) -> u64 {
        self.chunks
            .front()
            .map_or(self.next, |chunk| chunk.span.offset + chunk.leading_bytes)
    }

    /// Returns the largest chunk that is to be taken up yet.
    pub(super) fn slot_bytes(&self) -> u64 {
        self.chunk_bytes.min(self.end - self.next)
    }

    /// Takes one more slot of `ring` and names it.
    pub(super) fn handle_grant(&mut self, ring: u8) -> SlotId {
        let state = &mut self.rings[usize::from(ring)];
        let slot = state.granted;
        state.granted += 1;
        state.free.push(slot);
        SlotId {
            lane: self.index,
            ring,
            slot,
        }
    }

    /// Returns how many more slots of `ring` would be used if they were granted.
    pub(super) fn wanted(&self, lane: &Lane, ring: u8) -> u16 {
        let state = &self.rings[usize::from(ring)];
        let held = state.granted - state.returned;
        let limit = lane.rings[usize::from(ring)].slots;
        let useful = self.slots_needed(lane, ring);
        limit.min(useful).saturating_sub(held)
    }

    /// Returns the next operation, oldest chunk first: what is furthest along is drained before more is
    /// taken up, so a slot is never held for longer than the pipeline needs it.
    ///
    /// Takes up no chunk that ends after the payload byte `there`: the source does not have it yet.
    pub(super) fn poll_task(&mut self, lane: &Lane, there: u64) -> Option<Task> {
        for at in 0..self.chunks.len() {
            if self.may_advance(lane, at) {
                return Some(self.launch(lane, at));
            }
        }
        if self.take_up(lane, there) {
            let at = self.chunks.len() - 1;
            if self.may_advance(lane, at) {
                return Some(self.launch(lane, at));
            }
        }
        None
    }

    /// Returns a slot that the rest of the lane can do without. With `all`, any that no operation uses.
    pub(super) fn poll_return(&mut self, lane: &Lane, all: bool) -> Option<SlotId> {
        for ring in 0..lane.rings.len() as u8 {
            let needed = if all {
                0
            } else {
                self.slots_needed(lane, ring)
            };
            let state = &mut self.rings[usize::from(ring)];
            if state.granted - state.returned > needed
                && let Some(slot) = state.free.pop()
            {
                state.returned += 1;
                return Some(SlotId {
                    lane: self.index,
                    ring,
                    slot,
                });
            }
        }
        None
    }

    /// Gives up every chunk that no operation is working on, so that its slots can be returned.
    /// What had arrived stays known to [`LaneRun::arrived_until`].
    pub(super) fn abandon(&mut self) {
        for chunk in &mut self.chunks {
            if chunk.progress == Progress::Ready {
                for (ring, slot) in chunk.slots.iter_mut().enumerate() {
                    self.rings[ring].free.extend(slot.take());
                }
            }
        }
    }

    /// Returns whether every slot has been returned.
    pub(super) fn holds_no_slot(&self) -> bool {
        self.rings.iter().all(|ring| ring.granted == ring.returned)
    }

    /// The operation has ended. `None` when no such operation is under way, else its step and span.
    pub(super) fn handle_settled(
        &mut self,
        lane: &Lane,
        id: TaskId,
        settled: Settled,
    ) -> Option<(u8, Span)> {
        let at = self
            .chunks
            .iter()
            .position(|chunk| chunk.index == id.chunk && chunk.progress == Progress::Running)?;
        self.running -= 1;
        let chunk = &mut self.chunks[at];
        let ended = (chunk.step, chunk.span);
        chunk.progress = Progress::Ready;
        if let Settled::Stopped { leading_bytes } = settled
            && chunk.is_at_last_step(lane)
        {
            chunk.leading_bytes = leading_bytes.min(chunk.span.len);
            self.done_bytes += chunk.leading_bytes;
        }
        if settled == Settled::Done {
            for (ring, slot) in chunk.slots.iter_mut().enumerate() {
                if last_use(lane, ring as u8) == Some(chunk.step) {
                    self.rings[ring].free.extend(slot.take());
                }
            }
            chunk.step += 1;
            if usize::from(chunk.step) == lane.steps.len() {
                self.done_bytes += chunk.span.len;
                self.chunks.remove(at);
            }
        }
        Some(ended)
    }

    fn slots_needed(&self, lane: &Lane, ring: u8) -> u16 {
        let untaken = (self.end - self.next).div_ceil(self.chunk_bytes);
        let last = last_use(lane, ring).unwrap_or(0);
        let under_way = self
            .chunks
            .iter()
            .filter(|chunk| chunk.step <= last)
            .count() as u64;
        u16::try_from(untaken + under_way).unwrap_or(u16::MAX)
    }

    /// Chunks keep their order at every step, so that the oldest can always advance: it never waits
    /// for a slot that a younger one took. A transform also waits until its predecessor was seen.
    fn may_advance(&self, lane: &Lane, at: usize) -> bool {
        let chunk = &self.chunks[at];
        if chunk.progress == Progress::Running {
            return false;
        }
        let kind = lane.steps[usize::from(chunk.step)].kind;
        if let Some(older) = at.checked_sub(1).map(|before| &self.chunks[before]) {
            let overtakes = older.step < chunk.step
                || older.step == chunk.step && older.progress == Progress::Ready;
            let unseen = matches!(kind, StepKind::Transform { .. }) && older.step <= chunk.step;
            if overtakes || unseen {
                return false;
            }
        }
        match written_slot(kind) {
            Some(ring) => {
                chunk.slots[usize::from(ring)].is_some()
                    || !self.rings[usize::from(ring)].free.is_empty()
            }
            None => true,
        }
    }

    /// Cuts the next chunk off the payload, when there is one and the pipeline has room for it.
    fn take_up(&mut self, lane: &Lane, there: u64) -> bool {
        let room = match lane.steps.iter().find_map(|step| written_slot(step.kind)) {
            Some(ring) => {
                let waiting = self
                    .chunks
                    .iter()
                    .filter(|c| {
                        c.slots[usize::from(ring)].is_none() && c.step <= first_write(lane, ring)
                    })
                    .count();
                waiting == 0 && !self.rings[usize::from(ring)].free.is_empty()
            }
            None => self.chunks.len() < usize::from(lane.depth.max(1)),
        };
        if self.next == self.end || !room {
            return false;
        }
        let len = self.chunk_bytes.min(self.end - self.next);
        if there.saturating_sub(self.next) < len {
            return false;
        }
        self.chunks.push_back(Chunk {
            index: self.next_index,
            span: Span::new(self.next, len),
            step: 0,
            progress: Progress::Ready,
            slots: [None; MAX_RINGS],
            leading_bytes: 0,
        });
        self.next += len;
        self.next_index += 1;
        true
    }

    fn launch(&mut self, lane: &Lane, at: usize) -> Task {
        let chunk = &mut self.chunks[at];
        let kind = lane.steps[usize::from(chunk.step)].kind;
        if let Some(ring) = written_slot(kind)
            && chunk.slots[usize::from(ring)].is_none()
        {
            chunk.slots[usize::from(ring)] = self.rings[usize::from(ring)].free.pop();
        }
        chunk.progress = Progress::Running;
        self.running += 1;
        let slots = chunk.slots;
        let lane_index = self.index;
        let endpoint = |role| match role {
            Role::Src => Endpoint::Src,
            Role::Dst => Endpoint::Dst,
            Role::Slot(ring) => Endpoint::Slot(SlotId {
                lane: lane_index,
                ring,
                // `may_advance` saw a slot for the ring that is written, and rings that are read
                // were written by an earlier step (checked when the leg starts).
                slot: slots[usize::from(ring)].unwrap_or(u16::MAX),
            }),
        };
        Task {
            id: TaskId {
                lane: self.index,
                chunk: chunk.index,
            },
            step: chunk.step,
            work: Work::bind(kind, endpoint),
            span: chunk.span,
        }
    }
}

fn written_slot(kind: StepKind) -> Option<u8> {
    match kind {
        StepKind::Copy {
            to: Role::Slot(ring),
            ..
        } => Some(ring),
        _ => None,
    }
}

/// Returns the step that writes a ring first.
pub(super) fn first_write(lane: &Lane, ring: u8) -> u8 {
    lane.steps
        .iter()
        .position(|step| written_slot(step.kind) == Some(ring))
        .map_or(0, |step| step as u8)
}

/// Returns the last step that reads or writes a ring.
pub(super) fn last_use(lane: &Lane, ring: u8) -> Option<u8> {
    let uses = |kind: StepKind| match kind {
        StepKind::Copy { from, to } => from == Role::Slot(ring) || to == Role::Slot(ring),
        StepKind::Transform { at } | StepKind::MakeVisible { at } => at == Role::Slot(ring),
    };
    lane.steps
        .iter()
        .rposition(|step| uses(step.kind))
        .map(|step| step as u8)
}
