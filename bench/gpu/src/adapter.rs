//! An adapter, and the code that every user of wgpu writes around it.

use anyhow::{Context, Result};
use transload_wgpu::Wgpu;
use wgpu::{Buffer, BufferUsages, CommandEncoderDescriptor, Device, MapMode, PollType, Queue};

use crate::raw::memory::Memory;

/// The size of the buffer through which the host reads a device buffer.
const WINDOW: u64 = 16 << 20;

/// An open device.
#[derive(Clone)]
pub(crate) struct Adapter {
    device: Device,
    queue: Queue,
}

impl Adapter {
    /// A device of the backend's.
    pub(crate) fn of(wgpu: &Wgpu, id: transload::DeviceId) -> Result<Adapter> {
        let (device, queue) = wgpu.handles(id).context("the adapter is there")?;
        Ok(Adapter { device, queue })
    }

    pub(crate) fn buffer(&self, len: usize, usage: BufferUsages) -> Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: len as u64,
            usage,
            mapped_at_creation: false,
        })
    }

    fn wait(&self) -> Result<()> {
        self.device.poll(PollType::wait_indefinitely())?;
        Ok(())
    }

    /// Copies and waits.
    pub(crate) fn copy(&self, src: (&Buffer, u64), dst: (&Buffer, u64), len: u64) -> Result<()> {
        let descriptor = CommandEncoderDescriptor::default();
        let mut encoder = self.device.create_command_encoder(&descriptor);
        encoder.copy_buffer_to_buffer(src.0, src.1, dst.0, dst.1, len);
        self.queue.submit([encoder.finish()]);
        self.wait()
    }

    /// Maps a buffer that is idle.
    pub(crate) fn map(&self, buffer: &Buffer, mode: MapMode) -> Result<()> {
        let (tell, told) = std::sync::mpsc::channel();
        buffer.map_async(mode, .., move |result| {
            // The send succeeds: the mapping thread waits for it below.
            let _ = tell.send(result);
        });
        self.wait()?;
        told.recv().context("a map that never answered")??;
        Ok(())
    }

    /// Fills a buffer with zeros, which no source contains.
    pub(crate) fn spoil(&self, buffer: &Buffer) -> Result<()> {
        let descriptor = CommandEncoderDescriptor::default();
        let mut encoder = self.device.create_command_encoder(&descriptor);
        encoder.clear_buffer(buffer, 0, None);
        self.queue.submit([encoder.finish()]);
        self.wait()
    }

    /// Writes bytes by wgpu's own call.
    pub(crate) fn put(&self, buffer: &Buffer, bytes: &[u8]) -> Result<()> {
        for (part, at) in bytes
            .chunks(WINDOW as usize)
            .zip((0..).step_by(WINDOW as usize))
        {
            self.queue.write_buffer(buffer, at, part);
            self.queue.submit([]);
            self.wait()?;
        }
        Ok(())
    }

    /// Whether a buffer holds these bytes.
    pub(crate) fn holds(&self, buffer: &Buffer, like: &Memory) -> Result<bool> {
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let len = like.len() as u64;
        let window = self.buffer(WINDOW.min(len) as usize, usage);
        for at in (0..len).step_by(WINDOW as usize) {
            let part = WINDOW.min(len - at);
            self.copy((buffer, at), (&window, 0), part)?;
            self.map(&window, MapMode::Read)?;
            let same = like.is(at as usize, &window.get_mapped_range(..part)?);
            window.unmap();
            if !same {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
