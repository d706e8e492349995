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

mod order;
mod reserve;
mod share;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr;

use transload_cuda::raw::{
    CUdevice, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationType,
    CUmemLocation, CUmemLocationType, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUresult,
};

pub use self::order::*;
use self::reserve::{Block, Reserve, Reuse};
pub use self::share::*;
use crate::access::Access;
use crate::call::{Answer, Call, driver, put};
use crate::registry::Registry;
use crate::shared::{Kind, Label};
use crate::space::Sort;
use crate::state::{State, kind};
use crate::vmm::{device_at, handle_types, reaches, read};

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

impl State {
    /// # Errors
    /// When the device is none, and when the system has no memory for it.
    fn make_pool(
        &mut self,
        device: CUdevice,
        origin: Origin,
        types: CUmemAllocationHandleType,
        most: u64,
    ) -> Result<u64, CUresult> {
        let of = self.device(device)?;
        let memory = of.memory()?.clone();
        let label = Label {
            kind: Kind::Pool,
            size: memory.info().1,
            uuid: of.description.uuid.0,
            word: 0,
        };
        let file = label.file();
        let file = file.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let reserve = Reserve::new(file, memory, most);
        Ok(self
            .pools
            .all
            .add(Pool::new(device, origin, types, reserve)))
    }

    fn default_pool(&mut self, device: CUdevice) -> Result<u64, CUresult> {
        self.device(device)?;
        if let Some(pool) = self.pools.defaults.get(&device) {
            return Ok(*pool);
        }
        let types = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        let pool = self.make_pool(device, Origin::Device, types, 0)?;
        self.pools.defaults.insert(device, pool);
        Ok(pool)
    }

    fn current_pool(&mut self, device: CUdevice) -> Result<u64, CUresult> {
        match self.pools.chosen.get(&device) {
            Some(pool) => Ok(*pool),
            None => self.default_pool(device),
        }
    }

    /// The device that a pool is to be of, if all else that is wished for is modelled too.
    ///
    /// # Errors
    /// What a wish that is not modelled or means nothing is answered with.
    fn pool_wished(&self, wish: &CUmemPoolProps) -> Result<CUdevice, CUresult> {
        use CUmemLocationType as L;
        let not_modelled = CUresult::CUDA_ERROR_NOT_SUPPORTED;
        match wish.allocType {
            CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED => {}
            CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED => return Err(not_modelled),
            _ => return Err(WRONG),
        }
        handle_types(wish.handleTypes)?;
        if !wish.win32SecurityAttributes.is_null() || wish.reserved != [0; 54] {
            return Err(WRONG);
        }
        if wish.usage != 0 {
            return Err(not_modelled);
        }
        let shared = wish.handleTypes != CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        match wish.location.type_ {
            L::CU_MEM_LOCATION_TYPE_DEVICE => {
                let device = CUdevice(wish.location.id);
                self.device(device).map_err(|_| WRONG)?;
                Ok(device)
            }
            L::CU_MEM_LOCATION_TYPE_HOST if shared => Err(WRONG),
            L::CU_MEM_LOCATION_TYPE_HOST | L::CU_MEM_LOCATION_TYPE_HOST_NUMA => Err(not_modelled),
            _ => Err(WRONG),
        }
    }

    /// # Errors
    /// Before anything is changed.
    fn set_pool_access(
        &mut self,
        call: &Call,
        handle: CUmemoryPool,
        wishes: &[CUmemAccessDesc],
    ) -> Answer {
        use CUmemAccess_flags as F;
        let pool = self.pools.get(handle)?;
        let (own, mut granted) = (pool.device, pool.access);
        for wish in wishes {
            let device = device_at(self, wish.location)?;
            match wish.flags {
                // A device always has access to its own pools.
                F::CU_MEM_ACCESS_FLAGS_PROT_NONE if device == own => return Err(WRONG),
                F::CU_MEM_ACCESS_FLAGS_PROT_NONE => {}
                F::CU_MEM_ACCESS_FLAGS_PROT_READWRITE if reaches(call, device, own) => {}
                F::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => {
                    return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
                }
                F::CU_MEM_ACCESS_FLAGS_PROT_READ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
                _ => return Err(WRONG),
            }
            granted.set(device, wish.flags);
        }
        self.pools.get_mut(handle)?.access = granted;
        for allocation in self.space.iter_mut() {
            if let Sort::Pool { pool, access } = &mut allocation.sort
                && *pool == handle
            {
                *access = granted;
            }
        }
        Ok(())
    }
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

driver! {
    /// The device's own.
    fn cuDeviceGetDefaultMemPool(pool_out: *mut CUmemoryPool, dev: CUdevice), call => {
        let pool = call.state().default_pool(dev)?;
        // SAFETY: the caller passes a valid out-pointer for a pool.
        unsafe { put(pool_out, handle_of(pool)) }
    }

    /// The one that was set, else the device's own.
    fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, dev: CUdevice), call => {
        let current = call.state().current_pool(dev)?;
        // SAFETY: the caller passes a valid out-pointer for a pool.
        unsafe { put(pool, handle_of(current)) }
    }

    /// A pool of that device, which can be allocated from.
    fn cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool), call => {
        let mut state = call.state();
        state.device(dev)?;
        let of = state.pools.get(pool)?;
        if of.device != dev || of.origin == Origin::Imported {
            return Err(WRONG);
        }
        state.pools.chosen.insert(dev, number_of(pool));
        Ok(())
    }

    /// Of a device's memory, for this process or to be given out as file descriptor.
    fn cuMemPoolCreate(pool: *mut CUmemoryPool, pool_props: *const CUmemPoolProps), call => {
        if pool.is_null() {
            return Err(WRONG);
        }
        // SAFETY: the caller's properties.
        let wish = unsafe { read(pool_props) }?;
        let mut state = call.state();
        let device = state.pool_wished(&wish)?;
        let most = wish.maxSize as u64;
        let made = state.make_pool(device, Origin::Client, wish.handleTypes, most)?;
        // SAFETY: the caller passes a valid out-pointer for a pool.
        unsafe { put(pool, handle_of(made)) }
    }

    /// Allocations keep their memory until they are freed. A device that had the pool set returns to its own.
    fn cuMemPoolDestroy(pool: CUmemoryPool), call => {
        let mut state = call.state();
        if state.pools.get(pool)?.origin == Origin::Device {
            return Err(WRONG);
        }
        state.pools.chosen.retain(|_, chosen| *chosen != number_of(pool));
        state.pools.all.remove(number_of(pool));
        Ok(())
    }

    /// Keeps at least `min_bytes_to_keep`, and all memory in use.
    fn cuMemPoolTrimTo(pool: CUmemoryPool, min_bytes_to_keep: usize), call => {
        let mut state = call.state();
        state.pools.get_mut(pool)?.reserve.trim(min_bytes_to_keep as u64);
        Ok(())
    }

    /// The high-water marks can only be set to zero: counting begins again at the present values.
    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void), call => {
        use CUmemPool_attribute as A;
        let mut state = call.state();
        let of = state.pools.get_mut(pool)?;
        match attr {
            A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
            | A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
            | A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                // SAFETY: the caller's value is as long as this attribute.
                let set = unsafe { read(value.cast::<c_int>()) }? != 0;
                match attr {
                    A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => of.reuse.opportunistic = set,
                    A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => of.reuse.internal = set,
                    _ => of.follows_events = set,
                }
            }
            A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
            | A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
            | A::CU_MEMPOOL_ATTR_USED_MEM_HIGH => {
                // SAFETY: as above.
                let set = unsafe { read(value.cast::<u64>()) }?;
                match attr {
                    A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => of.threshold = set,
                    _ if set != 0 => return Err(WRONG),
                    A::CU_MEMPOOL_ATTR_USED_MEM_HIGH => of.reserve.used_high = of.reserve.used(),
                    _ => of.reserve.reserved_high = of.reserve.reserved(),
                }
            }
            _ => return Err(WRONG),
        }
        Ok(())
    }

    /// Memory that was freed counts as used until its stream has come so far.
    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void), call => {
        call.world.settle();
        let state = call.state();
        let (number, long) = state.pools.get(pool)?.attribute(attr)?;
        if long {
            // SAFETY: the caller passes a valid out-pointer for a number of this length.
            unsafe { put(value.cast::<u64>(), number) }
        } else {
            // SAFETY: as above.
            unsafe { put(value.cast::<u32>(), number as u32) }
        }
    }

    /// Access to read and write, or none; it also applies to existing allocations. Read-only access is not modelled.
    fn cuMemPoolSetAccess(pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize), call => {
        if map.is_null() || count == 0 {
            return Err(WRONG);
        }
        let mut wishes = Vec::new();
        for index in 0..count {
            // SAFETY: the caller's array is as long as it says.
            let at = unsafe { map.add(index) };
            // SAFETY: as above.
            wishes.push(unsafe { read(at) }?);
        }
        call.state().set_pool_access(call, pool, &wishes)
    }
}
