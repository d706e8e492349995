//! `cargo xtask sentinels`: proves that the tests notice when a promise breaks.
//!
//! Each `sentinels/NAME.patch` breaks one thing. The stage applies it to a copy of the tree. The tests that it names
//! must be green before and red after, because they ran and failed: a patch that does not compile, or after which the
//! tests hang, proves nothing.

mod patch;
mod tree;
mod trial;

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;

use self::patch::Sentinel;
use self::trial::{Laboratory, Trial};
use crate::files;
use crate::process::{output_of, seconds};
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
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    let sentinels = load(workspace, &options.names)?;
    let trials = try_all(workspace, &sentinels, "")?;
    print!("\n{}", trials.table);
    Ok(trials.failed == 0)
}

/// The stage of `cargo xtask test --full`.
pub(crate) fn stage(session: &Session) -> Result<Verdict> {
    let sentinels = load(&session.workspace, &[])?;
    let mut verdict = Verdict::passed();
    let trials = try_all(&session.workspace, &sentinels, "   ")?;
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
pub(crate) fn fit(session: &Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let sentinels = load(&session.workspace, &[])?;
    for sentinel in &sentinels {
        let mut git = Command::new("git");
        git.args(["apply", "--check", "--whitespace=nowarn", "--recount"]);
        git.arg(&sentinel.path);
        if let Err(error) = output_of(git.current_dir(&session.workspace.root)) {
            verdict.fail(format!("a sentinel does not fit any more: {error:#}"));
        }
    }
    verdict.note = format!("{} patches", sentinels.len());
    Ok(verdict)
}

struct Trials {
    table: String,
    passed: u64,
    failed: u64,
}

/// Tries each, and prints its result behind `indent` when it is known.
fn try_all(workspace: &Workspace, sentinels: &[Sentinel], indent: &str) -> Result<Trials> {
    let mut laboratory = Laboratory::new(&workspace.root, &workspace.target.join("sentinels"))?;
    let (mut passed, mut failed) = (0, 0);
    let mut rows = Vec::new();
    for sentinel in sentinels {
        let start = Instant::now();
        let result = laboratory.try_one(sentinel)?;
        let (told, time) = (result.told(), seconds(start.elapsed()));
        println!("{indent}{}: {told} ({time})", sentinel.name);
        if let Some(output) = result.evidence() {
            println!("{indent}{output}");
        }
        match result {
            Trial::Red { .. } => passed += 1,
            _ => failed += 1,
        }
        rows.push([sentinel.name.clone(), told, time, sentinel.breaks.clone()]);
    }
    Ok(Trials {
        table: table(["sentinel", "tests", "time", "what it breaks"], rows),
        passed,
        failed,
    })
}

/// The sentinels called `names`, or all, in the order of their names.
fn load(workspace: &Workspace, names: &[String]) -> Result<Vec<Sentinel>> {
    let mut patches = files::entries(&workspace.root.join("sentinels"))?;
    patches.retain(|path| files::ends_with(path, "patch"));
    let sentinels = patches.iter().map(|path| Sentinel::load(path));
    let mut sentinels = sentinels.collect::<Result<Vec<_>>>()?;
    let is_there = |name: &String| sentinels.iter().any(|it| it.name == *name);
    if let Some(unknown) = names.iter().find(|name| !is_there(name)) {
        bail!("there is no sentinels/{unknown}.patch");
    }
    sentinels.retain(|sentinel| names.is_empty() || names.contains(&sentinel.name));
    Ok(sentinels)
}
