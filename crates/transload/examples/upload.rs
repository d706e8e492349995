//! The program copies a file into a buffer of the first adapter, and a shader adds up its words.
//!
//! `cargo run --release --example upload --features wgpu`
use std::error::Error;

use transload::wgpu_backend::Wgpu;
use transload::{AllocSpec, TransferManager};

const WORDS: u32 = 1 << 20;

const SHADER: &str = "
@group(0) @binding(0) var<storage, read> words: array<u32>;
@group(0) @binding(1) var<storage, read_write> sum: atomic<u32>;

@compute @workgroup_size(64)
fn add(@builtin(global_invocation_id) id: vec3<u32>) {
    atomicAdd(&sum, words[id.x]);
}
";

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    // The words to upload.
    let words: Vec<u32> = (0..WORDS)
        .map(|word| word.wrapping_mul(0x9E37_79B1))
        .collect();
    let bytes: Vec<u8> = words.iter().copied().flat_map(u32::to_le_bytes).collect();
    let path = std::env::temp_dir().join(format!("transload-upload-{}", std::process::id()));
    std::fs::write(&path, bytes)?;

    // Finds the host and every adapter. Memory is named by place: a device, and if need be a kind.
    let manager = TransferManager::discover()?;
    let file = manager.open_file(&path)?;
    let gpu = manager.allocate("wgpu:0".parse()?, AllocSpec::bytes(file.len()))?;
    let report = manager.copy(&file, &gpu).wait()?;
    println!("{report}"); // how many bytes went, from where to where, how, and how fast
    std::fs::remove_file(&path)?;

    // The copy is over, so all work that is submitted from here on sees its bytes. The buffer is a wgpu buffer, and its
    // device belongs to the backend.
    let wgpu = manager.backend::<Wgpu>().ok_or("no adapter is here")?;
    let (device, queue) = wgpu.handles(gpu.memory().device).ok_or("no device")?;
    let sum = manager.allocate("wgpu:0".parse()?, AllocSpec::bytes(4))?;
    manager.copy_from_slice(&[0; 4], &sum)?; // what new memory holds is unspecified
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(SHADER.into()),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("add"),
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    });
    let buffers = [&gpu, &sum].map(|buffer| buffer.native::<wgpu::Buffer>());
    let entries = [0, 1].map(|at| wgpu::BindGroupEntry {
        binding: at as u32,
        resource: buffers[at].expect("wgpu's own memory").as_entire_binding(),
    });
    let bind_group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &entries,
    });
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &bind_group, &[]);
    pass.dispatch_workgroups(WORDS / 64, 1, 1);
    drop(pass);
    queue.submit([encoder.finish()]);

    // The copy takes effect after earlier submissions to its device, so the program need not wait first.
    let mut found = [0; 4];
    manager.copy_into_slice(&sum, &mut found)?;
    let (found, wanted) = (u32::from_le_bytes(found), words.iter().fold(0, add));
    println!("the shader says {found}, the processor {wanted}");
    (found == wanted).then_some(()).ok_or("they differ".into())
}

fn add(sum: u32, word: &u32) -> u32 {
    sum.wrapping_add(*word)
}
