//! The order of memory that several machines use. Its owner keeps that order, so a transfer takes its place there too, once
//! its turn has come here and before its first operation.

use alloc::boxed::Box;
use alloc::sync::Arc;

use arrayvec::ArrayVec;
use transload_core::Span;
use transload_core::flight::Failure;
use transload_hal::{BackendId, Buffer, Entered, Fault, Fence, Outcome, Part, Use};

use super::active::{Active, Stage};
use super::command::{Command, CommandKind, Commands};
use super::operand::Operand;
use super::state::State;
use super::types::{Index, TransferId};

/// The ends of a transfer that one machine keeps the order of, as they are told to its backend.
#[derive(Clone)]
pub(crate) struct Entry {
    /// Which ends: the destination, or else the source.
    ends: ArrayVec<(bool, Operand), 2>,
}

impl Entry {
    /// Asks the backend.
    pub(super) fn run(
        &self,
        backend: &dyn transload_hal::Backend,
    ) -> Result<Option<Entered>, Fault> {
        let uses: ArrayVec<Use<'_>, 2> = { self.ends.iter() }
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
    /// Holds a transfer until it has its turn in the orders of other machines. Machines are asked one after the other, in
    /// an order that all programs agree on, so that no two transfers wait for each other. Returns whether it waits now.
    #[inline]
    pub(crate) fn hold_for_order(&mut self, index: Index, commands: &mut Commands) -> bool {
        let active = &self.table[index];
        active.orders > 0 && active.stage == Stage::Flying && self.enter_next(index, commands)
    }

    #[cold]
    fn enter_next(&mut self, index: Index, commands: &mut Commands) -> bool {
        if commands.is_full() {
            self.table.requeue_front(index);
            return true;
        }
        let Some((backend, entry, left)) = next_entry(&self.table[index]) else {
            self.table[index].orders = 0;
            return false;
        };
        let Some(known) = self.in_flight.known(backend) else {
            let message = alloc::format!("backend {backend} is not there any more");
            let fault = Fault::new(transload_hal::ErrorClass::Lost, message);
            self.fail_entry(index, backend, fault);
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
        let active = &mut self.table[index];
        active.orders = left;
        active.commanded += 1;
        active.stage = Stage::Entering;
        true
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
            Err(fault) => return self.fail_entry(id.index, backend, fault),
        };
        let ends = active.src.iter_mut().chain(&mut active.dst);
        let ends = ends.filter(|end| is_kept_elsewhere(end) && end.buffer.backend() == backend);
        for (end, view) in ends.zip(entered.buffers) {
            let before: Buffer = core::mem::replace(&mut end.buffer, view);
            self.after.buffers.push(before);
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
                active.stage = Stage::Flying;
                self.enqueue(id.index);
            }
            Some((fence, Outcome::Failed(fault) | Outcome::Lost(fault))) => {
                self.fail_entry(id.index, fence.backend(), fault);
            }
            Some((fence, Outcome::Stopped { .. })) => {
                let fault = Fault::new(
                    transload_hal::ErrorClass::Failed,
                    "the backend gave up a place in the order that it was not asked to give up",
                );
                self.fail_entry(id.index, fence.backend(), fault);
            }
        }
    }

    fn fail_entry(&mut self, index: Index, backend: BackendId, fault: Fault) {
        let active = &mut self.table[index];
        active.fault = Some((backend, fault));
        let len = active
            .src
            .as_ref()
            .map_or(0, |end| end.shape.payload_bytes());
        let error = self.failure(index, Failure::before(len));
        self.finish(index, Err(error));
    }
}

/// Returns the next machine that a transfer asks, which ends that machine keeps the order of, and which ends are left then.
fn next_entry(active: &Active) -> Option<(BackendId, Entry, u8)> {
    let ends = [(Active::SRC, &active.src), (Active::DST, &active.dst)];
    let mut due: ArrayVec<(u8, &Operand), 2> = { ends.into_iter() }
        .filter(|(end, _)| active.orders & end != 0)
        .filter_map(|(end, operand)| Some((end, operand.as_ref()?)))
        .collect();
    due.sort_by_key(|(_, operand)| operand.buffer.storage_id());
    let backend = due.first()?.1.buffer.backend();
    due.retain(|(_, operand)| operand.buffer.backend() == backend);
    let asked = due.iter().fold(0, |asked, (end, _)| asked | end);
    let ends = { due.into_iter() }.map(|(end, operand)| (end == Active::DST, operand.clone()));
    let entry = Entry {
        ends: ends.collect(),
    };
    Some((backend, entry, active.orders & !asked))
}
