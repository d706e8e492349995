//! Every test that exists, by asking the test programs themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::workspace::{Workspace, forget_outer_cargo};

/// Test names by suite. A suite is one test program, called as nextest calls
/// it: `package` for the unit tests of a library, `package::file` for an
/// integration test, `package::bin/name` for a program's unit tests.
#[derive(Debug, Default)]
pub(crate) struct TestList {
    suites: BTreeMap<String, BTreeSet<String>>,
    /// The programs that tests start, which are built on the way.
    programs: BTreeMap<String, PathBuf>,
}

impl TestList {
    /// Builds all test programs with all features, those of the doubles too, and asks each for its list.
    ///
    /// # Errors
    /// When they do not build, or one cannot be asked.
    pub(crate) fn load(workspace: &Workspace) -> Result<Self> {
        let mut list = Self::default();
        list.add(workspace)?;
        for double in workspace.doubles()? {
            list.add(&double)?;
        }
        Ok(list)
    }

    fn add(&mut self, workspace: &Workspace) -> Result<()> {
        let mut cargo = workspace.task("test")?;
        cargo.args([
            "--workspace",
            "--all-features",
            "--lib",
            "--bins",
            "--tests",
        ]);
        cargo.args(["--no-run", "--quiet", "--message-format", "json"]);
        let output = cargo
            .stdin(Stdio::null())
            .output()
            .context("cannot run cargo")?;
        ensure!(
            output.status.success(),
            "the tests do not build:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(artifact) = serde_json::from_str::<Artifact>(line) else {
                continue;
            };
            let Some(program) = artifact.executable else {
                continue;
            };
            if !artifact.profile.test {
                self.programs.insert(artifact.target.name, program);
                continue;
            }
            let package = workspace
                .members
                .iter()
                .find(|package| package.id == artifact.package_id);
            if let Some(package) = package {
                let suite = suite_name(&package.name, &artifact.target.kind, &artifact.target.name);
                self.suites.insert(suite, tests_of(&program)?);
            }
        }
        Ok(())
    }

    /// The tests of `suite` that `pattern` names: a whole name, or the
    /// beginning of names followed by `*`.
    pub(crate) fn matching(&self, suite: &str, pattern: &str) -> Vec<&str> {
        let Some(tests) = self.suites.get(suite) else {
            return Vec::new();
        };
        let named = |test: &&String| match pattern.strip_suffix('*') {
            Some(beginning) => test.starts_with(beginning),
            None => *test == pattern,
        };
        tests.iter().filter(named).map(String::as_str).collect()
    }

    /// A call of the program `name`, which tests start.
    ///
    /// # Errors
    /// When no test does.
    pub(crate) fn program(&self, name: &str) -> Result<Command> {
        let program = self.programs.get(name);
        let program = program.with_context(|| format!("no test starts the program {name}"))?;
        let mut call = Command::new(program);
        forget_outer_cargo(&mut call);
        Ok(call)
    }

    /// Names of suites, for a message.
    pub(crate) fn suites(&self) -> impl Iterator<Item = &str> {
        self.suites.keys().map(String::as_str)
    }

    /// A list made by hand.
    #[cfg(test)]
    pub(crate) fn of(suite: &str, tests: &[&str]) -> Self {
        let tests = tests.iter().map(|&test| test.to_owned()).collect();
        Self {
            suites: BTreeMap::from([(suite.to_owned(), tests)]),
            programs: BTreeMap::new(),
        }
    }
}

/// The arguments of `cargo test` that select `suite`.
pub(crate) fn selection(suite: &str) -> Vec<String> {
    let (package, rest) = suite.split_once("::").unwrap_or((suite, ""));
    let mut words = vec!["-p".to_owned(), package.to_owned()];
    if rest.is_empty() {
        words.push("--lib".to_owned());
    } else if let Some(program) = rest.strip_prefix("bin/") {
        words.extend(["--bin".to_owned(), program.to_owned()]);
    } else {
        words.extend(["--test".to_owned(), rest.to_owned()]);
    }
    words
}

fn suite_name(package: &str, kinds: &[String], target: &str) -> String {
    let is = |kind: &str| kinds.iter().any(|other| other == kind);
    if is("bin") {
        format!("{package}::bin/{target}")
    } else if is("test") {
        format!("{package}::{target}")
    } else {
        package.to_owned()
    }
}

fn tests_of(program: &PathBuf) -> Result<BTreeSet<String>> {
    let mut command = Command::new(program);
    forget_outer_cargo(&mut command);
    let output = command
        .args(["--list", "--format", "terse"])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot ask {} for its tests", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .map(str::to_owned)
        .collect())
}

#[derive(Deserialize)]
struct Artifact {
    package_id: String,
    target: ArtifactTarget,
    profile: ArtifactProfile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct ArtifactTarget {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct ArtifactProfile {
    test: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_called_as_nextest_calls_them() {
        let name = |kind: &str| suite_name("transload", &[kind.to_owned()], "faults");
        assert_eq!(name("lib"), "transload");
        assert_eq!(name("test"), "transload::faults");
        assert_eq!(name("bin"), "transload::bin/faults");
    }

    #[test]
    fn a_suite_is_selected_in_cargo() {
        assert_eq!(selection("transload"), ["-p", "transload", "--lib"]);
        assert_eq!(
            selection("transload::faults"),
            ["-p", "transload", "--test", "faults"]
        );
        assert_eq!(selection("a::bin/b"), ["-p", "a", "--bin", "b"]);
    }

    #[test]
    fn names_match_whole_or_by_their_beginning() {
        let list = TestList::of("a", &["x::one", "x::two", "y::one"]);
        assert_eq!(list.matching("a", "x::one"), ["x::one"]);
        assert_eq!(list.matching("a", "x::*"), ["x::one", "x::two"]);
        assert!(list.matching("a", "x::").is_empty());
        assert!(list.matching("b", "x::one").is_empty());
    }
}
