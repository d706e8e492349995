//! The program that the demo shows.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::process;
use crate::vulkan::Drivers;
use crate::workspace::Workspace;

/// The program, as the demo runs it.
pub(super) struct Program<'a> {
    pub(super) path: PathBuf,
    pub(super) workspace: &'a Workspace,
    /// Software adapters, where there is no GPU.
    pub(super) drivers: Option<Drivers>,
}

impl Program<'_> {
    /// A command that runs the program.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.workspace.root).args(arguments);
        if let Some(drivers) = &self.drivers {
            drivers.tell(&mut command);
        }
        // Replaces the user's own profile: the demo leaves nothing outside `target`.
        command.env(PROFILE, self.workspace.relative(&self.profile()));
        command
    }

    /// The path of the profile that it measures, for the commands that follow.
    pub(super) fn profile(&self) -> PathBuf {
        self.workspace.target.join("demo").join("profile.toml")
    }

    /// The variables that a user would set in a shell, with paths from the root of the repository, where the program
    /// runs.
    pub(super) fn variables(&self) -> Vec<String> {
        let root = format!("{}/", self.workspace.root.display());
        let drivers = self.drivers.as_ref().and_then(Drivers::variable);
        let profile = format!("{PROFILE}={}", self.profile().display());
        let variables = drivers.into_iter().chain([profile]);
        variables
            .map(|variable| variable.replace(&root, ""))
            .collect()
    }

    /// Runs the program on this terminal, after printing the line that a user would type. The user has set the variable
    /// of the drivers before.
    pub(super) fn show(&self, arguments: &[&str]) -> Result<()> {
        println!("\n$ transload {}", arguments.join(" "));
        process::show(&mut self.command(arguments))
    }
}

/// The variable with the path of the program's profile.
const PROFILE: &str = "TRANSLOAD_PROFILE";
