//! The backend: its adapters, and access to their memories and queues.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use std::{fmt, ptr};

use transload_hal::{
    Access, AllocError, AllocSpec, Backend, Buffer, CompletionSink, ConnectError, DeviceId,
    DeviceKind, External, ExternalKind, Fence, ImportError, Inventory, LinkId, MemoryId,
    MemoryKind, Op, PerProcess, Room, SubmitError, Waited, link_between,
};

use crate::endpoints::adapter_of;
use crate::exit::{self, DriverObject, Inside};
use crate::gpu::{Gpu, is_software};
use crate::identity;
use crate::inventory::inventory;
use crate::memory;
use crate::queue::Queue;
use crate::raw;
use crate::storage::BACKEND;
use crate::watch::WatchError;

/// The interfaces to search for adapters, in order; the search ends at the first that has any, because most adapters are
/// offered by several.
const INTERFACES: [wgpu::Backends; 4] = [
    wgpu::Backends::VULKAN,
    wgpu::Backends::METAL,
    wgpu::Backends::DX12,
    wgpu::Backends::GL,
];

/// Adapters, each with a device that this backend opened or that a user lent it.
pub struct Wgpu {
    queues: Vec<Queue>,
    inventory: Inventory,
    sink: Arc<OnceLock<Arc<dyn CompletionSink>>>,
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
        exit::watch(false);
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
            let id = DeviceId::new(DeviceKind::WGPU, index as u32);
            let gpu = Arc::new(Gpu::new(id, device, queue));
            queues.push(Queue::new(gpu, Arc::clone(&sink), Arc::clone(&numbers)));
        }
        let gpus: Vec<&Gpu> = queues.iter().map(Queue::gpu).collect();
        let inventory = inventory(&gpus);
        exit::watch(!queues.is_empty());
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
        gpu.give_out();
        Some((gpu.device.clone(), gpu.queue.clone()))
    }

    /// Returns the id of a device; `None` if the device does not belong to this backend.
    #[must_use]
    pub fn id_of(&self, device: &wgpu::Device) -> Option<DeviceId> {
        Some(self.queue_of(device)?.gpu().id)
    }

    /// Calls `then` once the user's submission `index` to `device`, and with it all the device's earlier ones, is
    /// over: done, or lost with the device. Use it with `transload::Event::setter` to start a transfer after the
    /// user's own work:
    ///
    /// ```no_run
    /// # fn example(wgpu: &transload_wgpu::Wgpu, device: wgpu::Device, queue: wgpu::Queue)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// # let commands = [];
    /// let index = queue.submit(commands);
    /// let (tell, told) = std::sync::mpsc::channel();
    /// wgpu.when_done(&device, index, move || tell.send(()).unwrap_or_default())?;
    /// told.recv()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # When it is needed
    /// A transfer to or from a buffer of the same device that the program has had does not need this call. Such a
    /// transfer takes effect after everything that was submitted to the device before: in the same queue, or by the
    /// host once that queue is empty. The call is needed if a transfer depends on another effect of the submission: on memory of
    /// another device, a file, or anything that a callback of the user fills.
    ///
    /// In the other direction there is no order between a transfer under way and a submission that the user makes
    /// meanwhile: the transfer may still wait for other transfers, slots or the host's threads before its commands
    /// are in the queue. A submission sees the bytes of every transfer that was *over* when the submission was
    /// made: wait for the transfer, poll it, or use its `then`.
    ///
    /// # Where it runs
    /// `then` runs on the device's own thread, on a thread that waits for a transfer of the device, or during this
    /// call if the submission is already over. It must not block or wait for a transfer, because transfers of this
    /// device end on the thread that it runs on; the library refuses to wait there (`TransferError::WouldBlock`).
    /// The backend does not poll periodically, and the user need not poll the device. Callbacks of the user that
    /// are due may run during this call, as in every poll of a device.
    ///
    /// # Errors
    /// If the device does not belong to this backend, is lost, or has no such submission. An index of another
    /// device is not detected if this device has a submission of the same number: `then` is then called when that
    /// submission is over.
    pub fn when_done(
        &self,
        device: &wgpu::Device,
        index: wgpu::SubmissionIndex,
        then: impl FnOnce() + Send + 'static,
    ) -> Result<(), WatchError> {
        let queue = self.queue_of(device).ok_or(WatchError::UnknownDevice {
            devices: self.len(),
        })?;
        queue.watch(index, Box::new(then))
    }

    fn queue_of(&self, device: &wgpu::Device) -> Option<&Queue> {
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

    /// Of a software adapter it is what the host has available; of others the driver does not tell.
    fn available_bytes(&self, memory: MemoryId) -> Option<u64> {
        let gpu = self.queue(memory.device)?.gpu();
        gpu.is_software.then(Room::now)?.available_bytes
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
        let external = DriverObject::new(external);
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
            return Ok(Fence::immediate(BACKEND));
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

    /// Copies between the adapter's own memories share one submission.
    unsafe fn submit_each(
        &self,
        via: LinkId,
        ops: &[Op<'_>],
        told: &mut dyn FnMut(Result<Fence, SubmitError>),
    ) {
        let has = |device| self.queue(device).is_some();
        let device = adapter_of((Some(via), ops, &[]), has).ok().flatten();
        let queue = device.and_then(|device| self.queue(device));
        if let Some(begun) = queue.and_then(|queue| queue.submit_together(ops)) {
            for place in 0..ops.len() as u64 {
                let fence = begun
                    .as_ref()
                    .map(|first| Fence::new(BACKEND, first + place));
                told(fence.map_err(|fault| SubmitError::Refused(fault.clone())));
            }
            return;
        }
        for op in ops {
            // SAFETY: the caller's promise.
            told(unsafe { self.submit(Some(via), std::slice::from_ref(op), &[]) });
        }
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

/// Opens a device on every adapter of an interface, and leaves out those that cannot be opened.
fn open_all(interface: wgpu::Backends) -> Vec<(wgpu::Device, wgpu::Queue)> {
    let Some(instance) = instance_of(interface) else {
        return Vec::new();
    };
    let mut adapters = pollster::block_on(instance.enumerate_adapters(interface));
    if adapters.is_empty() {
        return Vec::new();
    }
    // Before devices start the drivers' threads.
    exit::watch(true);
    adapters.sort_by_key(|adapter| is_software(&adapter.get_info()));
    let opened = adapters.iter().map(open_device);
    opened.filter_map(Result::ok).collect()
}

/// Returns the instance of an interface, which this process never drops. Dropping the last instance unloads the drivers, and
/// a thread that drops the last device while the process ends would do that while the drivers' exit handlers run (seen with
/// lavapipe: a jump into unloaded code, five times in 360 short processes). There is one instance for each interface,
/// because opening an interface loads its drivers.
fn instance_of(interface: wgpu::Backends) -> Option<wgpu::Instance> {
    static KEPT: PerProcess<Mutex<Vec<(wgpu::Backends, wgpu::Instance)>>> = PerProcess::new();
    let kept = KEPT.get_or_init(Mutex::default);
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, instance)) = kept.iter().find(|(of, _)| *of == interface) {
        return Some(instance.clone());
    }
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = interface;
    let instance = match interface {
        wgpu::Backends::VULKAN => raw::instance(&descriptor)?,
        _ => wgpu::Instance::new(descriptor),
    };
    kept.push((interface, instance.clone()));
    Some(instance)
}
