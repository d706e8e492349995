//! The backend: its devices, and access to their memories and lanes.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLDevice};
use transload_hal::{
    Access, AllocError, AllocSpec, Backend, Buffer, CompletionSink, ConnectError, DeviceId,
    DeviceKind, External, ExternalKind, Fence, ImportError, Inventory, LinkId, MemoryId,
    MemoryKind, Op, SubmitError, Waited, link_between,
};

use crate::error::{Absent, OpenError};
use crate::gpu::Gpu;
use crate::inventory::inventory;
use crate::memory::{self, MetalBuffer, MetalTexture};
use crate::queue::{Lane, lane_of};
use crate::raw::{Device, DropPooled, Listener, Raw, all_devices, pooled};
use crate::types::Sink;

/// Metal devices.
pub struct Metal {
    gpus: DropPooled<Vec<Gpu>>,
    absent: Vec<Absent>,
    inventory: Inventory,
    sink: Sink,
    listener: OnceLock<DropPooled<Listener>>,
}

impl Metal {
    /// Makes a backend of every device of this machine, in Metal's order. Blocks while Metal finds the devices and makes a
    /// few command queues of each. [`Metal::absent`] lists devices that give no queue; the backend does not use them.
    ///
    /// # Errors
    /// If there is no device, or none gives a queue.
    pub fn discover() -> Result<Metal, OpenError> {
        Metal::of(pooled(|_| all_devices()))
    }

    /// Makes a backend of devices that the program has already; `metal:0` is the first. Their buffers can be imported. The
    /// program's own command queues are not affected: this backend makes its own.
    ///
    /// # Errors
    /// If there is no device, or none gives a queue.
    pub fn with_devices(
        devices: impl IntoIterator<Item = Retained<ProtocolObject<dyn MTLDevice>>>,
    ) -> Result<Metal, OpenError> {
        Metal::of(devices.into_iter().map(Device).collect())
    }

    fn of(devices: Vec<Device>) -> Result<Metal, OpenError> {
        let sink = Sink::default();
        let (mut gpus, mut absent) = (Vec::new(), Vec::new());
        for (index, device) in devices.into_iter().enumerate() {
            let id = DeviceId::new(DeviceKind::METAL, index as u32);
            let made = pooled(|_| Gpu::new((gpus.len(), id), device, &sink));
            match made {
                Ok(gpu) => gpus.push(gpu),
                Err(reason) => absent.push(Absent { device: id, reason }),
            }
        }
        if gpus.is_empty() {
            return Err(OpenError::NoDevice { absent });
        }
        Ok(Metal {
            inventory: inventory(&gpus),
            gpus: DropPooled::new(gpus),
            absent,
            sink,
            listener: OnceLock::new(),
        })
    }

    /// The number of devices.
    #[must_use]
    pub fn len(&self) -> usize {
        self.gpus.len()
    }

    /// Whether there are no devices; always false, because without devices there is no backend.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Devices of the machine that the backend does not use, and why.
    #[must_use]
    pub fn absent(&self) -> &[Absent] {
        &self.absent
    }

    /// A device, for work of the program's own.
    #[must_use]
    pub fn device(&self, device: DeviceId) -> Option<&ProtocolObject<dyn MTLDevice>> {
        Some(&self.gpu(device)?.device.0)
    }

    /// The registry id of a device: the same for all processes until the machine restarts.
    #[must_use]
    pub fn registry_id(&self, device: DeviceId) -> Option<u64> {
        Some(self.gpu(device)?.facts.registry_id)
    }

    /// Whether a device and the host share one memory, as the device reports.
    #[must_use]
    pub fn has_unified_memory(&self, device: DeviceId) -> Option<bool> {
        Some(self.gpu(device)?.facts.is_unified)
    }

    /// The id of a device; `None` if the device does not belong to this backend.
    #[must_use]
    pub fn id_of(&self, device: &ProtocolObject<dyn MTLDevice>) -> Option<DeviceId> {
        let number = device.registryID();
        let mut gpus = self.gpus.iter();
        Some(gpus.find(|gpu| gpu.facts.registry_id == number)?.id)
    }

    /// Returns the Metal buffer behind a buffer of this backend, for commands of the program's own, and the byte of it at
    /// which the view begins. Host memory that was given to a device ([`ExternalKind::Host`]) has one too. `None` for memory
    /// that is not a Metal buffer, such as a texture.
    ///
    /// Host memory stays with its owner until the returned buffer is dropped, too; taking the owner out waits for that.
    ///
    /// # Safety
    /// As [`MetalBuffer::get`].
    #[must_use]
    pub unsafe fn native(
        &self,
        buffer: &Buffer,
    ) -> Option<(Retained<ProtocolObject<dyn MTLBuffer>>, u64)> {
        let gpu = self.gpu(buffer.memory().device)?;
        let (Raw(raw), at) = match buffer.native::<MetalBuffer>() {
            Some(known) => {
                known.coherence().give_out();
                (known.raw().clone(), buffer.span().offset)
            }
            None => gpu
                .hosted
                .find(buffer.host(0, buffer.len())?.addr(), buffer.len())?,
        };
        Some((raw, at))
    }

    pub(crate) fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    pub(crate) fn listener(&self) -> &Listener {
        let new = || pooled(|_| DropPooled::new(Listener::new()));
        self.listener.get_or_init(new)
    }

    /// The device of a fence.
    pub(crate) fn gpu_of(&self, fence: Fence) -> Option<&Gpu> {
        self.gpus.get(lane_of(fence).0)
    }

    pub(crate) fn lane(&self, fence: Fence) -> Option<&Lane> {
        let (_, way) = lane_of(fence);
        Some(self.gpu_of(fence)?.lane(way))
    }

    fn gpu(&self, device: DeviceId) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.id == device)
    }
}

impl fmt::Debug for Metal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.inventory.devices.iter();
        f.debug_struct("Metal")
            .field(
                "devices",
                &devices.map(|device| &device.name).collect::<Vec<_>>(),
            )
            .finish_non_exhaustive()
    }
}

// SAFETY: a fence settles when Metal has called back that its commands are over and that it has let go of all host
// memory that was wrapped for them; operands are checked before anything is written, and one command buffer is handed
// over whole or not at all, before the host writes anything for the same submission; each fence is told once, by the
// last of its callbacks; copies end where their operands do; buffers are Metal's own, kept by their owners, and nothing
// is taken in without a promise of the caller's.
unsafe impl Backend for Metal {
    fn inventory(&self) -> Inventory {
        self.inventory.clone()
    }

    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
        match self.gpu(memory.device) {
            Some(gpu) => memory::allocate(gpu, memory, spec),
            None => Err(AllocError::UnknownMemory { memory }),
        }
    }

    /// Imports these externals:
    ///
    /// - [`External::Host`] into `metal:N/mapped`: whole pages, which the device reaches in place as long as the buffer
    ///   lives. Nothing is copied.
    /// - [`External::Object`]: a [`MetalBuffer`] of the device, into the memory of its storage mode; a [`MetalTexture`]
    ///   of it into `metal:N/device`.
    ///
    /// # Safety
    /// As the trait demands: while a transfer or a guard uses the bytes, no command of the program touches them.
    unsafe fn import(&self, memory: MemoryId, external: External) -> Result<Buffer, ImportError> {
        let known = self.gpu(memory.device);
        let gpu = known.ok_or(ImportError::UnknownMemory { memory })?;
        let kind = external.kind();
        let unsupported = |reason: &'static str| ImportError::Unsupported {
            memory,
            kind,
            reason: reason.into(),
        };
        match external {
            External::Host {
                span,
                writable,
                owner,
            } if memory.kind == MemoryKind::Mapped => {
                // SAFETY: the caller's promise.
                unsafe { memory::share(gpu, memory, (span, writable), owner) }
            }
            External::Host { .. } => Err(unsupported(
                "host memory stays where it is, which is a device's memory of the kind mapped",
            )),
            External::Object(object) => {
                let object: Box<dyn std::any::Any> = object;
                let object = match object.downcast::<MetalBuffer>() {
                    // SAFETY: the caller's promise.
                    Ok(own) => return pooled(|_| unsafe { memory::adopt(gpu, memory, *own) }),
                    Err(object) => object,
                };
                match object.downcast::<MetalTexture>() {
                    // SAFETY: as above.
                    Ok(own) => pooled(|_| unsafe { memory::adopt_texture(gpu, memory, *own) }),
                    Err(_) => Err(unsupported("the object is no MetalBuffer or MetalTexture")),
                }
            }
            _ => Err(unsupported("Metal has no such thing")),
        }
    }

    unsafe fn export(&self, buffer: &Buffer, kind: ExternalKind) -> Result<External, ImportError> {
        Err(ImportError::Unsupported {
            memory: buffer.memory(),
            kind,
            reason: "Metal gives out no handle of a buffer; `Metal::native` gives the buffer"
                .into(),
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
        // SAFETY: the caller's promise.
        pooled(|_| unsafe { self.start(via, ops, after) })
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.sink.set(sink).is_ok()
    }

    fn completes_unattended(&self) -> bool {
        true
    }

    /// Does nothing: Metal calls back.
    fn pump(&self) {}

    fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        match self.lane(fence).filter(|_| !fence.is_immediate()) {
            Some(lane) => lane.wait(fence.sequence(), limit),
            None => Waited::Settled,
        }
    }
}
