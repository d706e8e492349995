//! What the stages of `cargo xtask test` share: the state of one run, and the result of a stage.
//!
//! A stage is a function from [`Session`] to [`Verdict`]. An error fails it as well: a command that cannot be started, a
//! file that cannot be read or written. [`Absent`](crate::install::Absent) alone skips it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;

use crate::counts::Counts;
use crate::files;
use crate::install::Installer;
use crate::process::{self, Ending, Finished, Limit};
use crate::workspace::Workspace;

/// The runs that include a stage. Each stage also runs when it is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// Every run.
    Quick,
    /// Runs with `--all`, and with `--rest`.
    All,
    /// Runs with `--full`.
    Full,
}

/// The shared state of the stages of one run.
pub(crate) struct Session {
    pub(crate) workspace: Workspace,
    installer: Mutex<Installer>,
    found: Mutex<Vec<String>>,
    skipped: Mutex<Vec<String>>,
    calls: Mutex<BTreeMap<&'static str, Calls>>,
}

impl Session {
    /// The state before the first stage.
    pub(crate) fn new(workspace: Workspace) -> Self {
        Self {
            workspace,
            installer: Mutex::default(),
            found: Mutex::default(),
            skipped: Mutex::default(),
            calls: Mutex::default(),
        }
    }

    /// What installs: one stage at a time.
    pub(crate) fn installer(&self) -> MutexGuard<'_, Installer> {
        lock(&self.installer)
    }

    /// The functions of the CUDA driver that were called, by the stage whose tests did so.
    pub(crate) fn calls(&self) -> MutexGuard<'_, BTreeMap<&'static str, Calls>> {
        lock(&self.calls)
    }

    /// Runs tests as [`Verdict::run_tests`] does, and counts those as skipped whose requirements are absent here.
    ///
    /// The test runners know only passed and failed tests. A test that can show nothing on this machine (without huge
    /// pages, for example) therefore appends a line `NAME: REASON` to the file of the variable `TRANSLOAD_SKIPS`, and
    /// returns.
    pub(crate) fn run_tests(&self, verdict: &mut Verdict, tests: &mut Command) -> Result<Counts> {
        let file = tempfile::NamedTempFile::new()?.into_temp_path();
        let mut counts = verdict.run_tests(tests.env("TRANSLOAD_SKIPS", &file))?;
        let text = files::read(&file)?;
        let lines: BTreeSet<&str> = text.lines().collect();
        let skipped = lines.len() as u64;
        for counts in [&mut counts, &mut verdict.counts] {
            counts.passed = counts.passed.saturating_sub(skipped);
            counts.skipped += skipped;
        }
        lines.into_iter().for_each(|line| self.skip(line));
        Ok(counts)
    }

    /// Notes a tool for the closing summary, once.
    pub(crate) fn note_found(&self, tool: impl Into<String>) {
        note(&self.found, tool.into());
    }

    /// Notes what was skipped and why, for the closing summary, once.
    pub(crate) fn skip(&self, what: impl Into<String>) {
        note(&self.skipped, what.into());
    }

    /// The tools that stages found.
    pub(crate) fn found(&self) -> MutexGuard<'_, Vec<String>> {
        lock(&self.found)
    }

    /// The tests that showed nothing here, with their reasons.
    pub(crate) fn skipped(&self) -> MutexGuard<'_, Vec<String>> {
        lock(&self.skipped)
    }
}

fn note(notes: &Mutex<Vec<String>>, line: String) {
    let mut notes = lock(notes);
    if !notes.contains(&line) {
        notes.push(line);
    }
}

/// What the mutex holds: a thread that panicked with it has left a line too few at most.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder into which each process that used the double writes the names of the functions that it called.
#[derive(Debug)]
pub(crate) struct Calls {
    folder: PathBuf,
}

impl Calls {
    /// An empty folder for the stage `name`, below the target folder of the double.
    ///
    /// # Errors
    /// When what an earlier run left cannot be removed.
    pub(crate) fn new(workspace: &Workspace, name: &str) -> Result<Self> {
        let folder = workspace.target.join("calls").join(name);
        files::remove(&folder)?;
        files::make(&folder)?;
        Ok(Self { folder })
    }

    /// Passes the folder to the double that `command` uses.
    pub(crate) fn tell(&self, command: &mut Command) {
        command.env("TRANSLOAD_DOUBLE_CALLS", &self.folder);
    }

    /// Those names.
    pub(crate) fn names(&self) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for path in files::entries(&self.folder)? {
            names.extend(files::read(&path)?.lines().map(str::to_owned));
        }
        Ok(names)
    }
}

/// The result of a stage, and its output.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) outcome: Outcome,
    pub(crate) counts: Counts,
    /// A few words for the closing table.
    pub(crate) note: String,
    /// The commands with their output: shown when the stage failed.
    pub(crate) transcript: String,
}

/// The three ways in which a stage ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// The stage ran nothing, for this reason.
    Skipped(String),
}

impl Verdict {
    /// A verdict that holds until something fails.
    pub(crate) fn passed() -> Self {
        Self {
            outcome: Outcome::Passed,
            counts: Counts::default(),
            note: String::new(),
            transcript: String::new(),
        }
    }

    /// The stage ran nothing, for `reason`.
    pub(crate) fn skipped(reason: impl Into<String>) -> Self {
        Self {
            outcome: Outcome::Skipped(reason.into()),
            ..Self::passed()
        }
    }

    /// Adds a sentence to the transcript and fails the stage.
    pub(crate) fn fail(&mut self, why: impl AsRef<str>) {
        let _ = writeln!(self.transcript, "{}", why.as_ref());
        self.outcome = Outcome::Failed;
    }

    /// Runs `command`, keeps its output, fails the stage when it fails.
    ///
    /// # Errors
    /// When the command cannot be started.
    pub(crate) fn run(&mut self, command: &mut Command) -> Result<Finished> {
        let finished = self.record(command)?;
        match &finished.ending {
            Ending::Success => {}
            Ending::Failure(Some(code)) => self.fail(format!("exit code {code}")),
            Ending::Failure(None) => self.fail("ended by a signal"),
            Ending::Killed(why) => self.fail(format!("killed: {why}")),
        }
        Ok(finished)
    }

    /// Runs `command`, which has a deliberate fault: fails the stage unless the command fails and prints `words`.
    pub(crate) fn run_guilty(&mut self, command: &mut Command, words: &str) -> Result<()> {
        let finished = self.record(command)?;
        if finished.success() || !finished.output.contains(words) {
            self.fail(format!("it has a fault, and nothing said `{words}`"));
        }
        Ok(())
    }

    /// As [`Verdict::run`], and counts the tests in the output: a command without any fails the stage. A runner that
    /// failed without naming a failed test (a build error) counts none: the stage itself then counts as failed.
    pub(crate) fn run_tests(&mut self, command: &mut Command) -> Result<Counts> {
        let finished = self.run(command)?;
        let counts = Counts::read(&finished.output);
        if finished.success() && counts.ran() == 0 {
            self.fail("no test ran");
        }
        self.counts += counts;
        Ok(counts)
    }

    fn record(&mut self, command: &mut Command) -> Result<Finished> {
        let _ = writeln!(self.transcript, "$ {}", process::describe(command));
        let finished = process::run(command, COMMAND_LIMIT)?;
        self.transcript.push_str(&finished.output);
        Ok(finished)
    }
}

/// No single command of the run computes nearly this long. A test that hangs ends sooner, by the limit of the runner
/// (`runner.rs`) or of pytest (`python/pyproject.toml`); what neither runs ends by this one.
pub(crate) const COMMAND_LIMIT: Limit = Limit::minutes(180);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guilty_program_must_be_told_for_what_it_is() {
        let outcome = |script: &str| {
            let mut verdict = Verdict::passed();
            let mut shell = Command::new("sh");
            shell.args(["-c", script]);
            verdict.run_guilty(&mut shell, "data race").unwrap();
            verdict.outcome
        };
        assert_eq!(outcome("echo a data race; exit 1"), Outcome::Passed);
        assert_eq!(outcome("echo a data race"), Outcome::Failed);
        assert_eq!(outcome("echo linking failed; exit 1"), Outcome::Failed);
    }

    #[test]
    fn tests_of_which_none_ran_fail_the_stage() {
        let outcome = |script: &str| {
            let mut verdict = Verdict::passed();
            verdict
                .run_tests(Command::new("sh").args(["-c", script]))
                .unwrap();
            verdict.outcome
        };
        assert_eq!(
            outcome("echo 'test result: ok. 1 passed; 0 failed'"),
            Outcome::Passed
        );
        assert_eq!(
            outcome("echo 'test result: ok. 0 passed; 0 failed'"),
            Outcome::Failed
        );
    }

    #[test]
    fn a_test_that_skipped_is_not_counted_as_passed() {
        let target = tempfile::tempdir().unwrap();
        let mut workspace = Workspace::load().unwrap();
        workspace.target = target.path().to_path_buf();
        let session = Session::new(workspace);
        let mut verdict = Verdict::passed();
        let mut run = |script: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("echo 'test result: ok. 5 passed'; {script}")]);
            let counts = session.run_tests(&mut verdict, &mut shell).unwrap();
            (counts.passed, counts.skipped)
        };
        assert_eq!(run(":"), (5, 0));
        let lines = "pages::huge: none\nlinks: none\nlinks: none\n";
        let skip = format!("printf '{lines}' > $TRANSLOAD_SKIPS");
        assert_eq!(run(&skip), (3, 2));
        // What an earlier command left counts no more.
        assert_eq!(run(":"), (5, 0));
        assert_eq!((verdict.counts.passed, verdict.counts.skipped), (13, 2));
        assert_eq!(*session.skipped(), ["links: none", "pages::huge: none"]);
    }
}
