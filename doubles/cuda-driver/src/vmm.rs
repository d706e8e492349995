//! Addresses and memory apart: pieces of memory that have no address, and reserved addresses that pieces are
//! mapped at.
//!
//! Source: CUDA Driver API, Virtual Memory Management. `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED` and
//! the attributes next to it state which devices can do that, and that the host takes no part in it here.
//!
//! A piece is a file in memory of its own, so that another process can import it. It counts as a part of its device's
//! memory in the process that made it. An imported piece counts nowhere else: each process has the devices to itself.
//! As in the real driver, no call needs a context.

mod addresses;
mod pieces;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use transload_cuda::raw::{
    CUdevice, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUresult,
};

pub use self::addresses::*;
pub use self::pieces::*;
use crate::bytes::Bytes;
use crate::registry::{Registry, kind};

/// Pieces and mappings begin and end at multiples of this: the size of a large page, which is what devices of
/// today answer.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// The pieces and reserved ranges.
#[derive(Debug)]
pub(crate) struct Vmm {
    pieces: Registry<Piece>,
    /// The reserved ranges: size by address.
    reservations: BTreeMap<u64, u64>,
}

/// Memory without an address.
#[derive(Debug)]
struct Piece {
    device: CUdevice,
    /// The handle types that it may be exported as.
    types: CUmemAllocationHandleType,
    bytes: Arc<Bytes>,
    /// How often its handle is to be released yet. At 0 the handle is none, until it is retained by an address.
    holders: usize,
    /// At how many places it is mapped.
    mappings: usize,
}

impl Piece {
    fn properties(&self) -> CUmemAllocationProp {
        CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: self.types,
            location: CUmemLocation::device(self.device.0),
            ..CUmemAllocationProp::default()
        }
    }
}

impl Vmm {
    pub(crate) fn new() -> Vmm {
        Vmm {
            pieces: Registry::new(kind::PIECE),
            reservations: BTreeMap::new(),
        }
    }

    /// # Errors
    /// `INVALID_VALUE` for what is no handle, or was released as often as it was given out.
    fn piece(&mut self, handle: CUmemGenericAllocationHandle) -> Result<&mut Piece, CUresult> {
        let piece = self.pieces.get_mut(handle);
        let held = piece.filter(|piece| piece.holders > 0);
        held.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// The reserved range that an address lies in.
    pub(crate) fn reservation(&self, address: u64) -> Option<Range<u64>> {
        let (base, size) = self.reservations.range(..=address).next_back()?;
        let range = *base..base + size;
        range.contains(&address).then_some(range)
    }

    /// The handle types that a piece may be exported as.
    pub(crate) fn handle_types(
        &self,
        piece: CUmemGenericAllocationHandle,
    ) -> CUmemAllocationHandleType {
        let piece = self.pieces.get(piece);
        piece.map(|piece| piece.types).unwrap_or_default()
    }

    /// Frees a piece when it has no holder and is mapped nowhere.
    fn settle(&mut self, handle: CUmemGenericAllocationHandle) {
        let unused = |piece: &Piece| piece.holders == 0 && piece.mappings == 0;
        if self.pieces.get(handle).is_some_and(unused) {
            self.pieces.remove(handle);
        }
    }

    /// Adds a line for each held piece and each reserved range. Mappings are listed as memory.
    pub(crate) fn leaks(&self, lines: &mut Vec<String>) {
        let held = self.pieces.iter().filter(|(_, piece)| piece.holders > 0);
        lines.extend(held.map(|(handle, piece)| {
            format!("piece of memory {handle:#x}, {} bytes", piece.bytes.len())
        }));
        let ranges = self.reservations.iter();
        lines.extend(ranges.map(|(base, size)| format!("addresses {base:#x}, {size} bytes")));
    }
}
