//! The stage that searches the sources for faults that clippy does not report.

use anyhow::Result;

use crate::files;
use crate::stage::{Session, Verdict};

/// Fails with the place of each line that breaks a habit: sleeping, asserting on elapsed time, or leaving a test out.
pub(crate) fn stage(session: &Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let mut sources = Vec::new();
    let others = session.workspace.others()?.into_iter();
    let others = others.chain(session.workspace.apart()?);
    let members: Vec<_> = others.flat_map(|other| other.members).collect();
    for member in session.workspace.members.iter().chain(&members) {
        // This program reads its own rules and the texts of its tests.
        if member.name != "xtask" {
            for part in ["src", "tests", "examples", "benches"] {
                sources.extend(files::below(&member.manifest_path.with_file_name(part))?);
            }
        }
    }
    sources.retain(|path| files::ends_with(path, "rs"));
    for file in &sources {
        let name = session.workspace.relative(file).display().to_string();
        let local = LOCAL.iter();
        let local = local.filter(|(folder, except, _)| is_local(&name, folder, except));
        let local = local.map(|(_, _, habit)| *habit);
        let habits: Vec<Habit> = HABITS.into_iter().chain(local).collect();
        for complaint in complaints(&files::read(file)?, &habits) {
            verdict.fail(format!("{name}:{complaint}"));
        }
    }
    verdict.note = format!("{} files", sources.len());
    Ok(verdict)
}

fn complaints(text: &str, habits: &[Habit]) -> Vec<String> {
    let mut complaints = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or(line);
        for (breaks, why) in habits {
            if breaks(code) {
                complaints.push(format!("{}: {why}", index + 1));
            }
        }
    }
    complaints
}

/// Whether a line of code breaks the habit, and the habit.
type Habit = (fn(&str) -> bool, &'static str);

const HABITS: [Habit; 3] = [
    (
        |code| code.contains("::sleep(") || code.contains(" sleep("),
        "nothing here waits by sleeping: wait for the event",
    ),
    (
        |code| code.contains("assert") && code.contains("elapsed"),
        "no test asserts on wall time",
    ),
    (
        |code| code.trim_start().starts_with("#[ignore"),
        "a test is there to run: an absent thing is told as skipped",
    ),
];

/// Habits of one folder, except for a part of it.
const LOCAL: [(&str, &str, Habit); 1] = [(
    "crates/backends/wgpu/src/",
    // In a page the host's threads fill no mapping, and the browser queues commands in a process of its own, which
    // accepted 700 MB at once.
    "crates/backends/wgpu/src/browser/",
    (
        |code| code.contains("write_buffer("),
        "write_buffer that runs out of memory loses the device",
    ),
)];

/// Whether the habits of a folder apply to a file.
fn is_local(name: &str, folder: &str, except: &str) -> bool {
    name.starts_with(folder) && !name.starts_with(except)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_habits_are_told_with_their_lines() {
        let text = "\
fn wait() {
    thread::sleep(TICK);
    // thread::sleep(TICK) would poll
    assert!(start.elapsed() < LIMIT);
}
#[ignore]
";
        let told = complaints(text, &HABITS);
        let lines: Vec<&str> = told.iter().map(|line| &line[..2]).collect();
        assert_eq!(lines, ["2:", "4:", "6:"]);
    }

    #[test]
    fn a_folder_has_habits_of_its_own() {
        let (folder, except, habit) = LOCAL[0];
        let applies = |name| is_local(name, folder, except);
        assert!(applies("crates/backends/wgpu/src/host_import.rs"));
        assert!(!applies("crates/backends/wgpu/src/browser/upload.rs"));
        assert!(!applies("crates/transload/src/lib.rs"));
        let told = complaints("queue.write_buffer(&b, 0, bytes);", &[habit]);
        assert_eq!(told.len(), 1);
    }
}
