//! Transfers in a program that has its own device, queue and buffers, and submits work to them.
//!
//! `cargo run --release --example adopt --features wgpu`
use std::error::Error;

use transload::wgpu_backend::{Wgpu, open_device};
use transload::{Request, TransferManager};

const LEN: u64 = 1 << 20;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    // The program's own part. Any device will do; `open_device` opens one with all features that transfers can use,
    // such as access to the host's memory in place.
    let descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    let instance = wgpu::Instance::new(descriptor);
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    let (device, queue) = open_device(adapters.first().ok_or("no adapter is here")?)?;
    let particles = device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("particles"),
        size: LEN,
        usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });

    // The manager borrows the device, under the name `wgpu:0`. Its callbacks stay the program's.
    let manager = TransferManager::builder().host().build()?;
    manager.register_backend(Wgpu::with_devices([(device.clone(), queue.clone())]))?;
    let wgpu = manager.backend::<Wgpu>().ok_or("it was registered")?;
    // SAFETY: the borrowed device made it.
    let shared = unsafe { manager.adopt_native("wgpu:0".parse()?, particles.clone()) }?;

    // In: work that is submitted once the copy is over sees its bytes.
    let state = manager.adopt(vec![7u8; LEN as usize])?;
    println!("{}", manager.copy(&state, &shared).wait()?);
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.clear_buffer(&particles, 0, Some(LEN / 2));
    let step = queue.submit([encoder.finish()]);

    // Out: in the same queue, a copy follows the step without further calls.
    let after_step = manager.adopt(vec![0xFF_u8; LEN as usize])?;
    println!("{}", manager.copy(&shared, &after_step).wait()?);
    let half = LEN as usize / 2;
    let bytes = after_step.read()?;
    if bytes[..half].iter().any(|byte| *byte != 0) || bytes[half..].iter().any(|byte| *byte != 7) {
        return Err("the copy did not see what the step did".into());
    }
    drop(bytes);

    // A transfer outside the device's queues, such as a copy from the host to a file, waits for the step by an event.
    // No thread blocks for it, and the program need not poll the device.
    let done = manager.event();
    wgpu.when_done(&device, step, done.setter())?;
    let path = std::env::temp_dir().join(format!("transload-adopt-{}", std::process::id()));
    let file = manager.create_file(&path, LEN)?;
    let saved = manager.submit(&Request::new(&after_step, &file).after(&done));
    println!("{}", saved.wait()?);
    std::fs::remove_file(&path)?;

    // The buffer belonged to the program all the time; this call returns the manager's handle of it.
    let returned = shared.into_inner::<wgpu::Buffer>()?;
    println!("{} bytes are the program's own again", returned.size());
    Ok(())
}
