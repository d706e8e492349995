//! Between a wgpu buffer and CUDA memory: Transload, through memory that both reach, and copies by hand.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use transload::model::DeviceInfo;
use transload::{AllocSpec, DeviceId, DeviceKind, MemoryKind, Request, TransferManager};
use transload_cuda::Cuda;
use transload_wgpu::Wgpu;
use wgpu::{BufferUsages, MapMode};

use crate::adapter::Adapter;
use crate::case::{Case, Field, Needs, Session, size};
use crate::contest::{Check, Contender, Step, Way};
use crate::engine::TRANSLOAD;
use crate::raw::gpu::Gpu;
use crate::raw::memory::{Kind, Memory};
use crate::raw::work::Stream;

const SIZES: [usize; 3] = [1 << 20, 16 << 20, 256 << 20];
const QUICK_SIZES: [usize; 1] = [1 << 20];
const BY_HAND: &str = "by hand, mapped and pinned";

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let sizes = if quick { &QUICK_SIZES[..] } else { &SIZES };
    let ways = [("cuda-wgpu", false), ("wgpu-cuda", true)];
    let all = sizes.iter().flat_map(|len| ways.map(|way| (*len, way)));
    let case = |(len, (group, up)): (usize, (&'static str, bool))| Case {
        name: format!("{group}/{}", size(len)),
        group,
        bytes: len as u64,
        needs: Needs {
            host: 8 * len as u64,
            device: 6 * len as u64,
            rival: 0,
        },
        make: Box::new(move |session| field(session, up, len)),
    };
    all.map(case).collect()
}

/// The adapter of this GPU, or else the first one.
fn pick(manager: &TransferManager, gpu: &Gpu) -> Option<(DeviceInfo, bool)> {
    let cuda = DeviceId::new(DeviceKind::CUDA, gpu.device.0.unsigned_abs());
    let devices = manager.devices();
    let uuid = devices.iter().find(|device| device.id == cuda)?.uuid;
    let is_it = |device: &DeviceInfo| device.uuid.is_some() && device.uuid == uuid;
    let mut adapters = devices.iter().filter(|of| of.id.kind == DeviceKind::WGPU);
    let same = adapters.clone().find(|device| is_it(device));
    let found = same.or_else(|| adapters.next())?.clone();
    let is_same = is_it(&found);
    Some((found, is_same))
}

fn field(session: &Session, up: bool, len: usize) -> Result<Field> {
    let gpu = &session.gpu;
    let wgpu = Arc::new(Wgpu::discover());
    if wgpu.is_empty() {
        let skipped = Some("there is no adapter that wgpu can open".to_owned());
        return Ok(Field {
            skipped,
            ..Field::default()
        });
    }
    let cuda = Arc::new(Cuda::with_driver(gpu.driver.clone())?);
    let builder = TransferManager::builder().host().backend(cuda);
    let manager = builder.backend(Arc::clone(&wgpu) as _).build()?;
    let (found, is_same) = pick(&manager, gpu).context("the manager has both")?;
    let mut field = Field::default();
    let which = if is_same {
        "the same GPU"
    } else {
        "another device"
    };
    field
        .facts
        .insert("adapter".into(), format!("{}, {which}", found.name));

    let adapter = Adapter::of(&wgpu, found.id)?;
    let spec = AllocSpec::bytes(len as u64);
    let theirs = manager.allocate(found.id.memory(MemoryKind::Device).into(), spec)?;
    let native = theirs
        .native::<wgpu::Buffer>()
        .context("no buffer of wgpu's")?
        .clone();
    let ordinal = gpu.device.0.unsigned_abs();
    let memory = DeviceId::new(DeviceKind::CUDA, ordinal).memory(MemoryKind::Device);
    let ours = manager.allocate(memory.into(), spec)?;
    let there = Arc::new(Memory::of_buffer(gpu, &ours)?);
    let like = Arc::new(Memory::filled(gpu, Kind::Pageable, len)?);
    if up {
        adapter.put(&native, &like.to_vec())?;
    } else {
        gpu.up_blocking(&there, &like, len)?;
    }

    let ends = || -> (Step, Check) {
        let (like, there) = (Arc::clone(&like), Arc::clone(&there));
        if up {
            let spoilt = Arc::clone(&there);
            let check = move || there.holds(0, &like, 0, len);
            return (Box::new(move || spoilt.poison()), Box::new(check));
        }
        let (adapter, native) = (adapter.clone(), native.clone());
        let (by, spoilt) = (adapter.clone(), native.clone());
        let check = move || adapter.holds(&native, &like);
        (Box::new(move || by.spoil(&spoilt)), Box::new(check))
    };
    let (src, dst) = if up { (theirs, ours) } else { (ours, theirs) };
    let explained = manager.explain(&Request::new(&src, &dst));
    let way = explained.map_err(|error| anyhow!(error));
    let made = way.map(|way| {
        field.facts.insert(TRANSLOAD.into(), way.chosen.to_string());
        let (poison, check) = ends();
        let turn = move || {
            manager.copy(&src, &dst).wait()?;
            Ok(())
        };
        Way::boxed(TRANSLOAD, turn, poison, check)
    });
    field.enter(TRANSLOAD, made);
    field.enter(
        BY_HAND,
        by_hand(gpu, &adapter, (&native, &there), up, ends()),
    );
    Ok(field)
}

/// Through a mapped wgpu buffer and pinned CUDA memory, both kept, with a copy by the processor between.
fn by_hand(
    gpu: &Arc<Gpu>,
    adapter: &Adapter,
    (native, there): (&wgpu::Buffer, &Arc<Memory>),
    up: bool,
    (poison, check): (Step, Check),
) -> Result<Box<dyn Contender>> {
    let len = there.len();
    let usage = match up {
        true => BufferUsages::MAP_READ | BufferUsages::COPY_DST,
        false => BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC,
    };
    let staging = adapter.buffer(len, usage);
    let pinned = Memory::new(gpu, Kind::Pinned, len)?;
    let stream = Stream::new(gpu)?;
    let (adapter, native, there) = (adapter.clone(), native.clone(), Arc::clone(there));
    let turn = move || {
        if up {
            adapter.copy((&native, 0), (&staging, 0), len as u64)?;
            adapter.map(&staging, MapMode::Read)?;
            pinned.put(0, &staging.get_mapped_range(..)?);
            staging.unmap();
            stream.finish(|orders| orders.up((&there, 0), (&pinned, 0), len))?;
        } else {
            stream.finish(|orders| orders.down((&pinned, 0), (&there, 0), len))?;
            adapter.map(&staging, MapMode::Write)?;
            let mut mapped = staging.get_mapped_range_mut(..)?;
            pinned.see(|bytes| mapped.slice(..).copy_from_slice(bytes));
            drop(mapped);
            staging.unmap();
            adapter.copy((&staging, 0), (&native, 0), len as u64)?;
        }
        Ok(())
    };
    Ok(Way::boxed(BY_HAND, turn, poison, check))
}
