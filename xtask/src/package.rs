//! The stages that pack the packages for a registry.

use std::time::Duration;

use anyhow::Result;

use crate::process;
use crate::stage::{Session, Verdict};
use crate::workspace::Workspace;

/// Packs every published package.
///
/// # Errors
/// When cargo cannot be started.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    pack(&session.workspace, &["--no-verify"])
}

/// Packs them, and builds each from its package.
///
/// # Errors
/// As [`stage`].
pub(crate) fn build(session: &mut Session) -> Result<Verdict> {
    pack(&session.workspace, &[])
}

fn pack(workspace: &Workspace, arguments: &[&str]) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let published = || {
        workspace
            .members
            .iter()
            .filter(|member| member.is_published())
    };
    let pack = || {
        let mut cargo = workspace.cargo();
        cargo.args(["package", "--allow-dirty"]).args(arguments);
        for member in published() {
            cargo.args(["-p", &member.name]);
        }
        cargo
    };
    // After a build all dependencies are downloaded. Without `--offline` cargo asks the registry for the project's own
    // packages, too.
    let mut finished = process::run(pack().arg("--offline"), LIMIT)?;
    if !finished.success() {
        finished = verdict.run(&mut pack())?;
    }
    if finished.output.contains("manifest has no ") {
        verdict.fail(&finished.output);
    }
    verdict.note = format!("{} packages", published().count());
    Ok(verdict)
}

/// The longest time that the tests take.
const LIMIT: Duration = Duration::from_secs(25 * 60);
