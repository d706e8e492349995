//! The stages that are one task of cargo: format, lint, documentation, packages; and facts about the machine.

use std::iter;
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result};

use crate::process::{self, first_line, output_of};
use crate::stage::{COMMAND_LIMIT, Session, Verdict};
use crate::workspace::Workspace;

/// `cargo fmt --check`.
pub(crate) fn format(session: &Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    verdict.run(session.workspace.cargo().args(["fmt", "--all", "--check"]))?;
    let others = session.workspace.others()?;
    for other in others.iter().chain(&session.workspace.apart()?) {
        // `--all` would include path dependencies.
        let members = other.members.iter();
        let members = members.flat_map(|package| ["-p", &package.name]);
        verdict.run(other.cargo().args(["fmt", "--check"]).args(members))?;
    }
    Ok(verdict)
}

/// Clippy over everything, with all features and, for the library, without any: only the second run sees code behind
/// `not(feature)`.
pub(crate) fn lint(session: &Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let selections: [&[&str]; 2] = [
        &["--workspace", "--all-targets", "--all-features"],
        &["-p", "transload", "--lib", "--no-default-features"],
    ];
    for selection in selections {
        verdict.run(
            session
                .workspace
                .task("clippy")?
                .args(selection)
                .args(DENIED),
        )?;
    }
    for other in session.workspace.others()? {
        let all = ["--workspace", "--all-targets", "--locked"];
        verdict.run(other.task("clippy")?.args(all).args(DENIED))?;
    }
    Ok(verdict)
}

/// `cargo doc` of the libraries, without the programs: the program and the library are both called `transload`, and
/// would overwrite each other.
pub(crate) fn docs(session: &Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    // The double of Metal has the backend as it is there, under the same name: this system's goes over it.
    for other in session.workspace.others()? {
        verdict.run(documentation(&other)?.arg("--locked"))?;
    }
    let mut cargo = documentation(&session.workspace)?;
    verdict.run(cargo.arg("--all-features"))?;
    Ok(verdict)
}

fn documentation(workspace: &Workspace) -> Result<Command> {
    let mut cargo = workspace.task("doc")?;
    cargo.env("RUSTDOCFLAGS", "-D warnings");
    cargo.args(["--workspace", "--lib", "--no-deps"]);
    Ok(cargo)
}

/// Packs every published package for a registry.
pub(crate) fn package(session: &Session) -> Result<Verdict> {
    pack(&session.workspace, &["--no-verify"])
}

/// Packs them, and builds each from its package.
pub(crate) fn unpacked(session: &Session) -> Result<Verdict> {
    pack(&session.workspace, &[])
}

fn pack(workspace: &Workspace, arguments: &[&str]) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let pack = || {
        let mut cargo = workspace.cargo();
        cargo.args(["package", "--allow-dirty"]).args(arguments);
        cargo.args(workspace.select_published());
        cargo
    };
    // After a build all dependencies are downloaded. Without `--offline` cargo asks the registry for the project's own
    // packages, too.
    let mut finished = process::run(pack().arg("--offline"), COMMAND_LIMIT)?;
    if !finished.success() {
        finished = verdict.run(&mut pack())?;
    }
    if finished.output.contains("manifest has no ") {
        verdict.fail(&finished.output);
    }
    verdict.note = format!("{} packages", workspace.published().count());
    Ok(verdict)
}

/// Facts about the machine for a reader of the results.
pub(crate) fn machine() -> Vec<String> {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let version = |program: &str| first_line(Command::new(program).arg("--version"));
    let tools = ["rustc", "git"].into_iter().filter_map(version);
    iter::once(format!("{cores} cores")).chain(tools).collect()
}

/// The target that rustc builds for here.
pub(crate) fn host() -> Result<String> {
    let said = output_of(Command::new("rustc").arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV tells no host")?.to_owned())
}

pub(crate) const DENIED: [&str; 3] = ["--", "-D", "warnings"];
