//! `overhead/features`: the cost of having tracing and metrics compiled in while no subscriber
//! listens.
//!
//! The comparison takes two builds. This program builds itself a second time with the feature `observed`, and starts
//! processes of both builds, which answer over pipes. The addresses of a process's pages change its time by several
//! percent, so each build has several processes and counts by the fastest; the plain build takes part twice.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::post::Post;
use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{self, Contender, Rules};
use crate::process::Process;

const LIMIT_S: f64 = 2e-9;
/// Processes of each build, and of the plain one's second part.
const PROCESSES: usize = 6;

/// Answers `TURNS` with nanoseconds, and `verify` with whether the bytes are right, until the input
/// ends.
pub(crate) fn serve() -> Result<()> {
    let mut post = Post::new()?;
    for line in std::io::stdin().lines() {
        match line?.as_str() {
            "verify" => println!("{}", post.verify()?),
            turns => println!("{}", post.sample(turns.parse()?)?.as_nanos()),
        }
    }
    Ok(())
}

pub(super) fn run(effort: Effort) -> Result<Outcome> {
    let own = std::env::current_exe()?;
    let observed = build_observed()?;
    let builds = [
        ("observed", &observed),
        ("plain", &own),
        ("plain, again", &own),
    ];
    let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
    for _ in 0..PROCESSES {
        for (name, program) in builds {
            contenders.push(Box::new(Other::start(name, program)?));
        }
    }
    let rules = Rules {
        // A difference of 2 ns wants many samples.
        rounds: effort.rounds * 4,
        sample: Duration::from_millis(1),
        warm: true,
    };
    let series = contest::run(&mut contenders, rules)?;
    let of_build = |name: &str| {
        let own = contenders.iter().zip(&series);
        own.filter(|(other, _)| other.name() == name)
            .map(|(_, series)| series)
            .min_by(|a, b| a.median().total_cmp(&b.median()))
            .context("every build has processes")
    };
    let [observed, plain, again] = [
        of_build("observed")?,
        of_build("plain")?,
        of_build("plain, again")?,
    ];
    let mut outcome = Outcome::new("overhead/features", observed);
    outcome.bytes = 4 << 10;
    let baselines = [("plain", plain), ("plain, again", again)];
    outcome.baselines = baselines
        .map(|(name, series)| (name.to_owned(), series.median()))
        .into();
    outcome.noise = plain.difference(again);
    outcome.verified = true;
    for contender in &mut contenders {
        outcome.verified &= contender.verify()?;
    }
    let added = observed.median() - plain.median();
    let verdict = Verdict::at_most("added", added, LIMIT_S, "s");
    outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
    Ok(outcome)
}

/// The same program with the feature, in a target folder of its own.
fn build_observed() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(root).join("target"), PathBuf::from)
        .join("bench-observed");
    let status = Command::new(cargo)
        .current_dir(root)
        .args([
            "build",
            "--quiet",
            "--profile",
            "bench",
            "-p",
            "transload-bench",
        ])
        .args(["--features", "observed", "--target-dir"])
        .arg(&target)
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "the build with `observed` failed");
    let name = format!("transload-bench{}", std::env::consts::EXE_SUFFIX);
    Ok(target.join("release").join(name))
}

/// A process of this program that serves.
struct Other {
    name: &'static str,
    process: Process,
}

impl Other {
    fn start(name: &'static str, program: &Path) -> Result<Other> {
        let process = Process::start(program, "post")?;
        Ok(Other { name, process })
    }
}

impl Contender for Other {
    fn name(&self) -> &str {
        self.name
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let took = self.process.ask(&turns.to_string())?;
        Ok(Duration::from_nanos(took.parse()?))
    }

    fn verify(&mut self) -> Result<bool> {
        Ok(self.process.ask("verify")? == "true")
    }
}
