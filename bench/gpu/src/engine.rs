//! Transload, which takes part twice: with its default costs, and with costs measured on this machine.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};
use transload::hal::defaults::STAGING_BUDGET_BYTES;
use transload::probe::{Found, ProbeOptions, ProbeReport};
use transload::{
    AllocSpec, Buffer, DeviceId, DeviceKind, MemoryKind, OnFailure, Place, Region, Request,
    StagingBudget, TransferManager,
};
use transload_cuda::Cuda;
use transload_tensors::{Loaded, Loader, Model};

use crate::cases::load::Weights;
use crate::contest::{Check, Contender, Step, Way};
use crate::raw::gpu::Gpu;
use crate::raw::memory::{Memory, PAGE, POISON};

/// The name in the results.
pub(crate) const TRANSLOAD: &str = "transload";
const PROBED: &str = "transload, probed";

/// The probe takes at most this part of the time that is left.
const PROBE_SHARE: u32 = 20;

/// A manager, and its name in the results.
pub(crate) struct Party {
    pub(crate) name: &'static str,
    manager: TransferManager,
    gpu: Arc<Gpu>,
}

/// A contender, and the route of its bytes.
pub(crate) struct Entry {
    pub(crate) contender: Box<dyn Contender>,
    pub(crate) way: String,
}

/// The result of a probe of one link.
#[derive(Serialize)]
pub(crate) struct Measured {
    link: String,
    faulty: bool,
    /// Seconds for a copy of that many bytes, or the reason why there is no figure.
    sizes: BTreeMap<u64, Value>,
}

/// Both parties, and the results of the probe.
///
/// # Errors
/// Returns the reason why there are none.
pub(crate) fn parties(
    gpu: &Arc<Gpu>,
    quick: bool,
    end: Instant,
) -> Result<(Vec<Party>, Vec<Measured>)> {
    let party = |name| -> Result<Party> {
        let cuda = Cuda::with_driver(gpu.driver.clone())?;
        // Of the process's common budget each of the two would get what the other holds, and pin it anew.
        let staging = Arc::new(StagingBudget::new(STAGING_BUDGET_BYTES));
        let builder = TransferManager::builder().host().staging(staging);
        Ok(Party {
            name,
            manager: builder.backend(Arc::new(cuda)).build()?,
            gpu: Arc::clone(gpu),
        })
    };
    let parties = vec![party(TRANSLOAD)?, party(PROBED)?];
    let mut options = ProbeOptions::quick();
    let left = end.saturating_duration_since(Instant::now());
    options.budget = options.budget.min(left / PROBE_SHARE);
    if quick {
        options.samples = 3;
        options.sizes = vec![64 << 10];
    }
    let report = parties[1].manager.probe(&options);
    Ok((parties, measured(&report)))
}

fn measured(report: &ProbeReport) -> Vec<Measured> {
    let found = |found: &Found| match found {
        Found::Time(interval) => json!(interval.median_ns as f64 / 1e9),
        other => json!(format!("{other:?}")),
    };
    let links = report.links.iter().map(|link| Measured {
        link: format!("{} → {}", link.id.src, link.id.dst),
        faulty: link.faulty,
        sizes: link
            .sizes
            .iter()
            .map(|(bytes, of)| (*bytes, found(of)))
            .collect(),
    });
    links.collect()
}

impl Party {
    fn device(&self, kind: MemoryKind, len: usize) -> Result<Buffer> {
        self.on(&self.gpu, kind, len)
    }

    fn on(&self, gpu: &Gpu, kind: MemoryKind, len: usize) -> Result<Buffer> {
        let ordinal = gpu.device.0.unsigned_abs();
        let memory = DeviceId::new(DeviceKind::CUDA, ordinal).memory(kind);
        Ok(self
            .manager
            .allocate(memory.into(), AllocSpec::bytes(len as u64))?)
    }

    fn pinned(&self, len: usize) -> Result<Buffer> {
        let memory = DeviceId::CPU0.memory(MemoryKind::Pinned);
        Ok(self
            .manager
            .allocate(memory.into(), AllocSpec::bytes(len as u64))?)
    }

    /// Device memory filled by the driver's own call.
    fn full(&self, like: &Memory) -> Result<Buffer> {
        let buffer = self.device(MemoryKind::Device, like.len())?;
        let there = Memory::of_buffer(&self.gpu, &buffer)?;
        self.gpu.up_blocking(&there, like, like.len())?;
        Ok(buffer)
    }

    /// From ordinary memory to the device, or back.
    pub(crate) fn copy(&self, up: bool, like: &Arc<Memory>) -> Result<Entry> {
        let (src, dst) = if up {
            let src = self.manager.adopt(like.to_vec())?;
            (src, self.device(MemoryKind::Device, like.len())?)
        } else {
            let dst = self.manager.adopt(vec![POISON; like.len()])?;
            (self.full(like)?, dst)
        };
        self.entry(src, dst, like)
    }

    /// Within the device.
    pub(crate) fn within(&self, like: &Arc<Memory>) -> Result<Entry> {
        let dst = self.device(MemoryKind::Device, like.len())?;
        self.entry(self.full(like)?, dst, like)
    }

    /// To another device.
    pub(crate) fn to_other(&self, other: &Arc<Gpu>, like: &Arc<Memory>) -> Result<Entry> {
        let (src, dst) = (
            self.full(like)?,
            self.on(other, MemoryKind::Device, like.len())?,
        );
        let way = self.way(&src, &dst)?;
        let there = Arc::new(Memory::of_buffer(other, &dst)?);
        let (spoilt, like) = (Arc::clone(&there), Arc::clone(like));
        let manager = self.manager.clone();
        let turn = move || {
            manager.copy(&src, &dst).wait()?;
            Ok(())
        };
        let check = move || there.holds(0, &like, 0, like.len());
        let contender = Way::boxed(self.name, turn, move || spoilt.poison(), check);
        Ok(Entry { contender, way })
    }

    /// From pinned memory to the device or back, as a prepared copy.
    pub(crate) fn prepared(&self, up: bool, like: &Arc<Memory>) -> Result<Entry> {
        let here = self.pinned(like.len())?;
        here.write()?.copy_from_slice(&like.to_vec());
        let there = self.full(like)?;
        let (src, dst) = if up { (here, there) } else { (there, here) };
        let request = Request::new(&src, &dst);
        let way = self.manager.explain(&request)?.chosen.to_string();
        let prepared = self.manager.prepare(&request)?;
        let (poison, check) = self.poison_and_check(&dst, like)?;
        let turn = move || {
            prepared.post().wait()?;
            Ok(())
        };
        let contender = Way::boxed(self.name, turn, poison, check);
        Ok(Entry { contender, way })
    }

    /// Up and down at once.
    pub(crate) fn both(&self, like: &Arc<Memory>) -> Result<Entry> {
        let ends = [
            [
                self.manager.adopt(like.to_vec())?,
                self.device(MemoryKind::Device, like.len())?,
            ],
            [
                self.full(like)?,
                self.manager.adopt(vec![POISON; like.len()])?,
            ],
        ];
        let [up, down] = &ends;
        let way = self.way(&up[0], &up[1])?;
        let (mut poison_up, mut check_up) = self.poison_and_check(&up[1], like)?;
        let (mut poison_down, mut check_down) = self.poison_and_check(&down[1], like)?;
        let manager = self.manager.clone();
        let turn = move || {
            let [up, down] = ends.each_ref().map(|[src, dst]| manager.copy(src, dst));
            let down = down.wait();
            up.wait()?;
            down?;
            Ok(())
        };
        let poison = move || poison_up().and(poison_down());
        let check = move || Ok(check_up()? && check_down()?);
        let contender = Way::boxed(self.name, turn, poison, check);
        Ok(Entry { contender, way })
    }

    /// Blocks at offsets of the pinned host and of the device, as one batch, or as one copy of a list.
    pub(crate) fn blocks(
        &self,
        up: bool,
        like: &Arc<Memory>,
        places: &Arc<[(usize, usize)]>,
        len: usize,
        is_list: bool,
    ) -> Result<Entry> {
        let host = self.pinned(like.len())?;
        let bytes = like.to_vec();
        let mut whole = host.write()?;
        for (here, there) in places.iter() {
            whole[*here..][..len].copy_from_slice(&bytes[*there..][..len]);
        }
        drop(whole);
        let device = self.full(like)?;
        let part = |of: &Buffer, at: &usize| of.slice(*at as u64..(*at + len) as u64);
        let requests = places.iter().map(|(here, there)| {
            let (host, device) = (part(&host, here)?, part(&device, there)?);
            Ok(match up {
                true => Request::new(host, device),
                false => Request::new(device, host),
            })
        });
        let mut requests: Vec<Request> = requests.collect::<Result<_>>()?;
        let mut name = self.name.to_owned();
        if is_list {
            // On the device the blocks lie in the order of the list.
            let numbers = places.iter().map(|(here, _)| u32::try_from(here / len));
            let numbers: Vec<u32> = numbers.collect::<Result<_, _>>()?;
            let listed = Region::blocks(&host, len as u64, &numbers)?;
            requests = vec![match up {
                true => Request::new(listed, &device),
                false => Request::new(&device, listed),
            }];
            name += ", one list";
        }
        let first = requests.first().context("there are blocks")?;
        let way = self.manager.explain(first)?.chosen.to_string();
        let manager = self.manager.clone();
        let turn = move || {
            let batch = manager.copy_batch(&requests, OnFailure::Stop)?;
            batch
                .wait()
                .into_iter()
                .try_for_each(|moved| moved.map(drop))?;
            Ok(())
        };
        let contender = if up {
            let (poison, check) = self.poison_and_check(&device, like)?;
            Way::boxed(name, turn, poison, check)
        } else {
            let (like, places, spoilt) = (Arc::clone(like), Arc::clone(places), host.clone());
            let check = move || {
                let whole = host.read()?;
                let mut places = places.iter();
                Ok(places.all(|(here, there)| like.is(*there, &whole[*here..][..len])))
            };
            Way::boxed(name, turn, move || spoil(&spoilt), check)
        };
        Ok(Entry { contender, way })
    }

    /// Managed memory that the host has touched, for the device; or that the device has written, for the host.
    pub(crate) fn managed(&self, up: bool, like: &Arc<Memory>) -> Result<Entry> {
        let managed = self.device(MemoryKind::Managed, like.len())?;
        let manager = self.manager.clone();
        if up {
            managed.write()?.copy_from_slice(&like.to_vec());
            let there = self.device(MemoryKind::Device, like.len())?;
            let way = self.way(&managed, &there)?;
            let (poison, check) = self.poison_and_check(&there, like)?;
            let touched = managed.clone();
            let prepare = move || touch(&touched);
            let turn = move || {
                manager.copy(&managed, &there).wait()?;
                Ok(())
            };
            let contender = Way::prepared(self.name, prepare, turn, poison, check);
            return Ok(Entry { contender, way });
        }
        let there = self.full(like)?;
        let way = self.way(&there, &managed)?;
        let (poison, check) = self.poison_and_check(&managed, like)?;
        let written = managed.clone();
        let prepare = move || {
            manager.copy(&there, &written).wait()?;
            Ok(())
        };
        let turn = move || touch(&managed);
        let contender = Way::prepared(self.name, prepare, turn, poison, check);
        Ok(Entry { contender, way })
    }

    /// The tensors of a file to the device, into memory that the loader keeps from turn to turn.
    pub(crate) fn load(&self, weights: &Arc<Weights>) -> Result<Entry> {
        let ordinal = self.gpu.device.0.unsigned_abs();
        let place =
            Place::from(DeviceId::new(DeviceKind::CUDA, ordinal).memory(MemoryKind::Device));
        let loader = Loader::new(&self.manager);
        let model = Model::open(&weights.path)?;
        let plan = loader.load(&model).to(place).plan()?;
        let way = plan.explain()?[0].chosen.to_string();
        // There already, so that the check poisons memory that is used again.
        let first = plan.start()?.collect::<Result<Vec<Loaded>, _>>()?;
        let loaded = Rc::new(RefCell::new(first));
        let (path, tensors) = (weights.path.clone(), Rc::clone(&loaded));
        let turn = move || {
            tensors.borrow_mut().clear();
            let model = Model::open(&path)?;
            for tensor in loader.load(&model).to(place).start()? {
                tensors.borrow_mut().push(tensor?);
            }
            Ok(())
        };
        let there = {
            let gpu = Arc::clone(&self.gpu);
            move |tensor: &Loaded| Memory::of_buffer(&gpu, tensor.buffer())
        };
        let (spoilt, memory) = (Rc::clone(&loaded), there.clone());
        let poison = move || {
            let tensors = spoilt.borrow();
            tensors.iter().try_for_each(|of| memory(of)?.poison())
        };
        let weights = Arc::clone(weights);
        let check = move || {
            let tensors = loaded.borrow();
            let find = |name: &str| tensors.iter().find(|of| of.name() == name);
            for (name, place) in &weights.tensors {
                let tensor = find(name).with_context(|| format!("there is no {name}"))?;
                if !there(tensor)?.holds(0, &weights.like, place.start, place.len())? {
                    return Ok(false);
                }
            }
            Ok(tensors.len() == weights.tensors.len())
        };
        let contender = Way::boxed(self.name, turn, poison, check);
        Ok(Entry { contender, way })
    }

    fn entry(&self, src: Buffer, dst: Buffer, like: &Arc<Memory>) -> Result<Entry> {
        let way = self.way(&src, &dst)?;
        let (poison, check) = self.poison_and_check(&dst, like)?;
        let manager = self.manager.clone();
        let turn = move || {
            manager.copy(&src, &dst).wait()?;
            Ok(())
        };
        let contender = Way::boxed(self.name, turn, poison, check);
        Ok(Entry { contender, way })
    }

    fn way(&self, src: &Buffer, dst: &Buffer) -> Result<String> {
        let explanation = self.manager.explain(&Request::new(src, dst))?;
        Ok(explanation.chosen.to_string())
    }

    /// The steps that poison a destination and check it: on a device by the driver's own calls.
    fn poison_and_check(&self, dst: &Buffer, like: &Arc<Memory>) -> Result<(Step, Check)> {
        let like = Arc::clone(like);
        if dst.memory().kind == MemoryKind::Device {
            let there = Arc::new(Memory::of_buffer(&self.gpu, dst)?);
            let spoilt = Arc::clone(&there);
            let check = move || there.holds(0, &like, 0, like.len());
            return Ok((Box::new(move || spoilt.poison()), Box::new(check)));
        }
        // Where the host cannot read it, this fails before the contest begins.
        drop(dst.read()?);
        let (spoilt, found) = (dst.clone(), dst.clone());
        let check = move || Ok(like.is(0, &found.read()?));
        Ok((Box::new(move || spoil(&spoilt)), Box::new(check)))
    }
}

fn spoil(buffer: &Buffer) -> Result<()> {
    buffer.write()?.fill(POISON);
    Ok(())
}

/// Reads a byte of each page.
fn touch(buffer: &Buffer) -> Result<()> {
    let bytes = buffer.read()?;
    let pages = bytes.iter().step_by(PAGE);
    black_box(pages.map(|byte| u64::from(*black_box(byte))).sum::<u64>());
    Ok(())
}
