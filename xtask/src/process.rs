//! Runs a command to its end or to its time limit, and keeps its output.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) ending: Ending,
    /// Standard output and standard error, in the order written.
    pub(crate) output: String,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Exit code 0.
    Success,
    /// Another exit code, or `None` when a signal ended it.
    Failure(Option<i32>),
    /// It was still running after this long, and was killed.
    TimedOut(Duration),
}

impl Finished {
    pub(crate) fn success(&self) -> bool {
        self.ending == Ending::Success
    }
}

/// Runs `command` without standard input; after `limit` it and its children
/// are killed.
///
/// # Errors
/// When it cannot be started. A bad exit code is no error here.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Finished> {
    let (mut reader, writer) = std::io::pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    own_group(command);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", describe(command)))?;
    // The command keeps the pipe's writing end: as long as it is open here,
    // the reader sees no end.
    command.stdout(Stdio::null()).stderr(Stdio::null());

    let (sender, receiver) = channel();
    let reading = thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = reader.read_to_end(&mut bytes);
        // The receiver is gone only after a time-out, when no one waits.
        let _ = sender.send(());
        read.map(|_| bytes)
    });
    let timed_out = receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
    if timed_out {
        kill_group(&mut child)?;
    }
    let status = child.wait()?;
    let bytes = match reading.join() {
        Ok(bytes) => bytes?,
        Err(panic) => std::panic::resume_unwind(panic),
    };
    let ending = if timed_out {
        Ending::TimedOut(limit)
    } else if status.success() {
        Ending::Success
    } else {
        Ending::Failure(status.code())
    };
    Ok(Finished {
        ending,
        output: String::from_utf8_lossy(&bytes).into_owned(),
    })
}

/// Runs `command` as [`run`] does, and gives its output.
///
/// # Errors
/// When it cannot be started or does not succeed, with its output.
pub(crate) fn must_run(command: &mut Command, limit: Duration) -> Result<String> {
    let finished = run(command, limit)?;
    let told = || format!("`{}` failed:\n{}", describe(command), finished.output);
    ensure!(finished.success(), told());
    Ok(finished.output)
}

/// Runs `command` on this terminal.
///
/// # Errors
/// When it cannot be started or does not succeed.
pub(crate) fn show(command: &mut Command) -> Result<()> {
    let status = command.status();
    let status = status.with_context(|| format!("cannot start {}", describe(command)))?;
    ensure!(
        status.success(),
        "`{}` ended with {status}",
        describe(command)
    );
    Ok(())
}

/// All that `command` writes to its standard output.
///
/// # Errors
/// When it cannot be started or does not succeed, with what it wrote to its standard error.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {}", describe(command)))?;
    ensure!(
        output.status.success(),
        "`{}` failed: {}",
        describe(command),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The first line that `command` writes, if it succeeds.
pub(crate) fn first_line(command: &mut Command) -> Option<String> {
    output_of(command).ok()?.lines().next().map(str::to_owned)
}

/// A time as the tables show it.
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// `command` as a person would type it, with the variables set for it.
pub(crate) fn describe(command: &Command) -> String {
    let set = |(name, value): (&OsStr, Option<&OsStr>)| {
        Some(format!("{}={}", name.display(), quoted(value?)))
    };
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or_default().display();
    let variables = command.get_envs().filter_map(set);
    let words = variables.chain([name.to_string()]);
    let words: Vec<String> = words.chain(command.get_args().map(quoted)).collect();
    words.join(" ")
}

/// `word` so that a shell takes it for one word.
fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(unix)]
fn own_group(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
}

#[cfg(not(unix))]
fn own_group(_: &mut Command) {}

/// Kills the child and, where process groups exist, its own children: a test that hangs is cargo's grandchild.
fn kill_group(child: &mut Child) -> Result<()> {
    if !cfg!(unix) {
        return child.kill().context("cannot end the command");
    }
    let group = format!("-{}", child.id());
    let mut kill = Command::new("kill");
    kill.args(["-KILL", "--", &group]);
    kill.status().context("cannot run kill").map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_exit_code_are_kept() {
        let finished = run(&mut shell("echo out; echo err >&2; exit 3"), MINUTE).unwrap();
        assert_eq!(finished.ending, Ending::Failure(Some(3)));
        assert_eq!(finished.output, "out\nerr\n");
    }

    #[test]
    fn a_command_past_its_limit_is_killed_with_its_children() {
        let limit = Duration::from_millis(50);
        // The inner shell holds the pipe: if it were left alive, this would hang.
        let finished = run(&mut shell("sh -c 'tail -f /dev/null; :'; :"), limit).unwrap();
        assert_eq!(finished.ending, Ending::TimedOut(limit));
    }

    #[test]
    fn a_missing_program_is_an_error_that_names_it() {
        let error = run(&mut Command::new("no-such-program-here"), MINUTE).unwrap_err();
        assert!(format!("{error:#}").contains("no-such-program-here"));
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (word, shown) in [
            ("plain/word.rs", "plain/word.rs"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(OsStr::new(word)), shown);
        }
    }

    const MINUTE: Duration = Duration::from_secs(60);
}
