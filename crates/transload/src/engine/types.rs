//! The words of the engine: plain values that its parts exchange. Imports nothing of the engine.

use core::cmp::Reverse;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use transload_core::{DeviceId, EngineId, MemoryId};
use transload_hal::{BackendId, Buffer};

/// The place of a transfer in the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Index(u32);

impl Index {
    /// The place of no transfer.
    pub(super) const NONE: Index = Index(u32::MAX);

    /// Names the place at that position of the table. A table has no room for more than `u32::MAX` places.
    pub(super) const fn of(position: usize) -> Index {
        match position < u32::MAX as usize {
            true => Index(position as u32),
            false => Index::NONE,
        }
    }

    pub(crate) fn position(self) -> usize {
        self.0 as usize
    }
}

/// Names a transfer: its place in the table, and how often the place was used before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TransferId {
    pub(crate) index: Index,
    pub(crate) generation: u32,
}

impl TransferId {
    /// Work of the engine that belongs to no transfer.
    pub(crate) const NONE: TransferId = TransferId {
        index: Index::NONE,
        generation: 0,
    };
}

/// Which transfers go first among those that wait for the same engine or slots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Priority {
    /// After the others.
    Low,
    /// In the order of submission.
    #[default]
    Normal,
    /// Before the others.
    High,
}

impl Priority {
    /// Returns the number of the queue for this priority among three, the highest first.
    pub(crate) fn queue(self) -> usize {
        match self {
            Priority::High => 0,
            Priority::Normal => 1,
            Priority::Low => 2,
        }
    }
}

/// The position of a transfer among those that wait for first slots: by priority, then in the order of asking. The smaller
/// one comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct QueuePosition(pub(crate) Reverse<Priority>, pub(crate) u64);

/// Shared by the transfers of a batch that stops at the first failure.
#[derive(Debug, Default)]
pub(crate) struct BatchFlag(AtomicBool);

impl BatchFlag {
    pub(crate) fn fail(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The engine of a backend that an operation goes to.
pub(crate) type Line = (BackendId, EngineId);

/// The two devices that a transfer stages between. The same one twice where the other end is host memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pair([DeviceId; 2]);

impl Pair {
    /// The pair of a place that no transfer has used.
    pub(crate) const HOST: Pair = Pair([DeviceId::CPU0; 2]);

    /// Returns the pair of a transfer from `src` to `dst`. Host memory counts only where both ends are host memory: it
    /// is an end of most transfers, and all of them would have to share its half.
    pub(crate) fn between(src: DeviceId, dst: DeviceId) -> Pair {
        let is_host = DeviceId::is_host;
        Pair(match (is_host(src), is_host(dst)) {
            (true, false) => [dst; 2],
            (false, true) => [src; 2],
            _ => [src.min(dst), src.max(dst)],
        })
    }

    pub(crate) fn has(self, device: DeviceId) -> bool {
        self.0.contains(&device)
    }

    pub(crate) fn devices(self) -> impl Iterator<Item = DeviceId> {
        let Pair([first, second]) = self;
        let second = (second != first).then_some(second);
        core::iter::once(first).chain(second)
    }
}

/// A slot that a ring of a flight's leg could use.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// The lane and the ring.
    pub(crate) at: (u8, u8),
    /// The leg of the flight that the ring belongs to: another leg has other rings.
    pub(crate) leg: u32,
    pub(crate) memory: MemoryId,
    pub(crate) bytes: u64,
    /// The part of the slot that the flight takes, where other transfers may have the rest.
    pub(crate) part: Option<u64>,
    /// The devices that the slot counts with.
    pub(crate) pair: Pair,
}

/// The first slot of a ring, for a flight that is not admitted yet.
pub(crate) struct FirstSlot {
    pub(crate) lane: u8,
    pub(crate) ring: u8,
    pub(crate) memory: MemoryId,
    pub(crate) bytes: u64,
    /// The part of it, in bytes, that the flight takes where it may share the slot.
    pub(crate) part: Option<u64>,
    /// `None` until the slot is leased, and while it is being allocated.
    pub(crate) buffer: Option<Buffer>,
}

/// Which work a thread that turns the engine does itself. A thread that serves other transfers copies nothing and does
/// nothing that takes long: those transfers would wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pace {
    /// The transfers whose small copies the thread makes on the spot.
    pub(crate) copies: Which,
    /// The transfers for which the thread does work that takes long.
    pub(crate) slow: Which,
}

/// Some of the transfers: none, one or all. A word, so that a pace is passed in registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Which(u64);

impl Pace {
    /// All work.
    pub(crate) const FULL: Pace = Pace {
        copies: Which::ALL,
        slow: Which::ALL,
    };
    /// All small copies, and no command that takes long.
    pub(crate) const QUICK: Pace = Pace {
        copies: Which::ALL,
        slow: Which::NONE,
    };
    /// Only work that delays no transfer.
    pub(crate) const SERVING: Pace = Pace {
        copies: Which::NONE,
        slow: Which::NONE,
    };
}

impl Which {
    // No transfer's place has such a number: there is no room for so many.
    pub(crate) const NONE: Which = Which(u64::MAX);
    pub(crate) const ALL: Which = Which(u64::MAX - 1);

    pub(crate) fn one(id: TransferId) -> Which {
        Which(u64::from(id.index.0) << 32 | u64::from(id.generation))
    }

    pub(crate) fn has(self, id: TransferId) -> bool {
        self == Which::ALL || self == Which::one(id)
    }

    /// Returns the place of the transfer, where it is a single one.
    pub(crate) fn index(self) -> Option<Index> {
        let is_one = self != Which::ALL && self != Which::NONE;
        is_one.then_some(Index((self.0 >> 32) as u32))
    }
}

impl fmt::Debug for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Which::NONE => f.write_str("none"),
            Which::ALL => f.write_str("all"),
            Which(one) => write!(f, "transfer {} use {}", one >> 32, one as u32),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use transload_core::DeviceKind;

    use super::*;

    #[test]
    fn host_memory_counts_only_where_both_ends_are_host_memory() {
        let device = |index| DeviceId::new(DeviceKind::SIM, index);
        let alone = Pair::between(DeviceId::CPU0, device(3));
        let cpu1 = DeviceId::new(DeviceKind::CPU, 1);
        assert_eq!(alone, Pair::between(device(3), cpu1));
        assert_eq!(alone, Pair::between(device(3), device(3)));
        let [there, back] = [(1, 2), (2, 1)].map(|(a, b)| Pair::between(device(a), device(b)));
        assert_eq!(there, back);
        assert_eq!(Pair::between(DeviceId::CPU0, DeviceId::CPU0), Pair::HOST);
        assert_ne!(Pair::between(DeviceId::CPU0, cpu1), Pair::HOST);
    }
}
