//! The functions of the driver that the tests call, and the stage that compares them with the binding.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::Double;
use crate::stage::{Outcome, Session, Verdict};
use crate::workspace::Workspace;
use crate::{clients, doubles};

/// A folder into which each process that used the double writes the names of the functions that it called.
#[derive(Debug)]
pub(crate) struct Calls {
    folder: PathBuf,
}

impl Calls {
    /// An empty folder for the stage `name`.
    ///
    /// # Errors
    /// When what an earlier run left cannot be removed.
    pub(crate) fn new(double: &Double, name: &str) -> Result<Self> {
        let folder = double.workspace.target.join("calls").join(name);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", folder.display()));
            }
            _ => {}
        }
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// Passes the folder to the double that `command` uses.
    pub(crate) fn tell(&self, command: &mut Command) {
        command.env("TRANSLOAD_DOUBLE_CALLS", &self.folder);
    }

    fn names(&self) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        let entries = fs::read_dir(&self.folder);
        for entry in entries.with_context(|| format!("cannot list {}", self.folder.display()))? {
            let path = entry?.path();
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            names.extend(text.lines().map(str::to_owned));
        }
        Ok(names)
    }
}

/// Compares the functions that the tests of the double and of its clients called with those of the binding. Runs these
/// tests first if this run has not done so already.
///
/// # Errors
/// When a stage that is run for it cannot be, or a list cannot be read.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    for (name, run) in [
        ("doubles", doubles::stage as Run),
        ("clients", clients::stage),
    ] {
        if !session.calls.contains_key(name) {
            let ran = run(session)?;
            verdict.counts += ran.counts;
            match ran.outcome {
                Outcome::Skipped(reason) => return Ok(Verdict::skipped(reason)),
                Outcome::Failed => verdict.fail(&ran.transcript),
                Outcome::Passed => {}
            }
        }
        if !session.calls.contains_key(name) {
            return Ok(Verdict::skipped(format!(
                "the stage {name} did not run to its end"
            )));
        }
    }
    let mut called = BTreeSet::new();
    for calls in session.calls.values() {
        called.extend(calls.names()?);
    }
    let bound = bound(&session.workspace)?;
    let path = session.workspace.root.join(UNUSED);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {UNUSED}"))?;
    let unused: Unused = toml::from_str(&text).with_context(|| format!("cannot read {UNUSED}"))?;
    for complaint in complaints(&bound, &called, &unused.unused) {
        verdict.fail(&complaint);
    }
    verdict.note = format!(
        "{} of {} functions called, {} listed as unused",
        bound.intersection(&called).count(),
        bound.len(),
        unused.unused.len()
    );
    Ok(verdict)
}

type Run = fn(&mut Session) -> Result<Verdict>;

/// The functions of the binding that no test calls, each with the reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unused {
    unused: BTreeMap<String, String>,
}

fn complaints(
    bound: &BTreeSet<String>,
    called: &BTreeSet<String>,
    unused: &BTreeMap<String, String>,
) -> Vec<String> {
    let mut complaints = Vec::new();
    for function in bound
        .difference(called)
        .filter(|name| !unused.contains_key(*name))
    {
        complaints.push(format!(
            "no test calls {function}, and {UNUSED} does not list it"
        ));
    }
    for (function, reason) in unused {
        if !bound.contains(function) {
            complaints.push(format!(
                "{UNUSED} lists {function}, which the binding does not have"
            ));
        } else if called.contains(function) {
            complaints.push(format!("{UNUSED} lists {function}, which a test calls"));
        }
        if reason.trim().is_empty() {
            complaints.push(format!("{UNUSED} gives no reason for {function}"));
        }
    }
    complaints
}

/// The functions that the binding has: `name(argument: type, ...) since;` in its list.
fn bound(workspace: &Workspace) -> Result<BTreeSet<String>> {
    let path = workspace.root.join(LIST);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {LIST}"))?;
    let lines = text.lines().map(str::trim);
    let functions = lines.filter(|line| line.starts_with("cu") && line.ends_with(';'));
    let names = functions.filter_map(|line| Some(line.split_once('(')?.0.to_owned()));
    let names: BTreeSet<String> = names.collect();
    ensure!(!names.is_empty(), "{LIST} lists no function");
    Ok(names)
}

const LIST: &str = "crates/backends/cuda/src/raw/functions.rs";
const UNUSED: &str = "doubles/cuda-driver/unused.toml";

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn list(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        let entries = entries.iter();
        entries
            .map(|&(name, reason)| (name.into(), reason.into()))
            .collect()
    }

    #[test]
    fn every_function_is_called_or_listed_with_a_reason() {
        let bound = set(&["cuInit", "cuNever"]);
        let called = set(&["cuInit"]);
        assert!(complaints(&bound, &called, &list(&[("cuNever", "Windows")])).is_empty());
        let told = complaints(&bound, &called, &list(&[]));
        assert_eq!(
            told,
            ["no test calls cuNever, and doubles/cuda-driver/unused.toml does not list it"]
        );
    }

    #[test]
    fn a_list_that_is_no_longer_true_is_told() {
        let bound = set(&["cuInit", "cuNever"]);
        let unused = list(&[("cuInit", "why"), ("cuNever", " "), ("cuOther", "why")]);
        let told = complaints(&bound, &set(&["cuInit"]), &unused);
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].ends_with("lists cuInit, which a test calls"));
        assert!(told[1].ends_with("gives no reason for cuNever"));
        assert!(told[2].ends_with("lists cuOther, which the binding does not have"));
    }

    #[test]
    fn the_functions_of_this_very_tree_are_read() {
        let bound = bound(&Workspace::load().unwrap()).unwrap();
        assert!(bound.len() > 100 && bound.contains("cuInit"), "{bound:?}");
        let path = Workspace::load().unwrap().root.join(UNUSED);
        let text = fs::read_to_string(path).unwrap();
        toml::from_str::<Unused>(&text).unwrap();
    }
}
