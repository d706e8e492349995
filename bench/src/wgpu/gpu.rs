//! Adapters, and the code that every user of wgpu writes around them.

use anyhow::{Context, Result, anyhow};
use transload::{Buffer, DeviceId, DeviceKind, MemoryKind, Place, TransferManager};

/// The driver for which the limits apply.
const LAVAPIPE: &str = "llvmpipe";
const SWIFTSHADER: &str = "SwiftShader";

/// An open device.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    /// Its number among the devices that the manager is given.
    pub(crate) index: u32,
}

/// Every Vulkan adapter of this machine.
pub(crate) fn adapters() -> Vec<wgpu::Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN;
    let instance = wgpu::Instance::new(descriptor);
    pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN))
}

/// The adapter whose name contains `text`.
pub(crate) fn called<'a>(adapters: &'a [wgpu::Adapter], text: &str) -> Option<&'a wgpu::Adapter> {
    adapters
        .iter()
        .find(|adapter| adapter.get_info().name.contains(text))
}

/// Lavapipe as `wgpu:0`, opened by Transload. `None` where this machine has no lavapipe.
pub(crate) fn opened() -> Result<Option<Gpu>> {
    let adapters = adapters();
    let adapter = called(&adapters, LAVAPIPE);
    adapter.map(|adapter| Gpu::opened(adapter, 0)).transpose()
}

/// Lavapipe opened by Transload as `wgpu:0`, and again as other programs do as `wgpu:1`, under one manager; `None`
/// where there is none.
pub(crate) fn twice() -> Result<Option<(TransferManager, Gpu, Gpu)>> {
    let adapters = adapters();
    let Some(adapter) = called(&adapters, LAVAPIPE) else {
        return Ok(None);
    };
    let (opened, foreign) = (Gpu::opened(adapter, 0)?, Gpu::foreign(adapter, 1)?);
    let manager = manager(&[&opened, &foreign])?;
    Ok(Some((manager, opened, foreign)))
}

/// Lavapipe as `wgpu:0` and SwiftShader as `wgpu:1`, both opened by Transload, under one manager; `None` where one is missing.
pub(crate) fn apart() -> Result<Option<(TransferManager, Gpu, Gpu)>> {
    let adapters = adapters();
    let find = |name| called(&adapters, name);
    let (Some(one), Some(other)) = (find(LAVAPIPE), find(SWIFTSHADER)) else {
        return Ok(None);
    };
    let (one, other) = (Gpu::opened(one, 0)?, Gpu::opened(other, 1)?);
    let manager = manager(&[&one, &other])?;
    Ok(Some((manager, one, other)))
}

/// A manager of the host and these devices.
pub(crate) fn manager(gpus: &[&Gpu]) -> Result<TransferManager> {
    let wgpu = transload_wgpu::Wgpu::with_devices(gpus.iter().map(|gpu| gpu.pair()));
    let manager = TransferManager::builder()
        .host()
        .backend(std::sync::Arc::new(wgpu))
        .build()?;
    Ok(manager)
}

/// One copy, from the call to the last byte.
pub(super) fn moved(manager: &TransferManager, src: &Buffer, dst: &Buffer) -> Result<()> {
    manager.copy(src, dst).wait()?;
    Ok(())
}

/// Copies once and prints the route of the bytes.
pub(super) fn tell(
    manager: &TransferManager,
    name: &str,
    src: &Buffer,
    dst: &Buffer,
) -> Result<()> {
    let report = manager.copy(src, dst).wait()?;
    eprintln!("  {name}: {report}");
    Ok(())
}

impl Gpu {
    /// Opens a device as users of Transload do.
    pub(crate) fn opened(adapter: &wgpu::Adapter, index: u32) -> Result<Gpu> {
        let (device, queue) = transload_wgpu::open_device(adapter)?;
        Ok(Gpu {
            device,
            queue,
            index,
        })
    }

    /// Opens a device as other users do.
    pub(crate) fn foreign(adapter: &wgpu::Adapter, index: u32) -> Result<Gpu> {
        let descriptor = wgpu::DeviceDescriptor {
            required_limits: adapter.limits(),
            ..Default::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))?;
        Ok(Gpu {
            device,
            queue,
            index,
        })
    }

    fn id(&self) -> DeviceId {
        DeviceId::new(DeviceKind::WGPU, self.index)
    }

    /// The place of users' own buffers.
    pub(crate) fn place(&self) -> Result<Place> {
        Ok(self.id().memory(MemoryKind::Device).into())
    }

    /// The place of buffers that are requested by the device alone.
    pub(crate) fn default_place(&self) -> Place {
        self.id().into()
    }

    pub(crate) fn pair(&self) -> (wgpu::Device, wgpu::Queue) {
        (self.device.clone(), self.queue.clone())
    }

    /// A buffer that is never mapped.
    pub(crate) fn buffer(&self, len: u64) -> wgpu::Buffer {
        let usages = wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST
            | wgpu::BufferUsages::STORAGE;
        self.made(len, usages)
    }

    pub(crate) fn made(&self, len: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: len.next_multiple_of(4),
            usage,
            mapped_at_creation: false,
        })
    }

    pub(crate) fn encoder(&self) -> wgpu::CommandEncoder {
        self.device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    /// Returns when all submitted work is done.
    pub(crate) fn wait(&self) -> Result<()> {
        self.device.poll(wgpu::PollType::wait_indefinitely())?;
        Ok(())
    }

    pub(crate) fn submit(&self, encoder: wgpu::CommandEncoder) -> Result<()> {
        self.queue.submit([encoder.finish()]);
        self.wait()
    }

    pub(crate) fn copy(&self, src: &wgpu::Buffer, dst: &wgpu::Buffer, len: u64) -> Result<()> {
        let mut encoder = self.encoder();
        encoder.copy_buffer_to_buffer(src, 0, dst, 0, len);
        self.submit(encoder)
    }

    /// Maps a buffer that is idle.
    pub(crate) fn map(&self, buffer: &wgpu::Buffer, mode: wgpu::MapMode) -> Result<()> {
        let (tell, told) = std::sync::mpsc::channel();
        buffer.map_async(mode, .., move |result| {
            let _ = tell.send(result);
        });
        self.wait()?;
        told.recv().context("a map that never answered")??;
        Ok(())
    }

    /// Fills a buffer with zeros, which no source contains.
    pub(crate) fn spoil(&self, buffer: &wgpu::Buffer) -> Result<()> {
        let mut encoder = self.encoder();
        encoder.clear_buffer(buffer, 0, None);
        self.submit(encoder)
    }

    /// Whether a buffer begins with these bytes, read through a window of 16 MiB of its own.
    pub(crate) fn holds(&self, buffer: &wgpu::Buffer, bytes: &[u8]) -> Result<bool> {
        const WINDOW: usize = 16 << 20;
        let usages = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let window = self.made(WINDOW.min(bytes.len()) as u64, usages);
        for (part, at) in bytes.chunks(WINDOW).zip((0u64..).step_by(WINDOW)) {
            let mut encoder = self.encoder();
            let len = part.len().next_multiple_of(4) as u64;
            encoder.copy_buffer_to_buffer(buffer, at, &window, 0, len);
            self.submit(encoder)?;
            self.map(&window, wgpu::MapMode::Read)?;
            let same = window.get_mapped_range(..part.len() as u64)?[..] == *part;
            window.unmap();
            if !same {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes bytes by wgpu's own call.
    pub(crate) fn put(&self, buffer: &wgpu::Buffer, bytes: &[u8]) -> Result<()> {
        const WINDOW: usize = 16 << 20;
        for (part, at) in bytes.chunks(WINDOW).zip((0u64..).step_by(WINDOW)) {
            if part.len() % 4 != 0 {
                return Err(anyhow!("{} bytes are not whole words", part.len()));
            }
            self.queue.write_buffer(buffer, at, part);
            self.queue.submit([]);
            self.wait()?;
        }
        Ok(())
    }
}
