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
mod help;
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
mod shown;
mod standard;
mod stop;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::error::{ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

use arguments::{Arguments, Command};
use costs::Wanted;
use failure::Failure;
use machine::Asked;
use nodes::Nodes;
use output::{Form, Output};
use shown::Shown;

fn main() -> ExitCode {
    let matches = help::command().try_get_matches();
    let arguments = match matches.and_then(|found| Arguments::from_arg_matches(&found)) {
        Ok(arguments) => arguments,
        Err(error) => return refuse(error),
    };
    let form = Form {
        json: arguments.json,
        aside: arguments.command.writes_standard_output(),
    };
    interrupt::watch(form);
    let mut output = Output::new(form);
    let machine = arguments.command.machine();
    let costs = Wanted::of(machine.and_then(|options| options.profile.as_deref()));
    let places = arguments.command.places();
    let done = Nodes::of(&arguments.command).and_then(|nodes| {
        let asked = Asked {
            costs,
            nodes: &nodes,
            places: places.as_deref(),
        };
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
fn refuse(mut error: clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        let form = Form {
            json: false,
            aside: false,
        };
        let mut output = Output::new(form);
        let text = error.render();
        let text = match output.style().is_plain() {
            true => text.to_string(),
            false => text.ansi().to_string(),
        };
        // A reader that closed the pipe has read enough of the help.
        let _ = output.line(help::fitted(&text));
        return ExitCode::SUCCESS;
    }
    // What was typed is on one line then, and the lines are the parser's.
    let typed: Vec<_> = error
        .context()
        .map(|(kind, value)| (kind, value.clone()))
        .collect();
    for (kind, value) in typed {
        let shown = match value {
            ContextValue::String(text) => ContextValue::String(Shown(text).to_string()),
            ContextValue::StyledStrs(tips) => {
                let shown = tips.iter().map(|tip| Shown(tip).to_string().into());
                ContextValue::StyledStrs(shown.collect())
            }
            other => other,
        };
        error.insert(kind, shown);
    }
    let text = error.render().to_string();
    let failure = Failure::Arguments(text.clone());
    let form = Form {
        json: arguments::asks_for_json(std::env::args_os()),
        aside: false,
    };
    let mut output = Output::new(form);
    match form.json {
        true => output.failure(&failure),
        false => {
            let lines = text.lines().map(|line| Shown(line).to_string());
            let text = lines.collect::<Vec<_>>().join("\n");
            match text.strip_prefix("error: ") {
                Some(text) => output.error(text),
                // The help, where no command was typed.
                None => drop(writeln!(io::stderr(), "{}", help::fitted(&text))),
            }
        }
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
