//! The shader, and the scratch buffers between which it moves bytes.

use crate::storage::WORD;

/// Bytes of payload that one pass of the shader moves.
pub(crate) const CHUNK: u64 = 1 << 20;

/// Moves bytes to other places within their words, from one scratch buffer to another.
///
/// Every copy of the device reuses the scratch buffers, because its queue executes one command after
/// the other.
pub(crate) struct Shifter {
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
    pub(crate) input: wgpu::Buffer,
    pub(crate) output: wgpu::Buffer,
    /// Between two textures.
    pub(crate) middle: wgpu::Buffer,
    /// Bytes on their way to other places within their words.
    texels: wgpu::Texture,
}

/// The bytes that one pass of the shader moves. They are counted consecutively through rows of one
/// length, which lie at a pitch on either side.
#[derive(Clone, Copy)]
pub(crate) struct Shift {
    /// The bytes of a row.
    pub(super) row: u32,
    /// The start of row 0, and the distance from one row to the next. Row 0 may begin before the
    /// buffer if its first bytes are not moved; numbers wrap then.
    pub(super) src: u32,
    pub(super) src_pitch: u32,
    pub(super) dst: u32,
    pub(super) dst_pitch: u32,
    /// The first byte that is moved, and the end of the moved bytes.
    pub(super) first: u32,
    pub(super) end: u32,
    /// The number of words of the output that receive bytes, from its first word on.
    pub(super) words: u32,
}

impl Shift {
    /// `len` bytes in one row.
    pub(super) fn in_line(src: u32, dst: u32, len: u32) -> Shift {
        Shift {
            row: u32::MAX,
            src,
            src_pitch: u32::MAX,
            dst,
            dst_pitch: u32::MAX,
            first: 0,
            end: len,
            words: (dst + len).div_ceil(WORD as u32),
        }
    }

    /// The fields in the shader's layout.
    pub(super) fn numbers(&self) -> [u32; 8] {
        [
            self.row,
            self.src,
            self.src_pitch,
            self.dst,
            self.dst_pitch,
            self.first,
            self.end,
            self.words,
        ]
    }
}

/// The stride of parameters in their buffer, which meets every device's alignment of offsets.
const STRIDE: u64 = 256;

const THREADS: u32 = 64;

/// The length of a full row of the scratch texture, in texels of one byte. A chunk and the texture it passes through lie
/// in the caches of most processors.
const ROW: u64 = 1024;

const SHADER: &str = "
struct Shift {
    row: u32,
    src: u32,
    src_pitch: u32,
    dst: u32,
    dst_pitch: u32,
    first: u32,
    end: u32,
    words: u32,
}
@group(0) @binding(0) var<uniform> shift: Shift;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= shift.words { return; }
    let start = id.x * 4u - shift.dst;
    let row = start / shift.dst_pitch;
    let column = start % shift.dst_pitch;
    let number = row * shift.row + column;
    let within = column < shift.row && shift.row - column >= 4u;
    if within && number >= shift.first && number < shift.end && shift.end - number >= 4u {
        let place = shift.src + row * shift.src_pitch + column;
        let bits = (place & 3u) * 8u;
        var value = input[place >> 2u] >> bits;
        if bits > 0u {
            value |= input[(place >> 2u) + 1u] << (32u - bits);
        }
        output[id.x] = value;
        return;
    }
    var value = 0u;
    var mask = 0u;
    for (var k = 0u; k < 4u; k++) {
        let at = start + k;
        let row = at / shift.dst_pitch;
        let column = at % shift.dst_pitch;
        let number = row * shift.row + column;
        if column < shift.row && number >= shift.first && number < shift.end {
            let place = shift.src + row * shift.src_pitch + column;
            let byte = (input[place >> 2u] >> ((place & 3u) * 8u)) & 255u;
            value |= byte << (k * 8u);
            mask |= 255u << (k * 8u);
        }
    }
    output[id.x] = (output[id.x] & ~mask) | value;
}
";

impl Shifter {
    pub(crate) fn new(device: &wgpu::Device) -> Shifter {
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some("transload shift"),
            source: wgpu::ShaderSource::Wgsl(SHADER.into()),
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some("transload shift"),
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let scratch = || {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("transload scratch"),
                // A chunk with part of a word on either side.
                size: CHUNK + 2 * WORD,
                usage: wgpu::BufferUsages::STORAGE
                    | wgpu::BufferUsages::COPY_SRC
                    | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        };
        let texels = device.create_texture(&wgpu::TextureDescriptor {
            label: Some("transload texels"),
            size: wgpu::Extent3d {
                width: (ROW + WORD) as u32,
                height: (CHUNK / ROW) as u32,
                depth_or_array_layers: 1,
            },
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format: wgpu::TextureFormat::R8Uint,
            usage: wgpu::TextureUsages::COPY_SRC | wgpu::TextureUsages::COPY_DST,
            view_formats: &[],
        });
        Shifter {
            texels,
            layout: pipeline.get_bind_group_layout(0),
            pipeline,
            input: scratch(),
            output: scratch(),
            middle: scratch(),
        }
    }

    /// The parameters of all passes of a submission.
    pub(super) fn bind(&self, device: &wgpu::Device, params: &[Shift]) -> Vec<wgpu::BindGroup> {
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("transload parameters"),
            size: STRIDE * params.len() as u64,
            usage: wgpu::BufferUsages::UNIFORM,
            mapped_at_creation: true,
        });
        if let Ok(mut view) = buffer.get_mapped_range_mut(..) {
            for (at, shift) in params.iter().enumerate() {
                let at = at * STRIDE as usize;
                let numbers = shift.numbers();
                let bytes = bytemuck::bytes_of(&numbers);
                view.slice(at..at + bytes.len()).copy_from_slice(bytes);
            }
        }
        buffer.unmap();
        let size = std::num::NonZeroU64::new(size_of::<Shift>() as u64);
        let bind = |at: usize| {
            device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &self.layout,
                entries: &[
                    wgpu::BindGroupEntry {
                        binding: 0,
                        resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                            buffer: &buffer,
                            offset: STRIDE * at as u64,
                            size,
                        }),
                    },
                    wgpu::BindGroupEntry {
                        binding: 1,
                        resource: self.input.as_entire_binding(),
                    },
                    wgpu::BindGroupEntry {
                        binding: 2,
                        resource: self.output.as_entire_binding(),
                    },
                ],
            })
        };
        (0..params.len()).map(bind).collect()
    }

    /// Moves a chunk of a word or more through the scratch texture.
    pub(super) fn pass(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        (src, from): (&wgpu::Buffer, u64),
        (dst, to): (&wgpu::Buffer, u64),
        len: u64,
    ) {
        // The last row has a word at least, and so some more than the others.
        let rows = (len - WORD) / ROW;
        let full = (rows > 0).then_some((0, ROW, rows));
        let parts = || full.into_iter().chain([(rows, len - rows * ROW, 1)]);
        let side = |buffer, first, (top, width, height)| {
            let layout = wgpu::TexelCopyBufferLayout {
                offset: first + top * ROW,
                bytes_per_row: (height > 1).then_some(width as u32),
                rows_per_image: None,
            };
            wgpu::TexelCopyBufferInfo { buffer, layout }
        };
        let texels = |(top, width, height)| {
            let mut place = self.texels.as_image_copy();
            place.origin.y = top as u32;
            let size = wgpu::Extent3d {
                width: width as u32,
                height: height as u32,
                depth_or_array_layers: 1,
            };
            (place, size)
        };
        // The two ends may overlap.
        for part in parts() {
            let (place, size) = texels(part);
            encoder.copy_buffer_to_texture(side(src, from, part), place, size);
        }
        for part in parts() {
            let (place, size) = texels(part);
            encoder.copy_texture_to_buffer(place, side(dst, to, part), size);
        }
    }

    pub(super) fn dispatch(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        group: &wgpu::BindGroup,
        shift: &Shift,
    ) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, group, &[]);
        pass.dispatch_workgroups(shift.words.div_ceil(THREADS), 1, 1);
    }
}
