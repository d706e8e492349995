//! The backend itself: the devices that a page has, and the way in to their memories and queues.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use transload_hal::{
    Access, AllocError, AllocSpec, Backend, Buffer, CompletionSink, ConnectError, DeviceId,
    DeviceKind, ErrorClass, External, ExternalKind, Fence, ImportError, Inventory, LinkId,
    MemoryId, MemoryKind, Op, SubmitError, Waited, link_between,
};

use super::flight;
use super::gpu::{Completions, Gpu};
use super::memory;
use crate::endpoints::adapter_of;
use crate::inventory::inventory;
use crate::storage::BACKEND;

/// Adapters, each with a device that this backend opened or that a page lent it.
///
/// Nothing here blocks: await a transfer to wait for it. Callbacks of the browser settle fences, and they run when the
/// page's own code has returned to the browser. So [`Backend::wait`] returns at once.
pub struct Wgpu {
    gpus: Vec<Rc<Gpu>>,
    inventory: Inventory,
    completions: Rc<Completions>,
}

/// Why no device was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The browser has no WebGPU, or no adapter for it.
    #[error("the browser offers no adapter: {reason}")]
    NoAdapter {
        /// The browser's message.
        reason: String,
    },
    /// It has an adapter, and opens no device on it.
    #[error("the browser opened no device on its adapter: {reason}")]
    NoDevice {
        /// The browser's message.
        reason: String,
    },
}

impl RequestError {
    /// The category of the error. Use it to decide whether to retry.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            RequestError::NoAdapter { .. } => ErrorClass::Unsupported,
            RequestError::NoDevice { .. } => ErrorClass::Failed,
        }
    }
}

impl Wgpu {
    /// A device on the adapter that the browser chooses for work that needs performance, with all that the
    /// adapter can do.
    ///
    /// # Errors
    /// When there is no such adapter, or the browser opens no device on it.
    pub async fn request() -> Result<Wgpu, RequestError> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::BROWSER_WEBGPU;
        let instance = wgpu::Instance::new(descriptor);
        let options = wgpu::RequestAdapterOptions {
            power_preference: wgpu::PowerPreference::HighPerformance,
            ..Default::default()
        };
        let adapter = instance.request_adapter(&options).await;
        let adapter = adapter.map_err(|error| RequestError::NoAdapter {
            reason: error.to_string(),
        })?;
        let opened = adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("transload"),
            // The defaults would cap buffers at 256 MiB.
            required_limits: adapter.limits(),
            ..Default::default()
        });
        let (device, queue) = opened.await.map_err(|error| RequestError::NoDevice {
            reason: error.to_string(),
        })?;
        // By default they would panic. What counts is caught where it happens.
        device.on_uncaptured_error(Arc::new(|_| {}));
        let wgpu = Wgpu::with_device(device, queue);
        wgpu.gpus.iter().for_each(|gpu| gpu.set_private(true));
        Ok(wgpu)
    }

    /// A device that is open already: `wgpu:0`. As [`Wgpu::with_devices`].
    #[must_use]
    pub fn with_device(device: wgpu::Device, queue: wgpu::Queue) -> Wgpu {
        Wgpu::with_devices([(device, queue)])
    }

    /// Devices that are open already; `wgpu:0` is the first.
    ///
    /// They stay their owner's: its callbacks for errors and for a lost device are called as before.
    #[must_use]
    pub fn with_devices(devices: impl IntoIterator<Item = (wgpu::Device, wgpu::Queue)>) -> Wgpu {
        let completions = Rc::new(Completions::default());
        let numbered = (0..).zip(devices);
        let gpus: Vec<_> = numbered
            .map(|(index, handles)| {
                let id = DeviceId::new(DeviceKind::WGPU, index);
                Gpu::new(id, handles, &completions)
            })
            .collect();
        Wgpu {
            inventory: inventory(&gpus.iter().map(Rc::as_ref).collect::<Vec<_>>()),
            gpus,
            completions,
        }
    }

    /// How many devices there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.gpus.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// The handles of a device, for work of the page's own on buffers that the manager allocated. If [`Wgpu::request`]
    /// opened the device, errors of such work that no error scope catches are dropped silently;
    /// `wgpu::Device::on_uncaptured_error` changes that.
    #[must_use]
    pub fn handles(&self, device: DeviceId) -> Option<(wgpu::Device, wgpu::Queue)> {
        let gpu = self.gpu(device)?;
        gpu.set_private(false);
        Some((gpu.device.clone(), gpu.queue.clone()))
    }

    /// The name of a device here; `None` if it is none of this backend's.
    #[must_use]
    pub fn id_of(&self, device: &wgpu::Device) -> Option<DeviceId> {
        self.gpu_of(device).map(|gpu| gpu.id)
    }

    pub(super) fn gpu_of(&self, device: &wgpu::Device) -> Option<&Rc<Gpu>> {
        self.gpus.iter().find(|gpu| gpu.device == *device)
    }

    fn gpu(&self, device: DeviceId) -> Option<&Rc<Gpu>> {
        self.gpus.iter().find(|gpu| gpu.id == device)
    }

    fn is_pending(&self, fence: Fence) -> bool {
        self.gpus.iter().any(|gpu| gpu.is_pending(fence.number()))
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

// SAFETY: a fence settles when the browser has told that its commands are over, that none of them was
// refused, and what was mapped has been copied home; operands are checked before anything is submitted, and
// what is refused later settles as failed; edges inside a word are written under a mask; each fence is told
// once, by the task that was made for it; buffers are wgpu's own, kept by their owners.
unsafe impl Backend for Wgpu {
    fn inventory(&self) -> Inventory {
        self.inventory.clone()
    }

    /// The browser reports only later whether it has room: transfers of a buffer that it refused fail with
    /// [`ErrorClass::Exhausted`]. The browser frees the memory when it finds no more references to it, some time after the
    /// last view of the buffer was dropped. A page that cannot wait for that calls `destroy` of the `wgpu::Buffer` behind
    /// the last view.
    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
        match self.gpu(memory.device) {
            Some(gpu) => memory::allocate(gpu, memory, spec),
            None => Err(AllocError::UnknownMemory { memory }),
        }
    }

    /// Takes a `wgpu::Buffer` of the memory's own device in an [`External::Object`], which must have been created with the
    /// usages `COPY_SRC` and `COPY_DST` and have a multiple of 4 bytes; or a `wgpu::Texture` of it, for the texels of mip level 0,
    /// or [`Texels`](crate::Texels). Without `COPY_DST` a texture's texels are read-only; without `COPY_SRC` transfers that
    /// read them, or write a texel in part, fail. Clones of one buffer or texture are one storage.
    ///
    /// The browser does not report at once that an object is unusable: if the object belongs to another device, is mapped,
    /// or was destroyed, its transfers fail as the caller's mistake.
    ///
    /// # Safety
    /// The caller has nothing to uphold: the browser validates its objects.
    unsafe fn import(&self, memory: MemoryId, external: External) -> Result<Buffer, ImportError> {
        let known = self.gpu(memory.device);
        let Some(gpu) = known.filter(|_| memory.kind == MemoryKind::Device) else {
            return Err(ImportError::UnknownMemory { memory });
        };
        crate::adopt::import(gpu, memory, external)
    }

    unsafe fn export(&self, buffer: &Buffer, kind: ExternalKind) -> Result<External, ImportError> {
        Err(ImportError::Unsupported {
            memory: buffer.memory(),
            kind,
            reason: "the browser gives out no handle of a buffer".into(),
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
        let has = |device| self.gpu(device).is_some();
        let device = adapter_of((via, ops, after), has)?;
        let Some(gpu) = device.and_then(|device| self.gpu(device)) else {
            return Ok(Fence::immediate(BACKEND));
        };
        // What goes through one queue is in order, and through another one is not.
        let elsewhere =
            |fence: &&Fence| self.is_pending(**fence) && !gpu.is_pending(fence.number());
        if let Some(fence) = after.iter().find(elsewhere) {
            return Err(SubmitError::unawaited(fence));
        }
        // SAFETY: the caller's promise.
        unsafe { flight::submit(gpu, ops, after) }
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.completions.sink.set(sink).is_ok()
    }

    fn completes_unattended(&self) -> bool {
        true
    }

    /// Nothing: the browser's callbacks tell.
    fn pump(&self) {}

    /// Answers at once, whatever the limit: what would settle the fence runs after the caller has returned to
    /// the browser.
    fn wait(&self, fence: Fence, _limit: Duration) -> Waited {
        match self.is_pending(fence) {
            true => Waited::TimedOut,
            false => Waited::Settled,
        }
    }
}
