//! Allocating and freeing in the order of streams.
//!
//! Of memory from `cuMemAlloc` that is freed so: CUDA C++ Programming Guide, Stream Ordered Memory Allocator.
//!
//! A freed address is invalid from then on, though its stream has not reached that point: the reference calls any later
//! use undefined, and here it is refused. Work that was put into streams before still finds the memory. If an
//! allocation is used in another stream before its own stream has reached it, the double does not notice, except for
//! the bytes that the work then finds.

use transload_cuda::raw::{CUcontext, CUdeviceptr, CUmemoryPool, CUresult, CUstream};

use super::{Origin, WRONG, handle_of};
use crate::answer::{Answer, put};
use crate::call::{Call, driver};
use crate::engine::Action;
use crate::log::Count;
use crate::space::{ALIGNMENT, Allocation, Sort};
use crate::state::State;
use crate::work::at_once;

impl State {
    fn allocate_in_order(
        &mut self,
        call: &Call,
        size: u64,
        pool: Option<CUmemoryPool>,
        stream: CUstream,
    ) -> Result<CUdeviceptr, CUresult> {
        let stream = self.stream_number(stream)?;
        self.unfinished(stream)?;
        let pool = match pool {
            Some(pool) => pool,
            None => {
                let context = self.stream(stream)?.context;
                let device = self.context(context)?.device;
                handle_of(self.current_pool(device)?)
            }
        };
        let of = self.pools.get_mut(pool)?;
        if size == 0 || of.origin == Origin::Imported {
            return Err(WRONG);
        }
        call.world.faults.on_allocation()?;
        let out_of_memory = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let taken = of
            .reserve
            .take(size, stream, of.reuse)
            .ok_or(out_of_memory)?;
        let (device, access) = (of.device, of.access);
        let base = match self.space.reserve(size, ALIGNMENT) {
            Ok(base) => base,
            Err(_) => {
                self.pools.get_mut(pool)?.reserve.free(taken.block);
                return Err(out_of_memory);
            }
        };
        self.pools.get_mut(pool)?.blocks.insert(base, taken.block);
        let added = self.space.add(Allocation {
            base,
            size,
            sort: Sort::Pool { pool, access },
            device,
            context: CUcontext::NULL,
            flags: 0,
            id: 0,
            bytes: taken.bytes,
            offset: taken.offset,
        });
        added.map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        let after = taken.after.into_iter().collect();
        self.append(call.world, stream, vec![at_once(after, Action::Nothing)])?;
        call.world.log.add(Count::Allocations, 1);
        Ok(base)
    }

    fn free_in_order(&mut self, call: &Call, base: CUdeviceptr, stream: CUstream) -> Answer {
        let stream = self.stream_number(stream)?;
        self.unfinished(stream)?;
        let found = self.space.get(base).map(|of| of.sort);
        let sort = found.filter(|sort| matches!(sort, Sort::Pool { .. } | Sort::Device));
        let sort = sort.ok_or(WRONG)?;
        let freed = self.space.remove(base).ok_or(WRONG)?;
        // Memory that belongs to no existing pool is freed when the stream has reached that point.
        let action = Action::Move(Box::new(move || drop(freed)));
        let done = self.append(call.world, stream, vec![at_once(Vec::new(), action)])?;
        if let Sort::Pool { pool, .. } = sort
            && let Ok(of) = self.pools.get_mut(pool)
            && let Some(block) = of.blocks.remove(&base)
        {
            of.reserve.free_after(block, stream, done);
        }
        Ok(())
    }

    /// Frees memory of a pool for any stream at once.
    pub(crate) fn free_to_pool(&mut self, pool: CUmemoryPool, base: CUdeviceptr) {
        self.space.remove(base);
        if let Ok(of) = self.pools.get_mut(pool)
            && let Some(block) = of.blocks.remove(&base)
        {
            of.reserve.free(block);
        }
    }
}

driver! {
    /// Allocates from the current pool of the stream's device. Aligned to 512 bytes; the memory keeps its previous
    /// bytes.
    fn cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, h_stream: CUstream), call => {
        if dptr.is_null() {
            return Err(WRONG);
        }
        let base = call.state().allocate_in_order(call, bytesize as u64, None, h_stream)?;
        // SAFETY: the caller passes a valid out-pointer for an address.
        unsafe { put(dptr, base) }
    }

    /// The pool may be of another device than the stream.
    fn cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, h_stream: CUstream), call => {
        if dptr.is_null() {
            return Err(WRONG);
        }
        let base = call.state().allocate_in_order(call, bytesize as u64, Some(pool), h_stream)?;
        // SAFETY: the caller passes a valid out-pointer for an address.
        unsafe { put(dptr, base) }
    }

    /// Memory of a pool, or of `cuMemAlloc`.
    fn cuMemFreeAsync(dptr: CUdeviceptr, h_stream: CUstream), call => {
        call.state().free_in_order(call, dptr, h_stream)
    }
}
