//! From the arguments to the file and the exit code.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, ensure};
use clap::Parser;
use serde_json::Value;
use transload_cuda::raw::Driver;

use crate::case::Session;
use crate::cases;
use crate::conformance;
use crate::contest::reason;
use crate::document::Document;
use crate::engine;
use crate::machine::{Machine, commit};
use crate::raw::facts::{self, DriverFacts};
use crate::raw::gpu::Gpu;
use crate::rivals::{Rivals, neither};
use crate::table;

/// Measures copies on an NVIDIA GPU and writes one JSON file.
#[derive(Debug, Parser)]
#[command(name = "transload-gpu-bench")]
struct Arguments {
    /// The file to write
    #[arg(long, value_name = "FILE", default_value = "gpu.json")]
    json: PathBuf,
    /// Small sizes and few samples, to see that all of it works; the figures mean nothing
    #[arg(long)]
    quick: bool,
    /// Seconds after which nothing is begun any more; what that leaves out is written as skipped
    #[arg(long, value_name = "SECONDS", default_value_t = 440.0)]
    limit: f64,
    /// The device to measure, by its ordinal
    #[arg(long, default_value_t = 0)]
    device: i32,
    /// Only the cases whose names begin so
    #[arg(long, value_name = "BEGINNING", default_value = "")]
    case: String,
    /// Leaves PyTorch and CuPy out
    #[arg(long)]
    alone: bool,
    /// Only runs the conformance suite and prints what came of it
    #[arg(long, hide = true)]
    conformance: bool,
}

/// Arguments that can be parsed but are not valid together.
#[derive(Debug)]
struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Exit codes, as of the program `transload`.
const USAGE: u8 = 2;
const NO_DEVICE: u8 = 3;
const BYTES_DIFFER: u8 = 4;
const DEVICE_FAILED: u8 = 5;

/// The part of the time that one case may take: the largest, of 4 GiB with all contenders, takes about a minute if the
/// host's memory is copied at 8 GB/s.
const CASE_SHARE: u32 = 5;

const DOUBLE: &str = "The driver is a double: nothing ran on a GPU, and every time is modelled.";
const QUICK: &str = "A quick run: the figures mean nothing.";

pub(crate) fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let begin = Instant::now();
    let opened = open(&arguments);
    let measured = match opened {
        Ok((driver, gpu)) if arguments.conformance => {
            drop(gpu);
            return match conformance::run(driver) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => failed(&error, ExitCode::from(DEVICE_FAILED)),
            };
        }
        Ok((driver, gpu)) => measure(&arguments, &driver, gpu, begin),
        Err(error) => return failed(&error, ExitCode::from(NO_DEVICE)),
    };
    match measured {
        Ok(document) => verdict(&document),
        Err(error) if error.is::<Usage>() => failed(&error, ExitCode::from(USAGE)),
        Err(error) => failed(&error, ExitCode::FAILURE),
    }
}

fn failed(error: &Error, code: ExitCode) -> ExitCode {
    eprintln!("error: {}", reason(error));
    code
}

/// Opens the driver and the device, or returns the reason why not.
fn open(arguments: &Arguments) -> Result<(Driver, Arc<Gpu>)> {
    // The error's own text already contains those of its causes.
    let driver = Driver::load().map_err(|error| anyhow!("{error}"))?;
    facts::initialise(&driver).context("the CUDA driver does not start")?;
    let count = facts::count(&driver)?;
    ensure!(
        (0..count).contains(&arguments.device),
        "there is no device {}: the driver has {count}, from 0 on",
        arguments.device
    );
    let gpu = Gpu::open(&driver, arguments.device)?;
    Ok((driver, gpu))
}

/// The next device, if there is one. The first one's context stays current on this thread.
fn beside(driver: &Driver, gpu: &Gpu) -> Result<Option<Arc<Gpu>>> {
    let count = facts::count(driver)?;
    let next = (gpu.device.0 + 1) % count.max(1);
    if next == gpu.device.0 {
        return Ok(None);
    }
    let other = Gpu::open(driver, next)?;
    gpu.enter()?;
    Ok(Some(other))
}

fn measure(
    arguments: &Arguments,
    driver: &Driver,
    gpu: Arc<Gpu>,
    begin: Instant,
) -> Result<Document> {
    let limit = Duration::try_from_secs_f64(arguments.limit)
        .map_err(|error| Usage(format!("--limit {}: {error}", arguments.limit)))?;
    let end = begin + limit;
    let (rivals, roll) = if arguments.alone {
        (None, neither("left out by --alone"))
    } else {
        Rivals::start(arguments.device, end)
    };
    let double = driver.is_stand_in();
    let told = [(double, DOUBLE), (arguments.quick, QUICK)].into_iter();
    let warnings: Vec<_> = told
        .filter_map(|(holds, text)| holds.then_some(text))
        .collect();
    for warning in &warnings {
        eprintln!("{warning}");
    }
    // The suite runs before this process allocates memory that it might lack, and only when all cases run.
    let conformance = match arguments.case.as_str() {
        "" => conformance::ask(end),
        _ => Value::Null,
    };
    let (parties, probe) = match engine::parties(&gpu, arguments.quick, end) {
        Ok((parties, probe)) => (Ok(parties), probe),
        Err(error) => (Err(reason(&error)), Vec::new()),
    };
    let mut document = Document {
        schema: 1,
        complete: false,
        quick: arguments.quick,
        double,
        warnings,
        commit: commit(),
        limit_s: limit.as_secs_f64(),
        took_s: 0.0,
        machine: Machine::describe(),
        driver: DriverFacts::of(driver),
        device: arguments.device,
        devices: facts::devices(driver)?,
        rivals: roll.clone(),
        probe,
        conformance,
        results: Vec::new(),
    };
    let session = Session {
        other: beside(driver, &gpu)?,
        gpu,
        quick: arguments.quick,
        end,
        share: limit / CASE_SHARE,
        rivals,
        roll,
        parties,
    };
    let mut cases = cases::all(&session);
    let kinds: BTreeSet<String> = cases.iter().map(|case| kind(&case.name)).collect();
    cases.retain(|case| case.name.starts_with(&arguments.case));
    if cases.is_empty() {
        let asked = &arguments.case;
        let kinds = Vec::from_iter(kinds).join(", ");
        return Err(Usage(format!("no case begins with `{asked}`; there are {kinds}")).into());
    }
    for case in cases {
        eprintln!("{:6.1} s  {}", begin.elapsed().as_secs_f64(), case.name);
        let outcome = case.run(&session);
        document.results.push(outcome);
        document.took_s = begin.elapsed().as_secs_f64();
        document.write(&arguments.json)?;
    }
    // All device resources are freed before the document says that it is complete.
    drop(session);
    document.complete = true;
    document.took_s = begin.elapsed().as_secs_f64();
    document.write(&arguments.json)?;
    Ok(document)
}

/// The beginning of a case's name, before the size.
fn kind(name: &str) -> String {
    name.split('/').next().unwrap_or(name).to_owned()
}

/// Prints the table, and returns the exit code.
fn verdict(document: &Document) -> ExitCode {
    table::print(document);
    let contestants = || document.results.iter().flat_map(|of| &of.contestants);
    if contestants().any(|of| of.is_wrong()) {
        return ExitCode::from(BYTES_DIFFER);
    }
    let suite = &document.conformance;
    let broken = !suite.is_null() && conformance::is_broken(suite);
    let broken = broken || document.results.iter().any(|of| of.failed.is_some());
    if broken || contestants().any(|of| of.failed.is_some()) {
        return ExitCode::from(DEVICE_FAILED);
    }
    ExitCode::SUCCESS
}
