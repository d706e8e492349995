//! Adapters through wgpu, compared with the usual code of a wgpu user.
//!
//! An operation is over when its bytes have arrived: the thread that submits waits for that.

mod across;
mod down;
pub(crate) mod gpu;
mod idle;
mod many;
mod stream;
mod texture;
mod up;

use std::time::Duration;

use anyhow::Result;
use transload::{Buffer, TransferManager};

use crate::case::{Case, Effort, Outcome, Verdict};
use crate::contest::{self, Contender, Rules};
use crate::series::Series;
use gpu::{Gpu, adapters, called};

/// From a page to far past any cache.
const SIZES: [usize; 6] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20, 512 << 20];
const QUICK_SIZES: [usize; 3] = [4 << 10, 1 << 20, 16 << 20];

/// From this size on caches keep nothing of the previous operation, and a few samples must be enough because an
/// operation takes long.
const LARGE: usize = 64 << 20;
const LARGE_ROUNDS: usize = 16;

/// Up to this size the fixed cost dominates.
const SMALL: usize = 64 << 10;

/// The driver for which the limits apply.
const LAVAPIPE: &str = "llvmpipe";

const TUTORIAL: &str = "tutorial";
const REUSED: &str = "reused staging";
const AGAIN: &str = "reused staging, again";
const MEMCPY: &str = "memcpy";
const ALLOCATED: &str = "transload, allocated";
const FOREIGN: &str = "transload, foreign device";
const MISALIGNED: &str = "transload, misaligned";

pub(crate) fn cases(effort: Effort) -> Vec<Case> {
    let sizes = if effort.quick {
        &QUICK_SIZES[..]
    } else {
        &SIZES
    };
    let mut cases = Vec::new();
    for len in sizes.iter().copied() {
        let name = name("host-wgpu", len);
        cases.push(case(name, move |name, effort| up::run(name, len, effort)));
    }
    for len in sizes.iter().copied() {
        let name = name("wgpu-host", len);
        cases.push(case(name, move |name, effort| down::run(name, len, effort)));
    }
    let across = if effort.quick { 16 << 20 } else { 128 << 20 };
    let name = name("wgpu-wgpu", across);
    cases.push(case(name, move |name, effort| {
        across::run(name, across, effort)
    }));
    for (name, cold) in [("warm", false), ("cold", true)] {
        if cold && cfg!(not(target_os = "linux")) {
            continue;
        }
        let name = format!("file-wgpu/256MiB/{name}");
        cases.push(case(name, move |name, effort| {
            stream::run(name, cold, effort)
        }));
    }
    cases.push(case("wgpu-many/32x1MiB".into(), many::run));
    cases.push(case("texture/1920x1080".into(), texture::run));
    cases.push(case("wgpu-idle".into(), |name, _| idle::run(name)));
    cases
}

/// A case that reports where the adapters are absent.
fn case(
    name: String,
    run: impl Fn(&str, Effort) -> Result<Option<Vec<Outcome>>> + 'static,
) -> Case {
    let of = name.clone();
    Case {
        name,
        run: Box::new(move |effort| {
            let outcomes = run(&of, effort)?;
            if outcomes.is_none() {
                eprintln!("  skipped: its adapters are not here");
            }
            Ok(outcomes.unwrap_or_default())
        }),
    }
}

fn name(route: &str, len: usize) -> String {
    match len {
        len if len >= 1 << 20 => format!("{route}/{}MiB", len >> 20),
        len => format!("{route}/{}KiB", len >> 10),
    }
}

/// Lavapipe opened by Transload as `wgpu:0`, and again as other programs do as `wgpu:1`, under one manager; `None`
/// where there is none.
fn twice() -> Result<Option<(TransferManager, Gpu, Gpu)>> {
    let adapters = adapters();
    let Some(adapter) = called(&adapters, LAVAPIPE) else {
        return Ok(None);
    };
    let (opened, foreign) = (Gpu::opened(adapter, 0)?, Gpu::foreign(adapter, 1)?);
    let manager = manager(&[&opened, &foreign])?;
    Ok(Some((manager, opened, foreign)))
}

/// A manager of the host and these devices.
pub(crate) fn manager(gpus: &[&Gpu]) -> Result<TransferManager> {
    let wgpu = transload_wgpu::Wgpu::with_devices(gpus.iter().map(|gpu| gpu.pair()));
    let manager = TransferManager::builder()
        .host()
        .backend(std::sync::Arc::new(wgpu))
        .build()?;
    Ok(manager)
}

/// One copy, from the call to the last byte.
fn moved(manager: &TransferManager, src: &Buffer, dst: &Buffer) -> Result<()> {
    manager.copy(src, dst).wait()?;
    Ok(())
}

/// Copies once and prints the route of the bytes.
fn tell(manager: &TransferManager, name: &str, src: &Buffer, dst: &Buffer) -> Result<()> {
    let report = manager.copy(src, dst).wait()?;
    eprintln!("  {name}: {report}");
    Ok(())
}

/// The results of a contest in which Transload was first.
struct Results {
    names: Vec<String>,
    series: Vec<Series>,
    verified: bool,
}

impl Results {
    fn of(mut contenders: Vec<Box<dyn Contender>>, len: usize, effort: Effort) -> Result<Results> {
        let rounds = match len {
            len if len >= LARGE => effort.rounds.min(LARGE_ROUNDS),
            _ => effort.rounds,
        };
        let rules = Rules {
            rounds,
            sample: Duration::from_millis(1),
            warm: len < LARGE,
        };
        let series = contest::run(&mut contenders, rules)?;
        let mut verified = true;
        for contender in &mut contenders {
            let right = contender.verify()?;
            if !right {
                eprintln!("  {} moved other bytes", contender.name());
            }
            verified &= right;
        }
        let names = contenders.iter().map(|other| other.name().to_owned());
        Ok(Results {
            names: names.collect(),
            series,
            verified,
        })
    }

    /// The median of the contender called `name`; NaN if there is none.
    fn median(&self, name: &str) -> f64 {
        let mut named = self.names.iter().zip(&self.series);
        let found = named.find(|(other, _)| *other == name);
        found.map_or(f64::NAN, |(_, series)| series.median())
    }

    /// Transload's time divided by that of `name`.
    fn over(&self, name: &str) -> f64 {
        self.series[0].median() / self.median(name)
    }

    fn outcome(&self, case: &str, len: usize, [src, dst]: [String; 2]) -> Outcome {
        let mut outcome = Outcome::new(case, &self.series[0]);
        outcome.src = Some(src);
        outcome.dst = Some(dst);
        outcome.bytes = len as u64;
        outcome.verified = self.verified;
        let others = self.names.iter().zip(&self.series).skip(1);
        outcome.baselines = others
            .map(|(name, series)| (name.clone(), series.median()))
            .collect();
        outcome.noise = (self.median(REUSED) / self.median(AGAIN) - 1.0).abs();
        outcome
    }

    /// The verdicts on copies between the heap and lavapipe.
    fn verdicts(&self, len: usize, baselines: &[&str]) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        if len >= LARGE {
            let faster = 1.0 / self.over(TUTORIAL);
            verdicts.push(Verdict::at_least(
                "times the tutorial's rate:",
                faster,
                8.0,
                "",
            ));
            let of = "of memcpy's time:";
            verdicts.push(Verdict::at_most(of, self.over(MEMCPY), 1.1, ""));
            let allocated = self.median(ALLOCATED) / self.median(MEMCPY);
            let of = "allocated buffer, of memcpy's time:";
            verdicts.push(Verdict::at_most(of, allocated, 0.8, ""));
            let foreign = self.median(FOREIGN) / self.median(REUSED);
            let of = "foreign device, of reused staging's time:";
            verdicts.push(Verdict::at_most(of, foreign, 1.1, ""));
        }
        if len <= SMALL {
            let fastest = baselines.iter().map(|name| self.median(name));
            let fastest = fastest.fold(f64::INFINITY, f64::min);
            let of = "of the fastest baseline's time:";
            let ours = self.series[0].median();
            verdicts.push(Verdict::at_most(of, ours / fastest, 1.3, ""));
        }
        verdicts
    }
}

/// Gives an outcome its verdicts, unless the run was too noisy.
fn judge(outcome: &mut Outcome, verdicts: Vec<Verdict>) {
    let noise = outcome.noise;
    let mut verdicts = verdicts
        .into_iter()
        .map(|verdict| verdict.unless_noisy(noise));
    outcome.verdict = verdicts.next();
    outcome.further = verdicts.collect();
}
