//! The manager, which is the entry point of the library.

mod copies;
mod memory;

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::{Any, TypeId};
use core::fmt;
use core::time::Duration;

use transload_core::stats::{Snapshot, Stats};
use transload_core::{
    DeviceId, DeviceKind, DeviceName, Instant, Inventory, MemoryId, Place, Purpose, Topology,
};
use transload_hal::{Backend, BackendId, DeviceInfo, MemoryInfo};

use crate::engine::shared::Shared;
use crate::engine::unwind::guarded;
use crate::error::Forked;
use crate::explain::choice;
use crate::{
    Buffer, Candidate, Choice, Event, Explanation, PlaceError, RegisterError, Report, Request,
    StagingBudget, Trace, TransferError,
};

/// Knows the machine, makes buffers, and moves bytes between them.
///
/// Clones are the same manager. When the last handle (manager, buffers, transfers) was dropped and detached transfers
/// have completed, all resources are freed.
///
/// # When the process ends
/// A process that returns from `main` or calls `exit` does not wait for its transfers: call
/// [`TransferManager::wait_idle`] before. A transfer that is not over then is cut short, and any part of its bytes may have
/// arrived. Such a process ends cleanly, whether handles are held, dropped or leaked:
/// - Adapters complete the operations that their drivers have taken. An exit handler of the wgpu backend waits for that, at
///   most 2 seconds in total, before the drivers shut down. It takes these 2 seconds as well when a callback on the thread
///   of a device calls `exit` while the device has other operations under way.
/// - From then on adapters take no more work. Threads that still run get errors of the class
///   [`Lost`](crate::hal::ErrorClass::Lost) from them.
/// - Nothing waits for copies of the host's threads and of CUDA and Metal devices: they end with the process.
///
/// `abort` and signals end a process at once, without exit handlers.
///
/// # After fork
/// A manager belongs to the process that made it, since `fork` copies no threads and drivers do not survive it. In a child
/// of `fork` each call on a manager of the parent's, or on a buffer, transfer, guard, event or prepared copy of it, returns
/// at once and does nothing. It answers [`TransferError::Forked`], or `Forked` of another error type. A call without an
/// error answers that there is nothing: no backends, no devices, an event that is not set. Dropping such objects leaks what
/// they own. A manager that the child makes works, as far as the drivers do: CUDA, Vulkan and Metal may refuse a child
/// whose parent has used them. A child that names no device opens no driver. Where the parent has opened adapters, on Linux with
/// glibc, `exit` leaves out the exit handlers that were registered before: drivers would wait there for threads that the
/// child does not have. Elsewhere end such a child with `_exit`. Forks are noticed on
/// Unix with the feature `std`, through `pthread_atfork`; children of `vfork` and of the bare system call `clone` are not,
/// and have to execute another program.
#[derive(Clone)]
pub struct TransferManager {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for TransferManager {
    fn drop(&mut self) {
        #[cfg(threads)]
        self.shared.let_own_threads_go();
    }
}

/// A registered backend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendInfo {
    /// Its name.
    pub id: BackendId,
    /// Its devices.
    pub devices: Vec<DeviceId>,
}

/// The result of [`TransferManager::place`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Placed {
    /// The bytes, at the place.
    pub buffer: Buffer,
    /// The report of the copy; `None` when the place shares the memory and nothing was copied.
    pub report: Option<Report>,
}

/// A reason to open kinds of devices that discovery has left closed.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(feature = "std"),
    expect(dead_code, reason = "only discovery leaves kinds closed")
)]
pub(crate) enum Wanted {
    /// A call lists all devices.
    All,
    /// A call asks about devices of that kind.
    Kind(DeviceKind),
    /// A call names a place that the open kinds do not have, or a UUID.
    Place(Place),
    /// A call registers a backend of that name.
    Backend(BackendId),
    /// A call asks for the backend of that type.
    Type(TypeId),
}

impl TransferManager {
    /// Registers a backend. From now on transfers use its devices and links, and plans are made anew.
    ///
    /// # Errors
    /// When a backend of that name, or a device, memory or link of the backend, is registered already; or when the
    /// backend panics. The manager is unchanged then.
    pub fn register_backend(&self, backend: impl Backend) -> Result<(), RegisterError> {
        self.register_shared(Arc::new(backend))
    }

    /// As [`TransferManager::register_backend`], for a backend that the program holds too.
    ///
    /// # Errors
    /// As [`TransferManager::register_backend`] lists.
    pub fn register_shared(&self, backend: Arc<dyn Backend>) -> Result<(), RegisterError> {
        self.shared.check_fork()?;
        let inventory = guarded(|| backend.inventory()).map_err(panicked)?;
        // Discovery's backend of that name comes first, where this machine has its hardware.
        self.open(Wanted::Backend(inventory.backend));
        // So do its devices and memories of the same names: what a place means does not depend on which kinds are open.
        for device in &inventory.devices {
            self.open(Wanted::Place(Place {
                device: DeviceName::Id(device.id),
                memory: None,
            }));
        }
        for memory in &inventory.memories {
            self.open(Wanted::Place(memory.id.into()));
        }
        self.register(backend, inventory)
    }

    /// As [`TransferManager::register_shared`], and opens nothing.
    pub(crate) fn register(
        &self,
        backend: Arc<dyn Backend>,
        inventory: Inventory,
    ) -> Result<(), RegisterError> {
        let unattended = guarded(|| backend.completes_unattended()).map_err(panicked)?;
        let id = inventory.backend;
        self.shared.change(|state| {
            if state.in_flight.known(id).is_some() {
                return Err(RegisterError::Duplicate { backend: id });
            }
            let mut topology = state.planning.topology().clone();
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
            .change(|state| state.register(backend, inventory, unattended))?;
        #[cfg(feature = "std")]
        self.recall_verdicts(id);
        Ok(())
    }

    /// Opens the kinds of devices that are wanted and not open yet. Only discovery leaves kinds closed.
    #[cfg(not(feature = "std"))]
    fn open(&self, _: Wanted) {}

    /// Returns the backends, in the order of registration. Opens every kind of device ([`Builder::discover`](crate::Builder::discover)).
    pub fn backends(&self) -> Vec<BackendInfo> {
        self.open(Wanted::All);
        self.registered()
    }

    /// As [`TransferManager::backends`], and opens nothing.
    pub(crate) fn registered(&self) -> Vec<BackendInfo> {
        let listed = self.shared.inspect(|state| {
            let devices = state.planning.topology().devices();
            let of = |id: BackendId| devices.iter().filter(move |device| device.backend == id);
            let known = state.in_flight.backends().iter();
            known
                .map(|known| BackendInfo {
                    id: known.id,
                    devices: of(known.id).map(|device| device.id).collect(),
                })
                .collect()
        });
        listed.unwrap_or_default()
    }

    /// Returns the registered backend of that type, and opens its kind of device. Use it for functions that only this
    /// backend has.
    pub fn backend<B: Backend>(&self) -> Option<Arc<B>> {
        self.open(Wanted::Type(TypeId::of::<B>()));
        self.backends_of().into_iter().next()
    }

    /// Returns the registered backends of that type, in the order of registration.
    pub(crate) fn backends_of<B: Backend>(&self) -> Vec<Arc<B>> {
        let backends = self.shared.inspect(|state| {
            let known = state.in_flight.backends().iter();
            known
                .map(|known| Arc::clone(&known.backend))
                .collect::<Vec<Arc<dyn Backend>>>()
        });
        let backends = backends.unwrap_or_default().into_iter();
        backends.filter_map(downcast).collect()
    }

    /// Returns every device of every backend. Opens every kind of device. Networks are none: they have no memory.
    /// [`TransferManager::topology`] has them, too.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.open(Wanted::All);
        let listed = self
            .shared
            .inspect(|state| places(state.planning.topology()).cloned().collect());
        listed.unwrap_or_default()
    }

    /// Returns every memory of every backend. Opens every kind of device.
    pub fn memories(&self) -> Vec<MemoryInfo> {
        self.open(Wanted::All);
        let listed = self.shared.inspect(|state| {
            let memories = state.planning.topology().memories().iter();
            let is_place = |memory: &&MemoryInfo| memory.id.device.kind != DeviceKind::NETWORK;
            memories.filter(is_place).cloned().collect()
        });
        listed.unwrap_or_default()
    }

    /// Returns the machine as the planner sees it: devices, memories, and links with their costs. Opens every kind of
    /// device, and blocks on the drivers of those that were not open.
    pub fn topology(&self) -> Topology {
        self.open(Wanted::All);
        self.opened()
    }

    /// Returns the part of [`TransferManager::topology`] that is open now, and opens nothing.
    pub fn opened(&self) -> Topology {
        let topology = self
            .shared
            .inspect(|state| state.planning.topology().clone());
        topology.unwrap_or_default()
    }

    /// Returns the memory that a place names on this machine. The first place of a kind of device opens the kind, and
    /// blocks on its driver. A UUID may open several kinds, `cpu:0/pinned` opens CUDA's, and other memory of the host opens
    /// none.
    ///
    /// # Errors
    /// When there is no such device, or it has no such memory.
    pub fn resolve(&self, place: Place) -> Result<MemoryId, PlaceError> {
        let is_named_alike = matches!(place.device, DeviceName::Uuid(_));
        let found = match self.find(place)? {
            Ok(memory) if !is_named_alike => Ok(memory),
            _ => {
                self.open(Wanted::Place(place));
                self.find(place)?
            }
        };
        #[cfg(feature = "std")]
        let found = found.map_err(|error| self.explained(error));
        found
    }

    /// As [`TransferManager::resolve`], among the kinds that are open.
    pub(crate) fn find(&self, place: Place) -> Result<Result<MemoryId, PlaceError>, Forked> {
        self.shared.inspect(|state| {
            let topology = state.planning.topology();
            let device = match place.device {
                DeviceName::Id(id) => topology.device(id),
                DeviceName::Uuid(uuid) => topology.device_by_uuid(uuid),
            };
            let device = device.ok_or_else(|| PlaceError::UnknownDevice {
                device: place.device,
                known: list(places(topology).map(|device| device.id)),
                reason: None,
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
                    reason: None,
                })
        })
    }

    /// Returns the way that a request would go now, and the rejected ways, with reasons.
    ///
    /// # Errors
    /// When the request would be refused.
    pub fn explain(&self, request: &Request) -> Result<Explanation, TransferError> {
        let checked = self.check(request)?;
        let (src, dst) = (&checked.src, &checked.dst);
        let key = crate::engine::planning::key(src, dst, Purpose::Copy);
        self.explain_key(key, checked.len_bytes())
    }

    /// Returns the way that `bytes` contiguous bytes would go from one place to another now.
    ///
    /// # Errors
    /// When a place is not here, or no route joins them.
    pub fn explain_places(
        &self,
        src: Place,
        dst: Place,
        bytes: u64,
    ) -> Result<Explanation, TransferError> {
        let (src, dst) = (self.resolve(src)?, self.resolve(dst)?);
        self.explain_key(transload_core::PlanKey::copy(src, dst), bytes)
    }

    /// Returns the ways that contiguous bytes would go from one place to another now, by size: the first size in bytes of
    /// each way, rising from 0 and exact to the byte, and the way. Its `predicted_ns` is that of the first size.
    ///
    /// # Errors
    /// When a place is not here, or no route joins them.
    pub fn explain_sizes(
        &self,
        src: Place,
        dst: Place,
    ) -> Result<Vec<(u64, Choice)>, TransferError> {
        let key = transload_core::PlanKey::copy(self.resolve(src)?, self.resolve(dst)?);
        let now = self.now();
        self.shared.inspect(|state| {
            let plans = state.planning.plans(key, now);
            let plans = plans.map_err(|error| TransferError::no_route(&key, &error))?;
            let topology = state.planning.topology();
            let ranges = plans.ranges().iter();
            Ok(ranges
                .map(|(from, plan)| (*from, choice(plan, *from, topology)))
                .collect())
        })?
    }

    /// Returns the ways that a request could go and that are worth measuring: the one that it would go first, then each
    /// other route in chunks of the size that suits it best, of half and of twice that size, by their predicted times.
    /// Links that are in quarantine are left out. [`Request::by`] has a request take one of them.
    ///
    /// # Errors
    /// When the request would be refused.
    pub fn candidates(&self, request: &Request) -> Result<Vec<Candidate>, TransferError> {
        let checked = self.check(request)?;
        let key = crate::engine::planning::key(&checked.src, &checked.dst, Purpose::Copy);
        let mut ways = self.ways(key, checked.len_bytes())?;
        ways.retain(|way| !checked.in_place || way.plan.moves_whole());
        Ok(ways)
    }

    pub(crate) fn ways(
        &self,
        key: transload_core::PlanKey,
        bytes: u64,
    ) -> Result<Vec<Candidate>, TransferError> {
        let now = self.now();
        self.shared.inspect(|state| {
            let plans = state.planning.plans(key, now);
            let plans = plans.map_err(|error| TransferError::no_route(&key, &error))?;
            let topology = state.planning.topology();
            let candidate = |plan| Candidate::new(key, plan, self.shared.serial, bytes, topology);
            Ok(plans.candidates(bytes).into_iter().map(candidate).collect())
        })?
    }

    /// Makes an event for requests to start after, or to set when they are over.
    pub fn event(&self) -> Event {
        Event::new(Arc::clone(&self.shared))
    }

    /// Returns what transfers have done so far, by path, method and size.
    pub fn stats(&self) -> Snapshot {
        let stats = self.shared.inspect(|state| state.stats.snapshot());
        stats.unwrap_or_else(|_| Stats::default().snapshot())
    }

    /// Forgets the statistics.
    pub fn reset_stats(&self) {
        let _ = self.shared.inspect(|state| state.stats.reset());
    }

    /// Takes what was recorded since the last call, for a viewer. Empty unless [`Builder::trace`](crate::Builder::trace) was
    /// called.
    pub fn take_trace(&self) -> Trace {
        let recorder = self.shared.recorder.as_ref();
        let recorder = recorder.filter(|_| !self.shared.is_forked());
        let recorded = recorder.map(|recorder| recorder.take()).unwrap_or_default();
        let opened = self.opened();
        let simulated = opened.devices().iter().filter(|device| device.simulated);
        Trace::new(recorded, simulated.map(|device| device.id).collect())
    }

    /// Gives memory back to the system that is kept for later: idle staging slots, and the freed blocks of ordinary memory that
    /// the process keeps, at most 1 GiB and a sixteenth of the memory that it may use. New memory costs several times what
    /// copying into kept memory does.
    pub fn trim(&self) {
        if self.shared.is_forked() {
            return;
        }
        drop(self.shared.change(|state| state.admission.trim()));
        #[cfg(feature = "std")]
        transload_hal::Room::give_back();
    }

    /// Forgets plans, quarantines and proofs, those of earlier processes too, and frees idle staging slots: the next
    /// transfer finds out anew. Verdicts on disk stay there for other processes, until a proof ends with another one.
    pub fn clear_cache(&self) {
        if self.shared.is_forked() {
            return;
        }
        let idle = self.shared.change(|state| {
            state.forget();
            state.admission.trim()
        });
        drop(idle);
    }

    /// Returns the staging budget that this manager uses.
    pub fn staging(&self) -> Arc<StagingBudget> {
        Arc::clone(&self.shared.budget)
    }

    /// Returns the time by the manager's clock, for deadlines.
    pub fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// Turns the engine once: does what can be done now, without blocking, and returns the time at which it has to be
    /// called next. Only programs without an operating system, and tests, need to call it.
    pub fn turn(&self) -> Option<Instant> {
        self.shared.turn()
    }

    /// Blocks until none of this manager's transfers is under way. This includes dropped transfers, transfers of other
    /// threads, and transfers whose operations outlast their deadline. The thread turns the engine meanwhile, so this
    /// also completes dropped transfers in builds without threads.
    ///
    /// The buffers of dropped transfers have been dropped when it returns. Do not call it from such a drop, as in the
    /// `Drop` of an adopted object.
    ///
    /// In a child of `fork` it returns at once.
    ///
    /// With nothing under way it returns at once, even while guards are held. It never returns if a transfer waits for
    /// an [`Event`] that is never set, or for a guard that this very thread holds:
    /// [`TransferManager::wait_idle_timeout`] has a limit.
    ///
    /// In the browser, where nothing may block, it returns at once: transfers go on when the page's own code has
    /// returned to the browser.
    pub fn wait_idle(&self) {
        self.shared.block_until_idle(None);
    }

    /// As [`TransferManager::wait_idle`], until the limit has passed by the manager's clock. Returns false when a
    /// transfer is still under way then; the transfer goes on. Returns false in a child of `fork`.
    #[must_use = "the limit may have passed with transfers still under way"]
    pub fn wait_idle_timeout(&self, limit: Duration) -> bool {
        let until = self.shared.clock.now() + limit;
        self.shared.block_until_idle(Some(until))
    }

    fn explain_key(
        &self,
        key: transload_core::PlanKey,
        bytes: u64,
    ) -> Result<Explanation, TransferError> {
        let now = self.now();
        self.shared.inspect(|state| {
            let plans = state.planning.plans(key, now);
            let plans = plans.map_err(|error| TransferError::no_route(&key, &error))?;
            let proof = |link| state.proof_of(link);
            Ok(Explanation::new(
                &plans,
                &key,
                bytes,
                state.planning.topology(),
                &proof,
            ))
        })?
    }
}

fn panicked(fault: transload_hal::Fault) -> RegisterError {
    RegisterError::Panicked {
        message: fault.message.into_owned(),
    }
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

/// Returns the devices that may have memory.
fn places(topology: &Topology) -> impl Iterator<Item = &DeviceInfo> {
    let devices = topology.devices().iter();
    devices.filter(|device| device.id.kind != DeviceKind::NETWORK)
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
        let backends = self.registered();
        let answer = self.shared.inspect(|state| {
            f.debug_struct("TransferManager")
                .field("backends", &backends)
                .field("live", &state.table.live())
                .field("cache", state.planning.cache())
                .field("staging", state.admission.budget())
                .field("stats", &state.stats.snapshot())
                .finish()
        });
        answer.unwrap_or_else(|forked| f.debug_tuple("TransferManager").field(&forked).finish())
    }
}
