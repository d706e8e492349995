//! Everything that the engine's lock guards.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::Waker;

use transload_core::flight::{Flight, FlightSpec};
use transload_core::{
    Footprint, Instant, Inventory, Limits, Plan, PlanCache, PlanKey, Purpose, Stats,
};
use transload_hal::{Backend, Buffer};

use super::active::{Active, Alone, Stage};
use super::admission::Admission;
use super::admission::budget::Pool;
use super::checked::{Checked, Chosen, Terms};
use super::command::Later;
use super::deadlines::Deadlines;
use super::digest::Digest;
use super::event::{Awaited, EventState};
use super::in_flight::InFlight;
use super::observe::Ended;
use super::operand::Operand;
use super::planning::{self, Planning};
use super::proofs::Proofs;
use super::table::Table;
use super::trace::{Recorder, What};
use super::types::{Index, Pace, TransferId};
use super::verdict::Verdict;
use crate::error::{RegisterError, TransferError};
use crate::report::Report;

/// The number of transfers for which there is room from the start: more than most programs have under way, so that rare
/// events allocate no more than frequent ones.
const ROOM: usize = 32;

/// The engine's state: its parts, and what happens between them. A part has private fields and changes only itself and
/// the record of the transfer that it is given; it returns what the state must do. The state's methods carry that out
/// in the other parts. They never block, never call a backend, and never wake a thread or task: what calls code outside
/// the engine goes to [`After`], and calls of backends become commands.
///
/// The methods are in the files `state` (the start), `step` (polls and answers), `proving`, `admit` and `finish`, in the
/// order in which a transfer meets them.
pub(crate) struct State {
    pub(crate) table: Table,
    pub(crate) planning: Planning,
    pub(crate) admission: Admission,
    pub(crate) in_flight: InFlight,
    pub(crate) proofs: Proofs,
    pub(crate) deadlines: Deadlines,
    pub(crate) stats: Stats,
    /// Commands for the thread that executes those that take long.
    pub(crate) later: Later,
    pub(crate) pace: Pace,
    /// Whether transfers whose handle is held need a thread that listens.
    pub(crate) advances: bool,
    /// Whether ends of transfers are counted in `metrics`.
    pub(crate) metrics: bool,
    /// Records what is done, where the manager was asked to.
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// Counts the transfers that were started.
    pub(crate) started: u64,
    /// The time of the last round. Never ahead of the clock.
    pub(crate) now: Instant,
    /// Wakers to call, buffers and results to drop, once the lock is released.
    pub(crate) after: After,
    /// Threads that are dropping buffers out of `after`.
    pub(crate) releasing: usize,
    /// Threads that wait until nothing is under way.
    idlers: Vec<Waker>,
    /// Transfers whose events were set, which the next steps launch.
    pub(crate) awaited: Awaited,
    /// Wrappers for borrowed memory that are not in use.
    pub(crate) borrowed: Vec<Buffer>,
    /// Digests that are not in use.
    pub(super) digests: Vec<[Arc<Digest>; 2]>,
}

/// A transfer that has moved its bytes and has left its place.
#[derive(Default)]
pub(crate) struct Done {
    pub(crate) result: Option<Result<Report, TransferError>>,
    /// The last view of a storage must not go while the lock is held.
    pub(crate) buffers: [Option<Buffer>; 2],
}

/// Work for the time after the lock is released.
#[derive(Default)]
pub(crate) struct After {
    pub(crate) wakers: Vec<Waker>,
    pub(crate) buffers: Vec<Buffer>,
    /// Verdicts of proofs, if the manager keeps verdicts.
    pub(crate) verdicts: Vec<Verdict>,
    /// Transfers that have ended, if an observer is there.
    pub(crate) ended: Vec<Ended>,
    /// Whether `ended` goes to `metrics` too.
    pub(crate) metrics: bool,
}

impl After {
    /// Returns whether the work may take any time, because it runs code outside the engine.
    pub(crate) fn calls_others(&self, is_parker: impl Fn(&Waker) -> bool) -> bool {
        !self.buffers.is_empty() || !self.wakers.iter().all(is_parker)
    }

    /// Out of line, so that it does not slow transfers down where no observer is there.
    #[cold]
    #[inline(never)]
    pub(crate) fn note(&mut self, ended: Ended, metrics: bool) {
        self.metrics = metrics;
        self.ended.push(ended);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.wakers.is_empty()
            && self.buffers.is_empty()
            && self.ended.is_empty()
            && self.verdicts.is_empty()
    }
}

impl State {
    pub(crate) fn new(pool: Arc<Pool>, cache: PlanCache, limits: Limits) -> State {
        State {
            table: Table::with_capacity(ROOM),
            planning: Planning::new(cache, limits),
            admission: Admission::new(pool, ROOM),
            in_flight: InFlight::with_capacity(ROOM),
            proofs: Proofs::default(),
            deadlines: Deadlines::default(),
            stats: Stats::new(),
            later: Later::default(),
            pace: Pace::FULL,
            advances: false,
            metrics: false,
            recorder: None,
            started: 0,
            now: Instant(0),
            after: After::default(),
            releasing: 0,
            idlers: Vec::new(),
            awaited: Awaited::default(),
            borrowed: Vec::new(),
            digests: Vec::new(),
        }
    }

    /// Registers a backend. Plans are made anew.
    pub(crate) fn register(
        &mut self,
        backend: Arc<dyn Backend>,
        inventory: Inventory,
        unattended: bool,
    ) -> Result<(), RegisterError> {
        let id = inventory.backend;
        if self.in_flight.known(id).is_some() {
            return Err(RegisterError::Duplicate { backend: id });
        }
        let added = self.planning.add(inventory);
        added.map_err(|error| RegisterError::Topology { backend: id, error })?;
        self.in_flight.register(id, backend, unattended);
        Ok(())
    }

    /// Forgets what the engine found out about the machine.
    pub(crate) fn forget(&mut self) {
        self.planning.forget();
        self.proofs.forget();
    }

    /// Records what happens at the time of this round.
    #[inline]
    pub(crate) fn note(&self, what: impl FnOnce() -> What) {
        if let Some(recorder) = &self.recorder {
            recorder.add_at(self.now, what());
        }
    }

    /// Looks at the transfer in the next round.
    #[inline]
    pub(crate) fn enqueue(&mut self, index: Index) {
        self.table.enqueue(index, self.advances);
    }

    /// Puts the report of a transfer that has moved its bytes into `done`, and frees its place. A transfer that failed
    /// keeps its place until its handle takes the result.
    pub(crate) fn take_done(&mut self, id: TransferId, done: &mut Done) {
        let Some(active) = self.table.find_mut(id) else {
            return;
        };
        if active.stage != Stage::Over || !matches!(active.result, Some(Ok(_))) {
            return;
        }
        done.result = active.result.take();
        done.buffers = [active.src.take(), active.dst.take()].map(|end| end.map(|end| end.buffer));
        self.free_place(id.index);
    }

    /// Frees a place. No operation of the transfer is under way, and its handle is gone.
    pub(crate) fn free_place(&mut self, index: Index) {
        let active = &mut self.table[index];
        self.digests.extend(active.vacate());
        if active.position.take().is_some() {
            self.admission.leave(&self.table);
        }
        self.table.give_back(index);
    }

    /// Returns whether the owner of a transfer or guard has something to wait for.
    pub(crate) fn is_awaited(&self, id: TransferId) -> bool {
        self.table.find(id).is_some_and(Active::is_awaited)
    }

    /// Returns the next time at which something happens by itself.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        self.deadlines.next(&self.table)
    }

    /// Returns whether any transfer is under way, or its buffers are still being dropped. Guards are not counted.
    pub(crate) fn is_moving(&self) -> bool {
        self.releasing > 0 || self.table.moving() > 0
    }

    /// Adds the threads that wait until nothing is under way to `wakers`, if nothing is.
    pub(crate) fn tell_idlers(&mut self, wakers: &mut Vec<Waker>) {
        if !self.is_moving() {
            wakers.append(&mut self.idlers);
        }
    }

    /// Registers a waker to be called when nothing is under way.
    pub(crate) fn watch_idle(&mut self, waker: Waker) {
        if !self.idlers.iter().any(|known| known.will_wake(&waker)) {
            self.idlers.push(waker);
        }
    }

    /// Records that a transfer whose operations are all under way needs no thread: hardware finishes it, and its owner
    /// finds out. It still needs one where its end must be reported, where others wait for its slots or for its place at
    /// another machine, and where a backend settles fences only when a thread calls it.
    #[inline]
    pub(crate) fn leave_to_hardware(&mut self, id: TransferId) {
        let is_out = |active: &&Active| active.stage == Stage::Flying && active.commanded == 0;
        if let Some(active) = self.table.find(id).filter(is_out) {
            let is_alone = active.alone.is_some();
            if self.needs_no_thread(active) {
                self.table.set_needs_listener(id.index, false);
            }
            if is_alone {
                self.set_watched(id, false);
            }
        }
    }

    fn needs_no_thread(&self, active: &Active) -> bool {
        let is_told = active.detached || active.waker.is_some() || active.batch.is_some();
        let is_told = is_told || !active.then.is_empty() || !active.leases.is_empty();
        let is_told = is_told || active.orders.holds_place();
        let is_out = active.flight.as_ref().is_some_and(Flight::is_out);
        let mut backends = active.flying.iter().map(|(fence, _)| fence.backend());
        let is_unattended = |id| { self.in_flight.known(id) }.is_some_and(|known| known.unattended);
        is_out && !is_told && backends.all(is_unattended)
    }

    /// Returns the work for the time after the lock is released.
    #[inline(always)]
    pub(crate) fn take_after(&mut self) -> Option<After> {
        match self.after.is_empty() && self.idlers.is_empty() {
            true => None,
            false => self.take_some(),
        }
    }

    #[cold]
    fn take_some(&mut self) -> Option<After> {
        self.releasing += usize::from(!self.after.buffers.is_empty());
        if !self.idlers.is_empty() {
            let mut wakers = core::mem::take(&mut self.after.wakers);
            self.tell_idlers(&mut wakers);
            self.after.wakers = wakers;
        }
        let after = &mut self.after;
        (!after.is_empty()).then(|| core::mem::take(after))
    }
}

impl Drop for State {
    /// When the last handle is dropped while operations are under way, as it can be where no thread turns the engine,
    /// their memory is never freed: the operations may still touch it, although no thread waits for them.
    fn drop(&mut self) {
        for id in self.in_flight.take_pending() {
            let Some(active) = self.table.find_mut(id) else {
                continue;
            };
            core::mem::forget((active.src.take(), active.dst.take()));
            core::mem::forget(core::mem::take(&mut active.leases));
            core::mem::forget(active.digests.take());
        }
    }
}

impl State {
    /// Plans a checked request and starts it. Takes the request out of `checked`: a closure that owned it would be moved
    /// with it several times.
    pub(crate) fn accept(
        &mut self,
        checked: &mut Option<Checked>,
        terms: &Terms,
        now: Instant,
    ) -> Result<TransferId, TransferError> {
        let Some(checked) = checked.take() else {
            unreachable!("each request is submitted once")
        };
        let chosen = self.planning.choose(&checked, terms, now)?;
        let bytes = checked.len_bytes();
        // Beside others a transfer takes longer, which says nothing about its route.
        let learns = self.planning.learns_from(bytes)
            && self.table.moving() == 0
            && !checked.in_place
            // A copy of many pieces says nothing about one of as many bytes.
            && checked.src.is_contiguous()
            && checked.dst.is_contiguous()
            && terms.is_plain();
        let key = learns.then(|| planning::key(&checked.src, &checked.dst, Purpose::Copy));
        let footprints = &checked.footprints;
        let ends = (checked.src, checked.dst);
        let id = self.start(ends, (checked.in_place, footprints), chosen, terms, now)?;
        if let Some(key) = key {
            self.start_learning(id.index, key, bytes, terms.deadline.is_none());
        }
        Ok(id)
    }

    /// Prepares a transfer that has the machine to itself so far for [`State::learn`], and rarely tries another route
    /// with its leading bytes.
    #[cold]
    fn start_learning(&mut self, index: Index, key: PlanKey, bytes: u64, may_try: bool) {
        if self.table[index].stage != Stage::Flying {
            return;
        }
        self.table[index].alone = Some(Alone {
            key,
            started: self.started,
            unwatched: None,
            unwatched_ns: 0,
        });
        if may_try {
            let fits = |plan: &Plan| self.proofs.first_unproven(plan).is_none();
            let trial = self.planning.trial(key, bytes, self.now, fits);
            if let (Some(trial), Some(flight)) = (trial, &mut self.table[index].flight) {
                flight.try_first(trial);
            }
        }
    }

    /// Takes in that a thread or task waits for a transfer from now on, or none does.
    #[inline]
    pub(super) fn set_watched(&mut self, id: TransferId, is_watched: bool) {
        let (now, active) = (self.now, self.table.find_mut(id));
        if let Some(alone) = active.and_then(|active| active.alone.as_mut()) {
            match (is_watched, alone.unwatched.take()) {
                (true, since) => alone.unwatched_ns += since.map_or(0, |since| now.since_ns(since)),
                (false, since) => alone.unwatched = since.or(Some(now)),
            }
        }
    }

    /// Learns from a transfer that has moved its bytes over its first plan, if no other one was started meanwhile and its
    /// end was seen when it came: a thread made the copy itself, or one waited for it almost from the start.
    #[cold]
    pub(super) fn learn(&mut self, index: Index, now: Instant) {
        let active = &self.table[index];
        let (Some(alone), Some(flight)) = (&active.alone, &active.flight) else {
            return;
        };
        let (Some(plan), Some(src)) = (flight.plan(), &active.src) else {
            return;
        };
        let elapsed_ns = now.since_ns(active.begun);
        let is_seen = alone.unwatched.is_none() && alone.unwatched_ns <= elapsed_ns / 8;
        if is_seen && alone.started == self.started && active.fallbacks.is_empty() {
            let key = alone.key;
            let bytes = src.shape.payload_bytes();
            let times = flight.lane_times(now);
            self.planning.learn(key, bytes, flight.tried(), plan, times);
        }
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
        self.started = self.started.wrapping_add(1);
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
        if terms.proof.is_none() {
            active.orders.extend([&src, &dst]);
        }
        active.src = Some(src);
        active.dst = Some(dst);
        active.priority = terms.priority;
        active.digests = digests;
        active.then.extend(terms.then.iter().cloned());
        active.batch.clone_from(&terms.batch);
        active.proof = terms.proof;
        active.has_only_way = terms.only.is_some();
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
    pub(super) fn enter(
        &mut self,
        index: Index,
        footprints: &[Footprint],
        after: &[Arc<EventState>],
    ) {
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

    /// Launches transfers and guards that have nothing before them any more, and those whose events were set. Takes one off
    /// `looks` for each that it looks at, and leaves the others for later when it is 0.
    #[inline]
    pub(super) fn launch_due(&mut self, looks: &mut usize) {
        while self.table.has_freed()
            && let Some(index) = self.table.next_freed(looks)
        {
            self.handle_awaited(index);
        }
        while *looks > 0
            && let Some(id) = self.awaited.next()
        {
            *looks -= 1;
            if self.table.find(id).is_some() {
                self.handle_awaited(id.index);
            }
        }
    }

    /// Returns whether another step has work, whatever happens meanwhile: a step does a limited amount.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.table.has_ready()
            || self.table.has_freed()
            || !self.awaited.is_empty()
            || self.deadlines.is_due(self.now)
    }

    /// Takes in that one of the things that a transfer or guard waits for has happened.
    pub(super) fn handle_awaited(&mut self, index: Index) {
        let active = &mut self.table[index];
        if active.stage == Stage::Waiting && active.waits_for > 0 {
            active.waits_for -= 1;
            if active.waits_for == 0 {
                self.launch(index);
            }
        }
    }

    /// Launches a transfer or guard: nothing stands before it any more here.
    fn launch(&mut self, index: Index) {
        let active = &mut self.table[index];
        if active.orders.are_left() {
            active.stage = Stage::Entering;
            return self.enqueue(index);
        }
        self.begin(index);
    }

    /// The same, once nothing stands before it at other machines either.
    pub(super) fn begin(&mut self, index: Index) {
        let active = &mut self.table[index];
        if active.flight.is_none() || active.dst.is_none() {
            active.stage = Stage::Guarding;
            self.after.wakers.extend(active.waker.take());
            let (is_group, turn) = (active.group.is_some(), core::mem::take(&mut active.then));
            self.table.set_needs_listener(index, false);
            if is_group {
                self.look_later(index, self.now);
            }
            return turn.iter().for_each(|event| self.awaited.push(event.set()));
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
