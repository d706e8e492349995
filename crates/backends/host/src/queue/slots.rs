//! The submissions in flight: a slot for each one that did not finish inline, found by its fence number without a lock or
//! a search.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use transload_hal::{Fault, Span, SubmitError};

use super::place;
use super::task::Task;
use crate::memory::file::HostFile;
use crate::pool::{Extent, Side};

/// The bits of a fence number that name its slot; the other bits count the slot's uses.
const INDEX_BITS: u32 = 14;

/// Most submissions in flight.
pub(super) const CAPACITY: usize = 1 << INDEX_BITS;

/// Slots made at a time.
const SHEET: usize = 64;

/// The slots, made in sheets when they are first needed and never moved.
#[derive(Debug)]
pub(super) struct Slots {
    sheets: Box<[OnceLock<Box<[Slot]>>]>,
    ledger: Mutex<Ledger>,
}

/// One submission.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The number of the fence that has not settled; 0 when there is none.
    fence: AtomicU64,
    /// What to run. Written before the submission starts and after it has ended; copied out by each thread that runs a
    /// piece.
    tasks: RwLock<Tasks>,
    /// Whether a piece failed, so that the others need not run.
    failed: AtomicBool,
    /// Payload bytes of the pieces that have run.
    moved_bytes: AtomicU64,
    /// The number of the last fence that was to be stopped. Numbers of a slot rise, so none is mistaken for a later
    /// one.
    to_stop: AtomicU64,
    /// The fault of the first piece that failed.
    fault: Mutex<Option<Fault>>,
}

/// A copy that is timed for the running tuning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    pub(super) begin: Instant,
    pub(super) wide: bool,
    /// The queue's count of starts when it began.
    pub(super) starts: u64,
}

/// The operations of a submission; their pieces are numbered consecutively. Small ones share a piece, since a thread takes a
/// lock for each.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    /// Each task, and the number of its first piece.
    list: Vec<(Task, u32)>,
    /// The bytes of the tasks that share the last piece; 0 if it is shared with none.
    shared_bytes: u64,
    /// The small reads that share the last piece: their file, and all its bytes from the first to the last one of them.
    window: Option<(NonNull<HostFile>, Span)>,
    pieces: u32,
    threads: u32,
    len_bytes: u64,
    /// A task reads or writes a file: pieces are taken in order, because the system reads ahead of an in-order reader.
    has_file: bool,
    /// A task does not copy from memory to memory.
    has_other: bool,
    watch: Option<Watch>,
}

/// The dependencies between slots. One lock for all slots: it is taken twice for each submission that is not inline, for
/// some tens of instructions.
#[derive(Debug, Default)]
struct Ledger {
    entries: Vec<Entry>,
    free: Vec<u16>,
}

#[derive(Debug, Default)]
struct Entry {
    /// How often the slot was used; part of its fences' numbers.
    uses: u64,
    /// Fences in whose lists this slot stands, and one until all are known.
    waits: u32,
    /// Slots that wait for this one.
    dependents: Vec<u16>,
}

impl Slots {
    pub(super) fn new() -> Self {
        let sheets = (0..CAPACITY / SHEET).map(|_| OnceLock::new()).collect();
        Self {
            sheets,
            ledger: Mutex::default(),
        }
    }

    /// Whether the fence of that number has not settled. Takes no lock.
    pub(super) fn is_pending(&self, number: u64) -> bool {
        // Acquire: a thread that sees a fence settled sees what its pieces wrote.
        number != 0
            && self
                .find(number)
                .is_some_and(|slot| slot.fence.load(Ordering::Acquire) == number)
    }

    /// The slot of the fence of that number, if it was ever made.
    pub(super) fn find(&self, number: u64) -> Option<&Slot> {
        self.get(index_of(number))
    }

    /// The slot of that index, if it was made.
    pub(super) fn get(&self, index: u16) -> Option<&Slot> {
        let index = usize::from(index);
        self.sheets.get(index / SHEET)?.get()?.get(index % SHEET)
    }

    /// Whether at most half of the slots are taken.
    pub(super) fn has_room(&self) -> bool {
        let ledger = self.lock();
        ledger.entries.len() - ledger.free.len() <= CAPACITY / 2
    }

    /// Takes a free slot, pending from now on under the number returned; `None` when all are in flight.
    pub(super) fn open(&self) -> Option<(u16, u64)> {
        let mut ledger = self.lock();
        let index = match ledger.free.pop() {
            Some(index) => index,
            None => {
                let index = ledger.entries.len();
                let sheet = self.sheets.get(index / SHEET)?;
                sheet.get_or_init(|| (0..SHEET).map(|_| Slot::default()).collect());
                ledger.entries.push(Entry::default());
                // Below CAPACITY, which is 2^14.
                index as u16
            }
        };
        let entry = &mut ledger.entries[usize::from(index)];
        entry.uses += 1;
        entry.waits = 1;
        let number = entry.uses << INDEX_BITS | u64::from(index);
        drop(ledger);
        if let Some(slot) = self.get(index) {
            slot.fence.store(number, Ordering::Release);
        }
        Some((index, number))
    }

    /// Makes `index` wait for a fence, unless that has settled.
    pub(super) fn wait_for(&self, index: u16, number: u64) {
        let mut ledger = self.lock();
        // Under the lock, where fences settle: none settles between the look and the entry.
        if self.is_pending(number) {
            ledger.entries[usize::from(index_of(number))]
                .dependents
                .push(index);
            ledger.entries[usize::from(index)].waits += 1;
        }
    }

    /// Takes back one of the waits of `index`; true when it was the last, and the slot may start.
    pub(super) fn release(&self, index: u16) -> bool {
        let mut ledger = self.lock();
        let waits = &mut ledger.entries[usize::from(index)].waits;
        *waits -= 1;
        *waits == 0
    }

    /// Settles the slot's fence. From now on [`Slots::is_pending`] returns false for it.
    pub(super) fn settle(&self, index: u16) {
        let _ledger = self.lock();
        if let Some(slot) = self.get(index) {
            slot.fence.store(0, Ordering::Release);
        }
    }

    /// One of the slots that waited for `index`, whose fence has settled.
    pub(super) fn next_dependent(&self, index: u16) -> Option<u16> {
        self.lock().entries[usize::from(index)].dependents.pop()
    }

    /// Gives the slot back, when its fence has settled and its dependents are told.
    pub(super) fn close(&self, index: u16) {
        self.lock().free.push(index);
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        // Nothing under the lock can panic half-way through a change.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which slot a fence is of.
pub(super) fn index_of(number: u64) -> u16 {
    // Masked to 14 bits.
    (number & (CAPACITY as u64 - 1)) as u16
}

impl Slot {
    /// The number of the fence that the slot serves.
    pub(super) fn number(&self) -> u64 {
        self.fence.load(Ordering::Relaxed)
    }

    /// Notes what the submission does, before it starts. Copies in memory are together worth the threads of one copy of as
    /// many bytes, which `threads` tells.
    pub(super) fn fill(
        &self,
        tasks: impl Iterator<Item = Result<Task, SubmitError>>,
        threads: impl FnOnce(u64) -> u32,
        watch: Option<Watch>,
    ) -> Result<(), SubmitError> {
        self.moved_bytes.store(0, Ordering::Relaxed);
        let mut all = self.tasks.write().unwrap_or_else(PoisonError::into_inner);
        all.watch = watch;
        all.list.reserve(tasks.size_hint().0);
        for task in tasks {
            all.push(task?);
        }
        if !all.has_other {
            all.threads = all.threads.max(threads(all.len_bytes));
        }
        Ok(())
    }

    /// The submission's size for the pool, and its payload bytes.
    pub(super) fn extent(&self) -> (Extent, u64) {
        let tasks = self.tasks.read().unwrap_or_else(PoisonError::into_inner);
        let extent = Extent {
            pieces: tasks.pieces,
            width: tasks.threads,
            waiters_from: if tasks.has_file {
                Side::Front
            } else {
                Side::Back
            },
        };
        (extent, tasks.len_bytes)
    }

    /// How the submission is timed, if it is.
    pub(super) fn watch(&self) -> Option<Watch> {
        self.tasks
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .watch
    }

    /// The submission's task, if it has just one.
    pub(super) fn only_task(&self) -> Option<Task> {
        let tasks = self.tasks.read().unwrap_or_else(PoisonError::into_inner);
        match tasks.list.as_slice() {
            [(task, _)] => Some(*task),
            _ => None,
        }
    }

    /// Notes that a piece has moved its bytes.
    pub(super) fn add_moved(&self, bytes: u64) {
        // Release: a thread that reads the bytes of a fence sees the number of that fence.
        self.moved_bytes.fetch_add(bytes, Ordering::Release);
    }

    /// The payload bytes that were moved for the fence of that number so far; 0 when it has settled.
    pub(super) fn moved_bytes(&self, number: u64) -> u64 {
        // Before and after: the slot may be given to another submission at any time, and the bytes count from 0 again.
        let is_pending = || number != 0 && self.fence.load(Ordering::Acquire) == number;
        if !is_pending() {
            return 0;
        }
        let moved = self.moved_bytes.load(Ordering::Acquire);
        if is_pending() { moved } else { 0 }
    }

    /// Asks that no further piece of the submission begins, also if it has not started yet.
    pub(super) fn ask_to_stop(&self, number: u64) {
        // Relaxed: the pool's lock orders it before a start that misses the job. The most counts: a late thread may still
        // ask for an earlier use of the slot.
        self.to_stop.fetch_max(number, Ordering::Relaxed);
    }

    /// Whether that was asked of the submission.
    pub(super) fn is_to_stop(&self) -> bool {
        self.to_stop.load(Ordering::Relaxed) == self.number()
    }

    /// Whether a piece has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Runs each task of a piece, until one has failed: the outcome is known then.
    ///
    /// # Safety
    /// The submission's fence has not settled. Each piece runs once.
    pub(super) unsafe fn run_piece(&self, piece: u32) {
        // Nothing is written before the last piece has ended.
        let tasks = self.tasks.read().unwrap_or_else(PoisonError::into_inner);
        let upto = tasks.list.partition_point(|(_, first)| *first <= piece);
        let Some((_, first)) = tasks.list[..upto].last() else {
            return;
        };
        let from = tasks.list.partition_point(|(_, other)| other < first);
        let together = &tasks.list[from..upto];
        if let [(one, _), .., (_, _)] = together
            && let Some((file, _)) = one.reads()
            && !self.has_failed()
        {
            let rows = together.iter().filter_map(|(task, _)| task.reads());
            // SAFETY: the caller's contract: the tasks' operands are alive, and these reads are all of one file.
            match unsafe { place::gather(file, rows.map(|(_, row)| row)) } {
                Ok(()) => self.add_moved(together.iter().map(|(task, _)| task.len_bytes).sum()),
                Err(fault) => self.fail(fault),
            }
            return;
        }
        for (task, first) in together {
            // Relaxed: a thread that misses it only runs a piece needlessly.
            if self.has_failed() {
                return;
            }
            let piece = piece - first;
            // SAFETY: the caller's contract.
            match unsafe { task.run(piece) } {
                Ok(()) => self.add_moved(task.span_of(piece).len),
                Err(fault) => self.fail(fault),
            }
        }
    }

    /// Notes how a piece failed; the first fault counts.
    pub(super) fn fail(&self, fault: Fault) {
        self.fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(fault);
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Empties the slot when all of its pieces have ended; how the first one failed, if one did.
    pub(super) fn empty(&self) -> Option<Fault> {
        let mut tasks = self.tasks.write().unwrap_or_else(PoisonError::into_inner);
        tasks.list.clear();
        tasks.list.shrink_to(KEPT_TASKS);
        (tasks.pieces, tasks.threads, tasks.len_bytes) = (0, 0, 0);
        (tasks.shared_bytes, tasks.window) = (0, None);
        (tasks.has_file, tasks.has_other) = (false, false);
        drop(tasks);
        self.failed.store(false, Ordering::Relaxed);
        self.fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// How many tasks a slot keeps room for while it is empty.
const KEPT_TASKS: usize = 64;

/// The bytes of small tasks that share a piece, as of the smallest piece of a large one.
const SHARED_BYTES: u64 = 64 << 10;

// SAFETY: the file is only named here; tasks, which may go to other threads, name it as well.
unsafe impl Send for Tasks {}
// SAFETY: as above.
unsafe impl Sync for Tasks {}

impl Tasks {
    fn push(&mut self, task: Task) {
        let (pieces, shared_bytes) = (task.pieces(), self.shared_bytes + task.len_bytes);
        // A disk may hold up each of them, and a submission is stopped between pieces: reads share one if they are one.
        let reads = task
            .reads()
            .filter(|(_, row)| place::is_small_read(row.span()));
        let joined = match (self.window, &reads) {
            (Some((file, window)), Some((other, row))) if file == *other => {
                place::joined(window, row.span())
            }
            _ => None,
        };
        self.window = match (joined, reads) {
            (Some(window), _) => self.window.map(|(file, _)| (file, window)),
            (None, reads) => reads.map(|(file, row)| (file, row.span())),
        };
        let is_small = pieces == 1 && task.len_bytes < SHARED_BYTES && !task.has_file();
        let shares = is_small && self.shared_bytes > 0 && shared_bytes <= SHARED_BYTES;
        if shares || joined.is_some() {
            self.list.push((task, self.pieces - 1));
            self.shared_bytes = if is_small { shared_bytes } else { 0 };
        } else {
            self.list.push((task, self.pieces));
            self.pieces = self.pieces.saturating_add(pieces);
            self.shared_bytes = if is_small { task.len_bytes } else { 0 };
        }
        self.threads = self.threads.max(task.threads);
        self.len_bytes = self.len_bytes.saturating_add(task.len_bytes);
        self.has_file |= task.has_file();
        self.has_other |= !task.is_copy() || task.has_file();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_never_used_twice_and_settled_fences_stay_settled() {
        let slots = Slots::new();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            let (index, number) = slots.open().unwrap();
            assert!(seen.insert(number) && number > 0);
            assert!(slots.is_pending(number));
            slots.settle(index);
            slots.close(index);
            assert!(seen.iter().all(|number| !slots.is_pending(*number)));
        }
    }

    #[test]
    fn a_slot_starts_when_all_that_it_waits_for_has_settled() {
        let slots = Slots::new();
        let (a, first) = slots.open().unwrap();
        let (b, second) = slots.open().unwrap();
        let (c, _) = slots.open().unwrap();
        slots.wait_for(c, first);
        slots.wait_for(c, second);
        assert!(!slots.release(c));
        slots.settle(a);
        assert_eq!(slots.next_dependent(a), Some(c));
        assert!(!slots.release(c));
        slots.wait_for(c, first);
        slots.settle(b);
        assert_eq!(slots.next_dependent(b), Some(c));
        assert!(slots.release(c));
        assert_eq!(slots.next_dependent(b), None);
    }

    #[test]
    fn the_number_in_flight_is_bounded() {
        let slots = Slots::new();
        let all: Vec<_> = std::iter::from_fn(|| slots.open()).collect();
        assert_eq!(all.len(), CAPACITY);
        slots.settle(all[5].0);
        slots.close(all[5].0);
        assert!(
            slots
                .open()
                .is_some_and(|(index, number)| index == all[5].0 && number != all[5].1)
        );
    }

    #[test]
    fn numbers_that_were_never_given_are_not_pending() {
        let slots = Slots::new();
        assert!(!slots.is_pending(0));
        assert!(!slots.is_pending(u64::MAX));
        assert!(!slots.is_pending(1 << INDEX_BITS));
    }
}
