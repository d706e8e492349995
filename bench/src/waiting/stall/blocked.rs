//! Copies that a page of host memory blocks, on the host and on devices.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use transload::{AllocSpec, Buffer};

use super::super::endpoints::{file_of, payload};
use super::scene::stuck_page::{Mapping, PAGE, StuckPages};
use super::scene::{Pair, Scene};
use crate::wgpu::gpu;

/// Large enough for the pool, and for an adapter to import the pages.
const LEN: usize = 8 << 20;
/// The middle: a thread that begins at either end does not meet the page at once.
const AT: usize = LEN / 2;
const _: () = assert!(AT.is_multiple_of(PAGE));

/// A driver's thread reaches the page within this time, unless it never does.
const TOUCHED_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn page(scene: &Scene) -> Result<Option<Pair>> {
    let Some((stuck, mapping)) = made(StuckPages::new(payload(LEN), &[AT])) else {
        return Ok(None);
    };
    let src = scene.manager.adopt(mapping)?;
    let dst = scene.manager.adopt(vec![0u8; LEN])?;
    let there = dst.clone();
    let check = move || Ok(*there.read()? == *payload(LEN));
    Ok(Some(pair(stuck, src, dst, check)))
}

pub(super) fn file(scene: &Scene) -> Result<Option<Pair>> {
    let empty = vec![0u8; LEN];
    let Some((stuck, mapping)) = made(StuckPages::for_system_calls(empty, &[AT])) else {
        return Ok(None);
    };
    let src = file_of(&scene.manager, &payload(LEN))?;
    let dst = scene.manager.adopt(mapping)?;
    let there = dst.clone();
    let check = move || Ok(*there.read()? == *payload(LEN));
    Ok(Some(pair(stuck, src, dst, check)))
}

pub(super) fn adapter(scene: &Scene) -> Result<Option<Pair>> {
    let Some(gpu) = gpu::opened()? else {
        return Ok(None);
    };
    let Some((stuck, mapping)) = made(StuckPages::new(payload(LEN), &[AT])) else {
        return Ok(None);
    };
    let devices = transload_wgpu::Wgpu::with_devices([gpu.pair()]);
    scene.manager.register_backend(devices)?;
    let native = gpu.buffer(LEN as u64);
    let src = scene.manager.adopt(mapping)?;
    let dst = crate::raw::adopt::adopt(&scene.manager, gpu.place()?, &native)?;
    let check = move || gpu.holds(&native, &payload(LEN));
    Ok(Some(pair(stuck, src, dst, check)))
}

pub(super) fn cuda(scene: &Scene) -> Result<Option<Pair>> {
    let Some((stuck, mapping)) = made(StuckPages::new(payload(LEN), &[AT])) else {
        return Ok(None);
    };
    let driver = crate::raw::driver::double(crate::raw::driver::MACHINE);
    let devices = transload_cuda::Cuda::with_driver(driver)?;
    let manager = scene.manager.clone();
    manager.register_backend(devices)?;
    let own = manager.adopt(mapping)?;
    let src = manager.share(&own, "cpu:0/pinned".parse()?)?;
    let spec = AllocSpec::bytes(LEN as u64);
    let dst = manager.allocate("cuda:0".parse()?, spec)?;
    let there = dst.clone();
    let check = move || {
        let mut found = vec![0u8; LEN];
        manager.copy_into_slice(&there, &mut found)?;
        Ok(found == payload(LEN))
    };
    Ok(Some(pair(stuck, src, dst, check)))
}

/// The result, or `None` after printing the reason to standard error.
fn made(result: io::Result<(StuckPages, Mapping)>) -> Option<(StuckPages, Mapping)> {
    let told = |error: &io::Error| eprintln!("  userfaultfd is refused here: {error}");
    result.inspect_err(told).ok()
}

fn pair(
    stuck: StuckPages,
    src: Buffer,
    dst: Buffer,
    check: impl FnOnce() -> Result<bool> + 'static,
) -> Pair {
    let stuck = Arc::new(stuck);
    let watched = Arc::clone(&stuck);
    Pair {
        src,
        dst,
        stalled: Box::new(move || touched(watched)),
        release: Box::new(move || {
            stuck.resolve();
            Ok(())
        }),
        check: Box::new(check),
    }
}

/// Returns when a thread is stuck at the page.
fn touched(stuck: Arc<StuckPages>) -> Result<()> {
    let (tell, told) = mpsc::channel();
    // If no thread touches the page, this leaves the thread behind, and the case fails.
    thread::spawn(move || tell.send(stuck.await_touch()));
    told.recv_timeout(TOUCHED_WITHIN)
        .context("no thread touched the page that blocks")?;
    Ok(())
}
