//! Pools that several processes have: one gives memory out, the others map it.
//!
//! The reference leaves the order between the processes to them: neither does an import wait for the allocation,
//! nor a free for the others'. An imported pool holds nothing itself.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, IntoRawFd};

use rustix::fs::fstat;
use transload_cuda::raw::{
    CUcontext, CUdeviceptr, CUmemAllocationHandleType, CUmemPoolPtrExportData, CUmemoryPool,
    CUresult,
};

use super::reserve::Reserve;
use super::{Origin, Pool, WRONG, handle_of};
use crate::answer::put;
use crate::bytes::Bytes;
use crate::call::driver;
use crate::physical::GRAIN;
use crate::shared::{Kind, Label, client_file};
use crate::space::{ALIGNMENT, Allocation, Sort};
use crate::state::State;
use crate::vmm::{one_handle_type, read};

const SYSTEM: CUresult = CUresult::CUDA_ERROR_OPERATING_SYSTEM;

/// The name of an allocation for another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Name {
    /// The file's number in the system, which tells pools apart.
    file: u64,
    start: u64,
    size: u64,
}

const MAGIC: &[u8; 16] = b"transload pool 1";

impl Name {
    fn encode(self) -> CUmemPoolPtrExportData {
        let mut data = CUmemPoolPtrExportData::default();
        let words = [self.file, self.start, self.size];
        let bytes = MAGIC
            .iter()
            .copied()
            .chain(words.iter().flat_map(|word| word.to_le_bytes()));
        for (place, byte) in data.reserved.iter_mut().zip(bytes) {
            *place = byte;
        }
        data
    }

    fn decode(data: &CUmemPoolPtrExportData) -> Option<Name> {
        let rest = data.reserved.strip_prefix(MAGIC)?;
        let mut words = rest
            .as_chunks()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word));
        Some(Name {
            file: words.next()?,
            start: words.next()?,
            size: words.next()?,
        })
    }
}

impl Pool {
    fn file_number(&self) -> Result<u64, CUresult> {
        let stat = fstat(&self.reserve.file).map_err(|_| SYSTEM)?;
        Ok(stat.st_ino)
    }
}

impl State {
    fn import_pool(&mut self, fd: c_int) -> Result<u64, CUresult> {
        let file = client_file(fd).ok_or(WRONG)?;
        let label = Label::read(&file).filter(|label| label.kind == Kind::Pool);
        let device = self.device_of_uuid(label.ok_or(WRONG)?.uuid)?;
        let reserve = Reserve::new(file, self.device(device)?.memory()?.clone(), 0);
        let types = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        Ok(self
            .pools
            .all
            .add(Pool::new(device, Origin::Imported, types, reserve)))
    }

    fn name_of(&self, address: CUdeviceptr) -> Result<Name, CUresult> {
        let allocation = self.space.get(address).ok_or(WRONG)?;
        let Sort::Pool { pool, .. } = allocation.sort else {
            return Err(WRONG);
        };
        let of = self.pools.get(pool)?;
        if of.types == CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE {
            return Err(WRONG);
        }
        Ok(Name {
            file: of.file_number()?,
            start: of.blocks.get(&address).ok_or(WRONG)?.start(),
            size: allocation.size,
        })
    }

    fn import_pointer(&mut self, pool: CUmemoryPool, name: Name) -> Result<CUdeviceptr, CUresult> {
        let of = self.pools.get(pool)?;
        let room = Label::read(&of.reserve.file).ok_or(SYSTEM)?.size;
        let end = name.start.checked_add(name.size).filter(|end| *end <= room);
        let end = end.ok_or(WRONG)?;
        if of.origin != Origin::Imported || name.size == 0 || of.file_number()? != name.file {
            return Err(WRONG);
        }
        let start = name.start / GRAIN * GRAIN;
        let file = of
            .reserve
            .file
            .as_fd()
            .try_clone_to_owned()
            .map_err(|_| SYSTEM)?;
        let bytes = Bytes::of_file(file, start, (end - start) as usize);
        let bytes = bytes.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let (device, access) = (of.device, of.access);
        let base = self.space.reserve(name.size, ALIGNMENT);
        let base = base.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let added = self.space.add(Allocation {
            base,
            size: name.size,
            sort: Sort::Pool { pool, access },
            device,
            context: CUcontext::NULL,
            flags: 0,
            id: 0,
            bytes,
            offset: (name.start - start) as usize,
        });
        added.map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        Ok(base)
    }
}

driver! {
    /// A new file descriptor, the caller's to close, of a pool that was made to be given out so.
    fn cuMemPoolExportToShareableHandle(
        handle_out: *mut c_void,
        pool: CUmemoryPool,
        handle_type: CUmemAllocationHandleType,
        flags: u64,
    ), call => {
        one_handle_type(handle_type)?;
        let state = call.state();
        let of = state.pools.get(pool)?;
        if handle_out.is_null() || flags != 0 || of.types.0 & handle_type.0 == 0 {
            return Err(WRONG);
        }
        let file = of.reserve.file.try_clone().map_err(|_| SYSTEM)?;
        // SAFETY: the caller passes a valid out-pointer for a file descriptor.
        unsafe { put(handle_out.cast::<c_int>(), file.into_raw_fd()) }
    }

    /// The file descriptor, which comes as a pointer of its value, stays the caller's. Nothing can be allocated
    /// from the pool.
    fn cuMemPoolImportFromShareableHandle(
        pool_out: *mut CUmemoryPool,
        handle: *mut c_void,
        handle_type: CUmemAllocationHandleType,
        flags: u64,
    ), call => {
        one_handle_type(handle_type)?;
        if pool_out.is_null() || flags != 0 {
            return Err(WRONG);
        }
        let imported = call.state().import_pool(handle.addr() as c_int)?;
        // SAFETY: the caller passes a valid out-pointer for a pool.
        unsafe { put(pool_out, handle_of(imported)) }
    }

    /// By the first byte of an allocation.
    fn cuMemPoolExportPointer(share_data_out: *mut CUmemPoolPtrExportData, ptr: CUdeviceptr), call => {
        let name = call.state().name_of(ptr)?;
        // SAFETY: the caller passes a valid out-pointer for data.
        unsafe { put(share_data_out, name.encode()) }
    }

    /// An allocation of the pool that was imported. It is freed as an allocation of this process is.
    fn cuMemPoolImportPointer(
        ptr_out: *mut CUdeviceptr,
        pool: CUmemoryPool,
        share_data: *mut CUmemPoolPtrExportData,
    ), call => {
        if ptr_out.is_null() {
            return Err(WRONG);
        }
        // SAFETY: the caller's data.
        let data = unsafe { read(share_data.cast_const()) }?;
        let name = Name::decode(&data).ok_or(WRONG)?;
        let base = call.state().import_pointer(pool, name)?;
        // SAFETY: the caller passes a valid out-pointer for an address.
        unsafe { put(ptr_out, base) }
    }
}
