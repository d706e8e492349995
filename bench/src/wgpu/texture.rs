//! `texture`: frames of 1920 by 1080 read back, prepared once and posted for each.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use transload::Request;

use super::gpu::{Gpu, twice};
use super::results::{AGAIN, REUSED, Results, TUTORIAL, judge};
use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{Contender, POISON, Random};
use crate::raw::adopt::adopt_texture;
use crate::way::Way;

const WIDTH: u32 = 1920;
const HEIGHT: u32 = 1080;
/// A multiple of wgpu's row alignment, so that no row is padded.
const ROW: u32 = 4 * WIDTH;
const LEN: usize = (ROW * HEIGHT) as usize;

const LAYOUT: wgpu::TexelCopyBufferLayout = wgpu::TexelCopyBufferLayout {
    offset: 0,
    bytes_per_row: Some(ROW),
    rows_per_image: None,
};

pub(super) fn run(case: &str, effort: Effort) -> Result<Option<Vec<Outcome>>> {
    let Some((manager, gpu, _)) = twice()? else {
        return Ok(None);
    };
    let texture = gpu.device.create_texture(&wgpu::TextureDescriptor {
        label: None,
        size: wgpu::Extent3d {
            width: WIDTH,
            height: HEIGHT,
            depth_or_array_layers: 1,
        },
        mip_level_count: 1,
        sample_count: 1,
        dimension: wgpu::TextureDimension::D2,
        format: wgpu::TextureFormat::Rgba8Unorm,
        usage: wgpu::TextureUsages::COPY_SRC | wgpu::TextureUsages::COPY_DST,
        view_formats: &[],
    });
    let mut frame = vec![0u8; LEN];
    Random(LEN as u64).fill(&mut frame);
    let to = texture.as_image_copy();
    gpu.queue.write_texture(to, &frame, LAYOUT, texture.size());
    gpu.queue.submit([]);
    gpu.wait()?;
    let frame = Rc::new(frame);

    let src = adopt_texture(&manager, gpu.place()?, &texture)?;
    let dst = manager.adopt(vec![POISON; LEN])?;
    let prepared = manager.prepare(&Request::new(&src, &dst))?;
    let (to, found, wanted) = (dst.clone(), dst.clone(), Rc::clone(&frame));
    let mut contenders = vec![Way::boxed(
        "transload",
        move || {
            prepared.post().wait()?;
            Ok(())
        },
        move || {
            to.write()?.fill(POISON);
            Ok(())
        },
        move || Ok(*found.read()? == **wanted),
    )];
    contenders.push(read_back(TUTORIAL, &gpu, &texture, &frame, None));
    let staging = staging(&gpu);
    for name in [REUSED, AGAIN] {
        contenders.push(read_back(name, &gpu, &texture, &frame, Some(&staging)));
    }
    let results = Results::of(contenders, LEN, effort)?;
    let ends = [src.memory().to_string(), dst.memory().to_string()];
    let mut outcome = results.outcome(case, LEN, ends);
    eprintln!("  {}", manager.copy(&src, &dst).wait()?);
    let faster = 1.0 / results.over(TUTORIAL);
    let of = "times the tutorial's rate:";
    judge(&mut outcome, vec![Verdict::at_least(of, faster, 2.0, "")]);
    Ok(Some(vec![outcome]))
}

fn staging(gpu: &Gpu) -> wgpu::Buffer {
    let usages = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    gpu.made(LEN as u64, usages)
}

/// Through the given staging buffer, or a new one and into a new vector, as in the tutorials.
fn read_back(
    name: &str,
    gpu: &Gpu,
    texture: &wgpu::Texture,
    frame: &Rc<Vec<u8>>,
    kept: Option<&wgpu::Buffer>,
) -> Box<dyn Contender> {
    let dst = Rc::new(RefCell::new(vec![POISON; LEN]));
    let (gpu, texture, kept) = (gpu.clone(), texture.clone(), kept.cloned());
    let (into, spoilt, wanted) = (Rc::clone(&dst), Rc::clone(&dst), Rc::clone(frame));
    let turn = move || {
        let buffer = kept.clone().unwrap_or_else(|| staging(&gpu));
        let mut encoder = gpu.encoder();
        let info = wgpu::TexelCopyBufferInfo {
            buffer: &buffer,
            layout: LAYOUT,
        };
        encoder.copy_texture_to_buffer(texture.as_image_copy(), info, texture.size());
        gpu.submit(encoder)?;
        gpu.map(&buffer, wgpu::MapMode::Read)?;
        let view = buffer.get_mapped_range(..)?;
        match kept {
            Some(_) => into.borrow_mut().copy_from_slice(&view),
            None => drop(into.replace(view.to_vec())),
        }
        drop(view);
        buffer.unmap();
        Ok(())
    };
    let poison = move || {
        spoilt.borrow_mut().fill(POISON);
        Ok(())
    };
    Way::boxed(name, turn, poison, move || Ok(*dst.borrow() == **wanted))
}
