//! The one way to start a transfer: a place in the table, a place in the order, and the launch when nothing stands
//! before it.

use alloc::sync::Arc;

use transload_core::flight::{Flight, FlightSpec};
use transload_core::{Footprint, Instant};

use super::active::Stage;
use super::checked::{Checked, Chosen, Terms};
use super::digest::Digest;
use super::event::EventState;
use super::state::State;
use super::types::{Index, Operand, TransferId};
use crate::error::TransferError;

impl State {
    /// Plans a checked request and starts it. Takes the request out of `checked`, because a value that a closure owns
    /// is moved with each move of the closure.
    pub(crate) fn submit(
        &mut self,
        checked: &mut Option<Checked>,
        terms: &Terms,
        now: Instant,
    ) -> Result<TransferId, TransferError> {
        let Some(checked) = checked.take() else {
            unreachable!("each request is submitted once")
        };
        let chosen = self.planning.choose(&checked, terms, now)?;
        let footprints = &checked.footprints;
        let ends = (checked.src, checked.dst);
        self.start(ends, (checked.in_place, footprints), chosen, terms, now)
    }

    /// Starts a transfer of a checked request, which consists of its ends, whether they overlap, and its footprints. The
    /// transfer is launched now, or when all that stands before it is over.
    pub(crate) fn start(
        &mut self,
        (src, dst): (Operand, Operand),
        (in_place, footprints): (bool, &[Footprint]),
        chosen: Chosen,
        terms: &Terms,
        now: Instant,
    ) -> Result<TransferId, TransferError> {
        self.now = self.now.max(now);
        let spec = FlightSpec {
            len_bytes: src.shape.payload_bytes(),
            plan: chosen.plan,
            in_place,
            deadline: terms.deadline,
            verify: chosen.verify,
        };
        let digests = spec.verify.is_some().then(|| self.take_digests());
        let index = self.table.take();
        let active = &mut self.table[index];
        let started = match &mut active.flight {
            Some(flight) => flight.restart(spec),
            None => Flight::new(spec).map(|flight| active.flight = Some(flight)),
        };
        if let Err(error) = started {
            let (src, dst) = (src.buffer.memory(), dst.buffer.memory());
            let reasons = alloc::format!("{error}");
            self.free_place(index);
            return Err(TransferError::NoRoute { src, dst, reasons });
        }
        active.stage = Stage::Waiting;
        active.src = Some(src);
        active.dst = Some(dst);
        active.priority = terms.priority;
        active.digests = digests;
        active.then.extend(terms.then.iter().cloned());
        active.batch.clone_from(&terms.batch);
        active.proof = terms.proof;
        active.over_one_link = terms.over.is_some();
        active.cancel_on_drop = terms.cancel_on_drop;
        active.submitted = now;
        active.begun = now;
        self.deadlines.set(index, terms.deadline, &mut self.table);
        self.enter(index, footprints, &terms.after);
        Ok(self.table.id(index))
    }

    /// Starts a guard on a region. Also returns whether the guard has its turn: nothing stands before it.
    pub(crate) fn start_guard(&mut self, end: Operand, footprint: Footprint) -> (TransferId, bool) {
        let index = self.table.take();
        let active = &mut self.table[index];
        active.stage = Stage::Waiting;
        active.src = Some(end);
        self.enter(index, &[footprint], &[]);
        let has_turn = self.table[index].stage == Stage::Guarding;
        (self.table.id(index), has_turn)
    }

    /// Gives a transfer or guard its place in the order, and launches it if nothing stands before it.
    fn enter(&mut self, index: Index, footprints: &[Footprint], after: &[Arc<EventState>]) {
        let is_behind = self.table.enter(index, footprints);
        let id = self.table.id(index);
        let waits = |id| self.table.waits(id);
        let events = after.iter().filter(|event| event.subscribe(id, waits));
        let events = events.count();
        let active = &mut self.table[index];
        active.waits_for = events as u32 + u32::from(is_behind);
        match active.waits_for {
            0 => self.launch(index),
            _ => self.table.set_needs_listener(index, self.advances),
        }
    }

    /// Takes in that one of the things that a transfer or guard waits for has happened.
    pub(crate) fn handle_awaited(&mut self, index: Index) {
        let active = &mut self.table[index];
        if active.stage == Stage::Waiting && active.waits_for > 0 {
            active.waits_for -= 1;
            if active.waits_for == 0 {
                self.launch(index);
            }
        }
    }

    /// Takes in that events were set for which these transfers waited.
    pub(crate) fn handle_events(&mut self, waiting: &[TransferId]) {
        for id in waiting {
            if self.table.find(*id).is_some() {
                self.handle_awaited(id.index);
            }
        }
    }

    /// Launches a transfer or guard: nothing stands before it any more.
    fn launch(&mut self, index: Index) {
        let active = &mut self.table[index];
        if active.flight.is_none() || active.dst.is_none() {
            active.stage = Stage::Guarding;
            self.after.wakers.extend(active.waker.take());
            return self.table.set_needs_listener(index, false);
        }
        active.stage = Stage::Flying;
        self.enqueue(index);
    }

    /// Returns empty digests for the two ends.
    fn take_digests(&mut self) -> [Arc<Digest>; 2] {
        match self.digests.pop() {
            Some(digests) => {
                digests.iter().for_each(|digest| digest.reset());
                digests
            }
            None => [Arc::new(Digest::new()), Arc::new(Digest::new())],
        }
    }
}
