//! The public surface: what the libraries show to programs is kept in files, and a change of it is seen.

mod listing;
mod snapshot;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

pub(crate) use listing::stand_in_for_rustdoc;

use crate::stage::{Outcome, Session, Verdict};
use crate::workspace::Workspace;
use listing::list;
use snapshot::{Setting, Snapshot};

/// What to do with the public surface.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Writes the surface as it is into the files, which the stage `surface` goes by
    #[arg(long)]
    accept: bool,
}

/// Fails when a library shows something else than its file says.
///
/// # Errors
/// When cargo cannot be started, or rustdoc writes something unexpected.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    check(&session.workspace)
}

/// `cargo xtask public-api`: the same as the stage, or accepts what has changed.
///
/// # Errors
/// As [`stage`]; when a file cannot be written.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    if options.accept {
        return accept(workspace);
    }
    let verdict = check(workspace)?;
    match &verdict.outcome {
        Outcome::Passed => println!("{}", verdict.note),
        Outcome::Failed => println!("{}", verdict.transcript.trim_end()),
        Outcome::Skipped(reason) => println!("skipped: {reason}"),
    }
    Ok(verdict.outcome != Outcome::Failed)
}

fn check(workspace: &Workspace) -> Result<Verdict> {
    let here = Setting::of_this_machine()?;
    let mut kept = Vec::new();
    for package in PACKAGES {
        let snapshot = Snapshot::read(&file(workspace, package))?;
        // Another compiler words the same surface differently, and another system has another one.
        if snapshot.setting != here {
            return Ok(Verdict::skipped(format!(
                "the surface is kept as {} shows it, and this is {here}",
                snapshot.setting
            )));
        }
        kept.push((package, snapshot));
    }
    let mut verdict = Verdict::passed();
    let Some(mut shown) = list(workspace, &PACKAGES, &mut verdict)? else {
        return Ok(verdict);
    };
    let mut count = 0;
    for ((package, snapshot), items) in kept.iter().zip(shown.drain(..)) {
        count += items.len();
        let differences = snapshot.differences(&items);
        if !differences.is_empty() {
            verdict.fail(&format!(
                "the public surface of {package} has changed (- is gone, + is new):\n{}\n\
                 if that is meant: cargo xtask public-api --accept",
                differences.join("\n")
            ));
        }
    }
    verdict.note = format!("{count} items of {}", PACKAGES.join(", "));
    Ok(verdict)
}

fn accept(workspace: &Workspace) -> Result<bool> {
    let setting = Setting::of_this_machine()?;
    let mut verdict = Verdict::passed();
    let Some(shown) = list(workspace, &PACKAGES, &mut verdict)? else {
        bail!("{}", verdict.transcript.trim_end());
    };
    for (package, items) in PACKAGES.into_iter().zip(shown) {
        let path = file(workspace, package);
        println!(
            "{}: {} items",
            workspace.relative(&path).display(),
            items.len()
        );
        let setting = setting.clone();
        Snapshot { setting, items }.write(package, &path)?;
    }
    Ok(true)
}

fn file(workspace: &Workspace, package: &str) -> PathBuf {
    let folder = workspace.root.join("docs/public-api");
    folder.join(format!("{package}.txt"))
}

/// The libraries that others build upon: programs, authors of backends, and both.
const PACKAGES: [&str; 3] = ["transload", "transload-hal", "transload-core"];
