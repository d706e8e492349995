//! Making buffers: allocated, adopted, imported, shared, placed.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use transload_core::{DeviceId, DeviceName, MemoryId, MemoryKind, Place, Shape};
use transload_hal::{
    AllocError, AllocSpec, Backend, ErrorClass, External, ExternalKind, Fault, ImportError,
    IpcHandle, Owner,
};

use crate::adopt::{Adopt, Adopted};
use crate::engine::accept::footprint;
use crate::engine::active::Operand;
use crate::engine::unwind::guarded;
use crate::{Buffer, Error, GuardError, PlaceError, ShareError};

use super::{Placed, TransferManager};

impl TransferManager {
    /// Allocates memory at a place. What it holds at first is unspecified. Where there is no room, the idle staging
    /// slots that this manager has on the device are given up and it is tried once more.
    ///
    /// # Errors
    /// When the place is not here, or has no room.
    pub fn allocate(&self, place: Place, spec: AllocSpec) -> Result<Buffer, Error> {
        let memory = self.resolve(place)?;
        let backend = self
            .backend_of(memory)
            .ok_or(AllocError::UnknownMemory { memory })?;
        let ask = || {
            let fault = |fault| AllocError::Failed { memory, fault };
            guarded(|| backend.allocate(memory, &spec)).map_err(fault)?
        };
        let raw = match ask() {
            Err(error @ AllocError::OutOfMemory { .. }) => {
                let pool = self.shared.state.with(|state| Arc::clone(&state.pool));
                match pool.trim_of(memory.device) {
                    idle if idle.is_empty() => Err(error),
                    idle => {
                        drop(idle);
                        ask()
                    }
                }
            }
            answer => answer,
        };
        match memory.kind {
            // The program cannot reach it but through the manager.
            MemoryKind::Pageable => Ok(Buffer::new(raw?, &self.shared)),
            _ => self.claimed(raw?, ExternalKind::Object),
        }
    }

    /// Takes in memory that the caller owns, without copying it: a `Vec<f32>`, an `Arc<[u8]>`, or what else
    /// [`Adopt`] lists. [`Buffer::into_inner`] gives the same object back. It is ordinary memory then, and stays so: see [`TransferManager::share`] for memory that devices
    /// use again and again.
    ///
    /// # Errors
    /// When no backend has ordinary host memory. The object is dropped then.
    pub fn adopt<T: Adopt>(&self, owner: T) -> Result<Buffer, Error> {
        let memory = DeviceId::CPU0.memory(MemoryKind::Pageable);
        let mut owner = Box::new(Adopted(owner));
        // Taken where the object stays from now on.
        let span = owner.0.span();
        let external = External::Host {
            span,
            writable: T::WRITABLE,
            owner,
        };
        let import = |backend: &dyn Backend, memory| {
            // SAFETY: `Adopt` promises that the span is valid and untouched by others as long as its
            // owner lives, and the owner goes with it.
            unsafe { backend.import(memory, external) }
        };
        let raw = self.make(memory.into(), ExternalKind::Host, import)?;
        Ok(Buffer::new(raw, &self.shared))
    }

    /// Takes in an object of a backend's own world, without copying: of an application that draws, a
    /// `wgpu::Buffer` that was made with both `COPY_SRC` and `COPY_DST`, or a `wgpu::Texture` with
    /// `COPY_SRC` to be read, `COPY_DST` to be written, or both. [`Buffer::native`] shows it,
    /// [`Buffer::into_inner`] gives it back, and handles of the same object that are adopted one after the
    /// other are one memory: their transfers are in order.
    ///
    /// The caller may keep handles of an object of wgpu's and use them meanwhile: wgpu checks what is done with it. What
    /// the caller's own work does to the bytes is not in the order of transfers, though:
    /// [`Request::after`](crate::Request::after) and [`Request::then`](crate::Request::then) put it there.
    ///
    /// It is [`TransferManager::import`] of an [`External::Object`].
    ///
    /// # Errors
    /// When the place is not here, or takes no such object, or not this one: it is of another device of the same
    /// `wgpu::Instance`, was made for other uses, or another manager has it. The object is dropped then.
    ///
    /// # Safety
    /// As the backend says at its `Backend::import`. An object of wgpu's was made by a device of the `wgpu::Instance` that
    /// made the device of `place`: wgpu knows objects by numbers, which each instance counts anew, so an object of another
    /// instance would stand for whichever object has its number.
    pub unsafe fn adopt_native<T: Owner>(&self, place: Place, object: T) -> Result<Buffer, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.import(place, External::object(object)) }
    }

    /// Takes in memory that comes from elsewhere: a handle, an object of a backend's own world. Each backend says at its
    /// `Backend::import` what it takes, and into which memory: `host::Host`, `cuda_backend::Cuda`, `metal_backend::Metal`.
    ///
    /// # Errors
    /// When the place is not here, or cannot take such a thing. It is dropped then.
    ///
    /// # Safety
    /// As [`Backend::import`].
    pub unsafe fn import(&self, place: Place, external: External) -> Result<Buffer, Error> {
        let kind = external.kind();
        let import = |backend: &dyn Backend, memory| {
            // SAFETY: the caller's promise is the one that the backend asks for.
            unsafe { backend.import(memory, external) }
        };
        self.take_in(place, kind, import)
    }

    /// Takes in memory of a device that another process gave out with [`TransferManager::export`] and told this
    /// one: on whichever device of this process has the handle's UUID.
    ///
    /// Transfers of this manager are in order among each other. What the other process does with the bytes
    /// meanwhile is for the two to agree upon.
    ///
    /// # Errors
    /// When the device is not here, or its backend does not open the handle.
    ///
    /// # Safety
    /// The handle came from a process that is trusted, whose buffer lives until this one and all views of it are
    /// gone, and neither writes bytes while the other uses them.
    pub unsafe fn import_ipc(&self, handle: &IpcHandle) -> Result<Buffer, Error> {
        let device = DeviceName::Uuid(handle.device());
        // One GPU may be a device of several backends.
        let same = self.shared.inspect(|state| {
            let all = state.topology.devices().iter();
            let same = all.filter(|of| of.uuid == Some(handle.device()));
            same.map(|of| of.id).collect::<Vec<_>>()
        })?;
        let mut refusal = None;
        for id in same {
            let place = id.memory(MemoryKind::Device).into();
            // SAFETY: the caller's promise.
            match unsafe { self.import(place, External::Ipc(*handle)) } {
                Err(error) if error.class() == ErrorClass::Unsupported => refusal = Some(error),
                answer => return answer,
            }
        }
        Err(refusal.unwrap_or_else(|| {
            let topology = self.topology();
            let known = super::list(topology.devices().iter().map(|device| device.id));
            PlaceError::UnknownDevice { device, known }.into()
        }))
    }

    /// Gives memory out, for another process, another library or another backend to take in. What kinds there are
    /// depends on the memory; memory of devices that is to leave the process is best allocated
    /// [for sharing](AllocSpec::for_sharing).
    ///
    /// What was given out as a [handle for other processes](External::Ipc) or a file descriptor says nothing of how
    /// long it is used: that is for the two to agree upon.
    ///
    /// For shared memory (`cpu:0/shared`) this blocks as [`Buffer::read`] does: behind transfers that write the buffer and
    /// were submitted before, and while a [`WriteGuard`](crate::WriteGuard) on any of its bytes lives. Small buffers of
    /// it may get a descriptor at their first export only, and then move from one page to another behind their address.
    ///
    /// # Errors
    /// When the memory cannot be given out so.
    pub fn export(&self, buffer: &Buffer, kind: ExternalKind) -> Result<External, Error> {
        self.shared.check_fork()?;
        buffer.shared.check_fork()?;
        let memory = buffer.memory();
        let backend = self.backend_of(memory);
        let backend = backend.ok_or(ImportError::UnknownMemory { memory })?;
        let fault = |fault| ImportError::Failed {
            memory,
            kind,
            fault,
        };
        Ok(export_in_order(&*backend, buffer, kind).map_err(fault)??)
    }

    /// Has the backend of a place make a buffer of what others may have, too.
    fn take_in(
        &self,
        place: Place,
        kind: ExternalKind,
        make: impl FnOnce(&dyn Backend, MemoryId) -> Result<transload_hal::Buffer, ImportError>,
    ) -> Result<Buffer, Error> {
        self.claimed(self.make(place, kind, make)?, kind)
    }

    /// Has the backend of a place make a buffer.
    fn make(
        &self,
        place: Place,
        kind: ExternalKind,
        make: impl FnOnce(&dyn Backend, MemoryId) -> Result<transload_hal::Buffer, ImportError>,
    ) -> Result<transload_hal::Buffer, Error> {
        let memory = self.resolve(place)?;
        let backend = self
            .backend_of(memory)
            .ok_or(ImportError::UnknownMemory { memory })?;
        let fault = |fault| ImportError::Failed {
            memory,
            kind,
            fault,
        };
        Ok(guarded(|| make(&*backend, memory)).map_err(fault)??)
    }

    /// A buffer of what a backend has made, unless it shows bytes of another manager.
    fn claimed(&self, raw: transload_hal::Buffer, kind: ExternalKind) -> Result<Buffer, Error> {
        let memory = raw.memory();
        #[cfg(feature = "std")]
        if !crate::std::claim(&raw, self.shared.serial) {
            return Err(ImportError::Claimed { memory, kind }.into());
        }
        let _ = (memory, kind);
        Ok(Buffer::new(raw, &self.shared))
    }

    /// Takes a view that a backend has made into the manager, so that it takes part in transfers.
    ///
    /// # Safety
    /// Nobody outside this manager touches the storage as long as a view of it lives: no other
    /// manager knows it, for their transfers would not be ordered against each other.
    pub unsafe fn wrap(&self, raw: transload_hal::Buffer) -> Buffer {
        // Nobody else has it, as the caller promises.
        #[cfg(feature = "std")]
        let _ = crate::std::claim(&raw, self.shared.serial);
        Buffer::new(raw, &self.shared)
    }

    /// The same memory as seen from another place, without a copy.
    ///
    /// Host memory that devices are to use again and again is shared with `cpu:0/pinned`, where a backend has that: it
    /// is registered with the driver where it lies, devices reach it in place through the view, and it is let go when
    /// the last view of that kind goes. Nothing is registered unasked: memory that is locked in place is
    /// missing elsewhere, and to lock a gigabyte takes half a second to a second (1 to 2 GB/s: openvm-org/stark-backend
    /// issue 384). That has paid after five to ten uses where one thread fills staging slots (8 GB/s against 55:
    /// rapidsai/kvikio issue 456), and after hundreds, if at all, where several keep up with the wire.
    ///
    /// Shared memory (`cpu:0/shared`) is exported for that, and blocks as [`TransferManager::export`] says.
    ///
    /// # Errors
    /// When the place is not here, or the two memory systems have nothing that both can hold; the
    /// error says why each way of sharing failed.
    pub fn share(&self, buffer: &Buffer, place: Place) -> Result<Buffer, ShareError> {
        buffer.shared.check_fork()?;
        let dst = self.resolve(place)?;
        let src = buffer.memory();
        if !Arc::ptr_eq(&buffer.shared, &self.shared) {
            return Err(ShareError::ForeignBuffer { memory: src });
        }
        if src == dst {
            return Ok(buffer.clone());
        }
        let mut reasons = Vec::new();
        let (from, to) = (self.backend_of(src), self.backend_of(dst));
        if let (Some(from), Some(to)) = (from, to) {
            // Somebody else may cut a file off or write to it while it is mapped, so that is for the
            // caller to promise (`map_file`).
            let is_file = src.kind == MemoryKind::File;
            for &kind in HANDED_ON {
                if is_file && matches!(kind, ExternalKind::File | ExternalKind::Win32) {
                    reasons.push(
                        "a file can be mapped only by who promises that nobody changes it".into(),
                    );
                    continue;
                }
                match share_as(&*from, &*to, buffer, dst, kind) {
                    Ok(raw) => match self.claimed(raw, kind) {
                        Ok(view) => return Ok(view),
                        Err(error) => reasons.push(error.to_string()),
                    },
                    Err(reason) => reasons.push(reason),
                }
            }
        }
        Err(ShareError::Unsupported {
            src,
            dst,
            reason: reasons.join("; "),
        })
    }

    /// The bytes of `buffer` at a place: a view where the memory can be shared, else a copy in memory
    /// that is allocated there. Blocks until they are there.
    ///
    /// # Errors
    /// When the place is not here or has no room, or the copy fails.
    pub fn place(&self, buffer: &Buffer, place: Place) -> Result<Placed, Error> {
        let memory = self.resolve(place)?;
        if let Ok(buffer) = self.share(buffer, memory.into()) {
            return Ok(Placed {
                buffer,
                report: None,
            });
        }
        let copy = self.allocate(memory.into(), AllocSpec::bytes(buffer.len()))?;
        let report = self.copy(buffer, &copy).wait()?;
        Ok(Placed {
            buffer: copy,
            report: Some(report),
        })
    }

    pub(super) fn backend_of(&self, memory: MemoryId) -> Option<Arc<dyn Backend>> {
        self.shared.state.with(|state| {
            let owner = state.topology.memory(memory)?.backend;
            state.backend(owner).map(Arc::clone)
        })
    }
}

/// As what two backends may hand memory on to each other on this system, the best first.
const HANDED_ON: &[ExternalKind] = if cfg!(windows) {
    &[ExternalKind::Host, ExternalKind::Win32]
} else {
    &[
        ExternalKind::File,
        ExternalKind::Host,
        ExternalKind::OpaqueFd,
        ExternalKind::DmaBuf,
    ]
};

/// Exports a buffer. Shared memory may be copied to pages of its own then, which would lose what is written meanwhile. So
/// the export has a place in the order: writers of any of the buffer's bytes go before it or behind it. Readers may go
/// on, a guard of the same thread among them.
fn export_in_order(
    backend: &dyn Backend,
    buffer: &Buffer,
    kind: ExternalKind,
) -> Result<Result<External, ImportError>, Fault> {
    // SAFETY: called below where the order keeps writers away, or where bytes stay on their pages.
    let export = || guarded(|| unsafe { backend.export(&buffer.raw, kind) });
    // Nothing can be waited for in a browser, which has no shared memory either.
    if buffer.memory().kind != MemoryKind::Shared || cfg!(browser) {
        return export();
    }
    let whole = buffer.raw.whole();
    let end = Operand {
        offset: 0,
        shape: Shape::contiguous(whole.len()),
        buffer: whole,
    };
    let Ok(footprint) = footprint(&end, false) else {
        return export();
    };
    // The manager of the buffer has its order, whichever manager exports.
    let shared = &buffer.shared;
    let guard = shared.guard_in_turn(end, footprint).map_err(|deadlock| {
        let message = GuardError::from(deadlock).to_string();
        Fault::new(ErrorClass::Caller, message)
    })?;
    let exported = export();
    shared.unguard(guard);
    exported
}

fn share_as(
    from: &dyn Backend,
    to: &dyn Backend,
    buffer: &Buffer,
    dst: MemoryId,
    kind: ExternalKind,
) -> Result<transload_hal::Buffer, String> {
    let said = |fault: Fault| fault.to_string();
    let external = export_in_order(from, buffer, kind)
        .map_err(said)?
        .map_err(|error| error.to_string())?;
    // SAFETY: the external is what its backend gave out a moment ago, and its identity travels with
    // it, so that both views take part in one order.
    guarded(|| unsafe { to.import(dst, external) })
        .map_err(said)?
        .map_err(|error| error.to_string())
}
