//! `file-wgpu`: a file into an adapter's buffer, from the page cache and from the disk.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use transload::AllocSpec;

use super::gpu::{moved, tell, twice};
use super::results::{AGAIN, REUSED, Results, TUTORIAL};
use crate::case::{Effort, Outcome};
use crate::contest::{Contender, Random};

/// One way to move the file, begun with its pages in memory or on the disk alone.
struct Way {
    name: String,
    path: PathBuf,
    cold: bool,
    turn: Box<dyn FnMut() -> Result<()>>,
    check: Box<dyn FnMut() -> Result<bool>>,
}

impl Contender for Way {
    fn name(&self) -> &str {
        &self.name
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let mut took = Duration::ZERO;
        for _ in 0..turns {
            if self.cold {
                evict(&self.path)?;
            }
            let begin = Instant::now();
            (self.turn)()?;
            took += begin.elapsed();
        }
        Ok(took)
    }

    fn verify(&mut self) -> Result<bool> {
        self.sample(1)?;
        (self.check)()
    }
}

pub(super) fn run(
    case: &str,
    len: usize,
    cold: bool,
    effort: Effort,
) -> Result<Option<Vec<Outcome>>> {
    let Some((manager, gpu, _)) = twice()? else {
        return Ok(None);
    };
    let scratch = Scratch::new()?;
    let mut bytes = vec![0u8; len];
    Random(len as u64).fill(&mut bytes);
    std::fs::write(&scratch.0, &bytes)?;
    File::open(&scratch.0)?.sync_all()?;

    let src = manager.open_file(&scratch.0)?;
    let dst = manager.allocate(gpu.default_place(), AllocSpec::bytes(len as u64))?;
    let way = |name: &str, turn: Box<dyn FnMut() -> Result<()>>, native: wgpu::Buffer| {
        let (gpu, bytes) = (gpu.clone(), bytes.clone());
        let check = move || {
            let right = gpu.holds(&native, &bytes)?;
            gpu.spoil(&native)?;
            Ok(right)
        };
        Box::new(Way {
            name: name.into(),
            path: scratch.0.clone(),
            cold,
            turn,
            check: Box::new(check),
        }) as Box<dyn Contender>
    };
    let native = dst.native::<wgpu::Buffer>().cloned();
    let native = native.ok_or_else(|| anyhow::anyhow!("no buffer of wgpu's"))?;
    let streamed = {
        let (manager, src, dst) = (manager.clone(), src.clone(), dst.clone());
        move || moved(&manager, &src, &dst)
    };
    let mut contenders = vec![way("transload", Box::new(streamed), native)];
    let plain = gpu.buffer(len as u64);
    for name in [TUTORIAL, REUSED, AGAIN] {
        let (gpu, path, to) = (gpu.clone(), scratch.0.clone(), plain.clone());
        // Read whole and then written, into a new vector or one that is kept.
        let mut kept = (name != TUTORIAL).then(|| vec![0u8; len]);
        let turn = move || {
            let fresh;
            let read: &[u8] = match &mut kept {
                Some(kept) => {
                    std::io::Read::read_exact(&mut File::open(&path)?, kept)?;
                    kept
                }
                None => {
                    fresh = std::fs::read(&path)?;
                    &fresh
                }
            };
            gpu.put(&to, read)?;
            gpu.wait()
        };
        contenders.push(way(name, Box::new(turn), plain.clone()));
    }
    let results = Results::of(contenders, len, effort)?;
    let ends = [src.memory().to_string(), dst.memory().to_string()];
    let outcome = results.outcome(case, len, ends);
    tell(&manager, "transload", &src, &dst)?;
    Ok(Some(vec![outcome]))
}

/// The file, removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch> {
        // Temporary folders may lie in memory.
        let folder = std::env::current_dir()?.join("target");
        std::fs::create_dir_all(&folder)?;
        let name = format!("bench-{}.bin", std::process::id());
        Ok(Scratch(folder.join(name)))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes the system drop the file's pages, which are on the disk.
#[cfg(target_os = "linux")]
fn evict(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn evict(path: &Path) -> Result<()> {
    anyhow::bail!(
        "cannot drop {} from the page cache on this system",
        path.display()
    )
}
