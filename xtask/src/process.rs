//! Runs a command to its end or to its limit, and keeps its output.
//!
//! A limit counts processor time, and time with nearly none: on a machine that is slow or busy a command takes longer by the
//! clock, and is not hanging.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::files;

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) ending: Ending,
    /// Standard output and standard error, in the order written.
    pub(crate) output: String,
    /// The processor time of the command and of those that it started and waited for: zero where no system call tells it.
    pub(crate) busy: Duration,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Exit code 0.
    Success,
    /// Another exit code, or `None` when a signal ended it.
    Failure(Option<i32>),
    /// It passed a limit, which the text names, and was killed.
    Killed(String),
}

/// When a command counts as hanging.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// The processor time that it may use, with all that it starts.
    pub(crate) busy: Duration,
    /// The longest time in which all of them together use less than a hundredth of a processor. A wait that looks at times,
    /// and a session that sends signs of life, use less; a command beside many others on a slow machine gets more.
    pub(crate) idle: Duration,
}

impl Limit {
    /// A limit for a command that computes for at most `minutes`, and nearly only waits (for a registry, or for a test until the
    /// test's own limit) for twenty.
    pub(crate) const fn minutes(minutes: u64) -> Self {
        Self {
            busy: Duration::from_secs(minutes * 60),
            idle: Duration::from_secs(20 * 60),
        }
    }
}

impl Finished {
    pub(crate) fn success(&self) -> bool {
        self.ending == Ending::Success
    }
}

/// Runs `command` without standard input; past `limit` it and its children
/// are killed.
///
/// # Errors
/// When it cannot be started. A bad exit code is no error here.
pub(crate) fn run(command: &mut Command, limit: Limit) -> Result<Finished> {
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
    let (start, id) = (Instant::now(), child.id());
    let mut watch = Watch::new(limit);
    let mut look = || watch.look(start.elapsed(), used_by(id, start));
    let killed = loop {
        match receiver.recv_timeout(Watch::PERIOD) {
            Err(RecvTimeoutError::Timeout) => {
                if let Some(why) = look() {
                    kill_family(&mut child)?;
                    break Some(why);
                }
            }
            _ => break None,
        }
    };
    // An ended process keeps its figures until its parent waits for it.
    look();
    let status = child.wait()?;
    let bytes = match reading.join() {
        Ok(bytes) => bytes?,
        Err(panic) => std::panic::resume_unwind(panic),
    };
    let ending = match killed {
        Some(why) => Ending::Killed(why),
        None if status.success() => Ending::Success,
        None => Ending::Failure(status.code()),
    };
    Ok(Finished {
        ending,
        output: String::from_utf8_lossy(&bytes).into_owned(),
        busy: watch.busy,
    })
}

/// What a command and all that it started have used of the processors, as Linux tells it. Elsewhere nothing tells, and
/// the clock counts as processor time.
struct Watch {
    limit: Limit,
    busy: Duration,
    /// What they had used at the last look: less than `busy` where a process ended and its parent did not wait for it.
    last: Duration,
    /// When they were last seen not to be idle, and what they have used since.
    stirred: Duration,
    since: Duration,
}

impl Watch {
    const PERIOD: Duration = Duration::from_secs(1);

    fn new(limit: Limit) -> Self {
        Self {
            limit,
            busy: Duration::ZERO,
            last: Duration::ZERO,
            stirred: Duration::ZERO,
            since: Duration::ZERO,
        }
    }

    /// The limit that is passed, if one is, when they have used `used` of the processors at `now`, counted from the start.
    fn look(&mut self, now: Duration, used: Duration) -> Option<String> {
        self.since += used.saturating_sub(self.last);
        self.last = used;
        if self.since * 100 > self.limit.idle {
            (self.stirred, self.since) = (now, Duration::ZERO);
        }
        // A process that ended without its parent's wait takes its time along.
        self.busy = self.busy.max(used);
        if self.busy > self.limit.busy {
            let told = seconds(self.limit.busy);
            return Some(format!("it used more than {told} of processor time"));
        }
        let idle = now - self.stirred;
        (idle > self.limit.idle).then(|| {
            format!(
                "it used less than 1 % of a processor for {}, and {} in all",
                seconds(idle),
                seconds(self.busy)
            )
        })
    }
}

/// What a child that started at `start` and all that it started have used of the processors.
fn used_by(child: u32, start: Instant) -> Duration {
    if cfg!(target_os = "linux") {
        family(child).iter().map(|(_, used)| used).sum()
    } else {
        start.elapsed()
    }
}

/// The processes below `child` and those of its group, itself too, each with the processor time of its own and of those
/// that it waited for (proc_pid_stat(5), fields 4, 5, and 14 to 17).
fn family(child: u32) -> Vec<(u64, Duration)> {
    let all: Vec<[u64; 4]> = files::entries(Path::new("/proc"))
        .unwrap_or_default()
        .iter()
        .filter_map(|path| {
            let id = path.file_name()?.to_str()?.parse().ok()?;
            let text = std::fs::read_to_string(path.join("stat")).ok()?;
            // The name may hold spaces and brackets: the last bracket ends it.
            let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
            let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
            let used: u64 = (11..15).filter_map(number).sum();
            Some([id, number(1)?, number(2)?, used])
        })
        .collect();
    let mut members = BTreeSet::from([u64::from(child)]);
    loop {
        let before = members.len();
        for [id, parent, group, _] in &all {
            if members.contains(parent) || members.contains(group) {
                members.insert(*id);
            }
        }
        if members.len() == before {
            break;
        }
    }
    let members = all.iter().filter(|row| members.contains(&row[0]));
    members
        .map(|[id, .., used]| (*id, Duration::from_millis(used * TICK_MILLIS)))
        .collect()
}

/// Linux tells processor time in hundredths of a second on every machine that Rust knows (`USER_HZ`, time(7)).
const TICK_MILLIS: u64 = 10;

/// Runs `command` as [`run`] does, and gives its output.
///
/// # Errors
/// When it cannot be started or does not succeed, with its output.
pub(crate) fn must_run(command: &mut Command, limit: Limit) -> Result<String> {
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

/// Kills the child, and what it started where a system tells: a test that hangs is cargo's grandchild.
fn kill_family(child: &mut Child) -> Result<()> {
    if !cfg!(unix) {
        return child.kill().context("cannot end the command");
    }
    let mut kill = Command::new("kill");
    kill.args(["-KILL", "--", &format!("-{}", child.id())]);
    kill.args(family(child.id()).iter().map(|(id, _)| id.to_string()));
    // One that ended meanwhile is an error of `kill`'s.
    kill.stderr(Stdio::null());
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
        let finished = run(&mut shell("echo out; echo err >&2; exit 3"), LIMIT).unwrap();
        assert_eq!(finished.ending, Ending::Failure(Some(3)));
        assert_eq!(finished.output, "out\nerr\n");
    }

    #[test]
    fn a_command_that_only_waits_is_killed_with_its_children() {
        let limit = Limit {
            idle: Duration::from_millis(1),
            ..LIMIT
        };
        // The inner shell holds the pipe: if it were left alive, this would hang.
        let finished = run(&mut shell("sh -c 'tail -f /dev/null; :'; :"), limit).unwrap();
        let Ending::Killed(why) = finished.ending else {
            panic!("{:?}", finished.ending);
        };
        assert!(why.contains("less than 1 %"), "{why}");
    }

    #[test]
    fn a_hang_that_polls_is_idle_and_a_command_that_hardly_gets_a_processor_is_not() {
        let hour = |each: f64| {
            let mut watch = Watch::new(LIMIT);
            (1..=3600_u32).find_map(|second| {
                let used = Duration::from_secs_f64(f64::from(second) * each);
                watch.look(Duration::from_secs(second.into()), used)
            })
        };
        assert!(hour(0.009).unwrap().contains("less than 1 %"));
        assert_eq!(hour(0.011), None);
        assert!(hour(0.9).unwrap().contains("processor time"));
    }

    #[test]
    fn time_that_an_ended_process_takes_along_is_no_sign_of_life_and_stays_counted() {
        let mut watch = Watch::new(LIMIT);
        let mut look =
            |second, used| watch.look(Duration::from_secs(second), Duration::from_secs(used));
        assert_eq!(look(1, 50), None);
        let killed = (2..3600).find(|second| look(*second, 10).is_some());
        assert_eq!(killed, Some(2 + LIMIT.idle.as_secs()));
        // What came after the loss is a sign of life, though less than the most.
        assert_eq!(look(3600, 30), None);
        assert_eq!(watch.busy, Duration::from_secs(50));
    }

    #[test]
    fn processor_time_counts_in_children_of_other_groups_too() {
        let limit = Limit {
            busy: Duration::from_millis(100),
            ..LIMIT
        };
        let finished = run(&mut shell("setsid -w sh -c 'while :; do :; done'"), limit).unwrap();
        let Ending::Killed(why) = finished.ending else {
            panic!("{:?}", finished.ending);
        };
        assert!(why.contains("more than 0.1 s"), "{why}");
    }

    #[test]
    fn a_missing_program_is_an_error_that_names_it() {
        let error = run(&mut Command::new("no-such-program-here"), LIMIT).unwrap_err();
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

    const LIMIT: Limit = Limit::minutes(30);
}
