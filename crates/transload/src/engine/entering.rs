//! The order of memory that several machines use. Its owner keeps that order, so a transfer takes its place there too, once
//! its turn has come here and before its first operation.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use transload_core::Span;
use transload_core::flight::Failure;
use transload_hal::{BackendId, Entered, Fault, Fence, Outcome, Part, Use};

use super::active::{Active, Stage};
use super::command::{Command, CommandKind, Commands};
use super::operand::Operand;
use super::state::State;
use super::types::{Index, TransferId};

/// The ends of a transfer, or of a group, of which other machines keep the order. The source is number 0, the destination of
/// a transfer number 1; that of a group's first member is 1, too.
#[derive(Default)]
pub(crate) struct Orders {
    /// Those that were not asked for.
    due: Vec<usize>,
    /// Those that a machine was asked for and has not given.
    asked: Vec<usize>,
    /// A machine has given a place, which its views hold.
    holds_place: bool,
}

impl Orders {
    /// Adds those of these ends that another machine keeps the order of. They are numbered as they come.
    pub(super) fn extend<'a>(&mut self, ends: impl IntoIterator<Item = &'a Operand>) {
        let kept = ends.into_iter().enumerate();
        let kept = kept.filter(|(_, end)| is_kept_elsewhere(end));
        self.due.extend(kept.map(|(at, _)| at));
    }

    /// Returns whether the transfer has to wait for its turn at other machines.
    pub(super) fn are_left(&self) -> bool {
        !self.due.is_empty() || !self.asked.is_empty()
    }

    /// Returns whether transfers of other programs may wait for the end of this one.
    pub(super) fn holds_place(&self) -> bool {
        self.holds_place
    }

    pub(super) fn clear(&mut self) {
        self.due.clear();
        self.asked.clear();
        self.holds_place = false;
    }
}

/// The ends that one machine keeps the order of, as they are told to its backend.
#[derive(Clone)]
pub(crate) struct Entry {
    /// Each end, and whether it is written.
    ends: Vec<(bool, Operand)>,
}

impl Entry {
    /// Asks the backend.
    pub(super) fn run(
        &self,
        backend: &dyn transload_hal::Backend,
    ) -> Result<Option<Entered>, Fault> {
        let uses: Vec<Use<'_>> = { self.ends.iter() }
            .map(|(writes, end)| {
                let Span { offset, len } = end.extent();
                Use {
                    part: Part {
                        buffer: &end.buffer,
                        offset,
                        len_bytes: len,
                    },
                    writes: *writes,
                }
            })
            .collect();
        backend.enter(&uses)
    }
}

/// Returns whether another machine keeps the order of an operand's bytes.
pub(super) fn is_kept_elsewhere(end: &Operand) -> bool {
    !end.buffer.memory().device.node.is_here()
}

impl State {
    /// Holds a transfer or group until it has its turn in the orders of other machines. Machines are asked one after the
    /// other, in an order that all programs agree on, so that no two transfers wait for each other. Returns whether it
    /// waits now.
    #[inline]
    pub(crate) fn hold_for_order(&mut self, index: Index, commands: &mut Commands) -> bool {
        self.table[index].stage == Stage::Entering && self.enter_next(index, commands)
    }

    #[cold]
    fn enter_next(&mut self, index: Index, commands: &mut Commands) -> bool {
        if !self.table[index].orders.asked.is_empty() {
            return true;
        }
        if commands.is_full() {
            self.table.requeue_front(index);
            return true;
        }
        let Some((backend, entry)) = self.next_entry(index) else {
            self.begin(index);
            return self.table[index].stage != Stage::Flying;
        };
        let Some(known) = self.in_flight.known(backend) else {
            let message = alloc::format!("backend {backend} is not there any more");
            let fault = Fault::new(transload_hal::ErrorClass::Lost, message);
            self.fail_entry(index, backend, &fault);
            return true;
        };
        commands.push(Command {
            id: self.table.id(index),
            backend: Arc::clone(&known.backend),
            backend_id: backend,
            kind: CommandKind::Enter {
                entry: Box::new(entry),
            },
            is_apart: false,
        });
        self.table[index].commanded += 1;
        true
    }

    /// Takes the ends out of those that are due of which one machine keeps the order: the next one.
    fn next_entry(&mut self, index: Index) -> Option<(BackendId, Entry)> {
        let due = core::mem::take(&mut self.table[index].orders.due);
        // The ends of members that are over are gone.
        let due: Vec<(usize, Operand)> = { due.into_iter() }
            .filter_map(|at| Some((at, self.end(index, at)?.clone())))
            .collect();
        let first = due.iter().min_by_key(|(_, end)| end.buffer.storage_id())?;
        let backend = first.1.buffer.backend();
        let (now, later): (Vec<_>, Vec<_>) =
            { due.into_iter() }.partition(|(_, end)| end.buffer.backend() == backend);
        let orders = &mut self.table[index].orders;
        orders.due.extend(later.iter().map(|(at, _)| at));
        orders.asked.extend(now.iter().map(|(at, _)| at));
        let later = later.into_iter().map(|(_, end)| end.buffer);
        self.after.buffers.extend(later);
        let ends = now.into_iter().map(|(at, end)| (at > 0, end)).collect();
        Some((backend, Entry { ends }))
    }

    /// Takes in the backend's answer.
    pub(crate) fn handle_entered(
        &mut self,
        id: TransferId,
        backend: BackendId,
        answer: Result<Option<Entered>, Fault>,
    ) {
        let waits = |active: &&mut Active| active.stage == Stage::Entering;
        let Some(active) = self.table.find_mut(id).filter(waits) else {
            // It was cancelled: the place is given up with the views.
            if let Ok(Some(entered)) = answer {
                self.after.buffers.extend(entered.buffers);
            }
            return;
        };
        let entered = match answer {
            Ok(Some(entered)) => entered,
            Ok(None) => return self.handle_turn(id, None),
            Err(fault) => return self.fail_entry(id.index, backend, &fault),
        };
        active.orders.holds_place = true;
        let asked = active.orders.asked.clone();
        for (at, view) in asked.into_iter().zip(entered.buffers) {
            self.replace_end(id.index, at, view);
        }
        if entered.fence.is_immediate() {
            return self.handle_turn(id, None);
        }
        if let Some(outcome) = self.in_flight.handle_entry(entered.fence, id) {
            self.handle_turn(id, Some((entered.fence, outcome)));
        }
    }

    /// Takes in that the transfer has its turn at a machine, or never will.
    pub(crate) fn handle_turn(&mut self, id: TransferId, settled: Option<(Fence, Outcome)>) {
        let waits = |active: &&mut Active| active.stage == Stage::Entering;
        let Some(active) = self.table.find_mut(id).filter(waits) else {
            return;
        };
        match settled {
            None | Some((_, Outcome::Done)) => {
                active.orders.asked.clear();
                self.enqueue(id.index);
            }
            Some((fence, Outcome::Failed(fault) | Outcome::Lost(fault))) => {
                self.fail_entry(id.index, fence.backend(), &fault);
            }
            Some((fence, Outcome::Stopped { .. })) => {
                let fault = Fault::new(
                    transload_hal::ErrorClass::Failed,
                    "the backend gave up a place in the order that it was not asked to give up",
                );
                self.fail_entry(id.index, fence.backend(), &fault);
            }
        }
    }

    /// Ends a transfer that has no turn at a machine; of a group, the members with ends there.
    fn fail_entry(&mut self, index: Index, backend: BackendId, fault: &Fault) {
        let asked = core::mem::take(&mut self.table[index].orders.asked);
        for id in self.parts_with(index, &asked) {
            let Some(active) = self.table.find_mut(id).filter(|active| active.is_live()) else {
                continue;
            };
            active.fault = Some((backend, fault.clone()));
            let src = active.src.as_ref();
            let len = src.map_or(0, |end| end.shape.payload_bytes());
            let error = self.failure(id.index, Failure::before(len));
            self.finish(id.index, Err(error));
        }
        if self.table[index].stage == Stage::Entering {
            self.enqueue(index);
        }
    }
}
