//! Tests whose requirements are absent on this machine.
//!
//! The test runners know only passed and failed tests. A test that can show nothing on this machine (without huge
//! pages, for example) therefore appends a line `NAME: REASON` to the file of the variable `TRANSLOAD_SKIPS`, and
//! returns. The stage then counts it as skipped and not as passed.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::counts::Counts;

/// The file that the tests of one stage write to.
#[derive(Debug)]
pub(crate) struct Skips {
    file: PathBuf,
}

impl Skips {
    /// An empty file in the folder `target`, for the stage `name`.
    ///
    /// # Errors
    /// When what an earlier run left cannot be removed.
    pub(crate) fn new(target: &Path, name: &str) -> Result<Self> {
        let file = target.join(format!("skips-{name}.txt"));
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", file.display()))
            }
            _ => Ok(Self { file }),
        }
    }

    /// Passes the file to the tests that `command` runs.
    pub(crate) fn tell(&self, command: &mut Command) {
        command.env(VARIABLE, &self.file);
    }

    /// The lines written, each once, moved in `counts` from passed to skipped.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub(crate) fn settle(&self, counts: &mut Counts) -> Result<Vec<String>> {
        let text = match fs::read_to_string(&self.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            other => other.with_context(|| format!("cannot read {}", self.file.display()))?,
        };
        let lines: BTreeSet<String> = text.lines().map(str::to_owned).collect();
        let skipped = lines.len() as u64;
        counts.passed = counts.passed.saturating_sub(skipped);
        counts.skipped += skipped;
        Ok(lines.into_iter().collect())
    }
}

const VARIABLE: &str = "TRANSLOAD_SKIPS";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_skipped_is_not_counted_as_passed() {
        let name = format!("test-{}", std::process::id());
        let skips = Skips::new(&std::env::temp_dir(), &name).unwrap();
        let mut counts = Counts {
            passed: 5,
            failed: 1,
            skipped: 0,
        };
        assert!(skips.settle(&mut counts).unwrap().is_empty());

        fs::write(&skips.file, "pages::huge: none\nlinks: none\nlinks: none\n").unwrap();
        let lines = skips.settle(&mut counts).unwrap();
        assert_eq!(lines, ["links: none", "pages::huge: none"]);
        assert_eq!(
            counts,
            Counts {
                passed: 3,
                failed: 1,
                skipped: 2
            }
        );

        let fresh = Skips::new(&std::env::temp_dir(), &name).unwrap();
        assert!(fresh.settle(&mut counts).unwrap().is_empty());
    }
}
