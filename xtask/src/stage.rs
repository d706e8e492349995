//! One stage of `cargo xtask test`: its name, its function, its result.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::counts::Counts;
use crate::doubles::Calls;
use crate::install::Installer;
use crate::process::{self, Ending, Finished};
use crate::workspace::Workspace;

/// A named part of the test run.
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    /// The promise that it checks, for `--list`.
    pub(crate) about: &'static str,
    pub(crate) tier: Tier,
    pub(crate) run: fn(&mut Session) -> Result<Verdict>,
}

/// The runs that include a stage. Each stage also runs when it is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    /// Every run.
    Quick,
    /// Runs with `--all`.
    All,
    /// Runs with `--full`.
    Full,
}

/// The shared state of the stages of one run.
pub(crate) struct Session {
    pub(crate) workspace: Workspace,
    /// The requested tier.
    pub(crate) tier: Tier,
    pub(crate) installer: Installer,
    /// Tools that stages found, for the closing summary.
    pub(crate) found: Vec<String>,
    /// Tests that showed nothing here, with their reasons.
    pub(crate) skipped: Vec<String>,
    /// The functions of the CUDA driver that were called, by the stage whose tests did so.
    pub(crate) calls: BTreeMap<&'static str, Calls>,
}

impl Session {
    /// Notes a tool for the closing summary, once.
    pub(crate) fn found(&mut self, tool: impl Into<String>) {
        let tool = tool.into();
        if !self.found.contains(&tool) {
            self.found.push(tool);
        }
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
    pub(crate) fn fail(&mut self, why: &str) {
        let _ = writeln!(self.transcript, "{why}");
        self.outcome = Outcome::Failed;
    }

    /// Runs `command`, keeps its output, fails the stage when it fails.
    ///
    /// # Errors
    /// When the command cannot be started.
    pub(crate) fn run(&mut self, command: &mut Command) -> Result<Finished> {
        let _ = writeln!(self.transcript, "$ {}", process::describe(command));
        let finished = process::run(command, COMMAND_LIMIT)?;
        self.transcript.push_str(&finished.output);
        match finished.ending {
            Ending::Success => {}
            Ending::Failure(Some(code)) => self.fail(&format!("exit code {code}")),
            Ending::Failure(None) => self.fail("ended by a signal"),
            Ending::TimedOut(limit) => self.fail(&format!(
                "killed: still running after {} minutes",
                limit.as_secs() / 60
            )),
        }
        Ok(finished)
    }

    /// Runs `command`, which has a deliberate fault: fails the stage unless the command fails and prints `words`.
    ///
    /// # Errors
    /// When the command cannot be started.
    pub(crate) fn run_guilty(&mut self, command: &mut Command, words: &str) -> Result<()> {
        let _ = writeln!(self.transcript, "$ {}", process::describe(command));
        let finished = process::run(command, COMMAND_LIMIT)?;
        self.transcript.push_str(&finished.output);
        if finished.success() || !finished.output.contains(words) {
            self.fail(&format!("it has a fault, and nothing said `{words}`"));
        }
        Ok(())
    }

    /// As [`Verdict::run`], and counts the tests in the output. A runner that
    /// failed without naming a failed test (a build error) counts none: the
    /// stage itself then counts as failed.
    ///
    /// # Errors
    /// As [`Verdict::run`].
    pub(crate) fn run_tests(&mut self, command: &mut Command) -> Result<Finished> {
        let finished = self.run(command)?;
        self.counts += Counts::read(&finished.output);
        Ok(finished)
    }
}

/// No single command of the run takes nearly this long on two cores; a longer one counts as hanging, and must end well
/// before the 90 minutes of CI.
const COMMAND_LIMIT: Duration = Duration::from_secs(25 * 60);

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
}
