//! How much memory the machine has, and how much of it is left: an allocation that cannot fit is
//! refused when it is asked for, not when it is written to and the system kills the process.

use std::format;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::cgroup::Memory;
use crate::{AllocError, ErrorClass, Fault, MemoryId, PerProcess, ProcessBound};

/// Allocations of at least this length are compared with the memory that is left. For smaller ones,
/// asking the system (20 to 200 µs) costs more than the check is worth.
const ASK_FROM_BYTES: u64 = 1 << 20;

/// So long the system's answer holds, for allocations that together are no larger than this part of what was left.
const ANSWER_HOLDS: Duration = Duration::from_millis(10);
const ANSWER_SHARE: u64 = 16;

/// What is kept of a cgroup's limit, at most. A software adapter takes about as much for itself.
const MOST_KEPT_BYTES: u64 = 16 << 20;

/// The machine's memory in the limits of the process's cgroups, as `/proc/meminfo` and the groups tell. All `None` where no
/// such thing exists. It is the memory of the host, and of devices whose driver runs on its processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Room {
    /// The machine's memory.
    pub total_bytes: Option<u64>,
    /// The machine's memory and swap: the most that can ever be in use.
    pub limit_bytes: Option<u64>,
    /// The memory that can be had now without taking it from other processes.
    pub available_bytes: Option<u64>,
    /// The part of the limit that is swap.
    swap_bytes: u64,
    /// The part of the available bytes that is swap.
    swap_free_bytes: u64,
    /// Whether a cgroup has less than the machine.
    is_limited: bool,
}

/// Room that an allocation takes, for as long as it lives.
#[derive(Debug, Default)]
pub struct Taken {
    _entry: Option<ProcessBound<Entry>>,
}

impl Taken {
    fn of(entry: Option<Entry>) -> Taken {
        Taken {
            _entry: entry.map(ProcessBound::new),
        }
    }
}

/// What one allocation took of the account.
#[derive(Debug)]
struct Entry {
    len_bytes: u64,
    epoch: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(ledger) = LEDGER.get() {
            ledger.account().give_back(self);
        }
    }
}

/// Gives memory back that the process keeps without using it.
static RESERVE: OnceLock<fn() -> u64> = OnceLock::new();

/// What the process took of its cgroups' memory.
static LEDGER: PerProcess<Ledger> = PerProcess::new();

/// The system counts memory when it is written, not when it is allocated. A ledger knows what was taken, and what was left
/// before; what is left now tells how much of it is written, as long as nothing else writes or frees much meanwhile. An epoch
/// ends when all is written: the system's count tells all then. A child of `fork` has its own, which knows nothing of its
/// parent's: the system counts what both write.
#[derive(Default)]
struct Ledger {
    account: Mutex<Account>,
}

#[derive(Default)]
struct Account {
    epoch: u64,
    /// What was taken in this epoch, and lives.
    taken: u64,
    /// What would be left by the system's count if nothing of that were written.
    full: u64,
    answer: Option<Answer>,
}

/// What may be taken before the system is asked again.
#[derive(Clone, Copy)]
struct Answer {
    spare: u64,
    asked: Instant,
    is_limited: bool,
}

impl Ledger {
    /// The account of this process. The system's count is read while it is held: an older one would count what another thread
    /// has written since then as left.
    fn of_process() -> MutexGuard<'static, Account> {
        LEDGER.get_or_init(Ledger::default).account()
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
    /// Returns how much of what is left by the system's count was taken and is not written.
    fn look(&mut self, left: u64) -> u64 {
        // Where other memory grew or shrank, it lies outside.
        let most = left.saturating_add(self.taken);
        self.full = self.full.clamp(left, most);
        let unwritten = most - self.full;
        if unwritten >= ASK_FROM_BYTES {
            return unwritten;
        }
        *self = Account {
            epoch: self.epoch + 1,
            taken: 0,
            full: left,
            answer: self.answer,
        };
        0
    }

    /// Takes that much, if so much is left. Returns what is left otherwise.
    fn take(&mut self, left: u64, len_bytes: u64) -> Result<Entry, u64> {
        let room = left.saturating_sub(self.look(left));
        if len_bytes > room {
            return Err(room);
        }
        Ok(self.enter(len_bytes))
    }

    fn enter(&mut self, len_bytes: u64) -> Entry {
        self.taken += len_bytes;
        Entry {
            len_bytes,
            epoch: self.epoch,
        }
    }

    /// Takes that much without asking the system, where its last answer is new and was far from the limit.
    fn take_unasked(&mut self, len_bytes: u64) -> Option<Taken> {
        let answer = self.answer.as_mut()?;
        let spare = answer.spare.checked_sub(len_bytes)?;
        if answer.asked.elapsed() > ANSWER_HOLDS {
            return None;
        }
        answer.spare = spare;
        let is_limited = answer.is_limited;
        Some(Taken::of(is_limited.then(|| self.enter(len_bytes))))
    }

    fn give_back(&mut self, taken: &Entry) {
        let Entry { len_bytes, epoch } = *taken;
        match epoch == self.epoch {
            true => self.taken = self.taken.saturating_sub(len_bytes),
            false => self.full = self.full.saturating_add(len_bytes),
        }
    }
}

impl Room {
    /// Reads the current values from the system.
    pub fn now() -> Room {
        let mut account = Ledger::of_process();
        let mut room = Room::counted();
        if let Some(left) = room.available_bytes.as_mut().filter(|_| room.is_limited) {
            *left = left.saturating_sub(account.look(*left));
        }
        room
    }

    /// Takes room for an allocation, or refuses it because it can never fit or does not fit now. Accepts lengths below
    /// 1 MiB, and all lengths if the system does not report its memory.
    ///
    /// In the limits of a cgroup, what was taken before and is not written yet counts as taken, as far as the system's count
    /// tells. Elsewhere it counts as left.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`] and [`AllocError::OutOfMemory`].
    pub fn take(memory: MemoryId, len_bytes: u64) -> Result<Taken, AllocError> {
        if len_bytes < ASK_FROM_BYTES {
            return Ok(Taken::default());
        }
        match Room::take_once(memory, len_bytes) {
            Err(AllocError::OutOfMemory { .. }) if Room::give_back() => {
                Room::take_once(memory, len_bytes)
            }
            taken => taken,
        }
    }

    fn take_once(memory: MemoryId, len_bytes: u64) -> Result<Taken, AllocError> {
        let mut account = Ledger::of_process();
        if let Some(taken) = account.take_unasked(len_bytes) {
            return Ok(taken);
        }
        account.answer = None;
        let room = Room::counted();
        room.check_limit(memory, len_bytes)?;
        room.check_available(memory, len_bytes)?;
        let Some(left) = room.available_bytes else {
            return Ok(Taken::default());
        };
        let entry = { room.is_limited }.then(|| account.take(left, len_bytes));
        let entry = entry.transpose();
        let entry = entry.map_err(|left| refused(memory, len_bytes, left))?;
        let unwritten = if room.is_limited {
            account.look(left)
        } else {
            len_bytes
        };
        account.answer = Some(Answer {
            spare: left.saturating_sub(unwritten) / ANSWER_SHARE,
            asked: Instant::now(),
            is_limited: room.is_limited,
        });
        Ok(Taken::of(entry))
    }

    /// Sets how the process gives memory back that it keeps without using it: called when an allocation does not fit, it returns
    /// how many bytes it gave. The first one stays.
    pub fn reserve(give_back: fn() -> u64) {
        RESERVE.get_or_init(|| give_back);
    }

    /// Gives back what the process keeps without using it. Returns whether that was anything.
    pub fn give_back() -> bool {
        RESERVE.get().is_some_and(|give_back| give_back() > 0)
    }

    /// As the system counts.
    fn counted() -> Room {
        let machine = Room::of(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
        Memory::of_process().fold(machine, Room::within)
    }

    /// The same in the limits of a cgroup, beyond which the system kills the process. Some of the limit is kept for small
    /// allocations, and for what drivers and the system's tables take beside a large one.
    fn within(self, group: Memory) -> Room {
        let kept = (group.limit_bytes / 16).min(MOST_KEPT_BYTES);
        let available = group.available_bytes.saturating_sub(kept);
        let swap = group.swap_limit_bytes.min(self.swap_bytes);
        let swap_free = group.swap_available_bytes.min(self.swap_free_bytes);
        let least = |of: Option<u64>, limit| Some(of.map_or(limit, |bytes| bytes.min(limit)));
        Room {
            total_bytes: least(self.total_bytes, group.limit_bytes),
            limit_bytes: least(self.limit_bytes, group.limit_bytes.saturating_add(swap)),
            available_bytes: least(self.available_bytes, available.saturating_add(swap_free)),
            swap_bytes: swap,
            swap_free_bytes: swap_free,
            is_limited: self.is_limited
                || self
                    .total_bytes
                    .is_none_or(|bytes| group.limit_bytes < bytes),
        }
    }

    fn of(meminfo: &str) -> Room {
        let bytes = |key: &str| {
            let value = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
            let kib = value
                .trim()
                .strip_suffix("kB")?
                .trim()
                .parse::<u64>()
                .ok()?;
            kib.checked_mul(1024)
        };
        let total_bytes = bytes("MemTotal:");
        let swap = |key| bytes(key).unwrap_or(0);
        let with =
            |memory: Option<u64>, swap: u64| memory.map(|memory| memory.saturating_add(swap));
        Room {
            total_bytes,
            limit_bytes: with(total_bytes, swap("SwapTotal:")),
            available_bytes: with(bytes("MemAvailable:"), swap("SwapFree:")),
            swap_bytes: swap("SwapTotal:"),
            swap_free_bytes: swap("SwapFree:"),
            is_limited: false,
        }
    }

    /// Refuses a length that can never fit.
    fn check_limit(self, memory: MemoryId, len_bytes: u64) -> Result<(), AllocError> {
        match self.limit_bytes {
            Some(limit_bytes) if len_bytes > limit_bytes => Err(AllocError::TooLarge {
                memory,
                len_bytes,
                limit_bytes,
            }),
            _ => Ok(()),
        }
    }

    /// Refuses a length that does not fit now, as the system counts.
    fn check_available(self, memory: MemoryId, len_bytes: u64) -> Result<(), AllocError> {
        match self.available_bytes {
            Some(available) if len_bytes > available => Err(refused(memory, len_bytes, available)),
            _ => Ok(()),
        }
    }
}

fn refused(memory: MemoryId, len_bytes: u64, available: u64) -> AllocError {
    let message = format!("the system has {available} bytes available");
    AllocError::OutOfMemory {
        memory,
        len_bytes,
        fault: Fault::new(ErrorClass::Exhausted, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceId, MemoryKind};

    const SHARED: MemoryId = DeviceId::CPU0.memory(MemoryKind::Shared);

    const TEXT: &str = "MemTotal:         100 kB\nMemFree:          10 kB\n\
                        MemAvailable:      40 kB\nSwapTotal:         20 kB\nSwapFree:           8 kB\n";

    #[test]
    fn sizes_are_read_as_the_kernel_writes_them() {
        let room = Room::of(TEXT);
        assert_eq!(room.total_bytes, Some(100 << 10));
        assert_eq!(room.limit_bytes, Some(120 << 10));
        assert_eq!(room.available_bytes, Some(48 << 10));
        assert_eq!(Room::of("no such thing"), Room::default());
    }

    #[test]
    fn a_group_of_processes_limits_what_the_machine_has() {
        let limited = |limit_bytes, available_bytes, swap| {
            Room::of(TEXT).within(Memory {
                limit_bytes,
                available_bytes,
                swap_limit_bytes: swap,
                swap_available_bytes: swap / 2,
            })
        };
        let seen = |of: Room| (of.total_bytes, of.limit_bytes, of.available_bytes);
        let few = limited(1600, 110, 0);
        assert_eq!(seen(few), (Some(1600), Some(1600), Some(10)));
        // What a group's memory has no room for goes to swap, of which the machine has 20 kB, and 8 kB free.
        let swapped = limited(1600, 110, 500);
        assert_eq!(seen(swapped), (Some(1600), Some(2100), Some(260)));
        let swapped = limited(1600, 110, u64::MAX);
        let (limit, available) = (1600 + (20 << 10), 10 + (8 << 10));
        assert_eq!(seen(swapped), (Some(1600), Some(limit), Some(available)));
        assert_eq!(limited(u64::MAX, u64::MAX, u64::MAX), Room::of(TEXT));
    }

    /// A group of 4,000 MiB, in which other memory may be.
    struct Group {
        ledger: Ledger,
        left: u64,
    }

    impl Group {
        /// Takes and writes that much.
        fn fill(&mut self, mebibytes: u64) -> Result<Entry, u64> {
            let taken = self.take(mebibytes)?;
            self.left -= mebibytes;
            Ok(taken)
        }

        fn take(&self, mebibytes: u64) -> Result<Entry, u64> {
            let taken = self.ledger.account().take(self.left << 20, mebibytes << 20);
            taken.map_err(|left| left >> 20)
        }

        /// Gives back what takes that much of the system's count.
        fn free(&mut self, taken: Entry, written: u64) {
            self.ledger.account().give_back(&taken);
            core::mem::forget(taken);
            self.left += written;
        }

        fn room(&self) -> u64 {
            self.left - (self.ledger.account().look(self.left << 20) >> 20)
        }
    }

    fn group() -> Group {
        Group {
            ledger: Ledger::default(),
            left: 4000,
        }
    }

    #[test]
    fn what_is_taken_and_not_written_is_not_given_twice() {
        let mut group = group();
        let one = group.take(2500).unwrap();
        assert_eq!((group.take(2500).unwrap_err(), group.room()), (1500, 1500));
        group.left -= 1000;
        assert_eq!(group.room(), 1500);
        let other = group.take(1500).unwrap();
        assert_eq!(group.room(), 0);
        group.left = 0;
        assert_eq!(group.room(), 0);
        group.free(one, 2500);
        group.free(other, 1500);
        assert_eq!(group.room(), 4000);
        let unused = group.take(4000).unwrap();
        group.free(unused, 0);
        assert_eq!(group.room(), 4000);
    }

    #[test]
    fn what_is_given_back_is_left_whether_it_was_written_or_not() {
        let mut group = group();
        let mut one = group.fill(1500).unwrap();
        for _ in 0..5 {
            let next = group.fill(1500).unwrap();
            group.free(one, 1500);
            one = next;
            let unused = group.take(1500).unwrap();
            group.free(unused, 0);
            let twice = group.fill(2500).unwrap();
            group.free(twice, 2500);
        }
        assert_eq!(group.room(), 2500);
    }

    #[test]
    fn memory_of_others_that_comes_and_goes_hides_no_more_than_it_is() {
        let mut group = group();
        let taken = group.take(600).unwrap();
        for _ in 0..5 {
            group.left -= 300;
            assert!(group.room() <= 3400);
            group.left += 300;
            assert_eq!(group.room(), 3400);
        }
        group.left -= 600;
        assert_eq!(group.room(), 3400);
        // What was written before counts no more when others give memory back.
        group.left += 500;
        assert_eq!(group.room(), 3900);
        group.free(taken, 600);
        assert_eq!(group.room(), 4500);
    }

    #[test]
    fn what_never_fits_and_what_does_not_fit_now_are_told_apart() {
        let room = Room::of(TEXT);
        assert_eq!(room.check_available(SHARED, 48 << 10), Ok(()));
        let error = room.check_available(SHARED, (48 << 10) + 1).unwrap_err();
        assert!(matches!(error, AllocError::OutOfMemory { .. }), "{error}");
        assert_eq!(room.check_limit(SHARED, 120 << 10), Ok(()));
        let error = room.check_limit(SHARED, (120 << 10) + 1).unwrap_err();
        assert!(
            matches!(error, AllocError::TooLarge { limit_bytes, .. } if limit_bytes == 120 << 10),
            "{error}"
        );
        let unknown = Room::default();
        assert_eq!(unknown.check_limit(SHARED, u64::MAX), Ok(()));
        assert_eq!(unknown.check_available(SHARED, u64::MAX), Ok(()));
    }
}
