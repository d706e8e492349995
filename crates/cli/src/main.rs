//! The program `transload`: shows the devices of a machine, moves a file through its memories, and
//! explains which way bytes would go.
//!
//! Each command does its work first, through the library, and then says what happened: a table for
//! people, or with `--json` one object for programs (`docs/json.md`). What goes wrong is a
//! [`failure::Failure`], and its kind is the exit code.

#![forbid(unsafe_code)]

mod arguments;
mod copy;
mod costs;
mod devices;
mod explain;
mod failure;
mod inspect;
mod interrupt;
mod json;
mod last_word;
mod load;
mod machine;
mod markup;
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    path = "nodes/absent.rs"
)]
mod nodes;
mod output;
mod output_file;
mod page;
mod probe;
mod progress;
mod scale;
mod stop;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use arguments::{Arguments, Command};
use costs::Wanted;
use failure::Failure;
use machine::Asked;
use nodes::Nodes;
use output::Output;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    interrupt::watch(arguments.json);
    let mut output = Output::new(arguments.json);
    let wanted = Wanted::of(arguments.profile.as_deref());
    let done = Nodes::of(&arguments).and_then(|nodes| {
        let asked = Asked::new(wanted, &nodes);
        run(&arguments.command, asked, &mut output)
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            failure.kind().into()
        }
    }
}

fn run(command: &Command, asked: Asked<'_>, output: &mut Output) -> Result<(), Failure> {
    match command {
        Command::Devices(options) => devices::run(options, asked, output),
        Command::Copy(options) => copy::run(options, asked, output),
        Command::Explain(options) => explain::run(options, asked, output),
        Command::Probe(options) => probe::run(options, asked, output),
        Command::Load(options) => load::run(options, asked, output),
        Command::Inspect { model } => inspect::run(model, output),
        Command::Key { file } => nodes::key(file, output),
        Command::Serve(options) => nodes::serve(options, asked, output),
        Command::Completions { shell } => completions(*shell, output),
    }
}

/// Answers arguments that could not be read, and requests for help.
fn refuse(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        // A reader that closed the pipe has read enough of the help.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let failure = Failure::Arguments(error.render().to_string());
    if arguments::asks_for_json(std::env::args_os()) {
        Output::new(true).failure(&failure);
    } else {
        let _ = error.print();
    }
    failure.kind().into()
}

fn completions(shell: clap_complete::Shell, output: &mut Output) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "transload", &mut script);
    let script = String::from_utf8_lossy(&script);
    if output.is_json() {
        return output.json(&json::Completions {
            shell: shell.to_string(),
            script: script.into_owned(),
        });
    }
    output.text(&script)
}
