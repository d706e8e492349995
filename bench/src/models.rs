//! `models/*`: the tensors of a generated model, from files in the system's cache or on the disk to tensors that the program
//! owns. Each contender opens the model, header included, and ends with all tensors. Memory that is kept was touched
//! before; memory that is new was not.

mod cold;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize_to_file};
use tempfile::TempDir;
use transload::{Place, TransferManager};
use transload_tensors::{DType, Loaded, Loader, Model};

use crate::case::{Case, Effort, Outcome, Verdict};
use crate::contest::{self, Contender, POISON, Random, Rules};
use crate::raw::map::map;
use crate::way::Way;
use crate::wgpu::gpu::{self, Gpu};

const ROUNDS: usize = 16;
const COLD_ROUNDS: usize = 8;

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, kind: Kind| {
        Case::where_possible(format!("models/{name}"), move |name, effort| {
            run(name, kind, effort)
        })
    };
    vec![
        case("heap-large", Kind::Large),
        case("heap-small", Kind::Small),
        case("adapter-large", Kind::Adapter),
        case("heap-large-cold", Kind::Cold),
        case("heap-large-cold-f32", Kind::ColdConverted),
        case("adapters-large-cold", Kind::Broadcast),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Three shards of tensors of 2 MiB.
    Large,
    /// 20,000 tensors of some hundred bytes.
    Small,
    /// As `Large`, to lavapipe.
    Adapter,
    /// As `Large`, not in the cache.
    Cold,
    /// As `Cold`, as F32.
    ColdConverted,
    /// As `Cold`, to lavapipe and to SwiftShader.
    Broadcast,
}

/// The tensors of one contender, as bytes by name.
type Owned = Rc<RefCell<HashMap<String, Vec<u8>>>>;

fn run(name: &str, kind: Kind, effort: Effort) -> Result<Vec<Outcome>> {
    let machine = match kind {
        Kind::Adapter => gpu::twice()?.map(|(manager, own, foreign)| {
            let place = own.default_place();
            (manager, vec![place], Some(foreign))
        }),
        Kind::Broadcast => gpu::apart()?.map(|(manager, one, other)| {
            let places = [one, other].map(|gpu| gpu.default_place());
            (manager, places.to_vec(), None)
        }),
        _ => Some((
            TransferManager::builder().host().build()?,
            vec!["cpu:0".parse()?],
            None,
        )),
    };
    let Some((manager, places, foreign)) = machine else {
        return Ok(Vec::new());
    };
    let folder = tempfile::tempdir()?;
    let files = Rc::new(Files::made(folder, kind, effort)?);
    let wanted = (kind == Kind::ColdConverted).then_some(DType::F32);
    let mut contenders = vec![transload("transload", &files, &manager, &places, wanted)];
    match (foreign, wanted) {
        _ if kind == Kind::Broadcast => {
            let one = &places[..1];
            contenders.push(transload("lavapipe", &files, &manager, one, None));
            contenders.push(transload("lavapipe, again", &files, &manager, one, None));
            contenders.push(transload(
                "SwiftShader",
                &files,
                &manager,
                &places[1..],
                None,
            ));
        }
        (_, Some(_)) => {
            for name in ["as they are", "as they are, again"] {
                contenders.push(transload(name, &files, &manager, &places, None));
            }
        }
        (Some(foreign), None) => {
            for name in [
                "safetensors, write_buffer",
                "safetensors, write_buffer, again",
            ] {
                contenders.push(write_buffer(name, &files, &foreign)?);
            }
        }
        (None, None) => {
            for name in ["safetensors, new memory", "safetensors, new memory, again"] {
                contenders.push(owned(name, &files));
            }
            contenders.push(kept(&files)?);
            for threads in [1, std::thread::available_parallelism()?.get()] {
                contenders.push(pread(&files, threads)?);
            }
        }
    }
    let is_cold = matches!(kind, Kind::Cold | Kind::ColdConverted | Kind::Broadcast);
    if is_cold {
        #[cfg(target_os = "linux")]
        if kind == Kind::Cold {
            contenders.push(cold::direct(&files));
        }
        contenders = cold::all(contenders, &files, &manager);
    }
    let rules = Rules {
        rounds: effort
            .rounds
            .min(if is_cold { COLD_ROUNDS } else { ROUNDS }),
        sample: Duration::from_millis(1),
        warm: !is_cold,
    };
    let series = contest::run(&mut contenders, rules)?;
    let mut outcome = Outcome::new(name, &series[0]);
    (outcome.src, outcome.dst) = (
        Some("cpu:0/file".into()),
        Some(manager.resolve(places[0])?.to_string()),
    );
    outcome.bytes = files.bytes;
    outcome.verified = true;
    for contender in &mut contenders {
        outcome.verified &= contender.verify()?;
    }
    let median = |at: usize| series[at].median();
    let others = contenders.iter().enumerate().skip(1);
    outcome.baselines = { others.clone() }
        .map(|(at, other)| (other.name().to_owned(), median(at)))
        .collect();
    outcome.noise = (median(1) / median(2) - 1.0).abs();
    let best =
        |range: std::ops::RangeInclusive<usize>| range.map(median).fold(f64::INFINITY, f64::min);
    let last = series.len() - 1;
    let (of, over, limit) = match kind {
        Kind::Large => (
            "of the fastest reader into kept memory:",
            best(3..=last),
            0.9,
        ),
        // The readers of whole files yield no tensors.
        Kind::Small => ("times the rate of the fastest other:", best(1..=3), 2.0),
        Kind::Adapter => ("times the rate of write_buffer:", best(1..=last), 3.0),
        Kind::Cold => ("of the fastest reader:", best(1..=last), 0.95),
        Kind::ColdConverted => ("times the time of no conversion:", best(1..=last), 1.1),
        // The slower of the two has to get the bytes in any case.
        Kind::Broadcast => (
            "times the time of one adapter:",
            best(1..=2).max(median(3)),
            1.15,
        ),
    };
    let verdict = match kind {
        Kind::ColdConverted | Kind::Broadcast => Verdict::at_most(of, median(0) / over, limit, ""),
        _ => Verdict::at_least(of, over / median(0), limit, ""),
    };
    outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
    Ok(vec![outcome])
}

/// A model in files.
struct Files {
    folder: TempDir,
    paths: Vec<PathBuf>,
    bytes: u64,
}

impl Files {
    fn made(folder: TempDir, kind: Kind, effort: Effort) -> Result<Files> {
        let (shards, count, len) = match (kind, effort.quick) {
            (Kind::Small, _) => (1, 20_000, 0),
            (_, true) => (3, 30, 2 << 20),
            (_, false) => (3, 100, 2 << 20),
        };
        let mut random = Random(3);
        let (mut paths, mut total, mut number) = (Vec::new(), 0, 0);
        for shard in 1..=shards {
            let mut tensors = Vec::with_capacity(count);
            for _ in 0..count {
                let len = if len > 0 { len } else { 32 * (1 + number % 5) };
                let mut bytes = vec![0; len];
                random.fill(&mut bytes);
                // As halves, what is no number is a quiet one.
                for half in bytes.as_chunks_mut().0 {
                    let [_, high]: &mut [u8; 2] = half;
                    if *high & 0x7c == 0x7c {
                        *high |= 2;
                    }
                }
                total += len as u64;
                tensors.push((format!("tensor.{number}"), bytes));
                number += 1;
            }
            let path = folder
                .path()
                .join(format!("model-{shard:05}-of-{shards:05}.safetensors"));
            let views = tensors.iter().map(|(name, bytes)| {
                let view = TensorView::new(Dtype::F16, vec![bytes.len() / 2], bytes);
                Ok((name.as_str(), view?))
            });
            serialize_to_file(views.collect::<Result<Vec<_>>>()?, None, &path)?;
            paths.push(path);
        }
        Ok(Files {
            folder,
            paths,
            bytes: total,
        })
    }

    /// Calls `f` with each tensor's name and bytes, by the crate safetensors.
    fn each(&self, mut f: impl FnMut(&str, &[u8]) -> Result<()>) -> Result<()> {
        for path in &self.paths {
            let bytes = map(path)?;
            let tensors = SafeTensors::deserialize(&bytes)?;
            for (name, view) in tensors.iter() {
                f(name, view.data())?;
            }
        }
        Ok(())
    }

    /// Returns whether `bytes_of` has each tensor as the files have it, read another way.
    fn are(&self, mut bytes_of: impl FnMut(&str) -> Result<Vec<u8>>) -> Result<bool> {
        for path in &self.paths {
            let file = fs::read(path)?;
            for (name, view) in SafeTensors::deserialize(&file)?.iter() {
                if bytes_of(name)? != view.data() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// A loader that keeps its memory, and converts to `wanted`.
fn transload(
    name: &str,
    files: &Rc<Files>,
    manager: &TransferManager,
    places: &[Place],
    wanted: Option<DType>,
) -> Box<dyn Contender> {
    let (places, count) = (places.to_vec(), places.len());
    let tensors: Rc<RefCell<Vec<Loaded>>> = Rc::default();
    let loader = Loader::new(manager);
    let turn = {
        let (files, tensors) = (Rc::clone(files), Rc::clone(&tensors));
        move || {
            // The tensors of the turn before go first, as in a program that changes its model.
            tensors.borrow_mut().clear();
            let model = Model::open(files.folder.path())?;
            let load = loader.load(&model).to_all(&places);
            let load = match wanted {
                Some(dtype) => load.dtype(dtype),
                None => load,
            };
            for tensor in load.start()? {
                tensors.borrow_mut().push(tensor?);
            }
            Ok(())
        }
    };
    let poison = {
        let (manager, tensors) = (manager.clone(), Rc::clone(&tensors));
        move || {
            for tensor in &*tensors.borrow() {
                let poison = vec![POISON; tensor.len_bytes() as usize];
                manager.copy_from_slice(&poison, tensor.buffer())?;
            }
            Ok(())
        }
    };
    let (files, manager) = (Rc::clone(files), manager.clone());
    let check = move || {
        let tensors = tensors.borrow();
        let mut named = HashMap::<&str, Vec<&Loaded>>::new();
        for tensor in tensors.iter() {
            named.entry(tensor.name()).or_default().push(tensor);
        }
        files.are(|name| {
            let all = named.get(name).context("a tensor is missing")?;
            let bytes = manager.read_to_vec(all[0].buffer())?;
            for other in &all[1..] {
                ensure!(
                    manager.read_to_vec(other.buffer())? == bytes,
                    "{name} differs"
                );
            }
            ensure!(all.len() == count, "{name} is not on every device");
            Ok(if wanted.is_some() {
                halved(&bytes)
            } else {
                bytes
            })
        })
    };
    Way::boxed(name, turn, poison, check)
}

/// The halves that became these singles: each single holds a half's digits, and the files' halves are as they were. What is no
/// number keeps its digits but for the one that makes it quiet, which the generator always sets.
fn halved(singles: &[u8]) -> Vec<u8> {
    let halves = singles.as_chunks().0.iter().flat_map(|single| {
        let bits = u32::from_le_bytes(*single);
        let (sign, exponent, mantissa) = (bits >> 31 << 15, bits >> 23 & 0xff, bits >> 13 & 0x3ff);
        let half = match exponent {
            0 => sign,
            0xff => sign | 0x1f << 10 | mantissa,
            // Below 2^-14 halves have no leading one.
            1..113 => sign | (0x400 | mantissa) >> (113 - exponent),
            _ => sign | (exponent - 112) << 10 | mantissa,
        };
        (half as u16).to_le_bytes()
    });
    halves.collect()
}

/// The crate over a mapping, each tensor a new `Vec`.
fn owned(name: &str, files: &Rc<Files>) -> Box<dyn Contender> {
    let tensors = Owned::default();
    let turn = {
        let (files, tensors) = (Rc::clone(files), Rc::clone(&tensors));
        move || {
            tensors.borrow_mut().clear();
            files.each(|name, bytes| {
                tensors.borrow_mut().insert(name.to_owned(), bytes.to_vec());
                Ok(())
            })
        }
    };
    checked(name, files, tensors, turn)
}

/// The crate over a mapping, each tensor copied to memory that is there: `memcpy` from the system's cache.
fn kept(files: &Rc<Files>) -> Result<Box<dyn Contender>> {
    let tensors = Owned::default();
    files.each(|name, bytes| {
        tensors
            .borrow_mut()
            .insert(name.to_owned(), vec![POISON; bytes.len()]);
        Ok(())
    })?;
    let turn = {
        let (files, tensors) = (Rc::clone(files), Rc::clone(&tensors));
        move || {
            let mut tensors = tensors.borrow_mut();
            files.each(|name, bytes| {
                tensors
                    .get_mut(name)
                    .context("a tensor is missing")?
                    .copy_from_slice(bytes);
                Ok(())
            })
        }
    };
    Ok(checked("safetensors, kept memory", files, tensors, turn))
}

fn checked(
    name: &str,
    files: &Rc<Files>,
    tensors: Owned,
    turn: impl FnMut() -> Result<()> + 'static,
) -> Box<dyn Contender> {
    let poison = {
        let tensors = Rc::clone(&tensors);
        move || {
            tensors
                .borrow_mut()
                .values_mut()
                .for_each(|bytes| bytes.fill(POISON));
            Ok(())
        }
    };
    let files = Rc::clone(files);
    let check = move || {
        let tensors = tensors.borrow();
        files.are(|name| Ok(tensors.get(name).context("a tensor is missing")?.clone()))
    };
    Way::boxed(name, turn, poison, check)
}

/// Whole files into memory that is there, by threads that read 8 MiB at a time: no tensors, the limit of the system.
fn pread(files: &Rc<Files>, threads: usize) -> Result<Box<dyn Contender>> {
    const PIECE: usize = 8 << 20;
    let len = |path: &Path| Ok::<usize, anyhow::Error>(fs::metadata(path)?.len() as usize);
    let buffers = files.paths.iter().map(|path| Ok(vec![POISON; len(path)?]));
    let buffers = Rc::new(RefCell::new(buffers.collect::<Result<Vec<Vec<u8>>>>()?));
    let turn = {
        let (files, buffers) = (Rc::clone(files), Rc::clone(&buffers));
        move || {
            for (path, buffer) in files.paths.iter().zip(&mut *buffers.borrow_mut()) {
                let share = buffer.len().div_ceil(threads);
                std::thread::scope(|scope| {
                    let parts = buffer.chunks_mut(share).enumerate();
                    let readers = parts.map(|(number, part)| {
                        scope.spawn(move || -> Result<()> {
                            let mut file = File::open(path)?;
                            std::io::Seek::seek(
                                &mut file,
                                std::io::SeekFrom::Start((number * share) as u64),
                            )?;
                            part.chunks_mut(PIECE)
                                .try_for_each(|piece| file.read_exact(piece))?;
                            Ok(())
                        })
                    });
                    let readers: Vec<_> = readers.collect();
                    readers
                        .into_iter()
                        .try_for_each(|reader| match reader.join() {
                            Ok(read) => read,
                            Err(_) => anyhow::bail!("a reader panicked"),
                        })
                })?;
            }
            Ok(())
        }
    };
    let poison = {
        let buffers = Rc::clone(&buffers);
        move || {
            buffers
                .borrow_mut()
                .iter_mut()
                .for_each(|buffer| buffer.fill(POISON));
            Ok(())
        }
    };
    let files = Rc::clone(files);
    let check = move || {
        let buffers = buffers.borrow();
        let mut pairs = files.paths.iter().zip(&*buffers);
        pairs.try_fold(true, |all, (path, buffer)| {
            Ok(all & (fs::read(path)? == *buffer))
        })
    };
    let threads = if threads == 1 {
        "1 thread"
    } else {
        "all threads"
    };
    Ok(Way::boxed(format!("read, {threads}"), turn, poison, check))
}

/// The crate over a mapping, and `Queue::write_buffer` for each tensor, on the device of a program without Transload.
fn write_buffer(name: &str, files: &Rc<Files>, gpu: &Gpu) -> Result<Box<dyn Contender>> {
    let mut buffers = HashMap::new();
    files.each(|name, bytes| {
        ensure!(bytes.len() % 4 == 0, "{name} has no whole words");
        buffers.insert(name.to_owned(), gpu.buffer(bytes.len() as u64));
        Ok(())
    })?;
    let buffers = Rc::new(buffers);
    let turn = {
        let (files, gpu, buffers) = (Rc::clone(files), gpu.clone(), Rc::clone(&buffers));
        move || {
            files.each(|name, bytes| {
                let buffer = buffers.get(name).context("a tensor is missing")?;
                gpu.queue.write_buffer(buffer, 0, bytes);
                Ok(())
            })?;
            gpu.queue.submit([]);
            gpu.wait()
        }
    };
    let poison = {
        let (gpu, buffers) = (gpu.clone(), Rc::clone(&buffers));
        move || buffers.values().try_for_each(|buffer| gpu.spoil(buffer))
    };
    let (files, gpu) = (Rc::clone(files), gpu.clone());
    let check = move || {
        let mut same = true;
        files.each(|name, bytes| {
            let buffer = buffers.get(name).context("a tensor is missing")?;
            same &= gpu.holds(buffer, bytes)?;
            Ok(())
        })?;
        Ok(same)
    };
    Ok(Way::boxed(name, turn, poison, check))
}
