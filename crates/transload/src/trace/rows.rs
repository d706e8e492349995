//! What belongs together in a trace: operations and their ends, chunks and the slots that hold them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use hashbrown::HashMap;
use transload_core::flight::{Endpoint, SlotId, Task, Work};
use transload_core::{DeviceId, EngineId, Instant, MemoryId, Span};
use transload_hal::Fence;

use super::Hop;
use crate::engine::trace::{Event, Recorded, Via, What};
use crate::engine::types::{Index, TransferId};

/// Rows that belong together. Its number is the viewer's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Group {
    Transfers = 1,
    Threads,
    Engines,
    Slots,
}

impl Group {
    pub(super) const ALL: [Group; 4] = [
        Group::Transfers,
        Group::Threads,
        Group::Engines,
        Group::Slots,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Group::Transfers => "transfers",
            Group::Threads => "threads",
            Group::Engines => "engines",
            Group::Slots => "staging slots",
        }
    }
}

/// A row of the viewer.
pub(super) struct Row {
    pub(super) group: Group,
    pub(super) name: String,
    /// In the order of their begin, an outer one before those within it.
    pub(super) slices: Vec<Slice>,
}

/// A span of time, with what is said of it.
pub(super) struct Slice {
    pub(super) name: String,
    pub(super) begin: Instant,
    pub(super) end: Instant,
    pub(super) args: Vec<(&'static str, Value)>,
}

pub(super) enum Value {
    Number(u64),
    Time(Instant),
    Flag(bool),
    Text(String),
}

/// Returns what went over each link.
pub(super) fn hops(recorded: &Recorded) -> Vec<Hop> {
    let Weaver {
        mut copies, proofs, ..
    } = Weaver::of(recorded);
    copies.retain(|copy| !proofs.contains(&copy.of));
    copies.sort_by_key(|copy| copy.begin);
    // When the last operation of each hop ended.
    let mut hops: Vec<(Hop, Instant)> = Vec::new();
    for copy in copies {
        let (src, dst) = copy.ends;
        let known = hops
            .iter()
            .position(|(hop, _)| (hop.src, hop.dst) == (src, dst));
        let at = known.unwrap_or_else(|| {
            let (bytes, busy) = (0, Duration::ZERO);
            hops.push((
                Hop {
                    src,
                    dst,
                    bytes,
                    busy,
                },
                copy.begin,
            ));
            hops.len() - 1
        });
        let (hop, until) = &mut hops[at];
        hop.bytes += copy.bytes;
        hop.busy += Duration::from_nanos(copy.end.since_ns(copy.begin.max(*until)));
        *until = copy.end.max(*until);
    }
    hops.into_iter().map(|(hop, _)| hop).collect()
}

/// Returns the rows in the order in which they are shown, and the time of the first event.
pub(super) fn of(recorded: &Recorded, simulated: &[DeviceId]) -> (Vec<Row>, Instant) {
    let events = || recorded.events.iter();
    let mut weaver = Weaver::of(recorded);
    let begins = |event: &Event| match &event.what {
        What::Transfer { submitted, .. } => (*submitted).min(event.begin),
        _ => event.begin,
    };
    let start = events().map(begins).min();
    let end = events().map(|event| event.end).max();
    weaver.end(end.unwrap_or_default());
    let row = |(key, mut slices): (Key, Vec<Slice>)| {
        match key {
            Key::Engine(_) => put_in_turn(&mut slices),
            _ => slices.sort_by_key(|slice| (slice.begin, Reverse(slice.end))),
        }
        let (group, mut name) = key.shown(&recorded.threads);
        if key
            .device()
            .is_some_and(|device| simulated.contains(&device))
        {
            name.push_str(" (simulated)");
        }
        Row {
            group,
            name,
            slices,
        }
    };
    let rows = weaver.rows.into_iter().map(row).collect();
    (rows, start.unwrap_or_default())
}

/// An engine does one operation after the other, in the order in which they end.
fn put_in_turn(operations: &mut [Slice]) {
    operations.sort_by_key(|slice| (slice.end, slice.begin));
    let mut free = Instant(0);
    for slice in operations {
        slice.begin = slice.begin.max(free);
        free = slice.end;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    Transfer(Index),
    Thread(u32),
    Engine(Engine),
    Slot(MemoryId, Index, SlotId),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Engine {
    Copies(EngineId),
    /// Looks at bytes of that device, and moves none.
    Looks(DeviceId),
}

impl Key {
    /// Returns the device that the row is of.
    fn device(self) -> Option<DeviceId> {
        match self {
            Key::Engine(Engine::Copies(engine)) => Some(engine.device),
            Key::Engine(Engine::Looks(device)) => Some(device),
            Key::Slot(memory, ..) => Some(memory.device),
            Key::Transfer(_) | Key::Thread(_) => None,
        }
    }

    fn shown(self, threads: &[String]) -> (Group, String) {
        match self {
            Key::Transfer(at) => (Group::Transfers, format!("place {}", at.position())),
            Key::Thread(at) => {
                let name = threads.get(at as usize).filter(|name| !name.is_empty());
                let unnamed = || format!("thread {at}");
                (Group::Threads, name.cloned().unwrap_or_else(unnamed))
            }
            Key::Engine(Engine::Copies(engine)) => (Group::Engines, engine.to_string()),
            Key::Engine(Engine::Looks(device)) => (Group::Engines, format!("{device} (no copy)")),
            Key::Slot(memory, at, SlotId { lane, ring, slot }) => {
                let at = at.position();
                let name = format!("{memory}: place {at}, lane {lane}, ring {ring}, slot {slot}");
                (Group::Slots, name)
            }
        }
    }
}

/// An operation that was submitted.
struct Operation {
    id: TransferId,
    task: Task,
    via: Via,
    begin: Instant,
}

/// A copy over a link, done.
struct Copy {
    of: TransferId,
    ends: (MemoryId, MemoryId),
    bytes: u64,
    begin: Instant,
    end: Instant,
}

/// A slot while a transfer has it.
struct Lease {
    id: TransferId,
    memory: MemoryId,
    bytes: u64,
    since: Instant,
    chunks: Vec<Chunk>,
}

/// A chunk's stay in a slot.
struct Chunk {
    span: Span,
    begin: Instant,
    end: Instant,
}

/// Puts events together.
#[derive(Default)]
struct Weaver {
    rows: BTreeMap<Key, Vec<Slice>>,
    /// When the last transfer or lease of a row ended. The next one is shown to begin then at the earliest: the engine's
    /// time of a step is a little older than the ends that it takes in.
    free: BTreeMap<Key, Instant>,
    flying: HashMap<Fence, Operation>,
    /// Ends that were told before the thread that submitted the operation had recorded that.
    early: HashMap<Fence, (Instant, bool)>,
    leases: BTreeMap<(Index, SlotId), Lease>,
    copies: Vec<Copy>,
    proofs: BTreeSet<TransferId>,
    /// When transfers asked for their first slots, and when they got them.
    asked: BTreeMap<TransferId, Vec<(Instant, Option<Instant>)>>,
}

impl Weaver {
    fn of(recorded: &Recorded) -> Weaver {
        let mut weaver = Weaver::default();
        recorded.events.iter().for_each(|event| weaver.take(event));
        weaver
    }

    fn take(&mut self, event: &Event) {
        let (begin, end) = (event.begin, event.end);
        let thread = Key::Thread(event.thread);
        let number = |number: usize| Value::Number(number as u64);
        match &event.what {
            What::Turn => self.push(thread, "turn", begin, end, vec![]),
            What::Wait(backend) => {
                self.push(thread, &format!("wait in {backend}"), begin, end, vec![]);
            }
            What::Park => self.push(thread, "park", begin, end, vec![]),
            What::Call { name, backend, ops } => {
                let name = format!("{name}: {backend}");
                let args = vec![("operations", number(*ops))];
                self.push(thread, &name, begin, end, args);
            }
            What::Op {
                id,
                task,
                via,
                fence,
            } => {
                let operation = Operation {
                    id: *id,
                    task: *task,
                    via: *via,
                    begin,
                };
                if fence.is_immediate() {
                    self.handle_end(&operation, end, Some(true));
                } else if let Some((at, is_done)) = self.early.remove(fence) {
                    self.handle_end(&operation, at, Some(is_done));
                } else {
                    self.flying.insert(*fence, operation);
                }
            }
            What::Settled { fence, is_done } => match self.flying.remove(fence) {
                Some(operation) => self.handle_end(&operation, end, Some(*is_done)),
                None => {
                    self.early.insert(*fence, (end, *is_done));
                }
            },
            What::Asked(id) => self.asked.entry(*id).or_default().push((end, None)),
            What::Leased {
                id,
                slot,
                memory,
                bytes,
            } => {
                let asked = self.asked.get_mut(id).and_then(|asked| asked.last_mut());
                if let Some((_, granted)) = asked {
                    granted.get_or_insert(end);
                }
                let lease = Lease {
                    id: *id,
                    memory: *memory,
                    bytes: *bytes,
                    since: end,
                    chunks: Vec::new(),
                };
                self.leases.insert((id.index, *slot), lease);
            }
            What::Returned { id, slot } => {
                if let Some(lease) = self.leases.remove(&(id.index, *slot)) {
                    self.close(id.index, *slot, lease, end, false);
                }
            }
            What::Transfer { .. } => self.handle_transfer(event),
        }
    }

    fn handle_end(&mut self, operation: &Operation, end: Instant, is_done: Option<bool>) {
        let Operation {
            id,
            task,
            via,
            begin,
        } = operation;
        let (engine, name) = match via {
            Via::Link(link) => (
                Engine::Copies(link.engine),
                format!("{} → {}", link.src, link.dst),
            ),
            Via::Device(device) => {
                let name = match task.work {
                    Work::MakeVisible { .. } => "make visible",
                    _ => "checksum",
                };
                (Engine::Looks(*device), name.into())
            }
        };
        let args = vec![
            ("transfer", shown(*id)),
            ("lane", Value::Number(task.id.lane.into())),
            ("step", Value::Number(task.step.into())),
            ("chunk", Value::Number(task.id.chunk.into())),
            ("offset", Value::Number(task.span.offset)),
            ("bytes", Value::Number(task.span.len)),
            ("submitted", Value::Time(*begin)),
            match is_done {
                Some(is_done) => ("done", Value::Flag(is_done)),
                None => ("unfinished", Value::Flag(true)),
            },
        ];
        let end = end.max(*begin);
        if let (Via::Link(link), Some(true)) = (via, is_done) {
            self.copies.push(Copy {
                of: *id,
                ends: (link.src, link.dst),
                bytes: task.span.len,
                begin: *begin,
                end,
            });
        }
        self.push(Key::Engine(engine), &name, *begin, end, args);
        let slots = match task.work {
            Work::Copy { from, to } => [Some(from), Some(to)],
            Work::Transform { at } | Work::MakeVisible { at } => [Some(at), None],
        };
        for slot in slots {
            let Some(Endpoint::Slot(slot)) = slot else {
                continue;
            };
            let Some(lease) = self.leases.get_mut(&(id.index, slot)) else {
                continue;
            };
            match lease
                .chunks
                .last_mut()
                .filter(|chunk| chunk.span == task.span)
            {
                Some(chunk) => chunk.end = chunk.end.max(end),
                None => lease.chunks.push(Chunk {
                    span: task.span,
                    begin: *begin,
                    end,
                }),
            }
        }
    }

    /// Shows a lease and its chunks.
    fn close(&mut self, of: Index, slot: SlotId, lease: Lease, end: Instant, is_unfinished: bool) {
        let key = Key::Slot(lease.memory, of, slot);
        let begin = lease.since.max(self.free_at(key));
        let last = lease.chunks.last().map(|chunk| chunk.end);
        let end = end.max(begin).max(last.unwrap_or_default());
        let mut args = vec![
            ("transfer", shown(lease.id)),
            ("bytes", Value::Number(lease.bytes)),
        ];
        if is_unfinished {
            args.push(("unfinished", Value::Flag(true)));
        }
        self.push(key, "lease", begin, end, args);
        for chunk in lease.chunks {
            let args = vec![
                ("offset", Value::Number(chunk.span.offset)),
                ("bytes", Value::Number(chunk.span.len)),
            ];
            self.push(key, "chunk", chunk.begin.max(begin), chunk.end, args);
        }
        self.free.insert(key, end);
    }

    fn handle_transfer(&mut self, event: &Event) {
        let What::Transfer {
            id,
            memories,
            bytes,
            submitted,
            begun,
            is_done,
            is_proof,
        } = &event.what
        else {
            return;
        };
        let key = Key::Transfer(id.index);
        let begin = (*submitted).max(self.free_at(key));
        let end = event.end.max(begin);
        let ends = memories.map_or_else(String::new, |(src, dst)| format!("{src} → {dst}"));
        let name = if *is_proof {
            self.proofs.insert(*id);
            format!("proof {ends}")
        } else {
            ends
        };
        let args = vec![
            ("transfer", shown(*id)),
            ("bytes", Value::Number(*bytes)),
            ("done", Value::Flag(*is_done)),
        ];
        self.push(key, &name, begin, end, args);
        let begun = (*begun).clamp(begin, end);
        if begun > begin {
            self.push(key, "waits", begin, begun, vec![]);
        }
        let mut from = begin;
        for (asked, granted) in self.asked.remove(id).unwrap_or_default() {
            // The first slots come before the transfer begins, those of a second way after that.
            let limit = if asked < begun { begun } else { end };
            let asked = asked.clamp(from.min(limit), limit);
            from = granted.unwrap_or(limit).clamp(asked, limit);
            self.push(key, "waits for slots", asked, from, vec![]);
        }
        self.free.insert(key, end);
    }

    /// Shows what has not ended.
    fn end(&mut self, end: Instant) {
        for (_, operation) in core::mem::take(&mut self.flying) {
            self.handle_end(&operation, end, None);
        }
        for ((of, slot), lease) in core::mem::take(&mut self.leases) {
            self.close(of, slot, lease, end, true);
        }
    }

    fn free_at(&self, key: Key) -> Instant {
        self.free.get(&key).copied().unwrap_or_default()
    }

    fn push(
        &mut self,
        key: Key,
        name: &str,
        begin: Instant,
        end: Instant,
        args: Vec<(&'static str, Value)>,
    ) {
        self.rows.entry(key).or_default().push(Slice {
            name: name.into(),
            begin,
            end,
            args,
        });
    }
}

/// Names a transfer by its place and how often the place was used before.
fn shown(id: TransferId) -> Value {
    Value::Text(format!("{}.{}", id.index.position(), id.generation))
}
