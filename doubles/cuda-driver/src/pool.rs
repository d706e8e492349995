//! Pools of memory that is allocated and freed in the order of streams.
//!
//! Source: CUDA Driver API, Stream Ordered Memory Allocator.
//!
//! A pool holds memory of its device in steps of 2 MiB and allocates parts of it. Freed memory goes to the next
//! allocation in the same stream, though work may still use it; to allocations in other streams as far as the pool's
//! attributes allow. The order that events make between streams is not followed: with the two other attributes off,
//! memory that was freed in another stream is used again after the next synchronisation. Every allocation has an
//! address of its own, whatever memory it gets, so that the double detects the use of a freed address.
//!
//! Memory of pools belongs to no context. The host's and managed pools are not modelled.

mod functions;
mod order;
mod reserve;
mod share;

use std::collections::BTreeMap;
use std::ptr;

use transload_cuda::raw::{
    CUdevice, CUmemAccess_flags, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation,
    CUmemPool_attribute, CUmemoryPool, CUresult,
};

pub use self::functions::*;
pub use self::order::*;
use self::reserve::{Block, Reserve, Reuse};
pub use self::share::*;
use crate::access::Access;
use crate::registry::{Registry, kind};

const WRONG: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// All pools.
#[derive(Debug)]
pub(crate) struct Pools {
    all: Registry<Pool>,
    /// Each device's own pool, made when it is first requested.
    defaults: BTreeMap<CUdevice, u64>,
    /// The pools that were set in their place.
    chosen: BTreeMap<CUdevice, u64>,
}

/// A pool.
#[derive(Debug)]
struct Pool {
    device: CUdevice,
    origin: Origin,
    types: CUmemAllocationHandleType,
    access: Access,
    reuse: Reuse,
    /// Stored and returned, without an effect.
    follows_events: bool,
    threshold: u64,
    reserve: Reserve,
    /// What is allocated, by address.
    blocks: BTreeMap<u64, Block>,
}

/// The origin of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    Device,
    Client,
    /// Another process, which owns the allocations.
    Imported,
}

impl Pools {
    pub(crate) const fn new() -> Pools {
        Pools {
            all: Registry::new(kind::POOL),
            defaults: BTreeMap::new(),
            chosen: BTreeMap::new(),
        }
    }

    /// # Errors
    /// `INVALID_VALUE` for what is no pool, or was destroyed.
    fn get(&self, handle: CUmemoryPool) -> Result<&Pool, CUresult> {
        self.all.get(number_of(handle)).ok_or(WRONG)
    }

    /// # Errors
    /// As [`Pools::get`].
    fn get_mut(&mut self, handle: CUmemoryPool) -> Result<&mut Pool, CUresult> {
        self.all.get_mut(number_of(handle)).ok_or(WRONG)
    }

    /// Called after the host has waited: free memory becomes free for all streams, and pools shrink to their
    /// thresholds.
    pub(crate) fn observe(&mut self) {
        for (_, pool) in self.all.iter_mut() {
            pool.reserve.trim(pool.threshold);
        }
    }

    /// Adds a line for each pool that a client has.
    pub(crate) fn leaks(&self, lines: &mut Vec<String>) {
        let all = self.all.iter();
        let held = all.filter(|(_, pool)| pool.origin != Origin::Device);
        lines.extend(held.map(|(number, _)| format!("pool {number:#x}")));
    }
}

fn number_of(handle: CUmemoryPool) -> u64 {
    handle.0.addr() as u64
}

fn handle_of(number: u64) -> CUmemoryPool {
    CUmemoryPool(ptr::without_provenance_mut(number as usize))
}

impl Pool {
    fn new(
        device: CUdevice,
        origin: Origin,
        types: CUmemAllocationHandleType,
        reserve: Reserve,
    ) -> Pool {
        let mut access = Access::NONE;
        access.set(
            device,
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        );
        Pool {
            device,
            origin,
            types,
            access,
            reuse: Reuse {
                opportunistic: true,
                internal: true,
            },
            follows_events: true,
            threshold: 0,
            reserve,
            blocks: BTreeMap::new(),
        }
    }

    /// An attribute, and whether it is a number of 64 bits.
    fn attribute(&self, asked: CUmemPool_attribute) -> Result<(u64, bool), CUresult> {
        use CUmemPool_attribute as A;
        let reserve = &self.reserve;
        let location = CUmemLocation::device(self.device.0);
        let word = |value: u32| Ok((u64::from(value), false));
        let long = |value: u64| Ok((value, true));
        match asked {
            A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => word(self.follows_events.into()),
            A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => word(self.reuse.opportunistic.into()),
            A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                word(self.reuse.internal.into())
            }
            A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => long(self.threshold),
            A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => long(reserve.reserved()),
            A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => long(reserve.reserved_high),
            A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => long(reserve.used()),
            A::CU_MEMPOOL_ATTR_USED_MEM_HIGH => long(reserve.used_high),
            ALLOCATION_TYPE => word(CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED.0),
            EXPORT_HANDLE_TYPES => word(self.types.0),
            LOCATION_ID => word(location.id.cast_unsigned()),
            LOCATION_TYPE => word(location.type_.0),
            MAX_POOL_SIZE => long(reserve.most()),
            HW_DECOMPRESS_ENABLED => word(0),
            _ => Err(WRONG),
        }
    }
}

/// Attributes since CUDA 13, which the binding has no names for.
const ALLOCATION_TYPE: CUmemPool_attribute = CUmemPool_attribute(9);
const EXPORT_HANDLE_TYPES: CUmemPool_attribute = CUmemPool_attribute(10);
const LOCATION_ID: CUmemPool_attribute = CUmemPool_attribute(11);
const LOCATION_TYPE: CUmemPool_attribute = CUmemPool_attribute(12);
const MAX_POOL_SIZE: CUmemPool_attribute = CUmemPool_attribute(13);
const HW_DECOMPRESS_ENABLED: CUmemPool_attribute = CUmemPool_attribute(14);
