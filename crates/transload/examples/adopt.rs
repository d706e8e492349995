//! Transfers in a program that has a device, a queue and buffers of its own, and submits to them.
//!
//! `cargo run --release --example adopt --features wgpu`
use std::error::Error;

use transload::wgpu_backend::{Wgpu, open_device};
use transload::{Request, TransferManager};

const LEN: u64 = 1 << 20;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    // What the program has anyway. Any device will do; `open_device` opens one with all that the
    // transfers can use, access to the host's memory in place for one.
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

    // The device is lent to a manager, under the name `wgpu:0`. Its callbacks stay the program's.
    let manager = TransferManager::builder().host().build()?;
    manager.register_backend(Wgpu::with_devices([(device.clone(), queue.clone())]))?;
    let wgpu = manager.backend::<Wgpu>().ok_or("it was registered")?;
    // SAFETY: the device that was lent made it.
    let shared = unsafe { manager.adopt_native("wgpu:0".parse()?, particles.clone()) }?;

    // In: what is submitted once the copy is over sees its bytes.
    let state = manager.adopt(vec![7u8; LEN as usize])?;
    println!("{}", manager.copy(&state, &shared).wait()?);
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.clear_buffer(&particles, 0, Some(LEN / 2));
    let step = queue.submit([encoder.finish()]);

    // Out: a copy is behind the step in the same queue, without a word.
    let after_step = manager.adopt(vec![0xFF_u8; LEN as usize])?;
    println!("{}", manager.copy(&shared, &after_step).wait()?);
    let half = LEN as usize / 2;
    let bytes = after_step.read()?;
    if bytes[..half].iter().any(|byte| *byte != 0) || bytes[half..].iter().any(|byte| *byte != 7) {
        return Err("the copy did not see what the step did".into());
    }
    drop(bytes);

    // What is in no queue of the device's, such as a copy from the host to a file, waits for the step
    // by an event. Nobody blocks for it, and nobody has to poll the device.
    let done = manager.event();
    wgpu.when_done(&device, step, done.setter())?;
    let path = std::env::temp_dir().join(format!("transload-adopt-{}", std::process::id()));
    let file = manager.create_file(&path, LEN)?;
    let saved = manager.submit(&Request::new(&after_step, &file).after(&done));
    println!("{}", saved.wait()?);
    std::fs::remove_file(&path)?;

    // The buffer was the program's all the time; this gives the manager's handle of it back.
    let returned = shared.into_inner::<wgpu::Buffer>()?;
    println!("{} bytes are the program's own again", returned.size());
    Ok(())
}
