//! `cuda/staged-*`: between ordinary memory and a device behind a modelled link, through pinned slots.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use transload::{AllocSpec, Buffer, Prepared, Request, TransferManager};
use transload_cuda::Cuda;

use crate::case::{Case, Effort, Outcome, Verdict};
use crate::contest::{self, Contender, POISON, Random, Rules};
use crate::raw::driver::MACHINE;
use crate::raw::driver::{Bare, double};

/// The modelled rate, in bytes per second.
const RATE: f64 = 4e9;
const LIMIT: f64 = 0.9;
/// The length of each copy of the raw baseline.
const PIECE: usize = 4 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

pub(super) fn cases(effort: Effort) -> Vec<Case> {
    let sizes: &[usize] = match effort.quick {
        true => &[64 << 20],
        false => &[16 << 20, 64 << 20, 256 << 20],
    };
    let mut cases = Vec::new();
    for (way, word) in [(Way::Up, "up"), (Way::Down, "down")] {
        for len in sizes {
            let (len, name) = (*len, format!("cuda/staged-{word}-{}MiB", len >> 20));
            let own = name.clone();
            cases.push(Case::new(name, move |effort| run(&own, way, len, effort)));
        }
    }
    cases
}

fn run(name: &str, way: Way, len: usize, effort: Effort) -> Result<Outcome> {
    let staged = Staged::new(way, len)?;
    let (src, dst) = (
        staged.src.memory().to_string(),
        staged.dst.memory().to_string(),
    );
    let mut contenders: Vec<Box<dyn Contender>> = vec![Box::new(staged)];
    for name in ["pinned", "pinned, again"] {
        let bare = Bare::new(double(MACHINE), len)?;
        contenders.push(Box::new(Pinned {
            name,
            bare,
            way,
            len,
        }));
    }
    let rules = Rules {
        rounds: effort.rounds.min(20),
        sample: Duration::from_millis(1),
        warm: true,
    };
    let series = contest::run(&mut contenders, rules)?;
    let mut outcome = Outcome::new(name, &series[0]);
    (outcome.src, outcome.dst) = (Some(src), Some(dst));
    outcome.bytes = len as u64;
    for (contender, series) in contenders.iter().zip(&series).skip(1) {
        let name = contender.name().to_owned();
        outcome.baselines.insert(name, series.median());
    }
    outcome.noise = series[1].difference(&series[2]);
    outcome.verified = true;
    for contender in &mut contenders {
        outcome.verified &= contender.verify()?;
    }
    let bound = len as f64 / RATE;
    let reached = bound / series[0].median();
    let verdict = Verdict::at_least("of the modelled link", reached, LIMIT, "");
    outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
    Ok(outcome)
}

/// Through Transload.
struct Staged {
    src: Buffer,
    dst: Buffer,
    prepared: Prepared,
    manager: TransferManager,
}

impl Staged {
    fn new(way: Way, len: usize) -> Result<Staged> {
        let devices = Cuda::with_driver(double(MACHINE))?;
        let builder = TransferManager::builder().host();
        let manager = builder.backend(Arc::new(devices)).build()?;
        let mut bytes = vec![0u8; len];
        Random(4).fill(&mut bytes);
        let spec = AllocSpec::bytes(len as u64);
        let host = manager.adopt(bytes)?;
        let device = manager.allocate("cuda:0".parse()?, spec)?;
        let (src, dst) = match way {
            Way::Up => (host, device),
            Way::Down => {
                manager.copy(&host, &device).wait()?;
                (device, host)
            }
        };
        let prepared = manager.prepare(&Request::new(&src, &dst))?;
        Ok(Staged {
            src,
            dst,
            prepared,
            manager,
        })
    }

    fn bytes_of(&self, buffer: &Buffer) -> Result<Vec<u8>> {
        let mut bytes = vec![0; buffer.len() as usize];
        self.manager.copy_into_slice(buffer, &mut bytes)?;
        Ok(bytes)
    }
}

impl Contender for Staged {
    fn name(&self) -> &str {
        "transload"
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let begin = Instant::now();
        for _ in 0..turns {
            self.prepared.post().wait()?;
        }
        Ok(begin.elapsed())
    }

    fn verify(&mut self) -> Result<bool> {
        let poison = vec![POISON; self.dst.len() as usize];
        self.manager.copy_from_slice(&poison, &self.dst)?;
        self.prepared.post().wait()?;
        Ok(self.bytes_of(&self.dst)? == self.bytes_of(&self.src)?)
    }
}

/// The same bytes from pinned memory by the driver's own calls, at the speed of the link.
struct Pinned {
    name: &'static str,
    bare: Bare,
    way: Way,
    len: usize,
}

impl Contender for Pinned {
    fn name(&self) -> &str {
        self.name
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let begin = Instant::now();
        for _ in 0..turns {
            for at in (0..self.len).step_by(PIECE) {
                let piece = PIECE.min(self.len - at);
                match self.way {
                    Way::Up => self.bare.up(at, piece)?,
                    Way::Down => self.bare.down(at, piece)?,
                }
            }
            self.bare.wait()?;
        }
        Ok(begin.elapsed())
    }

    fn verify(&mut self) -> Result<bool> {
        let mut bytes = vec![0u8; self.len];
        Random(9).fill(&mut bytes);
        self.bare.write(&bytes)?;
        self.bare.up(0, self.len)?;
        self.bare.wait()?;
        self.bare.write(&vec![POISON; self.len])?;
        self.bare.down(0, self.len)?;
        self.bare.wait()?;
        Ok(self.bare.read() == bytes)
    }
}
