//! Commands for copies that wgpu's own cannot express: bytes that begin, end or lie inside words.

mod program;
#[cfg(any(
    windows,
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd"
))]
mod vulkan;
#[cfg(not(any(
    windows,
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd"
)))]
#[path = "no_vulkan.rs"]
mod vulkan;

pub(crate) use program::{End, Program};
pub(crate) use vulkan::{Importer, Mapper, open};

use crate::memory::WORD;

/// Bytes of payload that one pass of the shader moves.
pub(crate) const CHUNK: u64 = 1 << 20;

/// Moves bytes to other places within their words, from one scratch buffer to another.
///
/// Both scratch buffers are reused by every copy of the device: its queue carries out one command after
/// the other.
pub(crate) struct Shifter {
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
    pub(crate) input: wgpu::Buffer,
    pub(crate) output: wgpu::Buffer,
}

/// Where the bytes lie in the two scratch buffers: `[from, to, len, 0]`.
pub(crate) type Params = [u32; 4];

/// The stride of parameters in their buffer, as large as any device wants offsets aligned.
const STRIDE: u64 = 256;

const THREADS: u32 = 64;

const SHADER: &str = "
struct Params { src: u32, dst: u32, len: u32, unused: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let first = id.x * 4u;
    let end = params.dst + params.len;
    if first >= end { return; }
    var value = 0u;
    var mask = 0u;
    for (var k = 0u; k < 4u; k++) {
        let at = first + k;
        if at >= params.dst && at < end {
            let place = params.src + at - params.dst;
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
        Shifter {
            layout: pipeline.get_bind_group_layout(0),
            pipeline,
            input: scratch(),
            output: scratch(),
        }
    }

    /// The parameters of all passes of a submission.
    fn bind(&self, device: &wgpu::Device, params: &[Params]) -> Vec<wgpu::BindGroup> {
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("transload parameters"),
            size: STRIDE * params.len() as u64,
            usage: wgpu::BufferUsages::UNIFORM,
            mapped_at_creation: true,
        });
        if let Ok(mut view) = buffer.get_mapped_range_mut(..) {
            for (at, params) in params.iter().enumerate() {
                let at = at * STRIDE as usize;
                let bytes = bytemuck::bytes_of(params);
                view.slice(at..at + bytes.len()).copy_from_slice(bytes);
            }
        }
        buffer.unmap();
        let size = std::num::NonZeroU64::new(size_of::<Params>() as u64);
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

    fn dispatch(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        group: &wgpu::BindGroup,
        params: &Params,
    ) {
        let words = (params[1] + params[2]).div_ceil(WORD as u32);
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, group, &[]);
        pass.dispatch_workgroups(words.div_ceil(THREADS), 1, 1);
    }
}
