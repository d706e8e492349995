//! The storages behind the buffers of this backend.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use transload_hal::{AllocError, AllocSpec, Buffer, Fault, HostSpan, Room, StorageInfo, Taken};
use transload_hal::{MemoryId, MemoryKind};

use crate::exit::DriverObject;
use crate::gpu::Gpu;
use crate::storage::{OFFSETS, USAGES, WORD, check_spec, failed, handle_of, info, refused};

/// A staging slot: mapped, except while the device uses it.
pub(crate) struct Slot {
    pub(crate) buffer: wgpu::Buffer,
    mode: wgpu::MapMode,
    state: Mutex<SlotState>,
}

#[derive(Default)]
struct SlotState {
    /// Submissions that use it and have not ended.
    uses: u32,
    view: Option<View>,
}

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotStatus {
    /// The host has it mapped.
    Mapped,
    /// The device uses it.
    InUse,
    /// Neither can use it: it could not be mapped again.
    Broken,
}

/// Keeps a mapping open.
enum View {
    Read(wgpu::BufferView),
    Write(wgpu::BufferViewMut),
}

impl View {
    fn start(&mut self) -> Option<NonNull<u8>> {
        match self {
            View::Read(view) => NonNull::new(view.as_ptr().cast_mut()),
            View::Write(view) => Some(view.slice(..).as_raw_ptr().cast()),
        }
    }
}

impl Slot {
    /// Whether the host can reach it now.
    pub(crate) fn is_mapped(&self) -> bool {
        self.lock().view.is_some()
    }

    /// The slot's state now.
    pub(crate) fn status(&self) -> SlotStatus {
        let state = self.lock();
        match (&state.view, state.uses) {
            (Some(_), _) => SlotStatus::Mapped,
            (None, 0) => SlotStatus::Broken,
            (None, _) => SlotStatus::InUse,
        }
    }

    /// Reads the slot's bytes from byte `from` on. Returns false if the host cannot reach the slot, or if
    /// the range ends beyond it.
    pub(crate) fn read(&self, from: u64, out: &mut wgpu::BufferViewMut) -> bool {
        let mut state = self.lock();
        let start = state.view.as_mut().and_then(View::start);
        let fits = from.saturating_add(out.len() as u64) <= self.buffer.size();
        let (Some(start), true, Ok(from)) = (start, fits, usize::try_from(from)) else {
            return false;
        };
        // SAFETY: the mapping is as long as the buffer, and the range lies within it.
        let first = unsafe { start.add(from) };
        // SAFETY: the lock keeps the mapping open; while the host reads a slot nothing writes it.
        let bytes = unsafe { std::slice::from_raw_parts(first.as_ptr(), out.len()) };
        out.copy_from_slice(bytes);
        true
    }

    /// Takes the slot from the host, for one more submission.
    pub(crate) fn begin_use(&self, of: &Buffer) {
        let mut state = self.lock();
        state.uses += 1;
        // SAFETY: nothing on the host accesses the bytes while the device uses them, and `None` shows
        // none.
        unsafe { of.set_mapped(None) };
        if state.view.take().is_some() {
            self.buffer.unmap();
        }
    }

    /// Gives the slot back after a submission has ended; maps it when that was the last one. Blocks until
    /// it is mapped, which no work delays.
    pub(crate) fn end_use(&self, of: &Buffer, gpu: &Gpu) -> Result<(), Fault> {
        let mut state = self.lock();
        state.uses -= 1;
        if state.uses > 0 {
            return Ok(());
        }
        gpu.map_idle(&self.buffer, self.mode)?;
        let mapped = match self.mode {
            wgpu::MapMode::Read => self.buffer.get_mapped_range(..).map(View::Read),
            wgpu::MapMode::Write => self.buffer.get_mapped_range_mut(..).map(View::Write),
        };
        let mut view = mapped.map_err(|error| failed(&error))?;
        let start = view.start();
        state.view = Some(view);
        // SAFETY: the view keeps the mapping open until `begin_use`, which takes the address back first.
        unsafe { of.set_mapped(start) };
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn next_handle() -> u64 {
    static HANDLES: AtomicU64 = AtomicU64::new(1);
    HANDLES.fetch_add(1, Ordering::Relaxed)
}

/// Allocates in a memory of `gpu`.
pub(crate) fn allocate(
    gpu: &Gpu,
    memory: MemoryId,
    spec: &AllocSpec,
) -> Result<Buffer, AllocError> {
    let len = spec.len_bytes;
    let aligned = match memory.kind {
        MemoryKind::Device | MemoryKind::Mapped => OFFSETS,
        // A slot's alignment is that of its address, and drivers choose the address of a mapping.
        _ => wgpu::MAP_ALIGNMENT,
    };
    check_spec(&gpu.device, memory, spec, aligned)?;
    let room = match gpu.is_software {
        true => Room::take(memory, len)?,
        false => Taken::default(),
    };
    let refused = |fault| refused(memory, len, fault);
    let _inside = gpu.enter().map_err(refused)?;
    if memory.kind == MemoryKind::Mapped {
        return map(gpu, memory, len, room);
    }
    if memory.kind != MemoryKind::Device && !spec.staging {
        return Err(AllocError::Unsupported {
            memory,
            what: format!(
                "it holds staging slots alone; name {} instead",
                memory.device
            )
            .into(),
        });
    }
    let (usage, mode) = match memory.kind {
        MemoryKind::Device => (USAGES, None),
        MemoryKind::Upload => (
            wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
            Some(wgpu::MapMode::Write),
        ),
        MemoryKind::Readback => (
            wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            Some(wgpu::MapMode::Read),
        ),
        _ => return Err(AllocError::UnknownMemory { memory }),
    };
    let descriptor = wgpu::BufferDescriptor {
        label: Some("transload"),
        size: len.next_multiple_of(WORD).max(WORD),
        usage,
        mapped_at_creation: mode.is_some(),
    };
    let made = gpu.catching(|| gpu.device.create_buffer(&descriptor));
    let buffer = made.map_err(refused)?;
    let Some(mode) = mode else {
        // A lost device returns invalid buffers.
        gpu.probe().map_err(refused)?;
        let info = info(memory, handle_of(gpu.identity, &buffer), len);
        // SAFETY: the host cannot reach it; the handle names the buffer.
        return Ok(unsafe { gpu.storage_in(room, info, buffer) });
    };
    // At creation every buffer is mapped for writing.
    let mapped = buffer.get_mapped_range_mut(..).map(View::Write);
    // An invalid buffer fails here.
    let mut view = mapped.map_err(|error| refused(gpu.blame(failed(&error))))?;
    let start = view.start();
    let slot = Slot {
        buffer,
        mode,
        state: Mutex::new(SlotState {
            uses: 0,
            view: Some(view),
        }),
    };
    let host = start.zip(usize::try_from(len).ok());
    let info = StorageInfo {
        host: host.map(|(start, len)| HostSpan::new(start, len)),
        ..info(memory, next_handle(), len)
    };
    // SAFETY: the mapping stays open while the owner lives or until `Slot::unmap` takes the address back;
    // the buffer is this backend's own.
    Ok(unsafe { gpu.storage_in(room, info, slot) })
}

/// Allocates memory that the host reaches, too.
fn map(gpu: &Gpu, memory: MemoryId, len: u64, room: Taken) -> Result<Buffer, AllocError> {
    let Some(mapper) = &gpu.mapper else {
        return Err(AllocError::UnknownMemory { memory });
    };
    let size = len.next_multiple_of(WORD).max(WORD);
    let handles = (&gpu.device, &gpu.queue);
    // SAFETY: the mapper is this device's; the size is not 0; the usages need no feature.
    let made = gpu.catching(|| unsafe { mapper.allocate(handles, size, USAGES) });
    let made = made.and_then(|made| made);
    // A lost device returns invalid buffers.
    let made = made.and_then(|made| gpu.probe().map(|()| made));
    let (buffer, span, lease) = made.map_err(|fault| refused(memory, len, fault))?;
    let info = StorageInfo {
        host: span.slice(0, len),
        ..info(memory, handle_of(gpu.identity, &buffer), len)
    };
    // SAFETY: the lease keeps the memory of the span; the handle names the buffer, which is this
    // backend's own.
    Ok(unsafe {
        Buffer::guarded(
            info,
            Box::new(buffer),
            Box::new(DriverObject::new((lease, room))),
        )
    })
}
