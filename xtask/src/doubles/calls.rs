//! The stage that compares the functions of the driver that the tests call with the binding.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::stage::{Outcome, Session, Verdict};
use crate::{clients, doubles, files};

/// Compares the functions that the tests of the double and of its clients called with those of the binding. Runs these
/// tests first if this run has not done so already.
pub(crate) fn stage(session: &Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let stages: [(_, fn(&Session) -> _); 2] =
        [("doubles", doubles::stage), ("clients", clients::stage)];
    for (name, run) in stages {
        if !session.calls().contains_key(name) {
            let ran = run(session)?;
            verdict.counts += ran.counts;
            if ran.outcome == Outcome::Failed {
                verdict.fail(&ran.transcript);
            }
        }
        if !session.calls().contains_key(name) {
            let reason = format!("the stage {name} did not run to its end");
            return Ok(Verdict::skipped(reason));
        }
    }
    let mut called = BTreeSet::new();
    for calls in session.calls().values() {
        called.extend(calls.names()?);
    }
    let bound = bound(&session.workspace.root)?;
    let unused = unused(&session.workspace.root)?;
    for complaint in complaints(&bound, &called, &unused) {
        verdict.fail(complaint);
    }
    verdict.note = format!(
        "{} of {} functions called, {} listed as unused",
        bound.intersection(&called).count(),
        bound.len(),
        unused.len()
    );
    Ok(verdict)
}

/// The functions of the binding that no test calls, each with the reason.
fn unused(root: &Path) -> Result<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Unused {
        unused: BTreeMap<String, String>,
    }
    let text = files::read(&root.join(UNUSED))?;
    let list: Unused = toml::from_str(&text).with_context(|| format!("cannot read {UNUSED}"))?;
    Ok(list.unused)
}

fn complaints(
    bound: &BTreeSet<String>,
    called: &BTreeSet<String>,
    unused: &BTreeMap<String, String>,
) -> Vec<String> {
    let untold = |name: &&String| !unused.contains_key(*name);
    let untold = bound.difference(called).filter(untold);
    let mut complaints: Vec<String> = untold
        .map(|name| format!("no test calls {name}, and {UNUSED} does not list it"))
        .collect();
    for (function, reason) in unused {
        if !bound.contains(function) {
            let why = "which the binding does not have";
            complaints.push(format!("{UNUSED} lists {function}, {why}"));
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
fn bound(root: &Path) -> Result<BTreeSet<String>> {
    let text = files::read(&root.join(LIST))?;
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
        let owned = |&(name, reason): &(&str, &str)| (name.into(), reason.into());
        entries.iter().map(owned).collect()
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
        let root = crate::workspace::Workspace::load().unwrap().root;
        let bound = bound(&root).unwrap();
        assert!(bound.len() > 100 && bound.contains("cuInit"), "{bound:?}");
        unused(&root).unwrap();
    }
}
