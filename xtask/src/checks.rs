//! The short stages: format, lint, documentation; and facts about the machine.

use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result};

use crate::stage::{Session, Verdict};
use crate::workspace::Workspace;

/// `cargo fmt --check`.
///
/// # Errors
/// When cargo cannot be started.
pub(crate) fn format(session: &mut Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    verdict.run(session.workspace.cargo().args(["fmt", "--all", "--check"]))?;
    for other in session.workspace.others()? {
        verdict.run(
            other
                .cargo()
                .args(["fmt", "--check"])
                .args(packages(&other)),
        )?;
    }
    Ok(verdict)
}

/// Clippy over everything, with all features and, for the library, without any: only the second run sees code behind
/// `not(feature)`.
///
/// # Errors
/// When cargo cannot be started.
pub(crate) fn lint(session: &mut Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let selections: [&[&str]; 2] = [
        &["--workspace", "--all-targets", "--all-features"],
        &["-p", "transload", "--lib", "--no-default-features"],
    ];
    for selection in selections {
        let mut cargo = session.workspace.cargo();
        cargo
            .arg("clippy")
            .args(selection)
            .args(["--", "-D", "warnings"]);
        verdict.run(&mut cargo)?;
    }
    for other in session.workspace.others()? {
        let mut cargo = other.task("clippy")?;
        cargo
            .args(["--workspace", "--all-targets", "--locked"])
            .args(["--", "-D", "warnings"]);
        verdict.run(&mut cargo)?;
    }
    Ok(verdict)
}

/// `cargo doc` of the libraries, without the programs: the program and the library are both called `transload`, and
/// would overwrite each other.
///
/// # Errors
/// When cargo cannot be started.
pub(crate) fn docs(session: &mut Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let mut cargo = documentation(&session.workspace)?;
    verdict.run(cargo.arg("--all-features"))?;
    for other in session.workspace.others()? {
        verdict.run(documentation(&other)?.arg("--locked"))?;
    }
    Ok(verdict)
}

fn documentation(workspace: &Workspace) -> Result<Command> {
    let mut cargo = workspace.task("doc")?;
    cargo.env("RUSTDOCFLAGS", "-D warnings");
    cargo.args(["--workspace", "--lib", "--no-deps"]);
    Ok(cargo)
}

/// `-p NAME` for each member: `--all` of cargo fmt would include path dependencies.
fn packages(workspace: &Workspace) -> impl Iterator<Item = &str> {
    let members = workspace.members.iter();
    members.flat_map(|package| ["-p", &package.name])
}

/// Facts about the machine for a reader of the results.
pub(crate) fn machine() -> Vec<String> {
    let mut found = Vec::new();
    let cores = thread::available_parallelism().map_or(0, usize::from);
    found.push(format!("{cores} cores"));
    for (program, argument) in [("rustc", "--version"), ("git", "--version")] {
        if let Some(version) = first_line(Command::new(program).arg(argument)) {
            found.push(version);
        }
    }
    found
}

/// The target that rustc builds for here.
///
/// # Errors
/// When rustc cannot be asked.
pub(crate) fn host() -> Result<String> {
    let said = output_of(Command::new("rustc").arg("-vV")).context("rustc does not run")?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV tells no host")?.to_owned())
}

/// The first line that `command` writes, when it succeeds.
pub(crate) fn first_line(command: &mut Command) -> Option<String> {
    let text = output_of(command)?;
    text.lines().next().map(str::to_owned)
}

/// All that `command` writes to its standard output, when it succeeds.
pub(crate) fn output_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = || String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then(text)
}
