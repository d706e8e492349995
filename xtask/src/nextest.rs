//! What runs the tests: nextest, which gives each a process of its own and ends one that hangs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::checks::first_line;
use crate::install::Installer;
use crate::process;
use crate::workspace::{Workspace, cargo_in};

/// Nextest as it is installed here. `cargo test` is no stand-in for it: who tests over a double poses as one machine
/// for each process.
#[derive(Debug, Clone)]
pub(crate) struct Nextest {
    version: String,
    /// The program, where cargo does not find it by itself.
    program: Option<PathBuf>,
    /// The time limits, the same in every workspace.
    settings: PathBuf,
}

impl Nextest {
    /// The nextest that cargo finds, else the one in the target folder of `workspace`, which is built when it is not
    /// there.
    ///
    /// # Errors
    /// When it can be neither found nor built.
    pub(crate) fn provide(installer: &mut Installer, workspace: &Workspace) -> Result<Self> {
        let found = |program: Option<PathBuf>| {
            let settings = workspace.root.join(".config/nextest.toml");
            let mut nextest = Self {
                version: String::new(),
                program,
                settings,
            };
            nextest.version = first_line(nextest.call(workspace).arg("--version"))?;
            Some(nextest)
        };
        if let Some(nextest) = found(None) {
            return Ok(nextest);
        }
        let folder = workspace.target.join("tools");
        let program = folder.join("bin/cargo-nextest");
        if let Some(nextest) = found(Some(program.clone())) {
            return Ok(nextest);
        }
        build(&folder)?;
        installer.note(format!("cargo-nextest {BUILT} (cargo install)"));
        match found(Some(program)) {
            Some(nextest) => Ok(nextest),
            None => bail!("cargo install reported success, and cargo-nextest does not run"),
        }
    }

    /// As it calls itself.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// A call that runs tests of `workspace`: which, and what to show, is the caller's to add.
    ///
    /// # Errors
    /// As [`Workspace::arguments`].
    pub(crate) fn run(&self, workspace: &Workspace) -> Result<Command> {
        let mut run = self.call(workspace);
        run.arg("run").args(workspace.arguments()?);
        run.args(["--no-fail-fast", "--config-file"])
            .arg(&self.settings);
        Ok(run)
    }

    fn call(&self, workspace: &Workspace) -> Command {
        let mut call = match &self.program {
            Some(program) => workspace.call(program),
            None => workspace.cargo(),
        };
        call.arg("nextest");
        call
    }
}

/// Builds nextest from its sources, without what updates it.
fn build(folder: &Path) -> Result<()> {
    println!("   building cargo-nextest {BUILT}, which is not installed: minutes, and once ...");
    let mut install = cargo_in(Path::new("."));
    install
        .args(["install", "cargo-nextest", "--locked", "--version", BUILT])
        .args(["--no-default-features", "--features", "default-no-update"])
        .arg("--root")
        .arg(folder)
        .env("CARGO_TARGET_DIR", folder.join("build"));
    let built = process::run(&mut install, LIMIT)?;
    // The objects serve nobody any more. What stays is in the way of nothing.
    let _ = std::fs::remove_dir_all(folder.join("build"));
    if !built.success() {
        bail!(
            "the tests are run by cargo-nextest, which cannot be built here:\n{}\n\
             install it, and try again",
            built.output
        );
    }
    Ok(())
}

/// The newest that the oldest compiler of the workspace (`rust-version`) builds.
const BUILT: &str = "0.9.128";

/// Five minutes on two cores.
const LIMIT: Duration = Duration::from_secs(30 * 60);
