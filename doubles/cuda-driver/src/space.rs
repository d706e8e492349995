//! The address space that host and devices share, and its content.
//!
//! Under unified addressing an address determines its memory (CUDA Driver API, Unified Addressing). Device addresses
//! lie in ranges of the process's own addresses that are reserved and inaccessible: a host that reads one ends with
//! SIGSEGV, as it should. No address is issued twice, so the use of a freed one is detected.

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use transload_cuda::raw::{CU_MEMHOSTREGISTER, CUcontext, CUdevice, CUmemoryPool, CUresult};

use crate::access::Access;
use crate::bytes::{Bytes, Memory, Place};

/// Something that has an address.
#[derive(Clone, Debug)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) sort: Sort,
    /// The device that it is of, or was current when it was made.
    pub(crate) device: CUdevice,
    /// The context that it is of; null for those that are of none.
    pub(crate) context: CUcontext,
    /// The flags that it was made with.
    pub(crate) flags: u32,
    /// A number that no other allocation of the process has had.
    pub(crate) id: u64,
    pub(crate) bytes: Arc<Bytes>,
    /// Where in the bytes it begins.
    pub(crate) offset: usize,
}

/// How an allocation came about, which is how it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sort {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocAsync` from this pool, or `cuMemPoolImportPointer`.
    Pool { pool: CUmemoryPool, access: Access },
    /// `cuMemHostAlloc`.
    Pinned,
    /// `cuMemHostRegister`.
    Registered,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemMap`, of the piece of memory of that handle.
    Mapped { piece: u64, access: Access },
    /// `cuIpcOpenMemHandle`.
    Ipc,
    /// `cuExternalMemoryGetMappedBuffer`, of this external memory.
    External(u64),
}

impl Allocation {
    /// Its memory. Memory that belongs to no device is the host's.
    pub(crate) fn memory(&self) -> Memory {
        match self.sort {
            Sort::Pinned | Sort::Registered => Memory::Pinned,
            Sort::Managed => Memory::Managed,
            _ => usize::try_from(self.device.0).map_or(Memory::Pinned, Memory::Device),
        }
    }

    /// The access of devices: all have access, except to memory whose access is set for each device.
    pub(crate) fn access(&self) -> Access {
        match self.sort {
            Sort::Mapped { access, .. } | Sort::Pool { access, .. } => access,
            Sort::Registered if self.flags & CU_MEMHOSTREGISTER::READ_ONLY != 0 => Access::READ,
            _ => Access::ALL,
        }
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.base..self.base + self.size
    }
}

/// The allocations, by address.
#[derive(Debug, Default)]
pub(crate) struct Space {
    allocations: BTreeMap<u64, Allocation>,
    /// The reserved ranges, which are devices' whatever lies there: end by start, those that touch as one.
    reserved: BTreeMap<u64, u64>,
    /// The rest of the last reserved range.
    left: Range<u64>,
    ids: u64,
}

/// The number of addresses that are reserved at a time.
const RESERVED: u64 = 1 << 36;

/// Allocations of `cuMemAlloc` begin at multiples of this. Source: CUDA C++ Programming Guide, Device Memory
/// Accesses: at least 256 bytes; drivers give 512.
pub(crate) const ALIGNMENT: u64 = 512;

impl Space {
    /// Device addresses for `size` bytes, followed by a gap of unused addresses.
    ///
    /// # Errors
    /// When the process has no addresses left.
    pub(crate) fn reserve(&mut self, size: u64, alignment: u64) -> Result<u64, Errno> {
        let take = |left: &Range<u64>| {
            let base = left.start.checked_next_multiple_of(alignment)?;
            let end = base.checked_add(size)?.checked_add(ALIGNMENT)?;
            (end <= left.end).then_some(base..end)
        };
        let taken = match take(&self.left) {
            Some(taken) => taken,
            None => {
                let needed = size
                    .checked_add(alignment)
                    .and_then(|sum| sum.checked_add(ALIGNMENT));
                let len = needed.ok_or(Errno::NOMEM)?.max(RESERVED);
                let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
                let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
                // SAFETY: a new mapping touches nothing that is there.
                let start =
                    unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), flags) }?;
                let start = start.addr() as u64;
                let range = start..start + len as u64;
                self.note_reserved(range.clone());
                self.left = range;
                take(&self.left).ok_or(Errno::NOMEM)?
            }
        };
        self.left.start = taken.end;
        Ok(taken.start)
    }

    /// A range of device addresses by itself, at `wanted` if that is not 0 and nothing is there.
    ///
    /// # Errors
    /// As [`Space::reserve`].
    pub(crate) fn reserve_apart(
        &mut self,
        size: u64,
        alignment: u64,
        wanted: u64,
    ) -> Result<u64, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let mut map = |at: u64, len: u64, flags| {
            let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
            let at = ptr::without_provenance_mut(at as usize);
            // SAFETY: a new mapping that may not replace another touches nothing that is there.
            let start = unsafe { mmap_anonymous(at, len, ProtFlags::empty(), flags) }?;
            let start = start.addr() as u64;
            self.note_reserved(start..start + len as u64);
            Ok(start)
        };
        if wanted != 0 && wanted.is_multiple_of(alignment) {
            let there = map(wanted, size, flags | MapFlags::FIXED_NOREPLACE);
            // Kernels before 4.17 take no notice of the flag, and map elsewhere.
            if let Some(start) = there.ok().filter(|start| start.is_multiple_of(alignment)) {
                return Ok(start);
            }
        }
        let room = size.checked_add(alignment).ok_or(Errno::NOMEM)?;
        Ok(map(0, room, flags)?.next_multiple_of(alignment))
    }

    /// Takes an allocation in, and gives it a number.
    ///
    /// # Errors
    /// When something lies there already: it is given back.
    pub(crate) fn add(&mut self, mut allocation: Allocation) -> Result<u64, Allocation> {
        if self.overlapping(&allocation.range()).next().is_some() {
            return Err(allocation);
        }
        self.ids += 1;
        allocation.id = self.ids;
        self.allocations.insert(allocation.base, allocation);
        Ok(self.ids)
    }

    /// Frees the allocations of a context. Those without a context stay.
    pub(crate) fn end_context(&mut self, context: CUcontext) {
        self.allocations.retain(|_, of| of.context != context);
    }

    /// The allocation that begins at an address.
    pub(crate) fn get(&self, base: u64) -> Option<&Allocation> {
        self.allocations.get(&base)
    }

    pub(crate) fn get_mut(&mut self, base: u64) -> Option<&mut Allocation> {
        self.allocations.get_mut(&base)
    }

    pub(crate) fn remove(&mut self, base: u64) -> Option<Allocation> {
        self.allocations.remove(&base)
    }

    /// The allocation that contains an address.
    pub(crate) fn at(&self, address: u64) -> Option<&Allocation> {
        let (_, allocation) = self.allocations.range(..=address).next_back()?;
        allocation.range().contains(&address).then_some(allocation)
    }

    /// The allocations wholly or partly in a range, by address.
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = &Allocation> {
        let first = self.at(range.start).map_or(range.start, |of| of.base);
        let end = range.end.max(first);
        self.allocations.range(first..end).map(|(_, of)| of)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.allocations.values()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Allocation> {
        self.allocations.values_mut()
    }

    /// Whether an address is a device's, whatever lies there.
    pub(crate) fn is_reserved(&self, address: u64) -> bool {
        let before = self.reserved.range(..=address).next_back();
        before.is_some_and(|(_, end)| address < *end)
    }

    /// Records a reserved range, which overlaps no other. The system places ranges next to each other where it can, so
    /// that few entries are enough.
    fn note_reserved(&mut self, mut range: Range<u64>) {
        if let Some(end) = self.reserved.remove(&range.end) {
            range.end = end;
        }
        let before = self.reserved.range_mut(..range.start).next_back();
        match before {
            Some((_, end)) if *end == range.start => *end = range.end,
            _ => {
                self.reserved.insert(range.start, range.end);
            }
        }
    }

    /// The bytes of an address range. Addresses unknown to the driver are pageable memory of the host, except a
    /// device's. Ranges may go from one mapping of `cuMemMap` to the next.
    ///
    /// # Errors
    /// `INVALID_VALUE` if a part of the range is unused or of another allocation, or if no device has access to all
    /// of it.
    pub(crate) fn place(&self, address: u64, len: u64) -> Result<Place, CUresult> {
        let wrong = CUresult::CUDA_ERROR_INVALID_VALUE;
        let end = address.checked_add(len).ok_or(wrong)?;
        let Some(first) = self.at(address) else {
            if self.is_reserved(address) || address == 0 && len > 0 {
                return Err(wrong);
            }
            let start = ptr::with_exposed_provenance_mut(address as usize);
            return Ok(Place::pageable(start, len as usize));
        };
        let mut place = Place::new(first.memory());
        let mut at = address;
        for allocation in self.overlapping(&(address..end)) {
            let goes_on = matches!(
                (allocation.sort, first.sort),
                (Sort::Mapped { .. }, Sort::Mapped { .. })
            );
            if allocation.base > at || allocation.base != first.base && !goes_on {
                return Err(wrong);
            }
            let until = allocation.range().end.min(end);
            let offset = allocation.offset + (at - allocation.base) as usize;
            place.push(&allocation.bytes, offset, (until - at) as usize);
            place.access = place.access.and(allocation.access());
            at = until;
        }
        if at < end || place.access == Access::NONE {
            return Err(wrong);
        }
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use transload_cuda::raw::CUmemAccess_flags;

    use super::*;

    fn allocation(base: u64, size: u64, sort: Sort) -> Allocation {
        Allocation {
            base,
            size,
            sort,
            device: CUdevice(0),
            context: CUcontext::NULL,
            flags: 0,
            id: 0,
            bytes: Bytes::anonymous(size as usize).unwrap(),
            offset: 0,
        }
    }

    fn space(allocations: &[(u64, u64, Sort)]) -> (Space, u64) {
        let mut space = Space::default();
        let base = space.reserve(1 << 20, ALIGNMENT).unwrap();
        for (at, size, sort) in allocations {
            space.add(allocation(base + at, *size, *sort)).unwrap();
        }
        (space, base)
    }

    #[test]
    fn a_range_lies_within_one_allocation() {
        let (space, base) = space(&[(0, 1024, Sort::Device), (1024, 512, Sort::Device)]);
        let len = |at, len| space.place(base + at, len).map(|place| place.len());
        assert_eq!(len(0, 1024), Ok(1024));
        assert_eq!(len(1023, 1), Ok(1));
        assert_eq!(len(1024, 512), Ok(512));
        let wrong = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(len(0, 1025), wrong, "it runs into the next one");
        assert_eq!(len(1024, 513), wrong, "it runs into nothing");
        assert_eq!(len(1536, 1), wrong, "nothing is there");
        assert_eq!(len(1, u64::MAX), wrong);
    }

    #[test]
    fn mappings_go_on_where_they_touch() {
        let mapped = |piece, devices: &[i32]| {
            let mut access = Access::NONE;
            for device in devices {
                access.set(
                    CUdevice(*device),
                    CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                );
            }
            Sort::Mapped { piece, access }
        };
        let (space, base) = space(&[
            (0, 1024, mapped(1, &[0, 1])),
            (1024, 1024, mapped(2, &[1])),
            (2048, 1024, mapped(3, &[0])),
            (4096, 1024, mapped(1, &[0])),
        ]);
        let place = space.place(base + 512, 1024).unwrap();
        assert_eq!(place.len(), 1024);
        assert!(place.access.writes(CUdevice(1)) && !place.access.reads(CUdevice(0)));
        let wrong = CUresult::CUDA_ERROR_INVALID_VALUE;
        let none_reaches_all = space.place(base + 1536, 1024);
        assert_eq!(none_reaches_all.unwrap_err(), wrong);
        assert_eq!(space.place(base + 2560, 4096).unwrap_err(), wrong);
    }

    #[test]
    fn what_is_unknown_is_pageable_unless_it_is_a_devices() {
        let (space, base) = space(&[(0, 512, Sort::Device)]);
        let local = [0u8; 4];
        let place = space.place(local.as_ptr().addr() as u64, 4).unwrap();
        assert_eq!(place.memory, Memory::Pageable);
        assert_eq!(space.place(base, 4).unwrap().memory, Memory::Device(0));
        assert!(space.place(base + 512, 4).is_err());
        assert!(space.place(0, 4).is_err());
    }

    #[test]
    fn nothing_lies_on_top_of_another() {
        let (mut space, base) = space(&[(512, 512, Sort::Device)]);
        for (at, size) in [(0, 513), (600, 8), (1023, 10), (0, 4096)] {
            assert!(
                space
                    .add(allocation(base + at, size, Sort::Device))
                    .is_err()
            );
        }
        assert!(space.add(allocation(base, 512, Sort::Device)).is_ok());
        assert!(
            space
                .add(allocation(base + 1024, 512, Sort::Device))
                .is_ok()
        );
    }

    #[test]
    fn reserved_ranges_that_touch_are_one() {
        let mut space = Space::default();
        for range in [40..50, 10..20, 60..70, 30..40, 50..60, 80..90, 20..25] {
            space.note_reserved(range);
        }
        let kept: Vec<_> = space.reserved.iter().collect();
        assert_eq!(kept, [(&10, &25), (&30, &70), (&80, &90)]);
        let within: Vec<u64> = (0..100).filter(|at| space.is_reserved(*at)).collect();
        let expected: Vec<u64> = (10..25).chain(30..70).chain(80..90).collect();
        assert_eq!(within, expected);
    }

    #[test]
    fn addresses_are_never_given_out_twice() {
        let mut space = Space::default();
        let mut last = 0;
        for _ in 0..1000 {
            let base = space.reserve(3, ALIGNMENT).unwrap();
            assert!(base.is_multiple_of(ALIGNMENT) && (last == 0 || base >= last + 3));
            last = base;
        }
        let large = space.reserve(RESERVED, ALIGNMENT).unwrap();
        assert!(space.is_reserved(large) && space.is_reserved(large + RESERVED - 1));
    }
}
