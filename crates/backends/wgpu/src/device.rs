//! The backend: its adapters, and access to their memories and queues.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::{fmt, ptr};

use transload_hal::{
    Access, AllocError, AllocSpec, Backend, BackendId, Buffer, CompletionSink, ConnectError,
    DeviceId, DeviceKind, ErrorClass, External, ExternalKind, Fault, Fence, ImportError, Inventory,
    LinkId, MemoryId, MemoryKind, Name, Op, Owner, PerProcess, StorageInfo, SubmitError, Waited,
    link_between,
};

use crate::ends::adapter_of;
use crate::exit::{self, Inside, Kept, Lease};
use crate::fault::fault_of;
use crate::identity;
use crate::inventory::inventory;
use crate::memory;
use crate::queue::Queue;
use crate::raw::{self, Importer, Mapper, Shifter};

/// The interfaces to search for adapters, in order; the search ends at the first that has any, because most adapters are
/// offered by several.
const INTERFACES: [wgpu::Backends; 4] = [
    wgpu::Backends::VULKAN,
    wgpu::Backends::METAL,
    wgpu::Backends::DX12,
    wgpu::Backends::GL,
];

/// The name of this backend.
pub const BACKEND: BackendId = BackendId(Name::constant("wgpu"));

/// Adapters, each with a device that this backend opened or that a user lent it.
pub struct Wgpu {
    queues: Vec<Queue>,
    inventory: Inventory,
    sink: Arc<OnceLock<Arc<dyn CompletionSink>>>,
}

/// One device and the state that all its users share.
pub(crate) struct Gpu {
    pub(crate) id: DeviceId,
    /// The device's identity within the process ([`identity::of`]).
    pub(crate) identity: usize,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    /// Imports host memory, or the reason why the device cannot.
    pub(crate) importer: Result<Importer, &'static str>,
    /// Allocates memory that host and device both reach, if they share one.
    pub(crate) mapper: Option<Mapper>,
    /// This backend opened the device and has not given out its handles.
    is_private: AtomicBool,
    /// How many rows of a texture are worth a command each.
    pub(crate) single_rows: u64,
    /// Why the device is lost.
    pub(crate) lost: Arc<OnceLock<Fault>>,
    /// Made for the first copy that wgpu's own commands cannot do.
    pub(crate) shifter: Mutex<Option<Arc<Kept<Shifter>>>>,
    _lease: Lease,
}

/// Opens a device with the adapter's own limits, ready for this backend.
///
/// If the adapter's driver offers `VK_EXT_external_memory_host`, the device is opened with it, and copies to and from
/// ordinary host memory need no staging.
///
/// Blocks on the driver, for some milliseconds.
///
/// # Errors
/// If the driver refuses to open the device.
pub fn open_device(
    adapter: &wgpu::Adapter,
) -> Result<(wgpu::Device, wgpu::Queue), wgpu::RequestDeviceError> {
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("transload"),
        // The defaults would cap buffers at 256 MiB.
        required_limits: adapter.limits(),
        ..Default::default()
    };
    match raw::open(adapter, &descriptor) {
        Some(opened) => Ok(opened),
        None => pollster::block_on(adapter.request_device(&descriptor)),
    }
}

impl Wgpu {
    /// Opens a device on every adapter that allows it, in the order in which the instance lists them, software adapters
    /// last.
    ///
    /// Uses the first of Vulkan, Metal and DirectX 12 that has an adapter, so that an adapter offered by several interfaces
    /// is opened once; uses GL only if none has any. Blocks on the drivers.
    #[must_use]
    pub fn discover() -> Wgpu {
        // Before any driver is loaded, and again after the loaded ones: the process may end meanwhile.
        exit::watch();
        let Some(_inside) = Inside::enter() else {
            return Wgpu::with_devices([]);
        };
        let interfaces = INTERFACES.into_iter();
        let opened = interfaces.map(open_all).find(|opened| !opened.is_empty());
        let wgpu = Wgpu::with_devices(opened.unwrap_or_default());
        for queue in &wgpu.queues {
            queue.gpu().own();
        }
        wgpu
    }

    /// Makes a backend of devices that are open already; `wgpu:0` is the first.
    ///
    /// The devices stay their owner's: this backend replaces neither the callback for a lost device, of which wgpu keeps
    /// one, nor the one for uncaptured errors. The backend detects the loss of a device by itself, before it reports that
    /// bytes moved.
    ///
    /// Drop all managers of a device before `wgpu::Device::destroy` is called on it. In wgpu 30 that call frees the memory
    /// of mapped buffers although views of them live. Staging slots are mapped, so a later copy through one may crash the
    /// process.
    ///
    /// The devices may be of several instances, but a buffer must be imported into the memory of the device that made it
    /// ([`Backend::import`]): wgpu confuses objects of different instances.
    #[must_use]
    pub fn with_devices(devices: impl IntoIterator<Item = (wgpu::Device, wgpu::Queue)>) -> Wgpu {
        // A process that ends takes no more devices.
        let inside = Inside::enter();
        let devices: Vec<_> = match inside {
            Some(_) => devices.into_iter().collect(),
            None => Vec::new(),
        };
        let sink = Arc::new(OnceLock::new());
        let numbers = Arc::new(AtomicU64::new(1));
        let mut queues = Vec::new();
        for (index, (device, queue)) in devices.into_iter().enumerate() {
            let gpu = Arc::new(Gpu {
                _lease: Lease::of(&device, &queue),
                id: DeviceId {
                    kind: DeviceKind::WGPU,
                    index: index as u32,
                },
                identity: identity::of(&device),
                importer: Importer::of(&device),
                mapper: Mapper::of(&device),
                single_rows: match is_software(&device.adapter_info()) || !computes(&device) {
                    true => u64::MAX,
                    false => raw::SINGLE_ROWS,
                },
                device,
                queue,
                is_private: AtomicBool::new(false),
                lost: Arc::default(),
                shifter: Mutex::new(None),
            });
            queues.push(Queue::new(gpu, Arc::clone(&sink), Arc::clone(&numbers)));
        }
        let gpus: Vec<&Gpu> = queues.iter().map(Queue::gpu).collect();
        let inventory = inventory(&gpus);
        exit::watch();
        Wgpu {
            queues,
            inventory,
            sink,
        }
    }

    /// The number of devices.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether there are no devices.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Returns the handles of a device, for the user's own work on buffers that the manager allocated. If [`Wgpu::discover`]
    /// opened the device, errors of such work that no error scope catches are dropped silently;
    /// `wgpu::Device::on_uncaptured_error` changes that. For `wgpu::Device::destroy`, see [`Wgpu::with_devices`].
    #[must_use]
    pub fn handles(&self, device: DeviceId) -> Option<(wgpu::Device, wgpu::Queue)> {
        let gpu = self.queue(device)?.gpu();
        gpu.is_private.store(false, Ordering::Relaxed);
        Some((gpu.device.clone(), gpu.queue.clone()))
    }

    /// Returns the id of a device; `None` if the device does not belong to this backend.
    #[must_use]
    pub fn id_of(&self, device: &wgpu::Device) -> Option<DeviceId> {
        Some(self.queue_of(device)?.gpu().id)
    }

    pub(crate) fn queue_of(&self, device: &wgpu::Device) -> Option<&Queue> {
        let mut queues = self.queues.iter();
        queues.find(|queue| identity::is_same(&queue.gpu().device, device))
    }

    fn queue(&self, device: DeviceId) -> Option<&Queue> {
        self.queues.iter().find(|queue| queue.gpu().id == device)
    }
}

impl fmt::Debug for Wgpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.inventory.devices.iter();
        f.debug_struct("Wgpu")
            .field(
                "devices",
                &devices.map(|device| &device.name).collect::<Vec<_>>(),
            )
            .finish_non_exhaustive()
    }
}

impl Gpu {
    /// Whether shaders run. They do not on WebGL 2. wgpu's no-op adapter copies, but reports a dispatch as done without
    /// running it.
    pub(crate) fn computes(&self) -> bool {
        computes(&self.device)
    }

    /// Marks a device that was opened here and has no other owner.
    fn own(&self) {
        self.is_private.store(true, Ordering::Relaxed);
        // By default an uncaptured error panics. The backend captures relevant errors where they happen.
        self.device.on_uncaptured_error(Arc::new(|_| {}));
        let lost = Arc::clone(&self.lost);
        self.device
            .set_device_lost_callback(move |reason, message| {
                let message = format!("the driver gave the device up ({reason:?}): {message}");
                let _ = lost.set(Fault::new(ErrorClass::Lost, message));
            });
    }

    /// Whether the device is private, so that no user's buffer can belong to it.
    pub(crate) fn is_private(&self) -> bool {
        self.is_private.load(Ordering::Relaxed)
    }

    /// Makes a storage of this device.
    ///
    /// # Safety
    /// As [`Buffer::new`].
    pub(crate) unsafe fn storage(&self, info: StorageInfo, owner: impl Owner) -> Buffer {
        let lease = Lease::of(&self.device, &self.queue);
        // SAFETY: the caller's promise.
        unsafe { Buffer::guarded(info, Box::new(owner), Box::new(lease)) }
    }

    /// Begins work in the driver.
    ///
    /// # Errors
    /// When the device is lost, or the process or this thread ends.
    pub(crate) fn enter(&self) -> Result<Inside, Fault> {
        if let Some(fault) = self.lost.get() {
            return Err(fault.clone());
        }
        Inside::enter()
            .ok_or_else(|| Fault::new(ErrorClass::Lost, "the process or this thread is ending"))
    }

    /// Runs `f`, which is part of work that has begun ([`Gpu::enter`]), and returns errors that the device reported
    /// meanwhile on this thread as a fault.
    pub(crate) fn catching<T>(&self, f: impl FnOnce() -> T) -> Result<T, Fault> {
        if let Some(fault) = self.lost.get() {
            return Err(fault.clone());
        }
        match self.scoped(f) {
            (made, None) => Ok(made),
            (_, Some(error)) => Err(self.blame(fault_of(&error))),
        }
    }

    /// Runs `f`, and returns its result and the first error that the device reports of it.
    pub(crate) fn scoped<T>(&self, f: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
        let scopes = [
            wgpu::ErrorFilter::Internal,
            wgpu::ErrorFilter::OutOfMemory,
            wgpu::ErrorFilter::Validation,
        ]
        .map(|filter| self.device.push_error_scope(filter));
        let made = f();
        let mut first = None;
        // The innermost goes first.
        for scope in scopes.into_iter().rev() {
            first = first.or(at_once(scope.pop()).flatten());
        }
        (made, first)
    }

    /// Records commands that are never submitted, to find out whether a user's object can be used on this device.
    pub(crate) fn try_out(
        &self,
        memory: MemoryId,
        write: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<(), ImportError> {
        let tried = self.catching(|| {
            let descriptor = wgpu::CommandEncoderDescriptor::default();
            let mut encoder = self.device.create_command_encoder(&descriptor);
            write(&mut encoder);
            drop(encoder.finish());
        });
        let kind = ExternalKind::Object;
        match tried {
            Ok(()) => Ok(()),
            Err(fault) if fault.class == ErrorClass::Caller => Err(ImportError::Invalid {
                memory,
                kind,
                reason: fault.message,
            }),
            Err(fault) => Err(ImportError::Failed {
                memory,
                kind,
                fault,
            }),
        }
    }

    pub(crate) fn shifter(&self) -> Result<Arc<Kept<Shifter>>, Fault> {
        let mut kept = self.shifter.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shifter) = &*kept {
            return Ok(Arc::clone(shifter));
        }
        let shifter = self.catching(|| Kept::new(Shifter::new(&self.device)))?;
        let shifter = Arc::new(shifter);
        // A driver may load its compiler for the first shader.
        exit::watch();
        *kept = Some(Arc::clone(&shifter));
        Ok(shifter)
    }
}

// SAFETY: a fence settles when the driver has ended its submission, or when it was lost; operands are
// checked before anything is encoded, and one encoder is submitted whole or not at all; edges inside a
// word are written under a mask; each fence is told once, by the one that takes it off the list; buffers
// are wgpu's own, kept by their owners.
unsafe impl Backend for Wgpu {
    fn inventory(&self) -> Inventory {
        self.inventory.clone()
    }

    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
        match self.queue(memory.device) {
            Some(queue) => memory::allocate(queue.gpu(), memory, spec),
            None => Err(AllocError::UnknownMemory { memory }),
        }
    }

    /// Takes a `wgpu::Buffer` of the memory's own device in an [`External::Object`], which must have been created with the
    /// usages `COPY_SRC` and `COPY_DST` and have a multiple of 4 bytes; or a `wgpu::Texture` of it, for the texels of mip
    /// level 0, or [`Texels`](crate::Texels). Without `COPY_DST` a texture's texels are read-only; without `COPY_SRC`
    /// transfers that read them, or write a texel in part, fail. The buffer's memory is of kind `device`, whichever memory
    /// was named. Clones of one buffer or texture are one storage.
    ///
    /// wgpu checks and orders the owner's own use meanwhile: the owner's submissions run before or after a transfer's
    /// commands ([`Wgpu::when_done`] says how to choose), and transfers of a mapped buffer or a destroyed object fail.
    ///
    /// # Safety
    /// The object was made by a device of the `wgpu::Instance` that made this device. wgpu knows objects by numbers, which
    /// each instance counts anew: an object of another instance stands for whichever object of this one has its number.
    unsafe fn import(&self, memory: MemoryId, external: External) -> Result<Buffer, ImportError> {
        let known = self.queue(memory.device);
        let kinds = [MemoryKind::Device, MemoryKind::Mapped];
        let Some(queue) = known.filter(|_| kinds.contains(&memory.kind)) else {
            return Err(ImportError::UnknownMemory { memory });
        };
        let memory = memory.device.memory(MemoryKind::Device);
        let kind = external.kind();
        let external = Kept::new(external);
        let _inside = queue.gpu().enter().map_err(|fault| ImportError::Failed {
            memory,
            kind,
            fault,
        })?;
        crate::adopt::import(queue.gpu(), memory, external.into_inner())
    }

    unsafe fn export(&self, buffer: &Buffer, kind: ExternalKind) -> Result<External, ImportError> {
        Err(ImportError::Unsupported {
            memory: buffer.memory(),
            kind,
            reason: "wgpu gives out no handle of a buffer".into(),
        })
    }

    fn connect(&self, src: MemoryId, dst: MemoryId) -> Result<Access, ConnectError> {
        Ok(link_between(&self.inventory, src, dst)?.id.access)
    }

    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        let has = |device| self.queue(device).is_some();
        let device = adapter_of((via, ops, after), has)?;
        let Some(queue) = device.and_then(|device| self.queue(device)) else {
            return Ok(Fence::settled(BACKEND));
        };
        // Submissions to one queue are in order; submissions to different queues are not.
        let elsewhere = |fence: &&Fence| {
            let others = self.queues.iter().filter(|other| !ptr::eq(*other, queue));
            others
                .into_iter()
                .any(|other| other.is_pending(fence.number()))
        };
        if let Some(fence) = after.iter().find(elsewhere) {
            return Err(SubmitError::unawaited(fence));
        }
        queue.submit(ops, after)
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.sink.set(sink).is_ok()
    }

    fn completes_unattended(&self) -> bool {
        true
    }

    /// Does nothing: the devices' own threads report outcomes.
    fn pump(&self) {}

    fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        let of = |queue: &&Queue| queue.is_pending(fence.number());
        match self.queues.iter().find(of) {
            Some(queue) => queue.wait(fence.number(), limit),
            None => Waited::Settled,
        }
    }
}

/// The output of a future of wgpu that never waits, without an executor.
fn at_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Opens a device on every adapter of an interface, and leaves out those that cannot be opened.
fn open_all(interface: wgpu::Backends) -> Vec<(wgpu::Device, wgpu::Queue)> {
    let instance = instance_of(interface);
    let mut adapters = pollster::block_on(instance.enumerate_adapters(interface));
    adapters.sort_by_key(|adapter| is_software(&adapter.get_info()));
    let opened = adapters.iter().map(open_device);
    opened.filter_map(Result::ok).collect()
}

/// Returns the instance of an interface, which this process never drops. Dropping the last instance unloads the drivers, and
/// a thread that drops the last device while the process ends would do that while the drivers' exit handlers run (seen with
/// lavapipe: a jump into unloaded code, five times in 360 short processes). There is one instance for each interface,
/// because opening an interface loads its drivers.
fn instance_of(interface: wgpu::Backends) -> wgpu::Instance {
    static KEPT: PerProcess<Mutex<Vec<(wgpu::Backends, wgpu::Instance)>>> = PerProcess::new();
    let kept = KEPT.get_or_init(Mutex::default);
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, instance)) = kept.iter().find(|(of, _)| *of == interface) {
        return instance.clone();
    }
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = interface;
    let instance = wgpu::Instance::new(descriptor);
    kept.push((interface, instance.clone()));
    instance
}

fn computes(device: &wgpu::Device) -> bool {
    let is_stand_in = device.adapter_info().backend == wgpu::Backend::Noop;
    !is_stand_in && device.limits().max_compute_workgroups_per_dimension > 0
}

fn is_software(info: &wgpu::AdapterInfo) -> bool {
    info.device_type == wgpu::DeviceType::Cpu
}
