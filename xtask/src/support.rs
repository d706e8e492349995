//! The README's table of targets: what a run of the tests did for each, as it saw it.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::cross;
use crate::no_std;
use crate::stage::{Outcome, Session, Verdict};
use crate::workspace::Workspace;

/// What the stages of one run did for each target, in their order.
#[derive(Debug, Default)]
pub(crate) struct Support {
    seen: Vec<(&'static str, String)>,
    /// Why this run cannot have seen all.
    lacks: Option<String>,
}

impl Support {
    /// Notes that `what` was done for `target`, and went well.
    pub(crate) fn saw(&mut self, target: &'static str, what: impl Into<String>) {
        self.seen.push((target, what.into()));
    }

    /// Notes that something was left out on this machine, which others have.
    pub(crate) fn lacked(&mut self, reason: impl Into<String>) {
        self.lacks.get_or_insert(reason.into());
    }

    fn of(&self, target: &str) -> Vec<&str> {
        let seen = self.seen.iter().filter(|(of, _)| *of == target);
        seen.map(|(_, what)| what.as_str()).collect()
    }
}

/// Compares the README's table with what this run saw. Only a run of all stages on x86-64 Linux, in which none that
/// has a part in the table was left out or failed, can say anything.
///
/// # Errors
/// When a file cannot be read or written, or cargo cannot be started.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    for part in PARTS {
        match session.endings.iter().find(|(stage, _)| *stage == part) {
            Some((_, Outcome::Passed)) => {}
            Some((_, Outcome::Skipped(_))) => {
                return Ok(Verdict::skipped(format!("the stage {part} was skipped")));
            }
            Some((_, Outcome::Failed)) => {
                return Ok(Verdict::skipped(format!("the stage {part} failed")));
            }
            None => return Ok(Verdict::skipped(format!("the stage {part} did not run"))),
        }
    }
    if let Some(reason) = &session.support.lacks {
        return Ok(Verdict::skipped(reason.clone()));
    }
    let seen = table(session)?;
    let mut verdict = Verdict::passed();
    let readme = fs::read_to_string(readme(&session.workspace)).context("cannot read README.md")?;
    if within(&readme)? != seen {
        let file = kept(&session.workspace);
        fs::write(&file, &seen)?;
        verdict.fail(&format!(
            "README.md says otherwise than this run saw:\n{seen}`cargo xtask support` puts that in its place"
        ));
    }
    Ok(verdict)
}

/// `cargo xtask support`: puts the table of the last run that differed into the README.
///
/// # Errors
/// When no run has left one, or the README has no place for it.
pub(crate) fn accept(workspace: &Workspace) -> Result<()> {
    let kept = kept(workspace);
    let seen = match fs::read_to_string(&kept) {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "there is nothing to put into README.md: only a run of the whole `cargo xtask test` that found its table to \
             differ leaves another one"
        ),
        seen => seen.with_context(|| format!("cannot read {}", kept.display()))?,
    };
    let path = readme(workspace);
    let readme = fs::read_to_string(&path)?;
    let old = within(&readme)?;
    fs::write(&path, readme.replacen(old, &seen, 1))?;
    fs::remove_file(kept)?;
    println!("README.md has the table now.");
    Ok(())
}

fn table(session: &Session) -> Result<String> {
    let mut text =
        String::from("| target | memories | shown by `cargo xtask test` |\n|---|---|---|\n");
    let hosted = [HERE].into_iter().chain(cross::TARGETS);
    let targets = hosted.map(|target| (target, true));
    for (target, has_system) in targets.chain(no_std::TARGETS.map(|target| (target, false))) {
        let memories = if has_system {
            memories(&session.workspace, target)?
        } else {
            "your own backends".to_owned()
        };
        let shown = session.support.of(target).join("; ");
        text += &format!("| `{target}` | {memories} | {shown} |\n");
    }
    Ok(text)
}

/// The backends that the library has for `target`, as cargo resolves it.
fn memories(workspace: &Workspace, target: &str) -> Result<String> {
    let mut cargo = workspace.cargo();
    cargo
        .args(["tree", "-p", "transload", "--all-features", "--target"])
        .args([target, "--edges", "normal", "--depth", "1"])
        .args(["--prefix", "none", "--format", "{p}"]);
    let output = cargo.output().context("cannot run cargo tree")?;
    if !output.status.success() {
        bail!(
            "cargo tree failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let tree = String::from_utf8_lossy(&output.stdout);
    let has = |(package, _): &(&str, &str)| {
        tree.lines()
            .any(|line| line.split(' ').next() == Some(package))
    };
    // It compiles, and there is no driver: CUDA 10.2 was the last for macOS (NVIDIA, release notes of CUDA 11.0).
    let can_be =
        |(package, _): &(&str, &str)| *package != "transload-cuda" || !target.contains("-apple-");
    let names: Vec<&str> = BACKENDS
        .into_iter()
        .filter(has)
        .filter(can_be)
        .map(|(_, name)| name)
        .collect();
    Ok(names.join(", "))
}

/// The table in the README, without the lines around it.
fn within(readme: &str) -> Result<&str> {
    let place = readme
        .split_once(BEGIN)
        .and_then(|(_, rest)| rest.split_once(END));
    let (table, _) = place.with_context(|| format!("README.md has no {BEGIN:?} before {END:?}"))?;
    Ok(table)
}

fn readme(workspace: &Workspace) -> PathBuf {
    workspace.root.join("README.md")
}

fn kept(workspace: &Workspace) -> PathBuf {
    workspace.target.join("support.md")
}

const BEGIN: &str = "<!-- support -->\n";
const END: &str = "<!-- /support -->\n";

/// Where the tests themselves run.
pub(crate) const HERE: &str = "x86_64-unknown-linux-gnu";

/// The stages that put something into the table.
const PARTS: [&str; 5] = ["tests", "no_std", "cross", "wine", "doubles"];

const BACKENDS: [(&str, &str); 4] = [
    ("transload-host", "host"),
    ("transload-wgpu", "wgpu"),
    ("transload-cuda", "CUDA"),
    ("transload-metal", "Metal"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_found_between_its_marks() {
        let readme = format!("a\n{BEGIN}| x |\n{END}b\n");
        assert_eq!(within(&readme).unwrap(), "| x |\n");
        assert!(within("a\nb\n").is_err());
    }

    #[test]
    fn who_accepts_a_table_that_no_run_has_left_is_told_where_it_comes_from() {
        let mut workspace = Workspace::load().unwrap();
        workspace.target = workspace.target.join("no run was here");
        let error = accept(&workspace).unwrap_err().to_string();
        assert!(error.contains("`cargo xtask test`"), "{error}");
        assert!(!error.contains("os error"), "{error}");
    }

    #[test]
    fn a_target_has_what_was_seen_of_it_in_order() {
        let mut support = Support::default();
        support.saw("a", "linted");
        support.saw("b", "built");
        support.saw("a", "tested");
        assert_eq!(support.of("a"), ["linted", "tested"]);
        assert!(support.of("c").is_empty());
    }
}
