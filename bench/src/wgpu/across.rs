//! `wgpu-wgpu`: from lavapipe to SwiftShader, two drivers that do not know of each other, and back.

use std::rc::Rc;

use anyhow::Result;
use transload::hal::{BackendId, Name};
use transload::{Buffer, Report, TransferManager};
use wgpu::util::{BufferInitDescriptor, DeviceExt};

use super::gpu::{Gpu, apart, moved};
use super::results::{AGAIN, REUSED, Results, TUTORIAL, judge};
use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{Contender, Random};
use crate::raw::adopt::adopt;
use crate::way::Way;

pub(super) fn run(case: &str, len: usize, effort: Effort) -> Result<Option<Vec<Outcome>>> {
    let Some((manager, first, second)) = apart()? else {
        return Ok(None);
    };
    let there = one_way(
        &format!("{case}/there"),
        len,
        effort,
        &manager,
        [&first, &second],
    )?;
    let back = one_way(
        &format!("{case}/back"),
        len,
        effort,
        &manager,
        [&second, &first],
    )?;
    Ok(Some([there, back].concat()))
}

fn one_way(
    case: &str,
    len: usize,
    effort: Effort,
    manager: &TransferManager,
    [from, to]: [&Gpu; 2],
) -> Result<Vec<Outcome>> {
    let mut bytes = vec![0u8; len];
    Random(len as u64).fill(&mut bytes);
    let wanted = Rc::new(bytes);
    let (source, target) = (from.buffer(len as u64), to.buffer(len as u64));
    from.put(&source, &wanted)?;
    let src = adopt(manager, from.place()?, &source)?;
    let dst = adopt(manager, to.place()?, &target)?;

    let into = |name: &str, turn: Box<dyn FnMut() -> Result<()>>| {
        let poison = {
            let (to, target) = (to.clone(), target.clone());
            move || to.spoil(&target)
        };
        let check = {
            let (to, target, wanted) = (to.clone(), target.clone(), Rc::clone(&wanted));
            move || to.holds(&target, &wanted)
        };
        Way::boxed(name, turn, poison, check)
    };
    let engine = {
        let (manager, src, dst) = (manager.clone(), src.clone(), dst.clone());
        move || moved(&manager, &src, &dst)
    };
    let mut contenders: Vec<Box<dyn Contender>> = vec![
        into("transload", Box::new(engine)),
        into(
            TUTORIAL,
            Box::new(tutorial([from, to], &source, &target, len)),
        ),
    ];
    for name in [REUSED, AGAIN] {
        contenders.push(into(
            name,
            Box::new(reused([from, to], &source, &target, len)?),
        ));
    }
    let results = Results::of(contenders, len, effort)?;
    let ends = [&src, &dst].map(|end: &Buffer| end.memory().to_string());
    let mut outcome = results.outcome(case, len, ends);
    let report = manager.copy(&src, &dst).wait()?;
    eprintln!("  {report}");
    let faster = 1.0 / results.over(TUTORIAL);
    let of = "times the tutorial's rate:";
    judge(&mut outcome, vec![Verdict::at_least(of, faster, 8.0, "")]);
    // This figure is not a time, so noise does not affect it.
    let of = "copied by the processor:";
    let copied = Verdict::at_most(of, by_the_host(&report), 0.0, "B");
    outcome.further.push(copied);
    Ok(vec![outcome])
}

/// The bytes that the host's own engine copied on the way: each of its steps moves the lane's share once.
fn by_the_host(report: &Report) -> f64 {
    const HOST: BackendId = BackendId(Name::constant("host"));
    let Some(plan) = report.plan() else {
        return report.bytes() as f64;
    };
    let steps = |lane: &transload::model::Lane| {
        let of_host = lane.steps.iter().filter(|step| step.backend == HOST);
        of_host.count()
    };
    let most = plan.lanes.iter().map(steps).max().unwrap_or(0);
    most as f64 * report.bytes() as f64
}

/// Reads back into a vector, and writes it to the other adapter, as the tutorials of both sides show.
fn tutorial(
    [from, to]: [&Gpu; 2],
    source: &wgpu::Buffer,
    target: &wgpu::Buffer,
    len: usize,
) -> impl FnMut() -> Result<()> + 'static {
    let (from, to) = (from.clone(), to.clone());
    let (source, target) = (source.clone(), target.clone());
    move || {
        let usages = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = from.made(len as u64, usages);
        from.copy(&source, &staging, len as u64)?;
        from.map(&staging, wgpu::MapMode::Read)?;
        let bytes = staging.get_mapped_range(..)?.to_vec();
        let made = to.device.create_buffer_init(&BufferInitDescriptor {
            label: None,
            contents: &bytes,
            usage: wgpu::BufferUsages::COPY_SRC,
        });
        to.copy(&made, &target, len as u64)
    }
}

/// One staging buffer on either side, as large as the bytes, and one copy between their mappings.
fn reused(
    [from, to]: [&Gpu; 2],
    source: &wgpu::Buffer,
    target: &wgpu::Buffer,
    len: usize,
) -> Result<impl FnMut() -> Result<()> + 'static> {
    let (from, to) = (from.clone(), to.clone());
    let (source, target) = (source.clone(), target.clone());
    let down = from.made(
        len as u64,
        wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
    );
    let up = to.made(
        len as u64,
        wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
    );
    to.map(&up, wgpu::MapMode::Write)?;
    Ok(move || {
        from.copy(&source, &down, len as u64)?;
        from.map(&down, wgpu::MapMode::Read)?;
        up.get_mapped_range_mut(..)?
            .slice(..)
            .copy_from_slice(&down.get_mapped_range(..)?);
        down.unmap();
        up.unmap();
        to.copy(&up, &target, len as u64)?;
        to.map(&up, wgpu::MapMode::Write)
    })
}
