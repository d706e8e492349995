//! `cargo xtask bench`: the benchmarks, always built in release, with the lines that a profiler shows.

use anyhow::{Context, Result};
use clap::Args;

use crate::vulkan::Drivers;
use crate::workspace::Workspace;

/// What to hand on.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Handed to the benchmarks as they are; `--help` tells what they take
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    arguments: Vec<String>,
}

/// Builds the benchmarks and runs them on this terminal. Says whether they
/// succeeded.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    let mut cargo = workspace.cargo();
    // Software adapters take part where `cargo xtask test` has provided them.
    Drivers::present(&workspace.target).tell(&mut cargo);
    cargo.args(["run", "--profile", "bench", "-p", "transload-bench", "--"]);
    let status = cargo.args(&options.arguments).status();
    Ok(status.context("cannot run cargo")?.success())
}
