//! How long the double takes to build where nothing was built before.

use std::fs;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Double;
use crate::stage::Verdict;

impl Double {
    /// Builds it once more in an empty target folder, and gives the time. What is to be downloaded is
    /// fetched before.
    ///
    /// # Errors
    /// When cargo cannot be started, or the folder cannot be emptied.
    pub(super) fn build_cold(&self, verdict: &mut Verdict) -> Result<Duration> {
        let mut fetch = self.workspace.task("fetch")?;
        verdict.run(fetch.arg("--locked"))?;
        let folder = self.workspace.target.join("cold");
        let empty = || match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", folder.display()))
            }
            _ => Ok(()),
        };
        empty()?;
        let mut build = self.workspace.task("build")?;
        build.env("CARGO_TARGET_DIR", &folder);
        build.args(["--lib", "--locked", "--offline"]);
        let start = Instant::now();
        verdict.run(&mut build)?;
        let elapsed = start.elapsed();
        empty()?;
        Ok(elapsed)
    }
}
