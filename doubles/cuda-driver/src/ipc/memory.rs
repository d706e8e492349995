//! Memory of devices, in several processes.
//!
//! Each exported allocation has a page that describes it to other processes and ends with the memory: a handle of freed
//! memory opens nothing. The documentation does not define the behaviour of memory that is freed while other processes
//! have it open; here they see the writes of its next owner.

use std::ffi::c_uint;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::{pread, pwrite};
use transload_cuda::raw::{
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUcontext, CUdevice, CUdeviceptr, CUipcMemHandle, CUresult,
};

use super::{MEMORY, Name, Opened, inode};
use crate::answer::put;
use crate::bytes::Bytes;
use crate::call::{Call, driver};
use crate::memory::let_go;
use crate::shared::{Kind, Label};
use crate::space::{ALIGNMENT, Allocation, Sort};
use crate::state::State;

/// The place of a process's memory, as its page describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Export {
    /// A descriptor of the process's, and the number of the file that it is of.
    fd: u32,
    inode: u64,
    offset: u64,
    size: u64,
    uuid: [u8; 16],
}

impl Export {
    const LEN: usize = 32;

    /// # Errors
    /// `OUT_OF_MEMORY` when the system has no page.
    fn page(&self) -> Result<OwnedFd, CUresult> {
        let label = Label {
            kind: Kind::Memory,
            size: 4096,
            uuid: self.uuid,
            word: 0,
        };
        let mut bytes = [0; Export::LEN];
        bytes[..8].copy_from_slice(&u64::from(self.fd).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.inode.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..].copy_from_slice(&self.size.to_le_bytes());
        let page = label
            .file()
            .and_then(|file| pwrite(&file, &bytes, 0).map(|_| file));
        page.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    fn read(page: &OwnedFd) -> Option<Export> {
        let label = Label::read(page).filter(|label| label.kind == Kind::Memory)?;
        let mut bytes = [0; Export::LEN];
        pread(page, &mut bytes, 0)
            .ok()
            .filter(|len| *len == Export::LEN)?;
        let (words, _) = bytes.as_chunks::<8>();
        let [fd, inode, offset, size] = *words else {
            return None;
        };
        Some(Export {
            fd: u64::from_le_bytes(fd).try_into().ok()?,
            inode: u64::from_le_bytes(inode),
            offset: u64::from_le_bytes(offset),
            size: u64::from_le_bytes(size),
            uuid: label.uuid,
        })
    }
}

impl State {
    /// # Errors
    /// `INVALID_VALUE` for what is not the beginning of memory of `cuMemAlloc`.
    fn export(&self, base: CUdeviceptr) -> Result<Name, CUresult> {
        let found = self.space.get(base).filter(|of| of.sort == Sort::Device);
        let allocation = found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let bytes = &allocation.bytes;
        if let Some(page) = bytes.exported.get() {
            return Name::of(MEMORY, page.as_fd());
        }
        let (file, offset) = bytes.file().ok_or(CUresult::CUDA_ERROR_MAP_FAILED)?;
        let page = Export {
            fd: file.as_raw_fd().unsigned_abs(),
            inode: inode(file).ok_or(CUresult::CUDA_ERROR_OPERATING_SYSTEM)?,
            offset,
            size: allocation.size,
            uuid: self.device(allocation.device)?.description.uuid.0,
        }
        .page()?;
        // The caller holds the state's lock, so no other thread does this meanwhile.
        Name::of(MEMORY, bytes.exported.get_or_init(|| page).as_fd())
    }

    /// # Errors
    /// As documented for `cuIpcOpenMemHandle`.
    fn open(&mut self, call: &Call, name: Name) -> Result<CUdeviceptr, CUresult> {
        let (context, current) = call.current(self)?;
        let space = &self.space;
        self.ipc.opened.retain(|base, _| space.get(*base).is_some());
        let mut opened = self.ipc.opened.iter_mut();
        if let Some((base, again)) = opened.find(|(_, of)| of.name == name && of.context == context)
        {
            again.holders += 1;
            return Ok(*base);
        }
        let export = Export::read(&name.open()?).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let failed = CUresult::CUDA_ERROR_MAP_FAILED;
        let device = self.device_of_uuid(export.uuid).map_err(|_| failed)?;
        self.may_open(call, name, device, (context, current))?;
        let file = Name {
            fd: export.fd,
            inode: export.inode,
            ..name
        }
        .open()?;
        let bytes = Bytes::of_file(file, export.offset, export.size as usize);
        let bytes = bytes.map_err(|_| failed)?;
        let base = self
            .space
            .reserve(export.size, ALIGNMENT)
            .map_err(|_| failed)?;
        let added = self.space.add(Allocation {
            base,
            size: export.size,
            sort: Sort::Ipc,
            device,
            context,
            flags: 0,
            id: 0,
            bytes,
            offset: 0,
        });
        added.map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        let opened = Opened {
            name,
            context,
            device,
            holders: 1,
        };
        self.ipc.opened.insert(base, opened);
        Ok(base)
    }

    /// Whether a context may open memory of another process's device: if its own device reaches that one, and no
    /// other context of its device has opened any of that process and device.
    fn may_open(
        &self,
        call: &Call,
        name: Name,
        device: CUdevice,
        (context, current): (CUcontext, CUdevice),
    ) -> Result<(), CUresult> {
        let reached = device == current
            || call
                .world
                .machine
                .can_access(current.0 as usize, device.0 as usize);
        if !reached {
            return Err(CUresult::CUDA_ERROR_MAP_FAILED);
        }
        let taken = self.ipc.opened.values().any(|of| {
            let device_of = self.context(of.context).map(|context| context.device);
            of.name.process == name.process
                && of.device == device
                && of.context != context
                && device_of == Ok(current)
        });
        if taken {
            Err(CUresult::CUDA_ERROR_INVALID_CONTEXT)
        } else {
            Ok(())
        }
    }
}

driver! {
    /// Memory of `cuMemAlloc` only, by where it begins. Asking again gives the same handle.
    fn cuIpcGetMemHandle(p_handle: *mut CUipcMemHandle, dptr: CUdeviceptr), call => {
        let state = call.state();
        call.current(&state)?;
        if p_handle.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let reserved = state.export(dptr)?.encode();
        // SAFETY: the caller passes a valid out-pointer for a handle.
        unsafe { put(p_handle, CUipcMemHandle { reserved }) }
    }

    /// Not in the process that the memory is of. The same memory has one address in a context, and counts how
    /// often it was opened.
    fn cuIpcOpenMemHandle_v2(pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint), call => {
        if pdptr.is_null() || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut state = call.state();
        call.current(&state)?;
        let name = Name::decode(MEMORY, &handle.reserved)?;
        let base = state.open(call, name)?;
        // SAFETY: the caller passes a valid out-pointer for an address.
        unsafe { put(pdptr, base) }
    }

    /// Removes the address when it was closed as often as it was opened, after all work in flight.
    fn cuIpcCloseMemHandle(dptr: CUdeviceptr), call => {
        let mut state = call.state();
        call.current(&state)?;
        let wrong = CUresult::CUDA_ERROR_INVALID_VALUE;
        let found = state.space.get(dptr).filter(|of| of.sort == Sort::Ipc);
        found.ok_or(wrong)?;
        let opened = state.ipc.opened.get_mut(&dptr).ok_or(wrong)?;
        opened.holders -= 1;
        if opened.holders > 0 {
            return Ok(());
        }
        state.ipc.opened.remove(&dptr);
        let allocation = state.space.remove(dptr).ok_or(wrong)?;
        let_go(call, state, allocation)
    }
}
