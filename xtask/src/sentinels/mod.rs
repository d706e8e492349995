//! `cargo xtask sentinels`: proves that the tests notice when a promise breaks.
//!
//! Each `sentinels/NAME.patch` breaks one thing. The stage applies it to a copy of the tree. The tests that it names
//! must be green before and red after, because they ran and failed: a patch that does not compile, or after which the
//! tests hang, proves nothing.

mod patch;
mod tree;
mod trial;

use std::fs;
use std::io::ErrorKind;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

use self::patch::Sentinel;
use self::trial::{Laboratory, Trial};
use crate::stage::{Session, Verdict};
use crate::table::table;
use crate::workspace::Workspace;

/// Which sentinels to run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Names of files in `sentinels/`, without `.patch`; all when none is given
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// Runs the sentinels and prints a table. Says whether each turned its tests
/// red.
///
/// # Errors
/// When one cannot be read, or the copy of the tree cannot be made.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    let sentinels = load(workspace, &options.names)?;
    if sentinels.is_empty() {
        println!("There are no sentinels.");
        return Ok(true);
    }
    let trials = try_all(workspace, &sentinels, |line| println!("{line}"))?;
    print!("\n{}", trials.table);
    Ok(trials.failed == 0)
}

/// The stage of `cargo xtask test --full`.
///
/// # Errors
/// As [`run`].
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let sentinels = load(&session.workspace, &[])?;
    if sentinels.is_empty() {
        return Ok(Verdict::skipped("no sentinels"));
    }
    let mut verdict = Verdict::passed();
    let trials = try_all(&session.workspace, &sentinels, |line| println!("   {line}"))?;
    verdict.transcript.push_str(&trials.table);
    verdict.counts.passed = trials.passed;
    verdict.counts.failed = trials.failed;
    verdict.note = format!("{} of {} turned tests red", trials.passed, sentinels.len());
    if trials.failed > 0 {
        verdict.fail("a sentinel that no test notices is a promise that no test holds");
    }
    Ok(verdict)
}

/// The stage that finds at once a patch whose code has moved, which a full run would find late.
///
/// # Errors
/// When one cannot be read, or git cannot be started.
pub(crate) fn fit(session: &mut Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let sentinels = load(&session.workspace, &[])?;
    for sentinel in &sentinels {
        let output = Command::new("git")
            .args(["apply", "--check", "--whitespace=nowarn", "--recount"])
            .arg(&sentinel.path)
            .current_dir(&session.workspace.root)
            .output()
            .context("cannot run git")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = format!("sentinels/{}.patch: {}\n", sentinel.name, said.trim());
            verdict.transcript.push_str(&line);
        }
    }
    if !verdict.transcript.is_empty() {
        verdict.fail("a sentinel does not fit any more");
    }
    verdict.note = format!("{} patches", sentinels.len());
    Ok(verdict)
}

struct Trials {
    table: String,
    passed: u64,
    failed: u64,
}

fn try_all(workspace: &Workspace, sentinels: &[Sentinel], tell: impl Fn(&str)) -> Result<Trials> {
    let mut laboratory = Laboratory::new(&workspace.root, &workspace.target.join("sentinels"))?;
    let mut trials = Trials {
        table: String::new(),
        passed: 0,
        failed: 0,
    };
    let mut rows = Vec::new();
    for sentinel in sentinels {
        let start = Instant::now();
        let result = laboratory.try_one(sentinel)?;
        let seconds = format!("{:.1} s", start.elapsed().as_secs_f64());
        tell(&format!("{}: {} ({seconds})", sentinel.name, result.told()));
        if let Some(output) = result.evidence() {
            tell(output);
        }
        match result {
            Trial::Red { .. } => trials.passed += 1,
            _ => trials.failed += 1,
        }
        rows.push([
            sentinel.name.clone(),
            result.told(),
            seconds,
            sentinel.breaks.clone(),
        ]);
    }
    trials.table = table(["sentinel", "tests", "time", "what it breaks"], &rows);
    Ok(trials)
}

/// The sentinels called `names`, or all, in the order of their names.
fn load(workspace: &Workspace, names: &[String]) -> Result<Vec<Sentinel>> {
    let folder = workspace.root.join("sentinels");
    let mut sentinels = Vec::new();
    let entries = match fs::read_dir(&folder) {
        // Git keeps no empty folder: without sentinels there is none.
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        other => Some(other.with_context(|| format!("cannot read {}", folder.display()))?),
    };
    for entry in entries.into_iter().flatten() {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "patch")
        {
            sentinels.push(Sentinel::load(&path)?);
        }
    }
    sentinels.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(unknown) = names
        .iter()
        .find(|name| !sentinels.iter().any(|sentinel| sentinel.name == **name))
    {
        bail!("there is no sentinels/{unknown}.patch");
    }
    sentinels.retain(|sentinel| names.is_empty() || names.contains(&sentinel.name));
    Ok(sentinels)
}
