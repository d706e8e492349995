//! The conformance suite of backends over this driver, in a process of its own: a crash or a hang there costs only that
//! process's time.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use transload_cuda::Cuda;
use transload_cuda::raw::Driver;
use transload_testkit::conformance::{self, Exceptions, Verdict};

use crate::contest::reason;
use crate::raw::facts;
use crate::raw::gpu::Gpu;
use crate::raw::harness::OfCuda;

/// The argument that makes this program that process.
pub(crate) const ARGUMENT: &str = "--conformance";

/// The time limit: the suite takes seconds over the double, and has not run over a GPU yet.
const LIMIT: Duration = Duration::from_secs(90);

/// Runs the suite over every device and prints the result.
pub(crate) fn run(driver: Driver) -> Result<()> {
    let devices = facts::devices(&driver)?;
    let ordinals = devices.iter().map(|device| device.ordinal);
    let gpus = ordinals.map(|ordinal| Gpu::open(&driver, ordinal));
    let harness = OfCuda {
        gpus: gpus.collect::<Result<_>>()?,
        cuda: Cuda::with_driver(driver)?,
    };
    let report = conformance::run(&harness, &Exceptions::none());
    let entries = report.entries().iter().filter_map(|entry| {
        let (how, why) = match &entry.verdict {
            Verdict::Skipped(why) => ("skipped", why),
            Verdict::Failed(why) => ("failed", why),
            _ => return None,
        };
        Some(json!({ "case": entry.case, "on": entry.subject, how: why }))
    });
    let told = json!({
        "passed": report.passed(),
        "skipped": report.skipped(),
        "failed": report.failures().count(),
        "entries": entries.collect::<Vec<_>>(),
    });
    println!("{told}");
    Ok(())
}

/// The result of the other process, or the reason why there is none.
pub(crate) fn ask(end: Instant) -> Value {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return json!({ "left_out": "no time is left" });
    }
    let answer = start().and_then(|child| hear(child, left.min(LIMIT)));
    answer.unwrap_or_else(|error| json!({ "not_run": reason(&error) }))
}

fn start() -> Result<Child> {
    Command::new(std::env::current_exe()?)
        .arg(ARGUMENT)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("it did not start")
}

fn hear(mut child: Child, limit: Duration) -> Result<Value> {
    let mut output = child.stdout.take().context("the child has an output")?;
    let (tell, told) = channel();
    // The thread ends with the child, which the code below kills or waits for.
    thread::spawn(move || {
        let mut text = String::new();
        let read = output.read_to_string(&mut text);
        tell.send(read.map(|_| text))
    });
    let text = told.recv_timeout(limit);
    if text.is_err() {
        // It may have ended just now.
        let _ = child.kill();
    }
    let status = child.wait()?;
    let Ok(text) = text else {
        bail!("it did not end within {:.0} s", limit.as_secs_f64());
    };
    if !status.success() {
        bail!("it ended with {status}");
    }
    Ok(serde_json::from_str(&text?)?)
}

/// Whether a case failed, or the suite did not finish.
pub(crate) fn is_broken(answer: &Value) -> bool {
    answer["left_out"].is_null() && answer["failed"] != 0
}
