//! Trying one sentinel: green without it, red with it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::patch::Sentinel;
use super::tree::Tree;
use crate::cargo::cargo_in;
use crate::counts::failed_tests;
use crate::doubles::bindings::{self, METAL};
use crate::process::{self, Ending, Limit};

/// A copy of the tree and a target folder, shared by all trials.
#[derive(Debug)]
pub(crate) struct Laboratory {
    tree: Tree,
    target: PathBuf,
    /// The result of each command without any patch: tried once.
    unpatched: BTreeMap<Vec<String>, Run>,
}

/// The result of a sentinel. Only `Red` is good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trial {
    /// The named tests failed, and maybe others.
    Red { failed: usize },
    /// The patch does not fit the tree.
    DoesNotApply { output: String },
    /// The tests are not green without the patch.
    NotGreenBefore { output: String },
    /// With the patch, the tests do not compile.
    DoesNotCompile { output: String },
    /// With the patch, the tests did not end in time.
    Hung,
    /// With the patch, these tests still pass, or do not run.
    Survived { tests: Vec<String> },
}

impl Trial {
    /// A few words for a table.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Red { failed } => format!("red, {failed} failed"),
            Self::DoesNotApply { .. } => "DOES NOT APPLY".into(),
            Self::NotGreenBefore { .. } => "NOT GREEN BEFORE".into(),
            Self::DoesNotCompile { .. } => "DOES NOT COMPILE".into(),
            Self::Hung => "HUNG".into(),
            Self::Survived { tests } => format!("NOT RED: {}", tests.join(", ")),
        }
    }

    /// The output of the tools, if it helps to correct the sentinel.
    pub(crate) fn evidence(&self) -> Option<&str> {
        match self {
            Self::DoesNotApply { output }
            | Self::NotGreenBefore { output }
            | Self::DoesNotCompile { output } => Some(output),
            _ => None,
        }
    }
}

/// One run of a sentinel's command.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Run {
    Green,
    Red { failed: Vec<String>, output: String },
    DoesNotCompile { output: String },
    Hung,
}

impl Laboratory {
    /// Copies the tree at `original` into `folder`.
    pub(crate) fn new(original: &Path, folder: &Path) -> Result<Self> {
        Ok(Self {
            tree: Tree::new(original, folder.join("tree"))?,
            target: folder.join("target"),
            unpatched: BTreeMap::new(),
        })
    }

    /// Tries `sentinel`, and leaves the copy as it was.
    ///
    /// # Errors
    /// When git or cargo cannot be started, or the copy cannot be restored.
    pub(crate) fn try_one(&mut self, sentinel: &Sentinel) -> Result<Trial> {
        let before = match self.unpatched.get(&sentinel.command) {
            Some(run) => run.clone(),
            None => self.run(&sentinel.command)?,
        };
        self.unpatched
            .insert(sentinel.command.clone(), before.clone());
        let output = match before {
            Run::Green => None,
            Run::Red { output, .. } | Run::DoesNotCompile { output } => Some(output),
            Run::Hung => Some("the tests do not end".into()),
        };
        if let Some(output) = output {
            return Ok(Trial::NotGreenBefore { output });
        }
        if let Err(error) = self.tree.apply(sentinel) {
            let output = format!("{error:#}");
            return Ok(Trial::DoesNotApply { output });
        }
        let after = self.run(&sentinel.command);
        self.tree.restore()?;
        Ok(judge(sentinel, after?))
    }

    fn run(&self, arguments: &[String]) -> Result<Run> {
        let options = arguments.iter().position(|word| word == "--");
        let (cargo_words, test_words) = arguments.split_at(options.unwrap_or(arguments.len()));
        let mut build = self.cargo(cargo_words)?;
        let built = process::run(build.arg("--no-run"), BUILD_LIMIT)?;
        if !built.success() {
            let output = built.output;
            return Ok(Run::DoesNotCompile { output });
        }
        let mut tests = self.cargo(cargo_words)?;
        tests.arg("--no-fail-fast").args(test_words);
        let ran = process::run(&mut tests, TEST_LIMIT)?;
        Ok(match ran.ending {
            Ending::Success => Run::Green,
            Ending::Killed(_) => Run::Hung,
            Ending::Failure(_) => Run::Red {
                failed: failed_tests(&ran.output),
                output: ran.output,
            },
        })
    }

    /// A call with `words`, and with the arguments that cargo needs if they name the double of Metal.
    fn cargo(&self, words: &[String]) -> Result<Command> {
        let mut cargo = cargo_in(self.tree.folder());
        cargo.env("CARGO_TARGET_DIR", &self.target).args(words);
        if words.iter().any(|word| word.starts_with(METAL)) {
            let folder = self.tree.folder();
            cargo.args(bindings::arguments(folder, &self.target.join(METAL))?);
        }
        Ok(cargo)
    }
}

/// Red counts only when every test that the sentinel names is among the
/// failed.
fn judge(sentinel: &Sentinel, after: Run) -> Trial {
    let failed = match after {
        Run::Green => Vec::new(),
        Run::Red { failed, .. } => failed,
        Run::Hung => return Trial::Hung,
        Run::DoesNotCompile { output } => return Trial::DoesNotCompile { output },
    };
    let mut tests = sentinel.red.clone();
    tests.retain(|name| !failed.contains(name));
    match failed.len() {
        failed if tests.is_empty() => Trial::Red { failed },
        _ => Trial::Survived { tests },
    }
}

/// A cold build of the packages that one sentinel tests.
const BUILD_LIMIT: Limit = Limit::minutes(30);

/// The tests that sentinels name take seconds; a broken wait never ends, unless the test gives it up after five minutes.
const TEST_LIMIT: Limit = Limit {
    busy: Duration::from_secs(6 * 60),
    idle: Duration::from_secs(7 * 60),
};

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::files;
    use crate::process::output_of;

    /// A small git checkout with one package: `add` and its test.
    struct Checkout(TempDir);

    impl Checkout {
        fn new() -> Self {
            let checkout = Self(tempfile::tempdir().unwrap());
            checkout.write("Cargo.toml", MANIFEST);
            checkout.write("src/lib.rs", LIBRARY);
            checkout.write(".gitignore", "/lab\n/Cargo.lock\n");
            let mut git = Command::new("git");
            output_of(git.args(["init", "-q"]).current_dir(&checkout.0)).unwrap();
            checkout
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.path().join(name);
            files::write(&path, text).unwrap();
            path
        }

        fn read(&self, name: &str) -> String {
            files::read(&self.0.path().join(name)).unwrap()
        }

        fn laboratory(&self) -> Laboratory {
            Laboratory::new(self.0.path(), &self.0.path().join("lab")).unwrap()
        }

        /// A sentinel that replaces the line `a + b`.
        fn sentinel(&self, line: &str, red: &str) -> Sentinel {
            let patch = format!(
                "# breaks: addition\n# command: test --lib\n# red: {red}\n\
                 --- a/src/lib.rs\n+++ b/src/lib.rs\n@@ -1,3 +1,3 @@\n \
                 pub fn add(a: u32, b: u32) -> u32 {{\n-    a + b\n+    {line}\n }}\n"
            );
            Sentinel::load(&self.write("sentinels/addition.patch", &patch)).unwrap()
        }
    }

    fn survived(test: &str) -> Trial {
        let tests = vec![test.to_owned()];
        Trial::Survived { tests }
    }

    #[test]
    fn a_sentinel_is_tried_green_then_red_and_the_tree_is_restored() {
        let checkout = Checkout::new();
        let mut laboratory = checkout.laboratory();
        let mut result = |line, red| laboratory.try_one(&checkout.sentinel(line, red)).unwrap();
        assert_eq!(result("a * b", "adds"), Trial::Red { failed: 1 });
        // The same laboratory: each next trial starts from the whole tree.
        assert_eq!(result("b + a", "adds"), survived("adds"));
        assert_eq!(result("a * b", "keeps_zero"), survived("keeps_zero"));
        let broken = result("a +", "adds");
        assert!(matches!(broken, Trial::DoesNotCompile { .. }), "{broken:?}");
        assert_eq!(checkout.read("lab/tree/src/lib.rs"), LIBRARY);
        assert_eq!(checkout.read("src/lib.rs"), LIBRARY);
    }

    #[test]
    fn a_patch_that_does_not_fit_is_told() {
        let checkout = Checkout::new();
        let sentinel = checkout.sentinel("a * b", "adds");
        checkout.write("src/lib.rs", &LIBRARY.replace("a + b", "b + a"));
        let result = checkout.laboratory().try_one(&sentinel).unwrap();
        assert!(matches!(result, Trial::DoesNotApply { .. }), "{result:?}");
    }

    #[test]
    fn tests_that_are_red_anyway_prove_nothing() {
        let checkout = Checkout::new();
        let sentinel = checkout.sentinel("a * b", "adds");
        checkout.write("src/lib.rs", &LIBRARY.replace("a + b\n", "a - b\n"));
        let result = checkout.laboratory().try_one(&sentinel).unwrap();
        assert!(matches!(result, Trial::NotGreenBefore { .. }), "{result:?}");
    }

    const MANIFEST: &str = "\
[package]
name = \"addition\"
version = \"0.0.0\"
edition = \"2021\"

[workspace]
";

    const LIBRARY: &str = "\
pub fn add(a: u32, b: u32) -> u32 {
    a + b
}

#[test]
fn adds() {
    assert_eq!(add(2, 3), 5);
}

#[test]
fn keeps_zero() {
    assert_eq!(add(0, 0), 0);
}
";
}
