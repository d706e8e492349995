//! Runs each test in a process of its own, several at a time. Tests over a double need that: a process has one machine.
//!
//! Cargo starts this program in the place of each test program (`CARGO_TARGET_*_RUNNER`).

use std::collections::VecDeque;
use std::env;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::checks::host;
use crate::process::{self, Ending, Limit, output_of, seconds};
use crate::stage::lock;
use crate::targets::variable;
use crate::workspace::Workspace;

/// A call that runs tests of `workspace`. The caller adds the selection.
pub(crate) fn tests(workspace: &Workspace) -> Result<Command> {
    let mut cargo = workspace.task("test")?;
    cargo.arg("--no-fail-fast");
    run_by_this_program(&mut cargo, &host()?)?;
    Ok(cargo)
}

/// Makes `cargo` start this program in the place of programs for `target`.
pub(crate) fn run_by_this_program(cargo: &mut Command, target: &str) -> Result<()> {
    let runner = variable(target, "RUNNER");
    cargo
        .env(&runner, env::current_exe()?)
        .env(STANDING_IN, runner);
    Ok(())
}

/// Runs the tests of a program, if cargo started this one in its place: `None` if it did not.
pub(crate) fn stand_in_for_tests() -> Option<Result<bool>> {
    let runner = env::var(STANDING_IN).ok()?;
    let mut words = env::args_os().skip(1);
    let program = words.next()?;
    let words: Vec<OsString> = words.collect();
    Some(run(&|| {
        let mut call = Command::new(&program);
        call.args(&words)
            .env_remove(STANDING_IN)
            .env_remove(&runner);
        call
    }))
}

/// The results of the tests so far.
#[derive(Default)]
struct Ended {
    passed: usize,
    failed: Vec<String>,
}

fn run(program: &(dyn Fn() -> Command + Sync)) -> Result<bool> {
    let list = output_of(program().args(["--list", "--format", "terse"]));
    let list = list.context("the test program does not list its tests")?;
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    let (alone, beside): (Vec<&str>, Vec<&str>) =
        names.partition(|name| ALONE.iter().any(|alone| name.ends_with(alone)));
    let ended = Mutex::new(Ended::default());
    let start = Instant::now();
    // Many tests wait for a while.
    let threads = 2 * thread::available_parallelism().map_or(1, usize::from);
    for (threads, limit, names) in [(threads, LIMIT, beside), (1, LIMIT_ALONE, alone)] {
        let names = Mutex::new(VecDeque::from(names));
        // No loop holds the lock while its test runs.
        let next = || lock(&names).pop_front();
        thread::scope(|scope| {
            let serve = || {
                while let Some(name) = next() {
                    run_one(program(), name, limit, &ended)?;
                }
                Ok::<(), anyhow::Error>(())
            };
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(serve)).collect();
            let mut ends = all.into_iter().map(ScopedJoinHandle::join);
            ends.try_for_each(|end| end.unwrap_or_else(|panic| resume_unwind(panic)))
        })?;
    }
    let Ended { passed, failed } = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!(
        "test result: {}. {passed} passed; {} failed; 0 ignored; finished in {}",
        if failed.is_empty() { "ok" } else { "FAILED" },
        failed.len(),
        seconds(start.elapsed()),
    );
    Ok(failed.is_empty())
}

fn run_one(mut test: Command, name: &str, limit: Limit, ended: &Mutex<Ended>) -> Result<()> {
    let start = Instant::now();
    let finished = process::run(test.args(["--exact", name, "--test-threads=1"]), limit)?;
    note_times(&test, name, finished.busy, start.elapsed())?;
    let mut ended = lock(ended);
    // A program that ends well without having run its test has lost it.
    if finished.success() && finished.output.contains("test result: ok. 1 passed") {
        ended.passed += 1;
        if finished.busy > SLOW {
            println!("slow: {name} ({})", seconds(finished.busy));
        }
        return Ok(());
    }
    let how = match finished.ending {
        Ending::Killed(why) => format!("killed: {why}"),
        ending => format!("{ending:?}"),
    };
    // In the words of libtest, by which failed tests are found. What the test's own process said is indented, as it is not to
    // be counted again.
    println!("test {name} ... FAILED\n    ({how})");
    for line in finished.output.trim().lines() {
        println!("    {line}");
    }
    ended.failed.push(name.to_owned());
    Ok(())
}

/// Appends what a test took, in seconds of the processors and of the clock, to the file that `TIMES` names.
fn note_times(test: &Command, name: &str, busy: Duration, clock: Duration) -> Result<()> {
    let Some(path) = env::var_os(TIMES) else {
        return Ok(());
    };
    let program = Path::new(test.get_program()).file_stem();
    let program = program.unwrap_or_default().display();
    let [busy, clock] = [busy, clock].map(|time| time.as_secs_f64());
    let line = format!("{busy:.2}\t{clock:.2}\t{program}\t{name}\n");
    let file = OpenOptions::new().append(true).create(true).open(&path);
    let wrote = file.and_then(|mut file| file.write_all(line.as_bytes()));
    wrote.with_context(|| format!("cannot write {}", Path::new(&path).display()))
}

/// Names the variable of the runner to the program that stands in for test programs.
const STANDING_IN: &str = "TRANSLOAD_XTASK_RUNS_TESTS";

/// Names the file of the times of tests.
pub(crate) const TIMES: &str = "TRANSLOAD_TEST_TIMES";

/// A test that hangs fails long before the run's own limit.
const LIMIT: Limit = Limit {
    busy: Duration::from_secs(300),
    idle: Duration::from_secs(120),
};

/// A test that uses more of the processors is named.
const SLOW: Duration = Duration::from_secs(30);

/// Tests of several threads that run for as long as `TRANSLOAD_DIFFERENTIAL_SECONDS` says, and have a watchdog of their own.
const ALONE: [&str; 2] = [
    "everything_at_once_agrees_with_plain_arrays",
    "short_writes_to_mapped_memory_leave_their_words_alone",
];
const LIMIT_ALONE: Limit = Limit {
    busy: Duration::from_secs(24 * 3600),
    // Longer than the watchdog's, which says more.
    idle: Duration::from_secs(600),
};
