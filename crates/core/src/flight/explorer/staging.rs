//! The shadow of one leg: its chunks, its slots, and what its transforms have seen.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;

use crate::flight::{Endpoint, Settled, SlotId, Task, TaskId, Work};
use crate::{Lane, Plan, Role, Span, StepKind};

/// `Err` says which promise was broken.
pub(super) type Check<T = ()> = Result<T, String>;

/// Refuses with the words when the condition does not hold.
macro_rules! hold {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err(alloc::format!($($words)+));
        }
    };
}
pub(super) use hold;

/// What the driver of a leg can know: what was submitted, what settled, which slots it lent.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct ShadowLeg {
    /// The payload bytes before it had arrived when the leg began.
    pub(super) base: u64,
    /// The bytes that chunks of the leg were cut from.
    taken: u128,
    /// The bytes of chunks that took every step, and the leading bytes of those whose last step was stopped.
    pub(super) through: u128,
    chunks: BTreeMap<TaskId, Chunk>,
    slots: BTreeMap<SlotId, Slot>,
    /// How many slots of each (lane, ring) were granted so far.
    granted: BTreeMap<(u8, u8), u16>,
    /// Up to where the transform at (lane, step) has seen the payload.
    seen: BTreeMap<(u8, u8), u64>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Chunk {
    span: Span,
    step: u8,
    running: Option<Work>,
}

/// A slot that was granted and is not returned.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Slot {
    /// The chunk that has written it, as long as a later step of it reads it.
    user: Option<TaskId>,
    /// The payload bytes in it and the step that left them so; `None` while that is not known.
    content: Option<(Span, u8)>,
}

impl ShadowLeg {
    pub(super) fn new(base: u64) -> ShadowLeg {
        ShadowLeg {
            base,
            ..ShadowLeg::default()
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.running().next().is_none()
    }

    pub(super) fn holds_no_slot(&self) -> bool {
        self.slots.is_empty()
    }

    /// What is under way.
    pub(super) fn running(&self) -> impl Iterator<Item = (TaskId, Work)> + '_ {
        self.chunks
            .iter()
            .filter_map(|(id, chunk)| Some((*id, chunk.running?)))
    }

    /// Returns the payload bytes of what is under way.
    pub(super) fn spans_running(&self) -> impl Iterator<Item = (TaskId, Span)> + '_ {
        let running = self.chunks.iter();
        running.filter_map(|(id, chunk)| chunk.running.map(|_| (*id, chunk.span)))
    }

    /// Returns whether what is under way is the last step of its chunk.
    pub(super) fn is_last_step(&self, plan: &Plan, id: TaskId) -> bool {
        let chunk = self.chunks.get(&id);
        chunk.is_some_and(|chunk| {
            let steps = plan.lanes[usize::from(id.lane)].steps.len();
            chunk.running.is_some() && usize::from(chunk.step) + 1 == steps
        })
    }

    /// Returns the bytes that have arrived so far, by earlier legs and this one.
    pub(super) fn arrived(&self) -> u128 {
        mask(Span::new(0, self.base)) | self.through
    }

    pub(super) fn submit(&mut self, plan: &Plan, task: Task, whole: bool) -> Check {
        let Task { id, step, span, .. } = task;
        let lane = &plan.lanes[usize::from(id.lane)];
        let known = self.chunks.get(&id);
        if let Some(chunk) = known {
            hold!(chunk.running.is_none(), "{id:?} takes two steps at once");
            hold!(chunk.span == span, "{id:?} was {:?} before", chunk.span);
            hold!(chunk.step == step, "{id:?} is at step {}", chunk.step);
        } else {
            hold!(step == 0, "{id:?} begins at step {step}");
            hold!(span.len > 0, "{id:?} is empty");
            hold!(span.offset >= self.base, "{span:?} had arrived before");
            hold!(self.taken & mask(span) == 0, "{span:?} is taken up twice");
            hold!(
                whole || span.len <= lane.chunk_bytes,
                "{span:?} is more than a chunk"
            );
            self.taken |= mask(span);
        }
        self.chunks.insert(
            id,
            Chunk {
                span,
                step,
                running: Some(task.work),
            },
        );
        let under_way = self.chunks.keys().filter(|other| other.lane == id.lane);
        hold!(
            !lane.rings.is_empty() || under_way.count() <= usize::from(lane.depth),
            "more chunks under way than the lane is deep"
        );
        match (lane.steps[usize::from(step)].kind, task.work) {
            (
                StepKind::Copy { from, to },
                Work::Copy {
                    from: source,
                    to: sink,
                },
            ) => {
                self.check_read(lane, &task, from, source)?;
                self.check_write(lane, &task, to, sink)
            }
            (StepKind::MakeVisible { at }, Work::MakeVisible { at: place }) => {
                self.check_read(lane, &task, at, place)
            }
            (StepKind::Transform { at }, Work::Transform { at: place }) => {
                self.check_read(lane, &task, at, place)?;
                self.check_seen(&task)
            }
            (kind, work) => Err(format!("the step is {kind:?}, the task {work:?}")),
        }
    }

    /// Answers the chunk's span and step, and what it did.
    pub(super) fn settle(
        &mut self,
        plan: &Plan,
        id: TaskId,
        settled: Settled,
    ) -> Check<(Span, u8, Work)> {
        let lane = &plan.lanes[usize::from(id.lane)];
        let chunk = self.chunks.get_mut(&id).ok_or("settled twice")?;
        let work = chunk.running.take().ok_or("settled twice")?;
        let (span, step) = (chunk.span, chunk.step);
        if let Settled::Stopped { leading_bytes } = settled
            && usize::from(step) + 1 == lane.steps.len()
        {
            self.through |= mask(Span::new(span.offset, leading_bytes));
        }
        if settled != Settled::Done {
            return Ok((span, step, work));
        }
        chunk.step += 1;
        if usize::from(chunk.step) == lane.steps.len() {
            self.chunks.remove(&id);
            self.through |= mask(span);
        }
        match work {
            Work::Copy {
                to: Endpoint::Slot(slot),
                ..
            }
            | Work::Transform {
                at: Endpoint::Slot(slot),
            } => self.held(slot)?.content = Some((span, step)),
            _ => {}
        }
        if let Work::Transform { .. } = work {
            let end = span.offset + span.len;
            self.seen.insert((id.lane, step), end);
        }
        for (name, slot) in &mut self.slots {
            if slot.user == Some(id) && !is_used_after(lane, name.ring, step) {
                *slot = Slot::default();
            }
        }
        Ok((span, step, work))
    }

    pub(super) fn grant(&mut self, plan: &Plan, slot: SlotId) -> Check {
        let ring = (slot.lane, slot.ring);
        let granted = self.granted.entry(ring).or_default();
        hold!(
            slot.slot == *granted,
            "{slot:?} is not the next of its ring"
        );
        *granted += 1;
        let fresh = self.slots.insert(slot, Slot::default()).is_none();
        hold!(fresh, "{slot:?} is granted twice");
        let limit = plan.lanes[usize::from(ring.0)].rings[usize::from(ring.1)].slots;
        let held = self.held_of(ring);
        hold!(
            held <= limit,
            "{held} slots of {ring:?}, the plan has {limit}"
        );
        Ok(())
    }

    /// Returns how many slots of a (lane, ring) are held.
    pub(super) fn held_of(&self, ring: (u8, u8)) -> u16 {
        let held = self.slots.keys();
        held.filter(|slot| (slot.lane, slot.ring) == ring).count() as u16
    }

    /// A slot comes back; `ending` when no chunk goes on.
    pub(super) fn give_back(&mut self, slot: SlotId, ending: bool) -> Check {
        let user = self.held(slot)?.user;
        hold!(
            ending || user.is_none(),
            "{slot:?} comes back while {user:?} needs it"
        );
        let touching = self.running().find(|(_, work)| touches(*work, slot));
        hold!(touching.is_none(), "{slot:?} comes back under {touching:?}");
        self.slots.remove(&slot);
        Ok(())
    }

    fn check_read(&self, lane: &Lane, task: &Task, role: Role, at: Endpoint) -> Check {
        let Some(slot) = bound(role, at, task.id.lane)? else {
            return Ok(());
        };
        let Some(Slot { user, content }) = self.slots.get(&slot) else {
            return Err(format!("{slot:?} is read and not held"));
        };
        hold!(*user == Some(task.id), "{slot:?} belongs to {user:?}");
        let writer = last_writer(lane, slot.ring, task.step);
        hold!(
            *content == writer.map(|step| (task.span, step)),
            "{slot:?} holds {content:?}, step {} reads {:?} as {writer:?} left it",
            task.step,
            task.span
        );
        Ok(())
    }

    fn check_write(&mut self, lane: &Lane, task: &Task, role: Role, at: Endpoint) -> Check {
        let Some(slot) = bound(role, at, task.id.lane)? else {
            return Ok(());
        };
        hold!(
            task.span.len <= lane.chunk_bytes,
            "{:?} does not fit a slot of {} bytes",
            task.span,
            lane.chunk_bytes
        );
        let held = self.held(slot)?;
        hold!(
            held.user.is_none_or(|user| user == task.id),
            "{slot:?} is written while {:?} uses it",
            held.user
        );
        *held = Slot {
            user: Some(task.id),
            content: None,
        };
        Ok(())
    }

    /// Chunks pass a transform one by one, once, in payload order from the leg's first byte.
    fn check_seen(&mut self, task: &Task) -> Check {
        let (lane, step, base) = (task.id.lane, task.step, self.base);
        let same = |(id, _): &(TaskId, Work)| {
            *id != task.id && id.lane == lane && self.chunks[id].step == step
        };
        hold!(
            !self.running().any(|other| same(&other)),
            "two chunks in one transform"
        );
        let next = self.seen.get(&(lane, step)).copied().unwrap_or(base);
        hold!(
            task.span.offset == next,
            "the transform sees {:?} and has seen up to {next}",
            task.span
        );
        if let Work::Transform {
            at: Endpoint::Slot(slot),
        } = task.work
        {
            self.held(slot)?.content = None;
        }
        Ok(())
    }

    fn held(&mut self, slot: SlotId) -> Check<&mut Slot> {
        self.slots
            .get_mut(&slot)
            .ok_or_else(|| format!("{slot:?} is used and not held"))
    }
}

/// Returns the payload bytes of a span; payloads are of at most 128 bytes here.
pub(super) fn mask(span: Span) -> u128 {
    match span.len {
        0 => 0,
        len => u128::MAX >> (128 - len) << span.offset,
    }
}

/// Returns the slot that a role was bound to, if it is one. A role bound to anything else is a mix-up.
fn bound(role: Role, at: Endpoint, lane: u8) -> Check<Option<SlotId>> {
    match (role, at) {
        (Role::Src, Endpoint::Src) | (Role::Dst, Endpoint::Dst) => Ok(None),
        (Role::Slot(ring), Endpoint::Slot(slot)) if (slot.lane, slot.ring) == (lane, ring) => {
            Ok(Some(slot))
        }
        _ => Err(format!("{role:?} of lane {lane} is bound to {at:?}")),
    }
}

fn touches(work: Work, slot: SlotId) -> bool {
    let slot = Endpoint::Slot(slot);
    match work {
        Work::Copy { from, to } => from == slot || to == slot,
        Work::Transform { at } | Work::MakeVisible { at } => at == slot,
    }
}

/// Returns the last step before `step` that changed the ring's slot.
fn last_writer(lane: &Lane, ring: u8, step: u8) -> Option<u8> {
    let ring = Role::Slot(ring);
    (0..step).rfind(|&before| match lane.steps[usize::from(before)].kind {
        StepKind::Copy { to, .. } => to == ring,
        StepKind::Transform { at } => at == ring,
        StepKind::MakeVisible { .. } => false,
    })
}

fn is_used_after(lane: &Lane, ring: u8, step: u8) -> bool {
    let ring = Role::Slot(ring);
    let later = &lane.steps[usize::from(step) + 1..];
    later.iter().any(|step| match step.kind {
        StepKind::Copy { from, to } => from == ring || to == ring,
        StepKind::Transform { at } | StepKind::MakeVisible { at } => at == ring,
    })
}
