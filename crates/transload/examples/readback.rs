//! The program draws frames into textures; each frame comes back to the host while the next one is drawn.
//!
//! `cargo run --release --example readback --features wgpu`
use std::error::Error;

use transload::wgpu_backend::{Wgpu, open_device};
use transload::{Request, TransferManager};

const SIZE: wgpu::Extent3d = wgpu::Extent3d {
    width: 317, // no row of it is a multiple of 256 bytes, and none has to be
    height: 200,
    depth_or_array_layers: 1,
};
const FRAME_BYTES: usize = (SIZE.width * SIZE.height * 4) as usize;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    // What a program that draws has anyway; two textures, to draw one while the other is read.
    let descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    let instance = wgpu::Instance::new(descriptor);
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    let (device, queue) = open_device(adapters.first().ok_or("no adapter is here")?)?;
    let textures = [(); 2].map(|()| {
        device.create_texture(&wgpu::TextureDescriptor {
            label: Some("frame"),
            size: SIZE,
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format: wgpu::TextureFormat::Rgba8Unorm,
            usage: wgpu::TextureUsages::RENDER_ATTACHMENT
                | wgpu::TextureUsages::COPY_SRC
                | wgpu::TextureUsages::COPY_DST,
            view_formats: &[],
        })
    });

    // An adopted texture is a buffer of its texels, row after row, without padding. The manager checks and plans the
    // copy once; posting it for a frame allocates nothing.
    let manager = TransferManager::builder().host().build()?;
    manager.register_backend(Wgpu::with_devices([(device.clone(), queue.clone())]))?;
    let mut frames = Vec::new();
    for texture in &textures {
        // SAFETY: the borrowed device made it.
        let texels = unsafe { manager.adopt_native("wgpu:0".parse()?, texture.clone()) }?;
        let pixels = manager.adopt(vec![0u8; FRAME_BYTES])?;
        let readback = manager.prepare(&Request::new(&texels, &pixels))?;
        frames.push((texture, pixels, readback));
    }

    let mut under_way = None;
    for tick in 0..=60u8 {
        // Draws this frame. The copy follows it in the device's queue.
        let (texture, pixels, readback) = &frames[usize::from(tick % 2)];
        draw(&device, &queue, texture, tick);
        let transfer = readback.post();
        // Meanwhile the previous frame has arrived, or arrives now.
        if let Some((transfer, pixels, tick)) = under_way.replace((transfer, pixels, tick)) {
            take(transfer, pixels, tick)?;
        }
    }
    let (transfer, pixels, tick) = under_way.ok_or("no frame was drawn")?;
    println!("{}", take(transfer, pixels, tick)?);
    Ok(())
}

/// Clears the texture to a grey that depends on the tick.
fn draw(device: &wgpu::Device, queue: &wgpu::Queue, texture: &wgpu::Texture, tick: u8) {
    let view = texture.create_view(&wgpu::TextureViewDescriptor::default());
    let grey = f64::from(tick) / 255.0;
    let clear = wgpu::Color {
        r: grey,
        g: grey,
        b: grey,
        a: 1.0,
    };
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    drop(encoder.begin_render_pass(&wgpu::RenderPassDescriptor {
        color_attachments: &[Some(wgpu::RenderPassColorAttachment {
            view: &view,
            depth_slice: None,
            resolve_target: None,
            ops: wgpu::Operations {
                load: wgpu::LoadOp::Clear(clear),
                store: wgpu::StoreOp::Store,
            },
        })],
        ..Default::default()
    }));
    queue.submit([encoder.finish()]);
}

/// Waits for a frame and checks it.
fn take(
    transfer: transload::Transfer,
    pixels: &transload::Buffer,
    tick: u8,
) -> Result<transload::Report, Box<dyn Error>> {
    let report = transfer.wait()?;
    let pixels = pixels.read()?;
    let is_grey = pixels
        .chunks(4)
        .all(|pixel| pixel == [tick, tick, tick, 255]);
    is_grey
        .then_some(report)
        .ok_or_else(|| format!("frame {tick} is not what was drawn").into())
}
