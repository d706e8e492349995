//! `wgpu-host`: from a buffer of lavapipe into ordinary heap memory.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc;

use anyhow::{Context, Result};
use transload::{AllocSpec, Buffer};
use wgpu::util::DownloadBuffer;

use super::gpu::{Gpu, moved, tell, twice};
use super::results::{AGAIN, ALLOCATED, FOREIGN, MISALIGNED, REUSED, Results, TUTORIAL, judge};
use super::up::memcpy;
use crate::case::{Effort, Outcome};
use crate::contest::{Contender, POISON, Random};
use crate::raw::adopt::adopt;
use crate::way::Way;

const DOWNLOAD: &str = "DownloadBuffer";

/// The bytes that every contender must find.
type Wanted = Rc<Vec<u8>>;

pub(super) fn run(case: &str, len: usize, effort: Effort) -> Result<Option<Vec<Outcome>>> {
    let Some((manager, opened, foreign)) = twice()? else {
        return Ok(None);
    };
    let mut bytes = vec![0u8; len];
    Random(len as u64).fill(&mut bytes);
    let wanted = Rc::new(bytes);
    let source = |gpu: &Gpu| {
        let buffer = gpu.buffer(len as u64);
        gpu.put(&buffer, &wanted)?;
        anyhow::Ok(buffer)
    };
    let adopted = adopt(&manager, opened.place()?, &source(&opened)?)?;
    let plain = source(&foreign)?;
    let plain_adopted = adopt(&manager, foreign.place()?, &plain)?;
    let allocated = manager.allocate(opened.default_place(), AllocSpec::bytes(len as u64))?;
    manager.copy_from_slice(&wanted, &allocated)?;

    // One destination for all contenders with Transload, one byte longer so that there is a misaligned place.
    let all = manager.adopt(vec![POISON; len + 4])?;
    let dst = all.slice(..len as u64)?;
    let beside = all.slice(1..=len as u64)?;
    let engine = |name: &str, from: &Buffer, to: &Buffer| {
        let poison = {
            let to = to.clone();
            move || {
                to.write()?.fill(POISON);
                Ok(())
            }
        };
        let check = {
            let (to, wanted) = (to.clone(), Rc::clone(&wanted));
            move || Ok(*to.read()? == **wanted)
        };
        let (manager, from, to) = (manager.clone(), from.clone(), to.clone());
        let turn = move || moved(&manager, &from, &to);
        Way::boxed(name, turn, poison, check)
    };
    let mut contenders = vec![
        engine("transload", &adopted, &dst),
        engine(ALLOCATED, &allocated, &dst),
        engine(FOREIGN, &plain_adopted, &dst),
        engine(MISALIGNED, &adopted, &beside),
        tutorial(&foreign, &plain, &wanted),
        download(&foreign, &plain, &wanted),
    ];
    let usages = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    let staging = foreign.made(len as u64, usages);
    for name in [REUSED, AGAIN] {
        contenders.push(reused(name, &foreign, &plain, &staging, &wanted));
    }
    let heap = manager.adopt(wanted.to_vec())?;
    contenders.push(memcpy(&heap));

    let results = Results::of(contenders, len, effort)?;
    for (name, src, dst) in [
        ("transload", &adopted, &dst),
        (ALLOCATED, &allocated, &dst),
        (FOREIGN, &plain_adopted, &dst),
        (MISALIGNED, &adopted, &beside),
    ] {
        tell(&manager, name, src, dst)?;
    }
    let ends = [adopted.memory().to_string(), dst.memory().to_string()];
    let mut outcome = results.outcome(case, len, ends);
    let baselines = [TUTORIAL, DOWNLOAD, REUSED, AGAIN];
    judge(&mut outcome, results.verdicts(len, &baselines));
    Ok(Some(vec![outcome]))
}

/// A contender that leaves the bytes in a vector of its own.
fn into(
    name: &str,
    wanted: &Wanted,
    mut turn: impl FnMut(&mut Vec<u8>) -> Result<()> + 'static,
) -> Box<dyn Contender> {
    let dst = Rc::new(RefCell::new(vec![POISON; wanted.len()]));
    let poison = {
        let dst = Rc::clone(&dst);
        move || {
            dst.borrow_mut().fill(POISON);
            Ok(())
        }
    };
    let check = {
        let (dst, wanted) = (Rc::clone(&dst), Rc::clone(wanted));
        move || Ok(*dst.borrow() == **wanted)
    };
    Way::boxed(name, move || turn(&mut dst.borrow_mut()), poison, check)
}

/// The tutorials' way: a new buffer, mapped, and a new vector of its bytes.
fn tutorial(gpu: &Gpu, src: &wgpu::Buffer, wanted: &Wanted) -> Box<dyn Contender> {
    let (gpu, src) = (gpu.clone(), src.clone());
    into(TUTORIAL, wanted, move |dst| {
        let usages = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = gpu.made(dst.len() as u64, usages);
        gpu.copy(&src, &staging, dst.len() as u64)?;
        gpu.map(&staging, wgpu::MapMode::Read)?;
        *dst = staging.get_mapped_range(..)?.to_vec();
        Ok(())
    })
}

/// wgpu's own helper, with the bytes copied to the program's memory.
fn download(gpu: &Gpu, src: &wgpu::Buffer, wanted: &Wanted) -> Box<dyn Contender> {
    let (gpu, src) = (gpu.clone(), src.clone());
    into(DOWNLOAD, wanted, move |dst| {
        let (tell, told) = mpsc::channel();
        let tell = move |result| {
            let _ = tell.send(result);
        };
        DownloadBuffer::read_buffer(&gpu.device, &gpu.queue, &src.slice(..), tell);
        gpu.wait()?;
        let found = told.recv().context("a read that never answered")??;
        dst.copy_from_slice(&found);
        Ok(())
    })
}

/// One staging buffer for all, as large as the bytes.
fn reused(
    name: &str,
    gpu: &Gpu,
    src: &wgpu::Buffer,
    staging: &wgpu::Buffer,
    wanted: &Wanted,
) -> Box<dyn Contender> {
    let (gpu, src, staging) = (gpu.clone(), src.clone(), staging.clone());
    into(name, wanted, move |dst| {
        gpu.copy(&src, &staging, dst.len() as u64)?;
        gpu.map(&staging, wgpu::MapMode::Read)?;
        dst.copy_from_slice(&staging.get_mapped_range(..)?);
        staging.unmap();
        Ok(())
    })
}
