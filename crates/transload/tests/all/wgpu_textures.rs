//! Whole transfers to and from textures of the adapters of this machine.
#![cfg(not(any(loom, transload_local)))]

use crate::adapter;
use transload::hal::ErrorClass;
use transload::{Buffer, Region, Request, Shape, TransferManager};
use transload_wgpu::{Texels, Wgpu};
use wgpu::TextureFormat as Format;

/// Bytes without a short period.
fn pattern(len: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A manager, and the user's own device that the manager uses.
struct Studio {
    device: wgpu::Device,
    queue: wgpu::Queue,
    manager: TransferManager,
}

impl Studio {
    /// One for each adapter; none, with a printed line, where there is no adapter.
    fn all() -> Vec<Studio> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::VULKAN;
        let instance = wgpu::Instance::new(descriptor);
        let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
        let studios: Vec<Studio> = adapters.iter().map(Studio::new).collect();
        let provided = std::env::var("TRANSLOAD_ADAPTER").map_or(0, |count| count.parse().unwrap());
        assert!(
            studios.len() >= provided,
            "{provided} drivers were provided"
        );
        if studios.is_empty() {
            adapter::skip();
        }
        studios
    }

    fn new(adapter: &wgpu::Adapter) -> Studio {
        let (device, queue) = transload_wgpu::open_device(adapter).unwrap();
        let manager = TransferManager::builder().host().build().unwrap();
        let backend = Wgpu::with_devices([(device.clone(), queue.clone())]);
        manager.register_backend(backend).unwrap();
        Studio {
            device,
            queue,
            manager,
        }
    }

    fn texture(&self, format: Format, width: u32, height: u32) -> wgpu::Texture {
        let usage = wgpu::TextureUsages::COPY_SRC | wgpu::TextureUsages::COPY_DST;
        self.texture_with(format, width, height, usage)
    }

    fn texture_with(
        &self,
        format: Format,
        width: u32,
        height: u32,
        usage: wgpu::TextureUsages,
    ) -> wgpu::Texture {
        self.device.create_texture(&wgpu::TextureDescriptor {
            label: Some("frame"),
            size: wgpu::Extent3d {
                width,
                height,
                depth_or_array_layers: 1,
            },
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format,
            usage,
            view_formats: &[],
        })
    }

    fn adopt(&self, texture: &wgpu::Texture) -> Buffer {
        let place = "wgpu:0".parse().unwrap();
        // SAFETY: the texture belongs to the borrowed device.
        unsafe { self.manager.adopt_native(place, texture.clone()) }.unwrap()
    }

    /// Draws a frame.
    fn draw(&self, texture: &wgpu::Texture, bytes: &[u8]) {
        let layout = Texels::new(texture.clone()).layout().unwrap();
        let layout = wgpu::TexelCopyBufferLayout {
            offset: 0,
            bytes_per_row: Some(layout.row_bytes as u32),
            rows_per_image: None,
        };
        let to = texture.as_image_copy();
        self.queue.write_texture(to, bytes, layout, texture.size());
        self.queue.submit([]);
    }

    /// Reads a texture as wgpu's tutorials do.
    fn look(&self, texture: &wgpu::Texture) -> Vec<u8> {
        let row = Texels::new(texture.clone()).layout().unwrap().row_bytes as u32;
        let pitch = row.next_multiple_of(wgpu::COPY_BYTES_PER_ROW_ALIGNMENT);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: u64::from(pitch * texture.height()),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let layout = wgpu::TexelCopyBufferLayout {
            offset: 0,
            bytes_per_row: Some(pitch),
            rows_per_image: None,
        };
        let to = wgpu::TexelCopyBufferInfo {
            buffer: &buffer,
            layout,
        };
        encoder.copy_texture_to_buffer(texture.as_image_copy(), to, texture.size());
        self.queue.submit([encoder.finish()]);
        buffer.map_async(wgpu::MapMode::Read, .., |result| result.unwrap());
        let wait = wgpu::PollType::wait_indefinitely();
        self.device.poll(wait).unwrap();
        let padded = buffer.get_mapped_range(..).unwrap();
        let of_row = |number: u32| &padded[(number * pitch) as usize..][..row as usize];
        (0..texture.height()).flat_map(of_row).copied().collect()
    }
}

#[test]
fn texels_come_back_as_they_went() {
    for studio in Studio::all() {
        let manager = &studio.manager;
        for (format, width, height) in [
            (Format::Rgba8Unorm, 1919, 1080),
            (Format::Rgba8Unorm, 1920, 1080),
            (Format::R8Unorm, 1921, 1081),
            (Format::Rgba16Float, 100, 50),
            (Format::R8Unorm, 3, 1),
        ] {
            let texture = studio.texture(format, width, height);
            let there = studio.adopt(&texture);
            let sent = pattern(there.len(), 1);
            let src = manager.adopt(sent.clone()).unwrap();
            let request = Request::new(&src, &there).verify();
            let report = manager.submit(&request).wait().unwrap();
            println!("{width} × {height} {format:?}: {report}");
            assert!(report.fallbacks().is_empty(), "{report}");
            assert!(studio.look(&texture) == sent);
            let back = manager.adopt(vec![0u8; sent.len()]).unwrap();
            let report = manager.copy(&there, &back).wait().unwrap();
            println!("{width} × {height} {format:?}: {report}");
            assert!(report.fallbacks().is_empty(), "{report}");
            assert!(*back.read().unwrap() == *sent);
            let mut copied = vec![0; sent.len()];
            manager.copy_into_slice(&there, &mut copied).unwrap();
            assert!(copied == sent);
        }
    }
}

#[test]
fn frames_are_read_back_by_one_prepared_copy() {
    for studio in Studio::all() {
        let texture = studio.texture(Format::Rgba8Unorm, 319, 200);
        let there = studio.adopt(&texture);
        let host = studio.manager.adopt(vec![0u8; 319 * 4 * 200]).unwrap();
        let request = Request::new(&there, &host);
        let readback = studio.manager.prepare(&request).unwrap();
        for frame in 0..20 {
            let drawn = pattern(there.len(), frame);
            studio.draw(&texture, &drawn);
            readback.post().wait().unwrap();
            assert!(*host.read().unwrap() == *drawn, "frame {frame}");
        }
    }
}

#[test]
fn rows_at_a_pitch_become_texels_and_a_rectangle_of_them_rows() {
    for studio in Studio::all() {
        let manager = &studio.manager;
        // The rows of a decoder: 1280 bytes from row to row, 1276 of which are visible.
        let (row, rows, pitch) = (1276u64, 240u64, 1280u64);
        let texture = studio.texture(Format::Rgba8Unorm, 319, 240);
        let there = studio.adopt(&texture);
        let decoded = pattern(pitch * rows, 5);
        let src = manager.adopt(decoded.clone()).unwrap();
        let shape = Shape::pitched(row, rows, pitch).unwrap();
        let from = Region::new(&src, 0, shape).unwrap();
        manager.copy(from, &there).wait().unwrap();
        let of_row = |at: u64| &decoded[(at * pitch) as usize..][..row as usize];
        let shown: Vec<u8> = (0..rows).flat_map(of_row).copied().collect();
        assert!(studio.look(&texture) == shown);
        // 20 by 30 texels at column 7, row 11.
        let (width, height) = (20 * 4, 30);
        let at = 11 * row + 7 * 4;
        let rectangle = Shape::pitched(width, height, row).unwrap();
        let from = Region::new(&there, at, rectangle).unwrap();
        let cut = manager.adopt(vec![0u8; (width * height) as usize]).unwrap();
        manager.copy(from, &cut).wait().unwrap();
        let of_row = |y: u64| &shown[(at + y * row) as usize..][..width as usize];
        let wanted: Vec<u8> = (0..height).flat_map(of_row).copied().collect();
        assert!(*cut.read().unwrap() == *wanted);
        // The texels go back to another place.
        let onto = Region::new(&there, 100 * row + 8, rectangle).unwrap();
        manager.copy(&cut, onto).wait().unwrap();
        let mut wanted_all = shown;
        for y in 0..height {
            let to = ((100 + y) * row + 8) as usize;
            let line = (y * width) as usize;
            wanted_all[to..to + width as usize]
                .copy_from_slice(&wanted[line..line + width as usize]);
        }
        assert!(studio.look(&texture) == wanted_all);
    }
}

#[test]
fn any_range_of_bytes_leaves_the_texels_around_it_alone() {
    for studio in Studio::all() {
        for format in [Format::R8Unorm, Format::Rgba8Unorm, Format::Rgba32Float] {
            let texture = studio.texture(format, 67, 31);
            let there = studio.adopt(&texture);
            let mut model = pattern(there.len(), 6);
            studio.draw(&texture, &model);
            let src = studio.manager.adopt(pattern(there.len(), 7)).unwrap();
            for (from, to, len) in [(0, 1, 1), (3, 66, 2), (5, 7, 700), (2, 0, 1999), (0, 0, 16)] {
                let part = src.slice(from..from + len).unwrap();
                let onto = there.slice(to..to + len).unwrap();
                studio.manager.copy(part, onto).wait().unwrap();
                let bytes = &pattern(there.len(), 7)[from as usize..(from + len) as usize];
                model[to as usize..(to + len) as usize].copy_from_slice(bytes);
                assert!(studio.look(&texture) == model, "{len} bytes to {to}");
                let mut found = vec![0; len as usize];
                let onto = there.slice(to..to + len).unwrap();
                studio.manager.copy_into_slice(onto, &mut found).unwrap();
                assert!(found == bytes, "{len} bytes from {to}");
            }
        }
    }
}

#[test]
fn a_texture_that_its_user_destroyed_fails_its_own_copies_and_bars_no_link() {
    for studio in Studio::all() {
        let manager = &studio.manager;
        let [texture, other] = [0, 1].map(|_| studio.texture(Format::Rgba8Unorm, 64, 64));
        let [there, elsewhere] = [&texture, &other].map(|texture| studio.adopt(texture));
        let src = manager.adopt(pattern(there.len(), 8)).unwrap();
        texture.destroy();
        for _ in 0..2 {
            let error = manager.copy(&src, &there).wait().unwrap_err();
            assert_eq!(error.class(), ErrorClass::Caller, "{error}");
            assert!(error.to_string().contains("'frame'"), "{error}");
        }
        let report = manager.copy(&src, &elsewhere).wait().unwrap();
        assert!(report.fallbacks().is_empty(), "{report}");
    }
}

#[test]
fn a_texture_that_is_only_written_takes_whole_texels_from_anywhere() {
    for studio in Studio::all() {
        let manager = &studio.manager;
        let usage = wgpu::TextureUsages::COPY_DST | wgpu::TextureUsages::TEXTURE_BINDING;
        let texture = studio.texture_with(Format::Rgba8Unorm, 319, 200, usage);
        let there = studio.adopt(&texture);
        let src = manager.adopt(pattern(there.len() + 8, 9)).unwrap();
        for lead in [0, 1, 3, 8] {
            let part = src.slice(lead..lead + there.len()).unwrap();
            manager.copy(part, &there).wait().unwrap();
        }
        let one = src.slice(0..1).unwrap();
        let error = manager.copy(one, there.slice(5..6).unwrap()).wait();
        let error = error.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Caller, "{error}");
        assert!(error.to_string().contains("COPY_SRC"), "{error}");
        let back = manager.adopt(vec![0u8; there.len() as usize]).unwrap();
        let error = manager.copy(&there, &back).wait().unwrap_err();
        assert_eq!(error.class(), ErrorClass::Caller, "{error}");
    }
}
