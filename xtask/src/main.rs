//! The project's own tasks, run as `cargo xtask TASK`.
//!
//! `test` is the one command that decides whether the tree is good: continuous integration runs exactly it. The other
//! tasks are parts of it that run alone (`sentinels`, `doubles`, `public-api`), and tasks for developers (`demo`,
//! `integrations`, `bench`, `size`).

#![forbid(unsafe_code)]

mod bench;
mod browser;
mod cargo;
mod checks;
mod clients;
mod counts;
mod cross;
mod demo;
mod deny;
mod doubles;
mod files;
mod habits;
mod install;
mod integrations;
mod manifests;
mod process;
mod python;
mod runner;
mod sanitizers;
mod sentinels;
mod size;
mod stage;
mod suites;
mod surface;
mod table;
mod targets;
mod test;
mod tool;
mod venv;
mod versions;
mod vulkan;
mod wine;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

fn main() -> ExitCode {
    let standing_in = surface::stand_in_for_rustdoc().or_else(runner::stand_in_for_tests);
    let answer = standing_in.unwrap_or_else(|| {
        let arguments = Arguments::parse();
        let workspace = Workspace::load()?;
        match arguments.task {
            Task::Test(options) => Ok(test::run(workspace, &options)),
            Task::Sentinels(options) => sentinels::run(&workspace, &options),
            Task::Doubles(options) => doubles::run(&workspace, &options),
            Task::PublicApi(options) => surface::run(&workspace, &options),
            Task::Demo(options) => demo::run(&workspace, &options),
            Task::Integrations => integrations::run(&workspace),
            Task::Bench(options) => bench::run(&workspace, &options),
            Task::Size => size::run(&workspace),
        }
    });
    match answer {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The tasks of the Transload project.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// The checks and tests of the project; what continuous integration runs
    #[command(after_help = test::INSTALLS)]
    Test(test::Options),
    /// Breaks a copy of the tree on purpose and proves that tests turn red
    Sentinels(sentinels::Options),
    /// Builds what stands in for drivers of hardware, and prints NAME: PATH of each library, or of what cargo is given
    Doubles(doubles::Options),
    /// Compares what the libraries show to programs with the files in docs/public-api
    PublicApi(surface::Options),
    /// Moves a real model file through this machine's memories and adapters
    Demo(demo::Options),
    /// Tests the adapters for frameworks, and compares their loads of a real model with the frameworks' own
    Integrations,
    /// Builds the benchmarks in release and hands the arguments on to them
    Bench(bench::Options),
    /// Measures what each feature adds to a program, and writes docs/size.md; takes 20 minutes of a processor
    Size,
}
