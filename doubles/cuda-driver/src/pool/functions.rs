//! The driver's functions on pools.

use std::ffi::{c_int, c_void};

use transload_cuda::raw::{
    CUdevice, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationType,
    CUmemLocationType, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUresult,
};

use super::reserve::Reserve;
use super::{Origin, Pool, WRONG, handle_of, number_of};
use crate::answer::{Answer, put};
use crate::call::{Call, driver};
use crate::shared::{Kind, Label};
use crate::space::Sort;
use crate::state::State;
use crate::vmm::{device_at, handle_types, reaches, read};

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

    pub(super) fn current_pool(&mut self, device: CUdevice) -> Result<u64, CUresult> {
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
