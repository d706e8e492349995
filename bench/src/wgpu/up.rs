//! `host-wgpu`: from ordinary heap memory into a buffer of lavapipe.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::rc::Rc;

use anyhow::{Context, Result};
use transload::{AllocSpec, Buffer};
use wgpu::util::{BufferInitDescriptor, DeviceExt, StagingBelt};

use super::gpu::{Gpu, moved, tell, twice};
use super::results::{
    AGAIN, ALLOCATED, FOREIGN, MEMCPY, MISALIGNED, REUSED, Results, TUTORIAL, judge,
};
use crate::case::{Effort, Outcome};
use crate::contest::{Contender, POISON, Random};
use crate::raw::adopt::adopt;
use crate::way::Way;

const WRITE: &str = "write_buffer";
const BELT: &str = "StagingBelt";

pub(super) fn run(case: &str, len: usize, effort: Effort) -> Result<Option<Vec<Outcome>>> {
    let Some((manager, opened, foreign)) = twice()? else {
        return Ok(None);
    };
    // One byte more than is copied, so that there is a misaligned copy of the same length.
    let mut bytes = vec![0u8; len + 4];
    Random(len as u64).fill(&mut bytes);
    let all = manager.adopt(bytes)?;
    let src = all.slice(..len as u64)?;
    let beside = all.slice(1..=len as u64)?;

    let users = opened.buffer(len as u64);
    let adopted = adopt(&manager, opened.place()?, &users)?;
    let allocated = manager.allocate(opened.default_place(), AllocSpec::bytes(len as u64))?;
    // The baselines run on the device of a program without Transload, and share one destination.
    let plain = foreign.buffer(len as u64);
    let plain_adopted = adopt(&manager, foreign.place()?, &plain)?;

    let engine = |name: &str, from: &Buffer, to: &Buffer, gpu: &Gpu| {
        let native = to.native::<wgpu::Buffer>().context("no buffer of wgpu's")?;
        let poison = {
            let (gpu, native) = (gpu.clone(), native.clone());
            move || gpu.spoil(&native)
        };
        let check = {
            let (gpu, native, from) = (gpu.clone(), native.clone(), from.clone());
            move || gpu.holds(&native, &from.read()?)
        };
        let (manager, from, to) = (manager.clone(), from.clone(), to.clone());
        let turn = move || moved(&manager, &from, &to);
        anyhow::Ok(Way::boxed(name, turn, poison, check))
    };
    let mut contenders = vec![
        engine("transload", &src, &adopted, &opened)?,
        engine(ALLOCATED, &src, &allocated, &opened)?,
        engine(FOREIGN, &src, &plain_adopted, &foreign)?,
        engine(MISALIGNED, &beside, &adopted, &opened)?,
        tutorial(&foreign, &src),
        write_buffer(&foreign, &src, &plain),
        belt(&foreign, &src, &plain),
    ];
    let staging = foreign.made(
        len as u64,
        wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
    );
    foreign.map(&staging, wgpu::MapMode::Write)?;
    for name in [REUSED, AGAIN] {
        contenders.push(reused(name, &foreign, &src, &staging, &plain));
    }
    contenders.push(memcpy(&src));

    let results = Results::of(contenders, len, effort)?;
    for (name, src, dst) in [
        ("transload", &src, &adopted),
        (ALLOCATED, &src, &allocated),
        (FOREIGN, &src, &plain_adopted),
        (MISALIGNED, &beside, &adopted),
    ] {
        tell(&manager, name, src, dst)?;
    }
    let ends = [src.memory().to_string(), adopted.memory().to_string()];
    let mut outcome = results.outcome(case, len, ends);
    let baselines = [TUTORIAL, WRITE, BELT, REUSED, AGAIN];
    judge(&mut outcome, results.verdicts(len, &baselines));
    Ok(Some(vec![outcome]))
}

/// A contender that writes to one buffer every time.
fn into(
    name: &str,
    gpu: &Gpu,
    src: &Buffer,
    dst: &wgpu::Buffer,
    mut turn: impl FnMut(&[u8]) -> Result<()> + 'static,
) -> Box<dyn Contender> {
    let from = src.clone();
    let poison = {
        let (gpu, dst) = (gpu.clone(), dst.clone());
        move || gpu.spoil(&dst)
    };
    let check = {
        let (gpu, dst, src) = (gpu.clone(), dst.clone(), src.clone());
        move || gpu.holds(&dst, &src.read()?)
    };
    Way::boxed(name, move || turn(&from.read()?), poison, check)
}

/// The tutorials' way: a new buffer with its contents.
fn tutorial(gpu: &Gpu, src: &Buffer) -> Box<dyn Contender> {
    let made: Rc<RefCell<Option<wgpu::Buffer>>> = Rc::default();
    let turn = {
        let (gpu, src, made) = (gpu.clone(), src.clone(), Rc::clone(&made));
        move || {
            // The previous buffer is dropped first, as in a program.
            made.replace(None);
            let buffer = gpu.device.create_buffer_init(&BufferInitDescriptor {
                label: None,
                contents: &src.read()?,
                usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::STORAGE,
            });
            gpu.queue.submit([]);
            gpu.wait()?;
            made.replace(Some(buffer));
            Ok(())
        }
    };
    let check = {
        let (gpu, src, made) = (gpu.clone(), src.clone(), Rc::clone(&made));
        move || {
            let made = made.borrow();
            gpu.holds(made.as_ref().context("nothing was made")?, &src.read()?)
        }
    };
    let poison = move || {
        made.replace(None);
        Ok(())
    };
    Way::boxed(TUTORIAL, turn, poison, check)
}

fn write_buffer(gpu: &Gpu, src: &Buffer, dst: &wgpu::Buffer) -> Box<dyn Contender> {
    let (of, to) = (gpu.clone(), dst.clone());
    into(WRITE, gpu, src, dst, move |bytes| {
        of.queue.write_buffer(&to, 0, bytes);
        of.queue.submit([]);
        of.wait()
    })
}

fn belt(gpu: &Gpu, src: &Buffer, dst: &wgpu::Buffer) -> Box<dyn Contender> {
    let mut belt = StagingBelt::new(gpu.device.clone(), src.len());
    let (of, to) = (gpu.clone(), dst.clone());
    into(BELT, gpu, src, dst, move |bytes| {
        let size = NonZeroU64::new(bytes.len() as u64).context("nothing to write")?;
        let mut encoder = of.encoder();
        belt.write_buffer(&mut encoder, &to, 0, size)
            .slice(..)
            .copy_from_slice(bytes);
        belt.finish();
        of.submit(encoder)?;
        belt.recall();
        Ok(())
    })
}

/// One staging buffer for all, as large as the bytes and mapped in between.
fn reused(
    name: &str,
    gpu: &Gpu,
    src: &Buffer,
    staging: &wgpu::Buffer,
    dst: &wgpu::Buffer,
) -> Box<dyn Contender> {
    let (of, staging, to) = (gpu.clone(), staging.clone(), dst.clone());
    into(name, gpu, src, dst, move |bytes| {
        staging
            .get_mapped_range_mut(..)?
            .slice(..)
            .copy_from_slice(bytes);
        staging.unmap();
        of.copy(&staging, &to, bytes.len() as u64)?;
        of.map(&staging, wgpu::MapMode::Write)
    })
}

/// One thread's memcpy within the heap: it reaches no device, and shows the speed of the memory.
pub(super) fn memcpy(src: &Buffer) -> Box<dyn Contender> {
    let dst = Rc::new(RefCell::new(vec![POISON; src.len() as usize]));
    let turn = {
        let (src, dst) = (src.clone(), Rc::clone(&dst));
        move || {
            let (src, mut dst) = (src.read()?, dst.borrow_mut());
            std::hint::black_box(&mut dst[..]).copy_from_slice(std::hint::black_box(&src));
            Ok(())
        }
    };
    let poison = {
        let dst = Rc::clone(&dst);
        move || {
            dst.borrow_mut().fill(POISON);
            Ok(())
        }
    };
    let src = src.clone();
    let check = move || Ok(*dst.borrow() == *src.read()?);
    Way::boxed(MEMCPY, turn, poison, check)
}
