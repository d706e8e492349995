//! Memory shared between processes: exported allocations and opened handles.
//!
//! A driver opens a handle once in a process, and only one that another process made (CUDA Driver API, Memory
//! Management, cuIpcOpenMemHandle). So all buffers of one handle share its mapping, the last one dropped closes it, and
//! opening a handle that this process made returns the memory that it was made of.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use transload_hal::{
    Buffer, ExternalKind, Fault, ImportError, IpcHandle, MemoryId, MemoryKind, Span, StorageInfo,
    WeakBuffer,
};

use super::pointer::query;
use super::storage::{address, info};
use super::uses::{User, Uses};
use crate::context::Context;
use crate::gpu::{Gpu, Opened};
use crate::ids::DEVICES;
use crate::raw::{
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUdeviceptr, CUipcMemHandle, CUresult, CallError,
};

const KIND: ExternalKind = ExternalKind::CudaIpc;

/// The driver's token for an allocation.
type Token = [u8; IpcHandle::TOKEN_BYTES];

/// The exports and the opened handles of a backend.
#[derive(Default)]
pub(crate) struct Ipc {
    given: Mutex<HashMap<Token, Given>>,
    opened: Arc<Uses<Token, Mapping>>,
}

/// Memory of this process that others may have open.
struct Given {
    start: CUdeviceptr,
    /// The buffers that show parts of it.
    views: Vec<WeakBuffer>,
}

/// Memory of another process, closed when dropped. Closing blocks until the device is idle.
struct Mapping {
    context: Arc<Context>,
    start: CUdeviceptr,
    len: u64,
}

/// The owner of a buffer of another process's memory.
struct View {
    memory: MemoryId,
    handle: IpcHandle,
    context: Arc<Context>,
    /// `Some` until the drop.
    mapping: Option<User<Token, Mapping>>,
}

/// Names the memory of a view for other processes.
pub(super) fn export(gpus: &[Gpu], all: &Ipc, buffer: &Buffer) -> Result<IpcHandle, ImportError> {
    let memory = buffer.memory();
    let unsupported = |reason: String| ImportError::Unsupported {
        memory,
        kind: KIND,
        reason: reason.into(),
    };
    let gpu = gpus.iter().find(|gpu| gpu.id == memory.device);
    let gpu = gpu.filter(|_| memory.kind == MemoryKind::Device);
    let gpu = gpu.ok_or_else(|| {
        unsupported("only memory of a device has handles for other processes".into())
    })?;
    if let Some(view) = buffer.native::<View>() {
        return view.again(buffer.span(), buffer.is_writable());
    }
    let device = gpu
        .facts
        .uuid
        .ok_or_else(|| unsupported("the driver tells no UUID of the device".into()))?;
    let opened = gpu.open().map_err(|fault| failed(memory, fault))?;
    let context = &opened.context;
    let _current = context.enter().map_err(|fault| failed(memory, fault))?;
    let refused = |error| failed(memory, opened.blame(error));
    let known = query(&context.driver, address(buffer)).map_err(refused)?;
    let known = known.filter(|known| known.has_handle).ok_or_else(|| {
        unsupported(
            "it was not allocated in a way that gives handles for other processes, as with `AllocSpec::for_sharing`"
                .into(),
        )
    })?;
    let mut token = CUipcMemHandle::default();
    // SAFETY: the place is ours.
    let named = unsafe {
        context
            .driver
            .cuIpcGetMemHandle(&raw mut token, known.range.start)
    };
    named.map_err(refused)?;
    let token = token.reserved;
    all.remember(token, known.range.start, buffer);
    let span = Span::new(address(buffer) - known.range.start, buffer.len());
    let allocation_bytes = known.range.end - known.range.start;
    let writable = buffer.is_writable();
    let handle = IpcHandle::new(KIND, token, device, allocation_bytes, span, writable);
    handle.map_err(|error| unsupported(error.to_string()))
}

/// Opens a handle, or finds the memory that it names.
///
/// # Safety
/// As `Backend::import`.
pub(super) unsafe fn import(
    gpus: &[Gpu],
    all: &Ipc,
    memory: MemoryId,
    handle: IpcHandle,
) -> Result<Buffer, ImportError> {
    let gpu = place(gpus, memory, &handle)?;
    if let Some(own) = all.own(&handle) {
        return Ok(own);
    }
    let opened = gpu.open().map_err(|fault| failed(memory, fault))?;
    let (start, mapping) = all.open(opened, memory, &handle)?;
    let view = View {
        memory,
        handle,
        context: Arc::clone(&opened.context),
        mapping: Some(mapping),
    };
    let span = handle.span();
    let info = StorageInfo {
        writable: handle.is_writable(),
        ..info(memory, DEVICES, start + span.offset, span.len)
    };
    // SAFETY: the addresses show the other process's memory until the view goes, and that the memory itself is kept
    // there is the caller's promise.
    Ok(unsafe { Buffer::new(info, Box::new(view)) })
}

/// The device of a handle, if it is the device of the memory.
fn place<'a>(
    gpus: &'a [Gpu],
    memory: MemoryId,
    handle: &IpcHandle,
) -> Result<&'a Gpu, ImportError> {
    let invalid = |reason: String| ImportError::Invalid {
        memory,
        kind: KIND,
        reason: reason.into(),
    };
    let uuid = handle.device();
    let of_handle = gpus.iter().find(|gpu| gpu.facts.uuid == Some(uuid));
    let of_handle = of_handle.ok_or_else(|| {
        invalid(format!(
            "it is of the device {uuid}, which this process does not see"
        ))
    })?;
    match of_handle.id.memory(MemoryKind::Device) == memory {
        true => Ok(of_handle),
        false => Err(invalid(format!("it is of {}/device, {uuid}", of_handle.id))),
    }
}

impl Ipc {
    /// Remembers an export, so that an import in this process finds it.
    fn remember(&self, token: Token, start: CUdeviceptr, buffer: &Buffer) {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.retain(|_, of| {
            of.views.retain(|view| !view.is_gone());
            !of.views.is_empty()
        });
        let new = || Given {
            start,
            views: Vec::new(),
        };
        let views = &mut given.entry(token).or_insert_with(new).views;
        if !views.iter().any(|view| view.is_of(buffer)) {
            views.push(buffer.whole().downgrade());
        }
    }

    /// The buffer of a handle that this process made, as long as the buffer lives.
    fn own(&self, handle: &IpcHandle) -> Option<Buffer> {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let of = given.get(handle.token())?;
        let position = of.start + handle.span().offset;
        let views: Vec<_> = of.views.iter().filter_map(WeakBuffer::upgrade).collect();
        // Unlocked before the views are dropped: a view that is the last one by now frees its memory.
        drop(given);
        views.iter().find_map(|view| {
            let offset = position.checked_sub(view.position())?;
            view.slice(offset, handle.span().len)
        })
    }

    /// Returns the address of the handle's memory, and a new user of the mapping.
    fn open(
        &self,
        opened: &Opened,
        memory: MemoryId,
        handle: &IpcHandle,
    ) -> Result<(CUdeviceptr, User<Token, Mapping>), ImportError> {
        let token = *handle.token();
        let mut all = self.opened.lock();
        while let Some(used) = all.get_mut(&token) {
            let Some(mapping) = &used.what else {
                all = self.opened.wait(all);
                continue;
            };
            fits(memory, handle, mapping.len)?;
            let start = mapping.start;
            return Ok((start, User::another(&self.opened, (token, used))));
        }
        let mapping = Mapping::open(opened, memory, handle)?;
        let start = mapping.start;
        Ok((start, User::first(&self.opened, &mut all, (token, mapping))))
    }
}

impl Mapping {
    fn open(opened: &Opened, memory: MemoryId, handle: &IpcHandle) -> Result<Mapping, ImportError> {
        let context = &opened.context;
        let _current = context.enter().map_err(|fault| failed(memory, fault))?;
        let mut start = 0;
        let token = CUipcMemHandle {
            reserved: *handle.token(),
        };
        let flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
        // SAFETY: the place is ours, and what is no handle is told.
        let answer = unsafe {
            context
                .driver
                .cuIpcOpenMemHandle_v2(&raw mut start, token, flags)
        };
        answer.map_err(|error| refusal(opened, memory, error))?;
        let mut mapping = Mapping {
            context: Arc::clone(context),
            start,
            len: handle.allocation_bytes(),
        };
        // If the driver cannot report the length of the allocation, the handle's length is used.
        if let Ok(Some(known)) = query(&context.driver, start) {
            mapping.len = known.left(start);
        }
        fits(memory, handle, mapping.len)?;
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A lost context has no mappings any more.
        if let Ok(_current) = self.context.enter() {
            // SAFETY: it was opened once, and no operation uses it any more.
            let _ = unsafe { self.context.driver.cuIpcCloseMemHandle(self.start) };
        }
    }
}

/// Whether an allocation is as long as its handle says.
fn fits(memory: MemoryId, handle: &IpcHandle, len_bytes: u64) -> Result<(), ImportError> {
    match handle.allocation_bytes() <= len_bytes {
        true => Ok(()),
        false => Err(ImportError::Invalid {
            memory,
            kind: KIND,
            reason: format!(
                "it says that it is of {} bytes, and the driver opens {len_bytes}",
                handle.allocation_bytes()
            )
            .into(),
        }),
    }
}

/// Why the driver refused to open a handle.
fn refusal(opened: &Opened, memory: MemoryId, error: CallError) -> ImportError {
    let reason = match error.result() {
        Some(CUresult::CUDA_ERROR_INVALID_CONTEXT) => {
            "it is of this process itself, where the buffer that it was made of has gone or is another manager's, or \
             another context of the device has opened memory of its process"
        }
        Some(CUresult::CUDA_ERROR_INVALID_HANDLE | CUresult::CUDA_ERROR_INVALID_VALUE) => {
            "the driver knows no such memory: it was freed, its process has ended, or this is no handle"
        }
        _ => return failed(memory, opened.blame(error)),
    };
    ImportError::Invalid {
        memory,
        kind: KIND,
        reason: reason.into(),
    }
}

fn failed(memory: MemoryId, fault: Fault) -> ImportError {
    ImportError::Failed {
        memory,
        kind: KIND,
        fault,
    }
}

impl View {
    /// Exports a part of the view by the same handle, because the memory still belongs to the other process.
    fn again(&self, span: Span, writable: bool) -> Result<IpcHandle, ImportError> {
        let handle = &self.handle;
        let span = Span::new(handle.span().offset + span.offset, span.len);
        let again = IpcHandle::new(
            KIND,
            *handle.token(),
            handle.device(),
            handle.allocation_bytes(),
            span,
            writable,
        );
        again.map_err(|error| ImportError::Invalid {
            memory: self.memory,
            kind: KIND,
            reason: error.to_string().into(),
        })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let mapping = self.mapping.take();
        self.context.reapers.own.free(move || drop(mapping));
    }
}
