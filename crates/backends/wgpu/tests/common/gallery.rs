//! Textures, written and read as in wgpu's tutorials.

use std::sync::Arc;

use transload_hal::{
    AllocSpec, Backend, Buffer, External, ImportError, MemoryId, MemoryKind, Owner,
};
use transload_wgpu::Wgpu;

use super::{Heard, fill, opened};

/// A device, and the backend that drives it.
pub(crate) struct Gallery {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) backend: Wgpu,
    pub(crate) heard: Arc<Heard>,
    pub(crate) own: MemoryId,
    upload: MemoryId,
    readback: MemoryId,
}

/// The properties of a texture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) format: wgpu::TextureFormat,
    pub(crate) size: [u32; 3],
    pub(crate) dimension: wgpu::TextureDimension,
    pub(crate) mips: u32,
    pub(crate) usage: wgpu::TextureUsages,
}

pub(crate) const COPIED: wgpu::TextureUsages =
    wgpu::TextureUsages::COPY_SRC.union(wgpu::TextureUsages::COPY_DST);

/// A two-dimensional texture.
pub(crate) const fn flat(format: wgpu::TextureFormat, width: u32, height: u32) -> Frame {
    array(format, width, height, 1)
}

pub(crate) const fn array(
    format: wgpu::TextureFormat,
    width: u32,
    height: u32,
    layers: u32,
) -> Frame {
    Frame {
        format,
        size: [width, height, layers],
        dimension: wgpu::TextureDimension::D2,
        mips: 1,
        usage: COPIED,
    }
}

pub(crate) const fn solid(
    format: wgpu::TextureFormat,
    width: u32,
    height: u32,
    depth: u32,
) -> Frame {
    Frame {
        dimension: wgpu::TextureDimension::D3,
        ..array(format, width, height, depth)
    }
}

impl Gallery {
    /// One for each adapter of this machine.
    pub(crate) fn all() -> Vec<Gallery> {
        opened().into_iter().map(Gallery::new).collect()
    }

    pub(crate) fn new((device, queue): (wgpu::Device, wgpu::Queue)) -> Gallery {
        let backend = Wgpu::with_devices([(device.clone(), queue.clone())]);
        let heard = Arc::new(Heard::default());
        assert!(backend.attach(heard.clone()));
        let gpu = backend.inventory().devices[0].id;
        let kinds = [MemoryKind::Device, MemoryKind::Upload, MemoryKind::Readback];
        let [own, upload, readback] = kinds.map(|kind| gpu.memory(kind));
        Gallery {
            device,
            queue,
            backend,
            heard,
            own,
            upload,
            readback,
        }
    }

    pub(crate) fn texture(&self, frame: &Frame) -> wgpu::Texture {
        let [width, height, depth_or_array_layers] = frame.size;
        self.device.create_texture(&wgpu::TextureDescriptor {
            label: Some("mine"),
            size: wgpu::Extent3d {
                width,
                height,
                depth_or_array_layers,
            },
            mip_level_count: frame.mips,
            sample_count: 1,
            dimension: frame.dimension,
            format: frame.format,
            usage: frame.usage,
            view_formats: &[],
        })
    }

    pub(crate) fn adopt(&self, object: impl Owner) -> Buffer {
        self.try_adopt(object).unwrap()
    }

    pub(crate) fn try_adopt(&self, object: impl Owner) -> Result<Buffer, ImportError> {
        // SAFETY: the object belongs to the backend's own device, or to another one of the same instance.
        unsafe { self.backend.import(self.own, External::object(object)) }
    }

    /// A buffer of the device.
    pub(crate) fn buffer(&self, len: u64) -> Buffer {
        let spec = AllocSpec::bytes(len);
        self.backend.allocate(self.own, &spec).unwrap()
    }

    /// A slot that holds the bytes, to be copied from.
    pub(crate) fn sending(&self, bytes: &[u8]) -> Buffer {
        let spec = AllocSpec::bytes(bytes.len() as u64).for_staging();
        let slot = self.backend.allocate(self.upload, &spec).unwrap();
        fill(&slot, 0, bytes);
        slot
    }

    /// A slot of `len` bytes, to be copied to.
    pub(crate) fn receiving(&self, len: u64) -> Buffer {
        let spec = AllocSpec::bytes(len).for_staging();
        self.backend.allocate(self.readback, &spec).unwrap()
    }

    /// Writes a whole mip level.
    pub(crate) fn set(&self, texture: &wgpu::Texture, mip_level: u32, bytes: &[u8]) {
        let (row, rows, extent) = shape(texture, mip_level);
        let layout = wgpu::TexelCopyBufferLayout {
            offset: 0,
            bytes_per_row: Some(row),
            rows_per_image: Some(rows),
        };
        let to = wgpu::TexelCopyTextureInfo {
            mip_level,
            ..texture.as_image_copy()
        };
        self.queue.write_texture(to, bytes, layout, extent);
        self.queue.submit([]);
    }

    /// Reads a whole mip level: copies rows at a pitch of 256 bytes into a new buffer, maps the buffer, and takes the
    /// rows from it.
    pub(crate) fn get(&self, texture: &wgpu::Texture, mip_level: u32) -> Vec<u8> {
        let (row, rows, extent) = shape(texture, mip_level);
        let pitch = row.next_multiple_of(wgpu::COPY_BYTES_PER_ROW_ALIGNMENT);
        let all = rows * extent.depth_or_array_layers;
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: u64::from(pitch * all),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_texture_to_buffer(
            wgpu::TexelCopyTextureInfo {
                mip_level,
                ..texture.as_image_copy()
            },
            wgpu::TexelCopyBufferInfo {
                buffer: &buffer,
                layout: wgpu::TexelCopyBufferLayout {
                    offset: 0,
                    bytes_per_row: Some(pitch),
                    rows_per_image: Some(rows),
                },
            },
            extent,
        );
        self.queue.submit([encoder.finish()]);
        buffer.map_async(wgpu::MapMode::Read, .., |result| result.unwrap());
        self.device
            .poll(wgpu::PollType::wait_indefinitely())
            .unwrap();
        let padded = buffer.get_mapped_range(..).unwrap();
        let of_row = |number: u32| &padded[(number * pitch) as usize..][..row as usize];
        (0..all).flat_map(of_row).copied().collect()
    }
}

/// The bytes of a row, the rows of a layer, and the extent of a copy of the whole level.
fn shape(texture: &wgpu::Texture, mip_level: u32) -> (u32, u32, wgpu::Extent3d) {
    let format = texture.format();
    let (width, height) = format.block_dimensions();
    let level = texture
        .size()
        .mip_level_size(mip_level, texture.dimension());
    let extent = level.physical_size(format);
    let block = format.block_copy_size(None).unwrap();
    (extent.width / width * block, extent.height / height, extent)
}
