//! Everything that the engine's lock guards.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::Waker;

use hashbrown::HashMap;
use transload_core::flight::{Flight, TaskId};
use transload_core::{
    Barred, Footprint, Hazards, Instant, Inventory, Limits, LinkId, PlanCache, Quarantine, Stats,
    Ticket, Topology,
};
use transload_hal::{Backend, BackendId, Buffer, Fault, Fence, Outcome};

use super::active::{Active, Operand, Priority, Stage, TransferId};
use super::admit::queue::Queue;
use super::backlog::Backlog;
use super::deadlines::Deadlines;
use super::digest::Digest;
use super::hint::Hints;
use super::kept::{Kept, Verdict};
use super::observe::Ended;
use super::order::{ORDERS, Order, Orders};
use super::places::Places;
use super::proof::Proofs;
use super::staging::{Claims, Pool};
use crate::{RegisterError, Report, TransferError};

/// A backend, with the engine's records about it.
pub(crate) struct Registered {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) id: BackendId,
    pub(crate) unattended: bool,
    /// Fences of it that have not settled.
    pub(crate) pending: usize,
    /// The same, for a backend whose fences settle only when a thread calls it.
    pub(crate) attended: BTreeSet<Fence>,
    pub(crate) backlog: Backlog,
    /// Set when the backend panicked where the engine can know nothing of its fences any more.
    pub(crate) lost: Option<Fault>,
}

/// The number of transfers for which there is room from the start: more than most programs have under way, so that rare
/// events allocate no more than frequent ones.
const ROOM: usize = 32;

/// Which work a thread that turns the engine does itself. A thread that serves other transfers copies nothing and does
/// nothing that takes long: those transfers would wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pace {
    /// The transfers whose small copies the thread makes on the spot.
    pub(crate) copies: Whose,
    /// The transfers for which the thread does work that takes long.
    pub(crate) slow: Whose,
}

/// Some of the transfers: none, one or all. A word, so that a pace is passed in registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Whose(u64);

impl Pace {
    /// All work.
    pub(crate) const FULL: Pace = Pace {
        copies: Whose::ALL,
        slow: Whose::ALL,
    };
    /// Only quick work, for all transfers.
    pub(crate) const QUICK: Pace = Pace {
        copies: Whose::ALL,
        slow: Whose::NOBODYS,
    };
    /// Only work that delays no transfer.
    pub(crate) const SERVING: Pace = Pace {
        copies: Whose::NOBODYS,
        slow: Whose::NOBODYS,
    };
}

impl Whose {
    // No transfer's place has such a number: there is no room for so many.
    pub(crate) const NOBODYS: Whose = Whose(u64::MAX);
    pub(crate) const ALL: Whose = Whose(u64::MAX - 1);

    pub(crate) fn one(id: TransferId) -> Whose {
        Whose(u64::from(id.slot) << 32 | u64::from(id.generation))
    }

    pub(crate) fn has(self, id: TransferId) -> bool {
        self == Whose::ALL || self == Whose::one(id)
    }

    /// Returns the place of the transfer, where it is a single one.
    fn place(self) -> Option<usize> {
        let is_one = self != Whose::ALL && self != Whose::NOBODYS;
        is_one.then_some((self.0 >> 32) as usize)
    }
}

/// The engine's state. Its methods never block, never call a backend, and never wake a thread or task.
pub(crate) struct State {
    pub(crate) backends: Vec<Registered>,
    pub(crate) topology: Topology,
    pub(crate) cache: PlanCache,
    pub(crate) quarantine: Quarantine,
    pub(crate) proofs: Proofs,
    pub(crate) kept: Kept,
    pub(crate) stats: Stats,
    pub(crate) hazards: Hazards,
    pub(crate) pool: Arc<Pool>,
    pub(crate) transfers: Places,
    /// The transfer of each hazard ticket, by its index.
    pub(crate) by_ticket: Vec<u32>,
    /// Transfers to look at, by priority.
    pub(crate) ready: [VecDeque<u32>; 3],
    /// Transfers that wait for their first slots, first come first served within a priority.
    pub(crate) boarding: Queue,
    /// What transfers in `boarding` that wait for their share reserve, as of the last look.
    pub(crate) claims: Claims,
    /// Whether one of the transfers in `boarding` waits for something else than its share, as of the last look.
    pub(crate) waits_for_room: bool,
    /// The place of the transfer that was admitted last, even if that transfer is over.
    pub(crate) admitted: Option<u32>,
    /// Transfers that could use more slots than they have.
    pub(crate) hungry: Vec<u32>,
    pub(crate) pending: HashMap<Fence, (TransferId, TaskId)>,
    /// Outcomes of fences that a thread has submitted and not recorded yet.
    pub(crate) early: Vec<(Fence, Outcome)>,
    /// Orders that threads have taken and not recorded yet.
    pub(crate) outstanding: usize,
    /// Orders that take long, for the thread that carries such orders out.
    pub(crate) later: VecDeque<Order>,
    pub(crate) pace: Pace,
    pub(crate) live: usize,
    /// Transfers under way: guards are none.
    pub(crate) moving: usize,
    /// How many transfers and guards need a thread that listens, plus the threads that wait for all transfers.
    pub(crate) care: usize,
    /// Threads that are blocked in a backend for a transfer of their own. Such a thread looks after its transfer.
    pub(crate) tended: usize,
    /// Whether transfers whose handle is held need care.
    pub(crate) advances: bool,
    /// Threads that wait until nothing is under way.
    pub(crate) idlers: Vec<Waker>,
    /// The time of the last round. Never ahead of the clock.
    pub(crate) now: Instant,
    /// An empty list whose allocation is reused when tickets leave.
    pub(crate) freed: Vec<Ticket>,
    pub(crate) limits: Limits,
    pub(crate) deadlines: Deadlines,
    /// Wakers to call, buffers and results to drop, once the lock is let go.
    pub(crate) after: After,
    /// Threads that are dropping buffers out of `after`.
    pub(crate) releasing: usize,
    pub(crate) hints: Hints,
    /// Whether ends of transfers are counted in `metrics`.
    pub(crate) metrics: bool,
    /// Wrappers for borrowed memory that are not in use.
    pub(crate) borrowed: Vec<Buffer>,
    /// Digests that are not in use.
    pub(crate) digests: Vec<[Arc<Digest>; 2]>,
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
            backends: Vec::new(),
            topology: Topology::new(),
            cache,
            quarantine: Quarantine::new(),
            proofs: Proofs::default(),
            kept: Kept::default(),
            stats: Stats::new(),
            hazards: Hazards::new(),
            pool,
            transfers: Places::with_capacity(ROOM),
            by_ticket: Vec::with_capacity(ROOM),
            ready: core::array::from_fn(|_| VecDeque::with_capacity(ROOM)),
            boarding: Queue::default(),
            claims: Claims::default(),
            waits_for_room: false,
            admitted: None,
            hungry: Vec::with_capacity(ROOM),
            pending: HashMap::with_capacity(ROOM),
            early: Vec::with_capacity(ORDERS),
            outstanding: 0,
            later: VecDeque::new(),
            pace: Pace::FULL,
            live: 0,
            moving: 0,
            care: 0,
            tended: 0,
            advances: false,
            idlers: Vec::new(),
            now: Instant(0),
            freed: Vec::with_capacity(ROOM),
            limits,
            deadlines: Deadlines::default(),
            after: After::default(),
            releasing: 0,
            hints: Hints::default(),
            metrics: false,
            borrowed: Vec::new(),
            digests: Vec::new(),
        }
    }

    /// Returns the backend of that name, unless it is lost.
    pub(crate) fn backend(&self, id: BackendId) -> Option<&Arc<dyn Backend>> {
        self.registered(id).map(|known| &known.backend)
    }

    pub(crate) fn registered(&self, id: BackendId) -> Option<&Registered> {
        self.backends.iter().find(|known| known.id == id)
    }

    /// Returns the transfer, if its place was not given to another one.
    pub(crate) fn transfer(&mut self, id: TransferId) -> Option<&mut Active> {
        self.transfers
            .get_mut(id.slot as usize)
            .filter(|active| active.generation == id.generation && active.stage != Stage::Free)
    }

    /// Puts the report of a transfer that has moved its bytes into `done`, and frees its place. A transfer that failed
    /// keeps its place until its handle takes the result.
    pub(crate) fn take_done(&mut self, id: TransferId, done: &mut Done) {
        let Some(active) = self.transfer(id) else {
            return;
        };
        if active.stage != Stage::Over || !matches!(active.result, Some(Ok(_))) {
            return;
        }
        done.result = active.result.take();
        done.buffers = [active.src.take(), active.dst.take()].map(|end| end.map(|end| end.buffer));
        self.free_place(id.slot);
    }

    /// Returns whether any transfer is under way, or its buffers are still being dropped. Guards are not counted.
    pub(crate) fn is_moving(&self) -> bool {
        self.releasing > 0 || self.moving > 0
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

    /// Returns whether a transfer needs a thread that listens, and no thread that waits for it in a backend looks after
    /// it.
    pub(crate) fn needs_listener(&self) -> bool {
        self.care > self.tended
    }

    /// The same for the transfers other than `own`.
    pub(crate) fn others_need_listener(&self, own: Whose) -> bool {
        let own = own.place().and_then(|slot| self.transfers.get(slot));
        let is_counted = own.is_some_and(|own| own.needs_care && !own.is_tended);
        self.care - usize::from(is_counted) > self.tended
    }

    /// Records whether a transfer needs a thread that listens.
    #[inline]
    pub(crate) fn care_for(&mut self, slot: u32, needs: bool) {
        let active = &mut self.transfers[slot as usize];
        let needs = needs && active.is_live();
        if active.needs_care != needs {
            active.needs_care = needs;
            match needs {
                true => self.care += 1,
                false => self.care -= 1,
            }
        }
    }

    /// Records that a transfer whose operations are all under way needs no thread: hardware finishes it, and its owner
    /// finds out. It still needs one where its end must be reported, where others wait for its slots, and where a
    /// backend settles fences only when a thread calls it.
    #[inline]
    pub(crate) fn leave_to_hardware(&mut self, id: TransferId) {
        let is_flying = |active: &mut Active| active.stage == Stage::Flying && active.ordered == 0;
        if self.transfer(id).is_some_and(is_flying) {
            self.leave_flying(id);
        }
    }

    fn leave_flying(&mut self, id: TransferId) {
        let active = &self.transfers[id.slot as usize];
        let is_told = active.detached || active.waker.is_some() || active.batch.is_some();
        let is_told = is_told || !active.then.is_empty() || !active.leases.is_empty();
        let is_out = active.flight.as_ref().is_some_and(Flight::is_out);
        let known = |fence: &Fence| self.registered(fence.backend());
        let mut fences = active.flying.iter().map(|(fence, _)| fence);
        if is_out && !is_told && fences.all(|fence| known(fence).is_some_and(|of| of.unattended)) {
            self.care_for(id.slot, false);
        }
    }

    /// Gives an order that takes long to the thread that turns the engine, or leaves it to the thread that carries such
    /// orders out.
    pub(crate) fn hand_out_slow(&mut self, order: Order, orders: &mut Orders) {
        match self.pace.slow.has(order.id) {
            true => orders.push(order),
            false => self.later.push_back(order),
        }
    }

    /// Leaves all orders, except those for the host's processors, to the thread that carries out orders that take long.
    #[inline(never)]
    pub(crate) fn leave_to_another_thread(&mut self, orders: &mut Orders) {
        for at in (0..orders.len()).rev() {
            if !orders[at].is_on_the_host() {
                self.later.push_front(orders.remove(at));
            }
        }
    }

    /// Takes the orders out of `later` that this thread may carry out.
    pub(crate) fn take_later(&mut self, orders: &mut Orders) {
        if self.pace.slow == Whose::NOBODYS {
            return;
        }
        let mut at = 0;
        while at < self.later.len() && !orders.is_full() {
            match self.pace.slow.has(self.later[at].id) {
                true => orders.extend(self.later.remove(at)),
                false => at += 1,
            }
        }
    }

    pub(crate) fn id(&self, slot: u32) -> TransferId {
        TransferId {
            slot,
            generation: self.transfers[slot as usize].generation,
        }
    }

    /// Enters a guard on a region. Also returns whether the guard has its turn: nothing stands before it.
    pub(crate) fn guard(&mut self, end: Operand, footprint: Footprint) -> (TransferId, bool) {
        let slot = self.transfers.take();
        let active = &mut self.transfers[slot as usize];
        active.stage = Stage::Waiting;
        active.src = Some(end);
        self.enter(slot, &[footprint], &[]);
        let has_turn = self.transfers[slot as usize].stage == Stage::Guarding;
        (self.id(slot), has_turn)
    }

    /// Returns whether the owner of a transfer or guard has something to wait for.
    pub(crate) fn is_awaited(&mut self, id: TransferId) -> bool {
        self.transfer(id).is_some_and(|active| active.is_awaited())
    }

    /// Frees a place. No operation of the transfer is under way, and its handle is gone.
    pub(crate) fn free_place(&mut self, slot: u32) {
        let active = &mut self.transfers[slot as usize];
        active.generation = active.generation.wrapping_add(1);
        active.stage = Stage::Free;
        active.src = None;
        active.dst = None;
        active.result = None;
        active.answered = false;
        active.waker = None;
        active.detached = false;
        active.tainted = false;
        active.tried.clear();
        active.fallbacks.clear();
        if let Some(digests) = active.digests.take()
            && digests.iter().all(|digest| Arc::strong_count(digest) == 1)
        {
            self.digests.push(digests);
        }
        active.checksum = None;
        active.then.clear();
        active.batch = None;
        active.fault = None;
        active.proof = None;
        active.over_one_link = false;
        // An allocation for the transfer may still be under way, and the transfer may be in the queue for slots.
        active.ordered = 0;
        if active.boarding.take().is_some() {
            self.boarding.leave(&self.transfers);
        }
        self.transfers.give_back(slot);
    }

    /// Looks at the transfer in the next round.
    #[inline]
    pub(crate) fn enqueue(&mut self, slot: u32) {
        let active = &mut self.transfers[slot as usize];
        if !active.queued {
            active.queued = true;
            self.ready[queue_of(active.priority)].push_back(slot);
        }
        if self.advances && !active.needs_care {
            self.care_for(slot, true);
        }
    }

    /// Returns whether any transfer is to be looked at.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.iter().all(VecDeque::is_empty)
    }

    pub(crate) fn next_ready(&mut self) -> Option<u32> {
        loop {
            let slot = self.ready.iter_mut().find_map(VecDeque::pop_front)?;
            // A transfer that ended meanwhile may have left its place.
            if let Some(active) = self.transfers.get_mut(slot as usize) {
                active.queued = false;
                return Some(slot);
            }
        }
    }

    /// Puts a transfer back whose turn was not completed.
    pub(crate) fn requeue_front(&mut self, slot: u32) {
        let active = &mut self.transfers[slot as usize];
        if !active.queued {
            active.queued = true;
            self.ready[queue_of(active.priority)].push_front(slot);
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
        if self.registered(id).is_some() {
            return Err(RegisterError::Duplicate { backend: id });
        }
        let added = self.topology.add(inventory);
        added.map_err(|error| RegisterError::Topology { backend: id, error })?;
        self.backends.push(Registered {
            backend,
            id,
            unattended,
            pending: 0,
            attended: BTreeSet::new(),
            backlog: Backlog::default(),
            lost: None,
        });
        self.cache.invalidate();
        Ok(())
    }

    /// Forgets what the engine found out about the machine.
    pub(crate) fn forget(&mut self) {
        self.quarantine.clear();
        self.proofs.forget();
        self.kept.forget();
        self.cache.invalidate();
    }

    /// Returns why a link may not be used now.
    pub(crate) fn barred(&self, link: LinkId, now: Instant) -> Option<Barred> {
        let link_of = self.topology.links().iter().find(|known| known.id == link);
        let lost = |known: &Registered| known.lost.is_some();
        if link_of.is_some_and(|known| self.registered(known.backend).is_none_or(lost)) {
            return Some(Barred::Lost);
        }
        let bar = self.quarantine.barred(link, now)?;
        Some(Barred::Quarantined(bar.clone()))
    }
}

impl Drop for State {
    /// When the last handle is dropped while operations are under way, as it can be where no thread turns the engine,
    /// their memory is never freed: the operations may still touch it, although no thread waits for them.
    fn drop(&mut self) {
        for (id, _) in core::mem::take(&mut self.pending).into_values() {
            let Some(active) = self.transfer(id) else {
                continue;
            };
            core::mem::forget((active.src.take(), active.dst.take()));
            core::mem::forget(core::mem::take(&mut active.leases));
            core::mem::forget(active.digests.take());
        }
    }
}

/// Returns the number of a queue, of which there is one for each priority, the highest first.
pub(crate) fn queue_of(priority: Priority) -> usize {
    match priority {
        Priority::High => 0,
        Priority::Normal => 1,
        Priority::Low => 2,
    }
}
