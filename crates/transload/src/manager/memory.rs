//! Makes buffers: allocated, adopted, imported, shared, placed.

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
use crate::engine::checked::footprint;
use crate::engine::operand::Operand;
use crate::engine::state::State;
use crate::engine::unwind::guarded;
use crate::{Buffer, Error, GuardError, PlaceError, ShareError};

use super::{Placed, TransferManager, Wanted};

impl TransferManager {
    /// Returns how many bytes could be allocated in a memory now, where its system tells: the host's does, in the limits of the
    /// process's cgroups, and CUDA's driver. May block on the driver.
    pub fn available_bytes(&self, memory: MemoryId) -> Option<u64> {
        let backend = self.backend_of(self.resolve(memory.into()).ok()?)?;
        guarded(|| backend.available_bytes(memory)).ok().flatten()
    }

    /// Allocates memory at a place. Its first content is unspecified, and what the process wrote before it may be in ordinary memory.
    /// Where there is no room, the manager frees its idle staging slots on the device and tries once more.
    ///
    /// Ordinary memory of 128 KiB and more that was freed is kept for the next allocation: see [`TransferManager::trim`].
    ///
    /// # Errors
    /// When this machine has no such place, or the place has no room.
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
                let trim = |state: &mut State| state.admission.trim_of(memory.device);
                match self.shared.state.with(trim) {
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
            // The program can reach it only through the manager.
            MemoryKind::Pageable => Ok(Buffer::new(raw?, &self.shared)),
            _ => self.claimed(raw?, ExternalKind::Object),
        }
    }

    /// Takes in memory that the caller owns, without copying it: a `Vec<f32>`, an `Arc<[u8]>`, or another type that
    /// [`Adopt`] lists. [`Buffer::into_inner`] gives the same object back. The memory stays ordinary memory: see
    /// [`TransferManager::share`] for memory that devices use again and again.
    ///
    /// # Errors
    /// When no backend has ordinary host memory. The object is dropped then.
    pub fn adopt<T: Adopt>(&self, owner: T) -> Result<Buffer, Error> {
        let memory = DeviceId::CPU0.memory(MemoryKind::Pageable);
        let mut owner = Box::new(Adopted(owner));
        // Taken after the object has reached its final place.
        let span = owner.0.span();
        let external = External::Host {
            span,
            writable: T::WRITABLE,
            owner,
        };
        let import = |backend: &dyn Backend, memory| {
            // SAFETY: `Adopt` promises that the span is valid and untouched by others as long as its owner lives, and
            // the owner is passed along with it.
            unsafe { backend.import(memory, external) }
        };
        let raw = self.make(memory.into(), ExternalKind::Host, import)?;
        Ok(Buffer::new(raw, &self.shared))
    }

    /// Takes in an object of a type that a backend knows, without copying: a `wgpu::Buffer` that was made with both
    /// `COPY_SRC` and `COPY_DST`, or a `wgpu::Texture` with `COPY_SRC` to be read, `COPY_DST` to be written, or both.
    /// [`Buffer::native`] shows it, and [`Buffer::into_inner`] gives it back. Handles of the same object that are
    /// adopted one after the other are one memory: their transfers are in order.
    ///
    /// The caller may keep handles of a wgpu object and use them meanwhile: wgpu checks their use. The order of
    /// transfers does not cover the caller's own work on the bytes; [`Request::after`](crate::Request::after) and
    /// [`Request::then`](crate::Request::then) order transfers and that work.
    ///
    /// It is [`TransferManager::import`] of an [`External::Object`].
    ///
    /// # Errors
    /// When this machine has no such place, or the place takes no such object, or not this one: it is of another device
    /// of the same `wgpu::Instance`, was made for other uses, or another manager has it. The object is dropped then.
    ///
    /// # Safety
    /// As the backend says at its `Backend::import`. A wgpu object was made by a device of the `wgpu::Instance` that
    /// made the device of `place`: wgpu identifies objects by numbers, which each instance counts anew, so an object of
    /// another instance would stand for whichever object has its number.
    pub unsafe fn adopt_native<T: Owner>(&self, place: Place, object: T) -> Result<Buffer, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.import(place, External::object(object)) }
    }

    /// Takes in memory from outside the library: a handle, or an object of a type that a backend knows. Each backend
    /// says at its `Backend::import` what it takes, and into which memory: `host::Host`, `cuda_backend::Cuda`,
    /// `metal_backend::Metal`.
    ///
    /// # Errors
    /// When this machine has no such place, or the place cannot take such a thing, which is dropped then.
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

    /// Takes in memory of a device that another process gave out with [`TransferManager::export`]. The buffer is on the
    /// device of this process that has the handle's UUID, or at the machine that this process has
    /// [connected to](TransferManager::connect) and that the handle names.
    ///
    /// Transfers of this manager are in order among each other. The two processes must agree upon when each of them
    /// uses the bytes. Of memory of another machine that machine keeps the order, between all its users.
    ///
    /// # Errors
    /// When the device is not here, or its backend does not open the handle.
    ///
    /// # Safety
    /// The handle came from a trusted process. That process keeps its buffer until this one and all views of it are
    /// dropped, and neither process writes bytes while the other uses them.
    pub unsafe fn import_ipc(&self, handle: &IpcHandle) -> Result<Buffer, Error> {
        let device = DeviceName::Uuid(handle.device());
        self.open(Wanted::Place(Place {
            device,
            memory: None,
        }));
        // One GPU may be a device of several backends. Another machine's handle says which of its memories it is.
        let is_remote = handle.kind() == ExternalKind::Remote;
        let same = self.shared.inspect(|state| {
            let topology = state.planning.topology();
            let all = topology.devices().iter();
            let same = all.filter(|of| of.uuid == Some(handle.device()));
            let place = |of: &transload_hal::DeviceInfo| match is_remote {
                false => Some(of.id.memory(MemoryKind::Device)),
                true => { topology.memories().iter() }
                    .map(|memory| memory.id)
                    .find(|memory| memory.device.node == of.id.node),
            };
            same.filter_map(place).collect::<Vec<_>>()
        })?;
        let mut refusal = None;
        for memory in same {
            let place = memory.into();
            // SAFETY: the caller's promise.
            match unsafe { self.import(place, External::Ipc(*handle)) } {
                Err(error) if error.class() == ErrorClass::Unsupported => refusal = Some(error),
                answer => return answer,
            }
        }
        Err(refusal.unwrap_or_else(|| {
            let topology = self.opened();
            let known = super::list(topology.devices().iter().map(|device| device.id));
            PlaceError::UnknownDevice {
                device,
                known,
                reason: None,
            }
            .into()
        }))
    }

    /// Exports memory, for another process, another library or another backend to import. The available kinds depend on
    /// the memory. Device memory that is to leave the process is best allocated [for sharing](AllocSpec::for_sharing).
    ///
    /// A [handle for other processes](External::Ipc) or a file descriptor does not tell how long the importer uses the
    /// memory: both sides must agree upon that.
    ///
    /// For shared memory (`cpu:0/shared`) this blocks as [`Buffer::read`] does: until transfers that write the buffer
    /// and were submitted before have ended, and while a [`WriteGuard`](crate::WriteGuard) on any of its bytes lives.
    /// Small buffers of this memory may get a descriptor only at their first export; their bytes then move to other
    /// pages at the same address.
    ///
    /// # Errors
    /// When the memory cannot be exported as that kind.
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

    /// Has the backend of a place make a buffer of memory that other code may have, too.
    fn take_in(
        &self,
        place: Place,
        kind: ExternalKind,
        make: impl FnOnce(&dyn Backend, MemoryId) -> Result<transload_hal::Buffer, ImportError>,
    ) -> Result<Buffer, Error> {
        let raw = self.make(place, kind, make)?;
        raw.expose();
        self.claimed(raw, kind)
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

    /// Makes a buffer of a view that a backend has made, unless it shows bytes of another manager.
    fn claimed(&self, raw: transload_hal::Buffer, kind: ExternalKind) -> Result<Buffer, Error> {
        let memory = raw.memory();
        #[cfg(feature = "std")]
        crate::std::claim(&raw, self.shared.serial).map_err(|taken| taken.refused(memory, kind))?;
        let _ = (memory, kind);
        Ok(Buffer::new(raw, &self.shared))
    }

    /// Takes a view that a backend has made into the manager, so that transfers can use it.
    ///
    /// # Safety
    /// No code outside this manager touches the storage as long as a view of it lives, and no other manager knows it,
    /// for their transfers would not be ordered against each other.
    pub unsafe fn wrap(&self, raw: transload_hal::Buffer) -> Buffer {
        raw.expose();
        // No other manager has it, as the caller promises.
        #[cfg(feature = "std")]
        let _ = crate::std::claim(&raw, self.shared.serial);
        Buffer::new(raw, &self.shared)
    }

    /// Returns the same memory as seen from another place, without a copy.
    ///
    /// Host memory that devices use again and again is shared with `cpu:0/pinned`, where a backend has that. The
    /// backend registers the memory with the driver where it lies, devices reach it in place through the view, and the
    /// registration ends when the last view of that kind is dropped. The library registers no memory unasked: locked
    /// memory is missing elsewhere, and to lock a gigabyte takes half a second to a second (1 to 2 GB/s:
    /// openvm-org/stark-backend issue 384). That pays after five to ten uses where one thread fills staging slots (8
    /// GB/s against 55: rapidsai/kvikio issue 456), and after hundreds, if at all, where several threads keep up with
    /// the link.
    ///
    /// Shared memory (`cpu:0/shared`) is exported first, which blocks as [`TransferManager::export`] says.
    ///
    /// # Errors
    /// When this machine has no such place, or the two memory systems have no kind of memory that both can hold; the
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
            // Another process may truncate or write a file while it is mapped, so only the caller can promise that none
            // does (`map_file`).
            let is_file = src.kind.is_file();
            for &kind in HANDED_ON {
                if is_file && matches!(kind, ExternalKind::File | ExternalKind::Win32) {
                    reasons.push(
                        "only `map_file` maps a file: its caller promises that no program changes it"
                            .into(),
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

    /// Returns the bytes of `buffer` at a place: a view where the memory can be shared, otherwise a copy in memory that
    /// is allocated there. Blocks until the bytes have arrived.
    ///
    /// # Errors
    /// When this machine has no such place, the place has no room, or the copy fails.
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

    pub(crate) fn backend_of(&self, memory: MemoryId) -> Option<Arc<dyn Backend>> {
        self.shared.state.with(|state| {
            let known = state.in_flight.known(state.planning.owner(memory)?)?;
            Some(Arc::clone(&known.backend))
        })
    }
}

impl Buffer {
    /// Lends the bytes to other code of this process, such as a framework: host memory by its address, CUDA's memory by a
    /// device pointer. The external keeps the bytes alive and in place until it is dropped, also after the manager was.
    ///
    /// Blocks as [`Buffer::read`] does, for any memory: until transfers that write the buffer and were submitted before have
    /// ended, and while a [`WriteGuard`](crate::WriteGuard) on any of the bytes lives. Later transfers do not wait for the
    /// borrower: the caller sees to it that neither writes bytes while the other uses them.
    ///
    /// # Errors
    /// When the memory is not given out as that kind, and when the call would wait for a guard of its own thread.
    pub fn lend(&self, kind: ExternalKind) -> Result<External, Error> {
        self.shared.check_fork()?;
        let memory = self.memory();
        let end = Operand {
            buffer: self.raw.clone(),
            offset: 0,
            shape: Shape::contiguous(self.len()),
            scattered: None,
        };
        let backend = self.shared.backend_of(&end);
        let (backend, _) = backend.ok_or(ImportError::UnknownMemory { memory })?;
        let footprint = footprint(&end, false)?;
        let guard = self.shared.guard_in_turn(end, footprint);
        self.shared.unguard(guard.map_err(GuardError::from)?);
        let fault = |fault| ImportError::Failed {
            memory,
            kind,
            fault,
        };
        Ok(export_in_order(&*backend, self, kind).map_err(fault)??)
    }
}

/// The kinds by which two backends may share memory on this system, the best first.
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

/// Exports a buffer. The backend may copy shared memory to pages of its own then, which would lose concurrent writes.
/// So the export has a place in the order: writers of any of the buffer's bytes go before it or behind it. Readers may
/// go on, among them a guard of the same thread.
fn export_in_order(
    backend: &dyn Backend,
    buffer: &Buffer,
    kind: ExternalKind,
) -> Result<Result<External, ImportError>, Fault> {
    buffer.raw.expose();
    // SAFETY: called below where the order keeps writers away, or where bytes stay on their pages.
    let export = || guarded(|| unsafe { backend.export(&buffer.raw, kind) });
    let memory = buffer.memory();
    // Transfers that come later have their places in the other machine's order, too.
    let is_remote = !memory.device.node.is_here();
    // A browser can wait for nothing here, and has no shared memory either.
    if memory.kind != MemoryKind::Shared && !is_remote || cfg!(browser) {
        return export();
    }
    let whole = buffer.raw.whole();
    let end = Operand {
        offset: 0,
        shape: Shape::contiguous(whole.len()),
        buffer: whole,
        scattered: None,
    };
    let Ok(footprint) = footprint(&end, is_remote) else {
        return export();
    };
    // The manager that made the buffer holds its order, whichever manager exports it.
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
    let raw = guarded(|| unsafe { to.import(dst, external) })
        .map_err(said)?
        .map_err(|error| error.to_string())?;
    raw.expose();
    Ok(raw)
}
