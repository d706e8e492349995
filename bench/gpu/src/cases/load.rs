//! The tensors of a model's file, which the system has in its cache, to the device.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::{env, fs};

use anyhow::{Context, Result, anyhow};
use serde_json::{Map, json};

use crate::case::{Case, Field, Needs, Session, size};
use crate::contest::{Contender, Way, reason};
use crate::raw::gpu::Gpu;
use crate::raw::memory::{Kind, Memory};
use crate::raw::work::Stream;
use crate::rivals;

/// The bytes of a tensor, as of one matrix of a layer.
const TENSOR: usize = 32 << 20;
const SIZES: [usize; 3] = [64 << 20, 1 << 30, 4 << 30];
const QUICK_SIZES: [usize; 1] = [1 << 20];

/// The threads that read by hand, and the bytes that each of them reads at once.
const THREADS: usize = 4;
const PIECE: usize = 8 << 20;
const BY_HAND: &str = "pread into pinned memory, 4 threads";

pub(super) fn cases(quick: bool) -> impl Iterator<Item = Case> {
    let sizes = if quick { &QUICK_SIZES[..] } else { &SIZES };
    sizes.iter().map(|len| Case {
        name: format!("load/{}", size(*len)),
        group: "load",
        bytes: *len as u64,
        needs: Needs {
            // The bytes to compare with, and the file in the cache.
            host: 2 * *len as u64,
            device: 3 * *len as u64,
            rival: *len as u64,
        },
        make: Box::new(move |session| field(session, *len)),
    })
}

/// A safetensors file with the bytes of `like`. Its drop removes it.
pub(crate) struct Weights {
    pub(crate) path: PathBuf,
    pub(crate) like: Memory,
    /// The place of each tensor in `like`, by name.
    pub(crate) tensors: Vec<(String, Range<usize>)>,
    /// The bytes of the file before the first tensor.
    start: u64,
}

impl Weights {
    fn made(gpu: &Arc<Gpu>, len: usize) -> Result<Weights> {
        let like = Memory::filled(gpu, Kind::Pageable, len)?;
        let places = (0..len).step_by(TENSOR).map(|at| at..len.min(at + TENSOR));
        let tensors = places.enumerate();
        let tensors = tensors.map(|(number, place)| (format!("layer.{number}"), place));
        let tensors = Vec::from_iter(tensors);
        let entry = |(name, place): &(String, Range<usize>)| {
            let offsets = [place.start, place.end];
            let entry = json!({ "dtype": "U8", "shape": [place.len()], "data_offsets": offsets });
            (name.clone(), entry)
        };
        let header = json!(Map::from_iter(tensors.iter().map(entry))).to_string();
        let name = format!("transload-gpu-bench-{}-{len}", std::process::id());
        let weights = Weights {
            path: env::temp_dir().join(name + ".safetensors"),
            like,
            tensors,
            start: 8 + header.len() as u64,
        };
        let mut file = BufWriter::new(File::create_new(&weights.path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        weights.like.see(|bytes| file.write_all(bytes))?;
        file.into_inner()?.sync_all()?;
        Ok(weights)
    }
}

impl Drop for Weights {
    fn drop(&mut self) {
        // Another user of the folder may have removed it.
        let _ = fs::remove_file(&self.path);
    }
}

fn field(session: &Session, len: usize) -> Result<Field> {
    let gpu = &session.gpu;
    let weights = Weights::made(gpu, len);
    let weights = Arc::new(weights.with_context(|| format!("a file of {}", size(len)))?);
    let mut field = Field::default();
    field.transload(session, |party| party.load(&weights));
    field.enter(BY_HAND, by_hand(gpu, &weights));
    let absent = session.roll.absent.clone();
    field.absent.extend(absent);
    if let Some(rivals) = &session.rivals {
        match rivals::contenders(rivals, "load", utf8(&weights.path)?) {
            Ok(contenders) => field.contenders.extend(contenders),
            Err(error) => drop(field.absent.insert("safetensors".into(), reason(&error))),
        }
    }
    Ok(field)
}

fn utf8(path: &Path) -> Result<&str> {
    // A request is a line of words.
    let text = path
        .to_str()
        .filter(|text| !text.contains(char::is_whitespace));
    text.with_context(|| format!("{} is no single word", path.display()))
}

/// One memory for the whole file, without a tensor in it: the limit of reading and copying.
fn by_hand(gpu: &Arc<Gpu>, weights: &Arc<Weights>) -> Result<Box<dyn Contender>> {
    let len = weights.like.len();
    let dst = Arc::new(Memory::new(gpu, Kind::Device, len)?);
    let lanes = (0..THREADS).map(|_| {
        let slot = Memory::new(gpu, Kind::Pinned, PIECE)?;
        Ok((slot, Stream::new(gpu)?))
    });
    let lanes: Vec<_> = lanes.collect::<Result<_>>()?;
    let (to, by, from) = (Arc::clone(&dst), Arc::clone(gpu), Arc::clone(weights));
    let turn = move || {
        let file = File::open(&from.path)?;
        thread::scope(|scope| {
            let lanes = lanes.iter().enumerate();
            let readers = lanes.map(|(lane, (slot, stream))| {
                let (file, by, to, start) = (&file, &by, &to, from.start);
                scope.spawn(move || -> Result<()> {
                    by.enter()?;
                    for at in (lane * PIECE..len).step_by(THREADS * PIECE) {
                        let part = PIECE.min(len - at);
                        slot.read_from(file, start + at as u64, part)?;
                        stream.finish(|orders| orders.up((to, at), (slot, 0), part))?;
                    }
                    Ok(())
                })
            });
            let readers = Vec::from_iter(readers);
            readers
                .into_iter()
                .try_for_each(|reader| reader.join().map_err(|_| anyhow!("a reader panicked"))?)
        })
    };
    let (spoilt, found, weights) = (Arc::clone(&dst), dst, Arc::clone(weights));
    let check = move || found.holds(0, &weights.like, 0, len);
    Ok(Way::boxed(BY_HAND, turn, move || spoilt.poison(), check))
}
