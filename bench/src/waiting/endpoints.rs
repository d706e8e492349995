//! Pairs of buffers of one length, and a check that the bytes of one have arrived in the other.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use transload::{Buffer, Transfer, TransferManager};

use crate::case::Outcome;
use crate::contest::{POISON, Random};
use crate::wgpu::gpu;

/// A source, a destination, and their manager.
pub(super) struct Endpoints {
    pub(super) manager: TransferManager,
    pub(super) src: Buffer,
    pub(super) dst: Buffer,
    /// Reads the destination, without Transload if another way exists.
    check: Box<Check>,
}

/// Whether a destination holds these bytes.
type Check = dyn Fn(&[u8]) -> Result<bool>;

/// The memories of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sort {
    /// From a vector to another.
    Heap,
    /// From a file whose pages are in the page cache to a vector.
    File,
    /// From a vector to device memory of an adapter that imports host memory.
    Adapter,
    /// From a vector to a device of the double of CUDA's driver, whose link carries 4 GB/s.
    Cuda,
}

/// The two devices, and the names of their outcomes.
pub(super) const DEVICES: [(Sort, &str); 2] = [(Sort::Adapter, "wgpu"), (Sort::Cuda, "cuda")];

impl Endpoints {
    /// Makes a pair of `len` bytes. `None` where this machine lacks the device.
    pub(super) fn new(sort: Sort, len: usize) -> Result<Option<Endpoints>> {
        match sort {
            Sort::Heap => heap(len).map(Some),
            Sort::File => file(len).map(Some),
            Sort::Adapter => adapter(len),
            Sort::Cuda => cuda(len),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.dst.len() as usize
    }

    pub(super) fn submit(&self) -> Transfer {
        self.manager.copy(&self.src, &self.dst)
    }

    /// Copies once and waits.
    pub(super) fn moved(&self) -> Result<()> {
        self.submit().wait()?;
        Ok(())
    }

    /// The time of one copy and its wait.
    pub(super) fn timed(&self) -> Result<Duration> {
        let begin = Instant::now();
        self.moved()?;
        Ok(begin.elapsed())
    }

    pub(super) fn poison(&self) -> Result<()> {
        let poison = vec![POISON; self.len()];
        self.manager.copy_from_slice(&poison, &self.dst)?;
        Ok(())
    }

    /// Whether every byte of the destination is that of the source.
    pub(super) fn are_equal(&self) -> Result<bool> {
        (self.check)(&payload(self.len()))
    }

    /// Records in an outcome the place of the bytes.
    pub(super) fn describe(&self, outcome: &mut Outcome) {
        outcome.src = Some(self.src.memory().to_string());
        outcome.dst = Some(self.dst.memory().to_string());
        outcome.bytes = self.dst.len();
    }
}

/// The content of every source of that length.
pub(super) fn payload(len: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; len];
    Random(len as u64).fill(&mut bytes);
    bytes
}

/// A file that holds `bytes`, on the disk and in the page cache. Its name is already deleted.
pub(super) fn file_of(manager: &TransferManager, bytes: &[u8]) -> Result<Buffer> {
    let path = std::env::temp_dir().join(format!("transload-waiting-{}", std::process::id()));
    let opened = write(&path, bytes).and_then(|()| Ok(manager.open_file(&path)?));
    // A failure must not leave the name behind.
    std::fs::remove_file(&path)?;
    opened
}

fn write(path: &std::path::Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).with_context(|| path.display().to_string())?;
    // Otherwise the system writes the pages out while the case times copies of them.
    std::fs::File::open(path)?.sync_all()?;
    Ok(())
}

fn heap(len: usize) -> Result<Endpoints> {
    let manager = TransferManager::builder().host().build()?;
    let src = manager.adopt(payload(len))?;
    to_heap(manager, src)
}

fn file(len: usize) -> Result<Endpoints> {
    let manager = TransferManager::builder().host().build()?;
    let src = file_of(&manager, &payload(len))?;
    to_heap(manager, src)
}

fn to_heap(manager: TransferManager, src: Buffer) -> Result<Endpoints> {
    let dst = manager.adopt(vec![POISON; src.len() as usize])?;
    let seen = dst.clone();
    Ok(Endpoints {
        manager,
        src,
        dst,
        check: Box::new(move |bytes| Ok(*seen.read()? == *bytes)),
    })
}

fn adapter(len: usize) -> Result<Option<Endpoints>> {
    let Some(gpu) = gpu::opened()? else {
        return Ok(None);
    };
    let manager = gpu::manager(&[&gpu])?;
    let native = gpu.buffer(len as u64);
    Ok(Some(Endpoints {
        src: manager.adopt(payload(len))?,
        dst: crate::raw::adopt::adopt(&manager, gpu.place()?, &native)?,
        manager,
        check: Box::new(move |bytes| gpu.holds(&native, bytes)),
    }))
}

#[cfg(target_os = "linux")]
fn cuda(len: usize) -> Result<Option<Endpoints>> {
    let driver = crate::raw::driver::double(crate::raw::driver::MACHINE);
    let devices = transload_cuda::Cuda::with_driver(driver)?;
    let builder = TransferManager::builder().host();
    let manager = builder.backend(std::sync::Arc::new(devices)).build()?;
    let spec = transload::AllocSpec::bytes(len as u64);
    let dst = manager.allocate("cuda:0".parse()?, spec)?;
    let (reader, there) = (manager.clone(), dst.clone());
    let check = move |bytes: &[u8]| {
        let mut found = vec![0u8; bytes.len()];
        reader.copy_into_slice(&there, &mut found)?;
        Ok(found == bytes)
    };
    Ok(Some(Endpoints {
        src: manager.adopt(payload(len))?,
        dst,
        manager,
        check: Box::new(check),
    }))
}

#[cfg(not(target_os = "linux"))]
fn cuda(_: usize) -> Result<Option<Endpoints>> {
    Ok(None)
}
