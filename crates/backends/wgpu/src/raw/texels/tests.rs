//! The ways through commands and through the shader, on whatever adapter is here.

use std::ops::Range;

use super::super::program::End;
use super::super::shifter::CHUNK;
use super::super::{Shifter, Shifts, Window};
use super::*;

struct Stage {
    device: wgpu::Device,
    queue: wgpu::Queue,
    shifter: Shifter,
}

const COPIED: wgpu::BufferUsages = wgpu::BufferUsages::COPY_SRC.union(wgpu::BufferUsages::COPY_DST);

impl Stage {
    fn all() -> Vec<Stage> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::VULKAN;
        let instance = wgpu::Instance::new(descriptor);
        let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
        let open = |adapter: &wgpu::Adapter| {
            let descriptor = wgpu::DeviceDescriptor::default();
            let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).ok()?;
            let shifter = Shifter::new(&device);
            Some(Stage {
                device,
                queue,
                shifter,
            })
        };
        adapters.iter().filter_map(open).collect()
    }

    fn buffer(&self, bytes: &[u8]) -> wgpu::Buffer {
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes.len() as u64,
            usage: COPIED,
            mapped_at_creation: true,
        });
        let mut view = buffer.get_mapped_range_mut(..).unwrap();
        view.copy_from_slice(bytes);
        drop(view);
        buffer.unmap();
        buffer
    }

    fn texture(&self, format: wgpu::TextureFormat, size: [u32; 2]) -> wgpu::Texture {
        self.device.create_texture(&wgpu::TextureDescriptor {
            label: None,
            size: wgpu::Extent3d {
                width: size[0],
                height: size[1],
                depth_or_array_layers: 2,
            },
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format,
            usage: wgpu::TextureUsages::COPY_SRC | wgpu::TextureUsages::COPY_DST,
            view_formats: &[],
        })
    }

    fn run(&self, program: &Program) {
        let commands = program.encode(&self.device, Some(&self.shifter));
        self.queue.submit([commands]);
    }

    fn bytes(&self, buffer: &wgpu::Buffer) -> Vec<u8> {
        let copy = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: buffer.size(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &copy, 0, buffer.size());
        self.queue.submit([encoder.finish()]);
        copy.map_async(wgpu::MapMode::Read, .., |result| result.unwrap());
        let wait = wgpu::PollType::wait_indefinitely();
        self.device.poll(wait).unwrap();
        copy.get_mapped_range(..).unwrap().to_vec()
    }

    /// Sends a range to the texture and brings it back, each by a command for up to so many rows.
    fn round(&self, texture: &wgpu::Texture, limits: [u64; 2], range: Range<u64>, at: u64) {
        let window = Window::of_level(texture, 0).unwrap();
        let all = window.len_bytes();
        let size = (all + at).next_multiple_of(WORD);
        let [old, new, poison] = [3u64, 5, 7].map(|factor| {
            let byte = |at: u64| ((at * factor) ^ (at >> 7)) as u8;
            (0..size).map(byte).collect::<Vec<u8>>()
        });
        let [before, sent, back] = [&old, &new, &poison].map(|bytes| self.buffer(bytes));
        let texels = |offset| End::Texels { window, offset };
        let len = range.end - range.start;
        let mut program = by_rows(limits[0]);
        program.copy(End::bytes(&before, 0), texels(0), all);
        program.copy(End::bytes(&sent, at), texels(range.start), len);
        self.run(&program);
        let mut program = by_rows(limits[1]);
        program.copy(texels(range.start), End::bytes(&back, at), len);
        self.run(&program);
        let (first, last) = (at as usize, (at + len) as usize);
        let mut wanted = poison;
        wanted[first..last].copy_from_slice(&new[first..last]);
        assert!(self.bytes(&back) == wanted, "{range:?} at {at}, {limits:?}");
        // The rest of the texture is what it was.
        let mut program = by_rows(limits[1]);
        program.copy(texels(0), End::bytes(&back, 0), all);
        self.run(&program);
        let mut wanted = old;
        let place = range.start as usize..range.end as usize;
        wanted[place].copy_from_slice(&new[first..last]);
        let found = self.bytes(&back);
        let all = all as usize;
        assert!(
            found[..all] == wanted[..all],
            "around {range:?}, {limits:?}"
        );
    }
}

/// A program that spends a command each on up to so many rows of a copy.
fn by_rows(single_rows: u64) -> Program {
    let mut program = Program::new(Shifts::Shader);
    program.single_rows = single_rows;
    program
}

#[test]
fn bytes_go_to_any_place_through_the_shader_and_through_the_texture() {
    const SIZE: usize = CHUNK as usize * 2 + 64;
    let made = |factor: usize| -> Vec<u8> {
        let byte = |at: usize| ((at * factor) ^ (at >> 9)) as u8;
        (0..SIZE).map(byte).collect()
    };
    let (sent, poison) = (made(3), made(5));
    let lens = (0..20).chain([1023, 1024, 1025, 1028, 1029, 5000, CHUNK as usize + 1]);
    for stage in Stage::all() {
        let src = stage.buffer(&sent);
        for (shifts, len) in lens
            .clone()
            .flat_map(|len| [(Shifts::Shader, len), (Shifts::Texels, len)])
        {
            let (dst, mut wanted) = (stage.buffer(&poison), poison.clone());
            let mut program = Program::new(shifts);
            // Each pair of places within a word, one after the other with a gap of bytes that stay; long copies fit once.
            for pair in 0..16.min(SIZE / (len + 8)) {
                let (from, to) = (pair / 4 + len / 3, pair * (len + 8) / 4 * 4 + pair % 4);
                let (src, dst) = (End::bytes(&src, from as u64), End::bytes(&dst, to as u64));
                program.copy(src, dst, len as u64);
                wanted[to..to + len].copy_from_slice(&sent[from..from + len]);
            }
            stage.run(&program);
            assert!(stage.bytes(&dst) == wanted, "{len} bytes");
            // Within one buffer, up and down, over each other.
            for (from, to) in [(8, 9), (9, 8), (13, 8), (8, 1031), (2000, 3)] {
                let both = stage.buffer(&sent);
                let mut program = Program::new(shifts);
                let end = |at: usize| End::bytes(&both, at as u64);
                program.copy(end(from), end(to), len as u64);
                stage.run(&program);
                let mut wanted = sent.clone();
                wanted.copy_within(from..from + len, to);
                assert!(
                    stage.bytes(&both) == wanted,
                    "{len} bytes from {from} to {to}"
                );
            }
        }
    }
}

#[test]
fn rows_by_commands_and_rows_by_the_shader_are_the_same() {
    use wgpu::TextureFormat as Format;
    // Where there is no adapter, the tests of the whole backend say that they were skipped.
    for stage in Stage::all() {
        for (format, size) in [
            (Format::R8Unorm, [13, 9]),
            (Format::R8Unorm, [1, 300]),
            (Format::R8Unorm, [1921, 300]),
            (Format::Rg8Unorm, [301, 7]),
            (Format::Rgba8Unorm, [64, 9]),
            (Format::Rgba8Unorm, [67, 9]),
            (Format::Rgba32Float, [35, 9]),
        ] {
            let texture = stage.texture(format, size);
            let len = Window::of_level(&texture, 0).unwrap().len_bytes();
            for limits in [[0, 0], [SINGLE_ROWS, 0], [u64::MAX, 0], [0, u64::MAX]] {
                stage.round(&texture, limits, 0..len, 0);
                stage.round(&texture, limits, 0..len - 1, 3);
                stage.round(&texture, limits, 16..len, 32);
                stage.round(&texture, limits, 1..len / 2 + 1, 6);
                stage.round(&texture, limits, len / 2 - 1..len / 2 + 2, 1);
            }
        }
    }
}
