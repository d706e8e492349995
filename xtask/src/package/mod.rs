//! Whether the packages could be published: what they say of themselves, what lies in them, and that
//! each builds from it.

mod about;
mod contents;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

pub(crate) use about::About;

use crate::process;
use crate::stage::{Session, Verdict};
use crate::workspace::{Package, Workspace};

/// Packs every package that is for publishing, as for a registry, and looks at what lies in it. Cargo takes those
/// that a package builds upon from among the packed ones.
///
/// # Errors
/// When cargo cannot be started.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let workspace = &session.workspace;
    let mut verdict = Verdict::passed();
    for member in &workspace.members {
        let folder = folder(member)?;
        let among_crates = workspace.relative(folder).starts_with(CRATES);
        if let Some(complaint) = misplaced(&member.name, member.about.is_published(), among_crates)
        {
            verdict.fail(&complaint);
        }
        if among_crates {
            for complaint in member.about.complaints(&member.name, folder) {
                verdict.fail(&complaint);
            }
        }
    }
    let mut files = 0;
    for member in published(workspace) {
        let mut cargo = workspace.cargo();
        cargo.args(["package", "--list", "--quiet", "--allow-dirty"]);
        cargo.args(["-p", &member.name]);
        let finished = verdict.run(&mut cargo)?;
        if finished.success() {
            let folder = folder(member)?;
            // Some are made by cargo, and lie nowhere.
            let length = |file| fs::metadata(folder.join(file)).map_or(0, |file| file.len());
            let lines = finished.output.lines();
            let list: Vec<_> = lines.map(|file| (file, length(file))).collect();
            files += list.len();
            for complaint in contents::complaints(&member.name, &list) {
                verdict.fail(&complaint);
            }
        }
    }
    pack(workspace, &mut verdict, &["--no-verify"])?;
    verdict.note = format!("{} packages, {files} files", published(workspace).count());
    Ok(verdict)
}

/// What is for publishing lies in one folder, and all that lies there is.
fn misplaced(name: &str, is_published: bool, among_crates: bool) -> Option<String> {
    match (is_published, among_crates) {
        (true, false) => Some(format!(
            "`{name}` does not lie in {CRATES}/, and does not say `publish = false`"
        )),
        (false, true) => Some(format!(
            "`{name}` lies in {CRATES}/, and is not for publishing"
        )),
        _ => None,
    }
}

/// Packs them again, and builds each from what was packed.
///
/// # Errors
/// As [`stage`].
pub(crate) fn build(session: &mut Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    pack(&session.workspace, &mut verdict, &[])?;
    Ok(verdict)
}

fn pack(workspace: &Workspace, verdict: &mut Verdict, arguments: &[&str]) -> Result<()> {
    let pack = || {
        let mut cargo = workspace.cargo();
        cargo.args(["package", "--allow-dirty"]).args(arguments);
        for member in published(workspace) {
            cargo.args(["-p", &member.name]);
        }
        cargo
    };
    // Where the workspace was built, all is here that cargo would ask crates.io for. It asks for our packages too, and
    // waits for each answer.
    if !process::run(pack().arg("--offline"), LIMIT)?.success() {
        verdict.run(&mut pack())?;
    }
    Ok(())
}

fn published(workspace: &Workspace) -> impl Iterator<Item = &Package> {
    let members = workspace.members.iter();
    members.filter(|member| member.about.is_published())
}

fn folder(member: &Package) -> Result<&Path> {
    let folder = member.manifest_path.parent();
    folder.with_context(|| format!("`{}` lies nowhere", member.name))
}

/// To build each of them, without anything that was built before, takes no more than the tests do.
const LIMIT: Duration = Duration::from_secs(25 * 60);

/// Where all packages lie that are for publishing, and no others.
const CRATES: &str = "crates";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_among_the_crates_is_published() {
        assert_eq!(misplaced("a", true, true), None);
        assert_eq!(misplaced("a", false, false), None);
        let told = |is_published| misplaced("a", is_published, !is_published).unwrap();
        assert!(told(true).contains("does not say `publish = false`"));
        assert!(told(false).contains("not for publishing"));
    }
}
