//! What runs the tests: nextest, which gives each a process of its own and ends one that hangs.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::install::Installer;
use crate::tool::{Call, Recipe, Tool};
use crate::workspace::Workspace;

/// Nextest as it is installed here. `cargo test` is no stand-in for it: who tests over a double poses as one machine
/// for each process.
#[derive(Debug, Clone)]
pub(crate) struct Nextest {
    tool: Tool,
    /// The time limits, the same in every workspace.
    settings: PathBuf,
}

impl Nextest {
    /// What is found, or built, in that order.
    ///
    /// # Errors
    /// As [`Tool::provide`].
    pub(crate) fn provide(installer: &mut Installer, workspace: &Workspace) -> Result<Self> {
        Ok(Self {
            tool: Tool::provide(&NEXTEST, installer, workspace)?,
            settings: workspace.root.join(".config/nextest.toml"),
        })
    }

    /// As it calls itself.
    pub(crate) fn version(&self) -> &str {
        self.tool.version()
    }

    /// A call that runs tests of `workspace`: which, and what to show, is the caller's to add.
    ///
    /// # Errors
    /// As [`Workspace::arguments`].
    pub(crate) fn run(&self, workspace: &Workspace) -> Result<Command> {
        self.finish(self.tool.call(workspace), workspace)
    }

    /// The same where `cargo` builds, in its folder and with its environment.
    ///
    /// # Errors
    /// As [`Workspace::arguments`].
    pub(crate) fn run_for(&self, cargo: &Command, workspace: &Workspace) -> Result<Command> {
        self.finish(self.tool.call_for(cargo), workspace)
    }

    fn finish(&self, mut run: Command, workspace: &Workspace) -> Result<Command> {
        run.arg("run").args(workspace.arguments()?);
        run.args(["--no-fail-fast", "--config-file"])
            .arg(&self.settings);
        Ok(run)
    }
}

/// The newest that the oldest compiler of the workspace (`rust-version`) builds, without what updates it. Five
/// minutes on two cores.
const NEXTEST: Recipe = Recipe {
    package: "cargo-nextest",
    program: "cargo-nextest",
    call: Call::Cargo("nextest"),
    version: "0.9.128",
    locked: true,
    arguments: &["--no-default-features", "--features", "default-no-update"],
    settings: &[],
};
