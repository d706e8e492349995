//! The slots of one manager that are not leased whole: idle ones, and those that small transfers share.
//!
//! A slot is as large as a chunk. Transfers of which two or more fit into one take parts of it, each behind the one
//! before, and use them as other transfers use slots: each fills, drains and returns its own at any time. The slot is
//! idle again when the last part was returned. Until then only the bytes behind all leased parts are given out, so that
//! no list of gaps is needed. All transfers that share a slot go between the same two devices, so the slot counts with
//! those alone.

use alloc::vec::Vec;

use transload_core::MemoryId;
use transload_hal::Buffer;

use super::super::types::Pair;

/// How many of the shared slots, the latest ones, are searched for room: earlier ones are full, or nearly so.
const ASKED: usize = 4;

#[derive(Default)]
pub(super) struct Shelf {
    pub(super) idle: Vec<Buffer>,
    /// In the order in which their sharing began.
    shared: Vec<Shared>,
    /// Slots to be shared that are being allocated.
    coming: Vec<(MemoryId, u64, Pair)>,
}

/// A slot of which a transfer has at least one part.
struct Shared {
    slot: Buffer,
    pair: Pair,
    /// Where the next part begins.
    given_bytes: u64,
    /// Parts that were not returned yet.
    parts: u32,
    /// An operation may still write to parts that were returned: the slot is of no more use.
    is_spoilt: bool,
}

/// The result of a search for a slot, or for a part of one.
pub(super) enum Found {
    /// The slot, or a part of it, out of a slot that was idle.
    Idle(Buffer),
    /// A part of a slot that is leased already.
    Part(Buffer),
    /// A slot with room is being allocated: the transfer should wait for it.
    Coming,
    Nothing,
}

/// The result of returning a slot or a part.
pub(super) struct Back {
    /// The bytes of the slot, if no transfer has a part of it any more.
    pub(super) free_bytes: u64,
    /// The slot, if it is of no more use to any transfer.
    pub(super) useless: Option<Buffer>,
}

impl Shelf {
    /// Finds a slot of `bytes` bytes, or a part of one that transfers of that pair share.
    pub(super) fn find(
        &mut self,
        memory: MemoryId,
        bytes: u64,
        part: Option<(u64, Pair)>,
    ) -> Found {
        let Some((part, pair)) = part else {
            return self.take(memory, bytes).map_or(Found::Nothing, Found::Idle);
        };
        let alike = |shared: &Shared| {
            let slot = &shared.slot;
            slot.memory() == memory && slot.len() == bytes && shared.pair == pair
        };
        let latest = { self.shared.iter_mut().rev() }.filter(|shared| alike(shared));
        let room = { latest.take(ASKED) }.find_map(|shared| shared.give(part));
        if let Some(part) = room {
            return Found::Part(part);
        }
        match self.take(memory, bytes) {
            Some(slot) => Found::Idle(self.share(slot, part, pair)),
            None if self.coming.contains(&(memory, bytes, pair)) => Found::Coming,
            None => Found::Nothing,
        }
    }

    /// Takes a whole idle slot.
    pub(super) fn take(&mut self, memory: MemoryId, bytes: u64) -> Option<Buffer> {
        let is_meant = |slot: &Buffer| slot.memory() == memory && slot.len() == bytes;
        let at = self.idle.iter().position(is_meant)?;
        Some(self.idle.swap_remove(at))
    }

    /// Takes the first `part` bytes of a slot that other transfers of that pair may share from now on.
    pub(super) fn share(&mut self, slot: Buffer, part: u64, pair: Pair) -> Buffer {
        let mut shared = Shared {
            slot,
            pair,
            given_bytes: 0,
            parts: 0,
            is_spoilt: false,
        };
        match shared.give(part) {
            Some(part) => {
                self.shared.push(shared);
                part
            }
            // The slot is too short for that, and so for any other transfer.
            None => shared.slot,
        }
    }

    /// Records that a slot to be shared is being allocated.
    pub(super) fn expect(&mut self, memory: MemoryId, bytes: u64, pair: Pair) {
        self.coming.push((memory, bytes, pair));
    }

    /// Records that the slot was allocated, or could not be.
    pub(super) fn expect_no_more(&mut self, memory: MemoryId, bytes: u64, pair: Pair) {
        let wanted = (memory, bytes, pair);
        let at = self.coming.iter().position(|one| *one == wanted);
        at.map(|at| self.coming.swap_remove(at));
    }

    /// Takes a slot or a part back. `is_spoilt`: an operation may still write to it.
    pub(super) fn put(&mut self, slot: Buffer, is_spoilt: bool) -> Back {
        let Some(at) = self.shared.iter().position(|shared| shared.holds(&slot)) else {
            return self.put_whole(slot, is_spoilt);
        };
        let shared = &mut self.shared[at];
        shared.parts -= 1;
        shared.is_spoilt |= is_spoilt;
        // A lease that cannot have all its slots returns the ones that it has just got.
        if shared.end_of(&slot) == shared.given_bytes {
            shared.given_bytes -= slot.len();
        }
        if shared.parts > 0 {
            return Back {
                free_bytes: 0,
                useless: None,
            };
        }
        // The later ones stay the later ones.
        let Shared {
            slot, is_spoilt, ..
        } = self.shared.remove(at);
        self.put_whole(slot, is_spoilt)
    }

    fn put_whole(&mut self, slot: Buffer, is_spoilt: bool) -> Back {
        let free_bytes = slot.len();
        let useless = match is_spoilt {
            true => Some(slot),
            false => {
                self.idle.push(slot);
                None
            }
        };
        Back {
            free_bytes,
            useless,
        }
    }
}

impl Shared {
    fn give(&mut self, part: u64) -> Option<Buffer> {
        if self.is_spoilt {
            return None;
        }
        let given = self.slot.slice(self.given_bytes, part)?;
        self.given_bytes += part;
        self.parts += 1;
        Some(given)
    }

    /// Returns where a part of the slot ends.
    fn end_of(&self, part: &Buffer) -> u64 {
        part.span().offset + part.len() - self.slot.span().offset
    }

    /// Returns whether that is a part of the slot.
    fn holds(&self, part: &Buffer) -> bool {
        let (whole, part_span) = (self.slot.span(), part.span());
        let starts_behind = part_span.offset.checked_sub(whole.offset);
        part.same_storage(&self.slot)
            && starts_behind
                .is_some_and(|behind| behind < whole.len && part_span.len <= whole.len - behind)
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use alloc::boxed::Box;
    use alloc::vec;

    use transload_core::{BackendId, DeviceId, MemoryKind, Name, StorageId};
    use transload_hal::{HostSpan, StorageInfo};

    use super::*;

    const SLOT: u64 = 64 << 10;
    const PART: u64 = 16 << 10;

    fn memory() -> MemoryId {
        DeviceId::CPU0.memory(MemoryKind::Pinned)
    }

    /// Returns a slot that is the second half of its storage, as from a backend that carves slots from larger memory.
    fn slot() -> Buffer {
        buffer(2 * SLOT).slice(SLOT, SLOT).unwrap()
    }

    pub(in super::super) fn buffer(len_bytes: u64) -> Buffer {
        let mut bytes = vec![0u8; len_bytes as usize];
        let host = HostSpan::of_mut(&mut bytes);
        let info = StorageInfo {
            id: StorageId::Host,
            base: host.addr(),
            len_bytes,
            memory: memory(),
            backend: BackendId(Name::constant("test")),
            writable: true,
            host: Some(host),
        };
        // SAFETY: the vector's block stays in place until the vector is dropped, and nothing but the buffer uses it.
        unsafe { Buffer::new(info, Box::new(bytes)) }
    }

    fn part_of(shelf: &mut Shelf, part: u64) -> Option<Buffer> {
        match shelf.find(memory(), SLOT, Some((part, Pair::HOST))) {
            Found::Idle(part) | Found::Part(part) => Some(part),
            Found::Coming | Found::Nothing => None,
        }
    }

    #[test]
    fn parts_lie_behind_each_other_and_the_slot_is_idle_when_the_last_is_back() {
        let mut shelf = Shelf::default();
        assert!(part_of(&mut shelf, PART).is_none());
        let first = shelf.share(slot(), PART, Pair::HOST);
        let mut parts = vec![first];
        while let Some(part) = part_of(&mut shelf, PART) {
            parts.push(part);
        }
        let offsets = parts.iter().map(|part| part.span().offset);
        assert!(offsets.eq((0..4).map(|number| SLOT + number * PART)));
        assert!(parts.iter().all(|part| part.len() == PART));
        let last = parts.pop();
        for part in parts {
            assert!(shelf.put(part, false).useless.is_none());
            assert!(shelf.idle.is_empty(), "a part is out");
            assert!(part_of(&mut shelf, PART).is_none(), "it was given before");
        }
        assert!(shelf.put(last.unwrap(), false).useless.is_none());
        let slot = shelf.take(memory(), SLOT).expect("it is idle");
        assert_eq!((slot.span().offset, slot.len()), (SLOT, SLOT));
        // A transfer with a slot to itself gives back all of it.
        assert!(shelf.put(slot, false).useless.is_none());
        assert_eq!(shelf.idle.len(), 1);
        assert!(part_of(&mut shelf, PART).is_some());
        assert!(shelf.idle.is_empty(), "a transfer has a part of it");
    }

    #[test]
    fn what_was_given_last_and_comes_back_can_be_had_again() {
        let mut shelf = Shelf::default();
        let first = shelf.share(slot(), PART, Pair::HOST);
        for _ in 0..10 {
            let second = part_of(&mut shelf, PART).expect("there is room behind the first");
            assert_eq!(second.span().offset, SLOT + PART);
            assert!(shelf.put(second, false).useless.is_none());
        }
        let rest = part_of(&mut shelf, SLOT - PART).expect("all behind the first");
        assert!(shelf.put(first, false).useless.is_none());
        assert!(
            part_of(&mut shelf, PART).is_none(),
            "there is no room behind"
        );
        assert!(shelf.put(rest, false).useless.is_none());
        assert_eq!(shelf.idle.len(), 1);
    }

    #[test]
    fn of_a_spoilt_slot_nothing_is_given_again() {
        let mut shelf = Shelf::default();
        let first = shelf.share(slot(), PART, Pair::HOST);
        let second = part_of(&mut shelf, PART).unwrap();
        assert!(
            shelf.put(first, true).useless.is_none(),
            "the second is out"
        );
        assert!(part_of(&mut shelf, PART).is_none());
        let useless = shelf.put(second, false).useless.expect("of no use");
        assert_eq!(useless.len(), SLOT);
        assert!(shelf.idle.is_empty());
        assert!(
            shelf.put(slot(), true).useless.is_some(),
            "nor is a whole one"
        );
    }

    #[test]
    fn who_could_share_a_slot_that_is_coming_waits_for_it() {
        let mut shelf = Shelf::default();
        shelf.expect(memory(), SLOT, Pair::HOST);
        let find = |shelf: &mut Shelf, bytes, part: Option<u64>| {
            let part = part.map(|part| (part, Pair::HOST));
            match shelf.find(memory(), bytes, part) {
                Found::Idle(_) | Found::Part(_) => "a slot",
                Found::Coming => "coming",
                Found::Nothing => "nothing",
            }
        };
        assert_eq!(find(&mut shelf, SLOT, Some(PART)), "coming");
        assert_eq!(find(&mut shelf, SLOT, None), "nothing");
        assert_eq!(find(&mut shelf, 2 * SLOT, Some(PART)), "nothing");
        shelf.expect_no_more(memory(), SLOT, Pair::HOST);
        assert_eq!(find(&mut shelf, SLOT, Some(PART)), "nothing");
        shelf.idle.push(slot());
        assert_eq!(find(&mut shelf, SLOT, Some(PART)), "a slot");
    }
}
