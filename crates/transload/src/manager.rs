//! The front door.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;

use transload_core::stats::Snapshot;
use transload_core::{DeviceId, DeviceName, Instant, MemoryId, MemoryKind, Place, Purpose, Shape};
use transload_hal::{
    AllocError, AllocSpec, Backend, BackendId, DeviceInfo, External, ExternalKind, HostSpan,
    ImportError, MemoryInfo, StorageId, StorageInfo,
};

use crate::adopt::{Adopt, Adopted, Borrowed, NOWHERE};
use crate::engine::accept::{Checked, Terms};
use crate::engine::active::Operand;
use crate::engine::shared::Shared;
use crate::engine::unwind::guarded;
use crate::{
    Batch, Buffer, Builder, Error, Event, Explanation, PlaceError, Prepared, Region, RegisterError,
    Report, Request, ShareError, StagingBudget, Transfer, TransferError,
};

/// Knows the machine, makes buffers, and moves bytes between them.
///
/// Clones are the same manager. When the last handle has gone (manager, buffers, transfers) and
/// detached transfers have completed, everything is given back.
#[derive(Clone)]
pub struct TransferManager {
    pub(crate) shared: Arc<Shared>,
}

/// A backend as it was registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendInfo {
    /// Its name.
    pub id: BackendId,
    /// Its devices.
    pub devices: Vec<DeviceId>,
}

/// Where [`TransferManager::place`] left the bytes.
#[derive(Debug)]
pub struct Placed {
    /// The bytes, at the place.
    pub buffer: Buffer,
    /// What the copy did; `None` when the place shares the memory and nothing was copied.
    pub report: Option<Report>,
}

impl Default for TransferManager {
    fn default() -> TransferManager {
        TransferManager::new()
    }
}

impl TransferManager {
    /// A manager without backends, with the process's staging budget and the system's clock.
    pub fn new() -> TransferManager {
        match Builder::default().build() {
            Ok(manager) => manager,
            Err(_) => unreachable!("only backends can be refused, and there are none"),
        }
    }

    /// A manager that is not the default one.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Registers a backend: its devices and links take part from now on, and plans are made anew.
    ///
    /// # Errors
    /// When a backend of that name is registered already, or a device, memory or link of its is; or
    /// when it panics. The manager is as it was then.
    pub fn register_backend(&self, backend: impl Backend) -> Result<(), RegisterError> {
        self.register_shared(Arc::new(backend))
    }

    /// As [`TransferManager::register_backend`], for a backend that others hold too.
    ///
    /// # Errors
    /// As there.
    pub fn register_shared(&self, backend: Arc<dyn Backend>) -> Result<(), RegisterError> {
        let panicked = |fault: transload_hal::Fault| RegisterError::Panicked {
            message: fault.message.into_owned(),
        };
        let inventory = guarded(|| backend.inventory()).map_err(panicked)?;
        let unattended = guarded(|| backend.completes_unattended()).map_err(panicked)?;
        let id = inventory.backend;
        self.shared.change(|state| {
            if state.registered(id).is_some() {
                return Err(RegisterError::Duplicate { backend: id });
            }
            let mut topology = state.topology.clone();
            topology
                .add(inventory)
                .map_err(|error| RegisterError::Topology { backend: id, error })?;
            Ok(())
        })?;
        // Before anything can be submitted, and outside the lock.
        let sink = Arc::clone(&self.shared.completions);
        if !guarded(|| backend.attach(sink)).map_err(panicked)? {
            return Err(RegisterError::Taken { backend: id });
        }
        let inventory = guarded(|| backend.inventory()).map_err(panicked)?;
        self.shared
            .change(|state| state.register(backend, inventory, unattended))
    }

    /// The backends, in the order of registration.
    pub fn backends(&self) -> Vec<BackendInfo> {
        self.shared.state.with(|state| {
            let devices = state.topology.devices();
            let of = |id: BackendId| devices.iter().filter(move |device| device.backend == id);
            let known = state.backends.iter();
            known
                .map(|known| BackendInfo {
                    id: known.id,
                    devices: of(known.id).map(|device| device.id).collect(),
                })
                .collect()
        })
    }

    /// The registered backend of that type, to reach what only it can do.
    pub fn backend<B: Backend>(&self) -> Option<Arc<B>> {
        let backends: Vec<Arc<dyn Backend>> = self.shared.state.with(|state| {
            let known = state.backends.iter();
            known.map(|known| Arc::clone(&known.backend)).collect()
        });
        backends.into_iter().find_map(downcast)
    }

    /// Every device of every backend.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.shared
            .state
            .with(|state| state.topology.devices().to_vec())
    }

    /// Every memory of every backend.
    pub fn memories(&self) -> Vec<MemoryInfo> {
        self.shared
            .state
            .with(|state| state.topology.memories().to_vec())
    }

    /// The memory that a place means here.
    ///
    /// # Errors
    /// When there is no such device, or it has no such memory.
    pub fn resolve(&self, place: impl Into<Place>) -> Result<MemoryId, PlaceError> {
        let place = place.into();
        self.shared.state.with(|state| {
            let topology = &state.topology;
            let device = match place.device {
                DeviceName::Id(id) => topology.device(id),
                DeviceName::Uuid(uuid) => topology.device_by_uuid(uuid),
            };
            let device = device.ok_or_else(|| PlaceError::UnknownDevice {
                device: place.device,
                known: list(topology.devices().iter().map(|device| device.id)),
            })?;
            let memory = match place.memory {
                None => topology.default_memory(device.id),
                Some(kind) => topology.memory(device.id.memory(kind)),
            };
            let of_device = topology
                .memories()
                .iter()
                .filter(|memory| memory.id.device == device.id);
            memory
                .map(|memory| memory.id)
                .ok_or_else(|| PlaceError::UnknownMemory {
                    place,
                    known: list(of_device.map(|memory| memory.id.kind)),
                })
        })
    }

    /// Allocates memory at a place. What it holds at first is unspecified.
    ///
    /// # Errors
    /// When the place is not here, or has no room.
    pub fn allocate(&self, place: impl Into<Place>, spec: AllocSpec) -> Result<Buffer, Error> {
        let memory = self.resolve(place)?;
        let backend = self
            .backend_of(memory)
            .ok_or(AllocError::UnknownMemory { memory })?;
        let fault = |fault| AllocError::Failed { memory, fault };
        let raw = guarded(|| backend.allocate(memory, &spec)).map_err(fault)??;
        Ok(Buffer::new(raw, &self.shared))
    }

    /// Takes in memory that the caller owns, without copying it; [`Buffer::into_inner`] gives it
    /// back.
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
        // SAFETY: `Adopt` promises that the span is valid and untouched by others as long as its
        // owner lives, and the owner goes with it.
        unsafe { self.import(memory, external) }
    }

    /// Takes in memory that comes from elsewhere: a handle, an object of a backend's own world.
    ///
    /// # Errors
    /// When the place is not here, or cannot take such a thing. It is dropped then.
    ///
    /// # Safety
    /// As [`Backend::import`].
    pub unsafe fn import(
        &self,
        place: impl Into<Place>,
        external: External,
    ) -> Result<Buffer, Error> {
        let memory = self.resolve(place)?;
        let kind = external.kind();
        let backend = self
            .backend_of(memory)
            .ok_or(ImportError::UnknownMemory { memory })?;
        let fault = |fault| ImportError::Failed {
            memory,
            kind,
            fault,
        };
        // SAFETY: the caller's promise is the one that the backend asks for.
        let raw = guarded(|| unsafe { backend.import(memory, external) }).map_err(fault)??;
        Ok(Buffer::new(raw, &self.shared))
    }

    /// Takes a view that a backend has made into the manager, so that it takes part in transfers.
    ///
    /// # Safety
    /// Nobody outside this manager touches the storage as long as a view of it lives: no other
    /// manager knows it, for their transfers would not be ordered against each other.
    pub unsafe fn wrap(&self, raw: transload_hal::Buffer) -> Buffer {
        Buffer::new(raw, &self.shared)
    }

    /// Copies all of `src` to all of `dst`. Small copies are done when this returns; in any case the
    /// result is the transfer's to tell.
    pub fn copy(&self, src: impl Into<Region>, dst: impl Into<Region>) -> Transfer {
        self.submit(&Request::new(src, dst))
    }

    /// Submits a request. It is accepted whole, or refused having done nothing.
    pub fn submit(&self, request: &Request) -> Transfer {
        let checked = self.check(request);
        match checked.and_then(|checked| self.shared.submit(checked, request.terms.clone())) {
            Ok(id) => Transfer::submitted(Arc::clone(&self.shared), id),
            Err(error) => Transfer::refused(error),
        }
    }

    /// Submits several requests, all or none. With `stop_at_failure`, those that have not begun when
    /// one of them fails are not started.
    ///
    /// # Errors
    /// What is wrong with the first request that cannot be accepted, and its index.
    pub fn copy_batch(
        &self,
        requests: &[Request],
        stop_at_failure: bool,
    ) -> Result<Batch, (usize, TransferError)> {
        let check = |(i, request)| self.check(request).map_err(|error| (i, error));
        let checked: Vec<Checked> = requests
            .iter()
            .enumerate()
            .map(check)
            .collect::<Result<_, _>>()?;
        let flag = Batch::flag(stop_at_failure);
        let now = self.shared.clock.now();
        let ids = self.shared.change(|state| {
            let mut chosen = Vec::with_capacity(checked.len());
            for (i, (checked, request)) in checked.iter().zip(requests).enumerate() {
                chosen.push(
                    state
                        .choose(checked, request.terms.verify, now)
                        .map_err(|error| (i, error))?,
                );
            }
            let parts = checked.into_iter().zip(chosen).zip(requests).enumerate();
            let mut ids = Vec::with_capacity(requests.len());
            for (i, ((checked, chosen), request)) in parts {
                let terms = Terms {
                    batch: flag.clone(),
                    ..request.terms.clone()
                };
                match state.accept(checked, chosen, terms, now) {
                    Ok(id) => ids.push(id),
                    Err(error) => {
                        // Nothing was submitted for the others: nobody has turned the engine.
                        ids.into_iter().for_each(|id| state.withdraw(id));
                        return Err((i, error));
                    }
                }
            }
            Ok(ids)
        })?;
        self.shared.turn();
        let handle = |id| Transfer::submitted(Arc::clone(&self.shared), id);
        Ok(Batch {
            transfers: ids.into_iter().map(handle).collect(),
        })
    }

    /// Copies borrowed bytes. Blocks until nothing of the copy is under way any more.
    ///
    /// # Errors
    /// As [`TransferError`] lists.
    pub fn copy_from_slice(
        &self,
        src: &[u8],
        dst: impl Into<Region>,
    ) -> Result<Report, TransferError> {
        let dst = dst.into();
        self.with_borrowed(HostSpan::of(src), false, |manager, src| {
            let checked = Checked::new(src, manager.operand(&dst)?)?;
            manager.submit_quietly(checked.with_borrowed_src())
        })
    }

    /// Copies to borrowed bytes. Blocks until nothing of the copy is under way any more.
    ///
    /// # Errors
    /// As [`TransferError`] lists.
    pub fn copy_into_slice(
        &self,
        src: impl Into<Region>,
        dst: &mut [u8],
    ) -> Result<Report, TransferError> {
        let src = src.into();
        self.with_borrowed(HostSpan::of_mut(dst), true, |manager, dst| {
            let checked = Checked::new(manager.operand(&src)?, dst)?;
            manager.submit_quietly(checked.with_borrowed_dst())
        })
    }

    /// Checks and plans a request once, to be posted any number of times.
    ///
    /// # Errors
    /// As [`TransferError`] lists.
    pub fn prepare(&self, request: &Request) -> Result<Prepared, TransferError> {
        self.check(request)?;
        Prepared::new(&self.shared, request)
    }

    /// The same memory as seen from another place, without a copy.
    ///
    /// # Errors
    /// When the place is not here, or the two memory systems have nothing that both can hold; the
    /// error says why each way of sharing failed.
    pub fn share(&self, buffer: &Buffer, place: impl Into<Place>) -> Result<Buffer, ShareError> {
        let dst = self.resolve(place)?;
        let src = buffer.memory();
        if src == dst {
            return Ok(buffer.clone());
        }
        let mut reasons = Vec::new();
        let (from, to) = (self.backend_of(src), self.backend_of(dst));
        if let (Some(from), Some(to)) = (from, to) {
            // Somebody else may cut a file off or write to it while it is mapped, so that is for the
            // caller to promise (`map_file`).
            let is_file = src.kind == MemoryKind::File;
            for kind in [
                ExternalKind::File,
                ExternalKind::Host,
                ExternalKind::OpaqueFd,
                ExternalKind::DmaBuf,
            ] {
                if is_file && kind == ExternalKind::File {
                    reasons.push(
                        "a file can be mapped only by who promises that nobody changes it".into(),
                    );
                    continue;
                }
                match share_as(&*from, &*to, &buffer.raw, dst, kind) {
                    Ok(raw) => return Ok(Buffer::new(raw, &self.shared)),
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
    pub fn place(&self, buffer: &Buffer, place: impl Into<Place>) -> Result<Placed, Error> {
        let memory = self.resolve(place)?;
        if let Ok(buffer) = self.share(buffer, memory) {
            return Ok(Placed {
                buffer,
                report: None,
            });
        }
        let copy = self.allocate(memory, AllocSpec::bytes(buffer.len()))?;
        let report = self.copy(buffer, &copy).wait()?;
        Ok(Placed {
            buffer: copy,
            report: Some(report),
        })
    }

    /// Asks the memory's backend to bring a region's bytes near a device before they are needed:
    /// migrates managed memory, reads a file ahead, touches pages. Blocks until the backend has done
    /// it, behind transfers that write the bytes and were submitted before.
    ///
    /// # Errors
    /// When the device is not here, or the backend refuses or fails.
    pub fn prefetch(
        &self,
        region: impl Into<Region>,
        device: impl Into<Place>,
    ) -> Result<(), Error> {
        let region = region.into();
        let to = self.resolve(device)?.device;
        let end = self.operand(&region)?;
        let backend = self.shared.state.with(|state| {
            let known = state.registered(end.buffer.backend())?;
            Some((Arc::clone(&known.backend), known.id))
        });
        let memory = end.buffer.memory();
        let (backend, name) = backend.ok_or(AllocError::UnknownMemory { memory })?;
        let footprint = crate::engine::accept::footprint(&end, false)?;
        let guard = self.shared.guard(end.clone(), footprint);
        self.shared.block_on(guard, None);
        let done = self.shared.prefetch(&backend, name, &end, to);
        self.shared.unguard(guard);
        done.map_err(|fault| Error::Hint { memory, fault })
    }

    /// The way that a request would go now, and those that it would not, with reasons.
    ///
    /// # Errors
    /// When it would be refused.
    pub fn explain(&self, request: &Request) -> Result<Explanation, TransferError> {
        let checked = self.check(request)?;
        let (src, dst) = (&checked.src, &checked.dst);
        let key = crate::engine::routes::key(src, dst, Purpose::Copy);
        self.explain_key(key, checked.len_bytes())
    }

    /// The way that `bytes` contiguous bytes would go from one place to another now.
    ///
    /// # Errors
    /// When a place is not here, or no route joins them.
    pub fn explain_places(
        &self,
        src: impl Into<Place>,
        dst: impl Into<Place>,
        bytes: u64,
    ) -> Result<Explanation, TransferError> {
        let (src, dst) = (self.resolve(src)?, self.resolve(dst)?);
        self.explain_key(transload_core::PlanKey::copy(src, dst), bytes)
    }

    /// An event for requests to start after, or to set when they are over.
    pub fn event(&self) -> Event {
        Event::new(Arc::clone(&self.shared))
    }

    /// What transfers did so far, by path, method and size.
    pub fn stats(&self) -> Snapshot {
        self.shared.state.with(|state| state.stats.snapshot())
    }

    /// Forgets the statistics.
    pub fn reset_stats(&self) {
        self.shared.state.with(|state| state.stats.reset());
    }

    /// Forgets plans, quarantines and proofs, and gives idle staging slots back: the next transfer
    /// finds out anew.
    pub fn clear_cache(&self) {
        let idle = self.shared.change(|state| {
            state.forget();
            state.pool.trim()
        });
        drop(idle);
    }

    /// The staging budget that this manager draws on.
    pub fn staging(&self) -> Arc<StagingBudget> {
        self.shared
            .state
            .with(|state| Arc::clone(state.pool.budget()))
    }

    /// The time by the manager's clock, for deadlines.
    pub fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// Does what can be done now, without blocking, and answers when something is to be done next.
    /// Only programs without an operating system, and tests, need to call it.
    pub fn turn(&self) -> Option<Instant> {
        self.shared.turn()
    }

    fn check(&self, request: &Request) -> Result<Checked, TransferError> {
        let mut events = request.terms.after.iter().chain(&request.terms.then);
        if events.any(|event| event.manager != self.shared.serial) {
            return Err(TransferError::ForeignEvent);
        }
        Checked::new(self.operand(&request.src)?, self.operand(&request.dst)?)
    }

    fn operand(&self, region: &Region) -> Result<Operand, TransferError> {
        if !Arc::ptr_eq(&region.buffer.shared, &self.shared) {
            let memory = region.buffer.memory();
            return Err(TransferError::ForeignBuffer { memory });
        }
        Ok(region.operand())
    }

    fn explain_key(
        &self,
        key: transload_core::PlanKey,
        bytes: u64,
    ) -> Result<Explanation, TransferError> {
        let now = self.now();
        self.shared.state.with(|state| {
            let simulated = |memory: MemoryId| {
                let device = state.topology.device(memory.device);
                device.is_some_and(|device| device.simulated)
            };
            let simulated = simulated(key.src) || simulated(key.dst);
            let plans = state
                .plans(key, now)
                .map_err(|error| TransferError::NoRoute {
                    src: key.src,
                    dst: key.dst,
                    reasons: error.to_string(),
                })?;
            Ok(Explanation::new(&plans, &key, bytes, simulated))
        })
    }

    fn backend_of(&self, memory: MemoryId) -> Option<Arc<dyn Backend>> {
        self.shared.state.with(|state| {
            let owner = state.topology.memory(memory)?.backend;
            state.backend(owner).map(Arc::clone)
        })
    }

    /// Wraps borrowed memory for the length of a call. The wrapper is reused, so nothing is
    /// allocated once there is one for each thread that copies at a time.
    fn with_borrowed(
        &self,
        span: HostSpan,
        writable: bool,
        f: impl FnOnce(&TransferManager, Operand) -> Result<Report, TransferError>,
    ) -> Result<Report, TransferError> {
        let memory = self.resolve(DeviceId::CPU0.memory(MemoryKind::Pageable))?;
        let (backend, known) = self.shared.state.with(|state| {
            let owner = state.topology.memory(memory).map(|memory| memory.backend);
            (owner, state.borrowed.pop())
        });
        let info = |span: HostSpan| StorageInfo {
            id: StorageId::Host,
            base: span.addr(),
            len_bytes: span.len() as u64,
            memory,
            backend: backend.unwrap_or(BackendId(memory.device.kind.0)),
            writable,
            host: Some(span),
        };
        let mut wrapper = match known {
            Some(wrapper) => wrapper,
            // SAFETY: it shows no bytes.
            None => unsafe { transload_hal::Buffer::new(info(NOWHERE), Box::new(Borrowed)) },
        };
        // SAFETY: the bytes are borrowed for as long as this call lasts, mutably if they are to be
        // written, and `submit_quietly` returns only when nothing of the copy is under way.
        let bound = unsafe { wrapper.rebind(info(span)) };
        debug_assert!(bound, "wrappers in the list have no other views");
        let operand = Operand {
            shape: Shape::contiguous(wrapper.len()),
            buffer: wrapper.clone(),
            offset: 0,
        };
        let result = f(self, operand);
        // SAFETY: it shows no bytes from here on.
        if unsafe { wrapper.rebind(info(NOWHERE)) } {
            self.shared.state.with(|state| state.borrowed.push(wrapper));
        }
        result
    }

    /// Submits, and returns only when nothing of it is under way any more, whatever happens.
    fn submit_quietly(&self, checked: Checked) -> Result<Report, TransferError> {
        struct Quiet<'a>(&'a Shared, crate::engine::active::TransferId);
        impl Drop for Quiet<'_> {
            fn drop(&mut self) {
                self.0.block_on(self.1, None);
            }
        }
        let id = self.shared.submit(checked, Terms::default())?;
        drop(Quiet(&self.shared, id));
        let result = self.shared.take_result(id);
        result.unwrap_or(Err(TransferError::ResultTaken))
    }
}

fn share_as(
    from: &dyn Backend,
    to: &dyn Backend,
    buffer: &transload_hal::Buffer,
    dst: MemoryId,
    kind: ExternalKind,
) -> Result<transload_hal::Buffer, String> {
    let said = |fault: transload_hal::Fault| fault.to_string();
    let external = guarded(|| from.export(buffer, kind))
        .map_err(said)?
        .map_err(|error| error.to_string())?;
    // SAFETY: the external is what its backend gave out a moment ago, and its identity travels with
    // it, so that both views take part in one order.
    guarded(|| unsafe { to.import(dst, external) })
        .map_err(said)?
        .map_err(|error| error.to_string())
}

fn downcast<B: Backend>(backend: Arc<dyn Backend>) -> Option<Arc<B>> {
    let any: &dyn Any = &*backend;
    if !any.is::<B>() {
        return None;
    }
    // SAFETY: the object was just found to be a `B`, and the pointer is the one that `Arc::into_raw`
    // gave, of the same allocation.
    Some(unsafe { Arc::from_raw(Arc::into_raw(backend).cast::<B>()) })
}

fn list<T: fmt::Display>(items: impl Iterator<Item = T>) -> String {
    let mut text = String::new();
    for item in items {
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&item.to_string());
    }
    if text.is_empty() { "none".into() } else { text }
}

impl fmt::Debug for TransferManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let backends = self.backends();
        self.shared.state.with(|state| {
            f.debug_struct("TransferManager")
                .field("backends", &backends)
                .field("live", &state.live)
                .field("cache", &state.cache)
                .field("staging", state.pool.budget())
                .field("stats", &state.stats.snapshot())
                .finish()
        })
    }
}
