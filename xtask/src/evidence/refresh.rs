//! `evidence --run`: runs what rows name and writes down what came of it.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::book::{Book, Row, Status};
use super::shown_by::ShownBy;
use crate::checks::first_line;
use crate::install::Installer;
use crate::nextest::Nextest;
use crate::process::{self, Finished};
use crate::testlist::selection;
use crate::vulkan::Drivers;
use crate::workspace::Workspace;

/// Runs the rows `ids` (or all), saves after each, and says whether every row
/// that claims to hold was seen to.
///
/// # Errors
/// When an id has no row, or the table cannot be written.
pub(crate) fn refresh(workspace: &Workspace, mut book: Book, ids: &[String]) -> Result<bool> {
    let all = ids.iter().any(|id| id == "all");
    if let Some(unknown) = ids.iter().find(|id| !all && book.row(id).is_none()) {
        bail!("docs/evidence.toml has no row `{unknown}`");
    }
    let commit = commit(workspace)?;
    let mut good = true;
    let mut known = Known::new();
    for index in 0..book.rows.len() {
        let row = &book.rows[index];
        if row.shown_by.is_empty() || !(all || ids.contains(&row.id)) {
            continue;
        }
        println!("{}", row.id);
        let shown = show(workspace, row, &mut known)?;
        for line in &shown.lines {
            println!("  > {line}");
        }
        if !shown.success && row.status == Status::Holds {
            println!("  claims to hold, and was not shown");
            good = false;
        }
        book.rows[index].last_output = shown.lines.join("\n");
        book.rows[index].commit.clone_from(&commit);
        book.save(&workspace.root)?;
    }
    Ok(good)
}

/// What a row's commands came to.
#[derive(Debug, Clone, Default)]
struct Shown {
    lines: Vec<String>,
    success: bool,
}

/// What each entry came to in this run: rows share commands.
type Known = BTreeMap<String, Shown>;

fn show(workspace: &Workspace, row: &Row, known: &mut Known) -> Result<Shown> {
    let mut all = Shown {
        lines: Vec::new(),
        success: true,
    };
    for entry in &row.shown_by {
        let shown = match known.get(entry) {
            Some(shown) => shown.clone(),
            None => {
                let shown = show_one(workspace, entry)?;
                known.insert(entry.clone(), shown.clone());
                shown
            }
        };
        for line in shown.lines {
            let line = without_root(&line, &workspace.root);
            all.lines.push(format!("{entry}: {line}"));
        }
        all.success &= shown.success;
    }
    Ok(all)
}

/// Paths as a person at the root folder would write them: where that lies is nobody's business.
fn without_root(line: &str, root: &Path) -> String {
    line.replace(&format!("{}/", root.display()), "")
}

fn show_one(workspace: &Workspace, entry: &str) -> Result<Shown> {
    Ok(match ShownBy::parse(entry)? {
        ShownBy::Test { suite, name } => {
            let finished = process::run(&mut test(workspace, &suite, &name)?, COMMAND_LIMIT)?;
            Shown {
                lines: test_lines(&finished),
                success: finished.success(),
            }
        }
        ShownBy::Bench { case } => {
            let arguments = ["bench".to_owned(), "--case".to_owned(), case];
            last_of(
                &process::run(&mut xtask(&arguments)?, COMMAND_LIMIT)?,
                BENCH_LINES,
            )
        }
        ShownBy::Xtask { arguments } => {
            last_of(&process::run(&mut xtask(&arguments)?, COMMAND_LIMIT)?, 1)
        }
        ShownBy::File { path } => {
            let there = workspace.root.join(&path).is_file();
            Shown {
                lines: vec![if there { "there" } else { "not there" }.to_owned()],
                success: there,
            }
        }
    })
}

fn last_of(finished: &Finished, count: usize) -> Shown {
    Shown {
        lines: last_lines(&finished.output, count),
        success: finished.success(),
    }
}

fn test(workspace: &Workspace, suite: &str, name: &str) -> Result<Command> {
    let package = suite.split("::").next().unwrap_or(suite);
    let doubles = workspace.doubles()?;
    let of_double = doubles
        .iter()
        .find(|double| double.member(package).is_some());
    let nextest = Nextest::provide(&mut Installer::default(), workspace)?;
    let mut cargo = nextest.run(of_double.unwrap_or(workspace))?;
    cargo
        .args(["--all-features", "--success-output", "immediate"])
        .args(selection(suite));
    Drivers::present(&workspace.target).tell(&mut cargo);
    let named = match name.strip_suffix('*') {
        Some("") => return Ok(cargo),
        Some(beginning) => format!("test(/^{beginning}/)"),
        None => format!("test(={name})"),
    };
    cargo.args(["--filterset", &named]);
    Ok(cargo)
}

/// The closing line without its time and what was left out, and the lines in which tests tell a figure: those that begin
/// with `evidence: `.
fn test_lines(finished: &Finished) -> Vec<String> {
    let mut lines = Vec::new();
    for line in finished.output.lines().map(str::trim) {
        if let Some(told) = line.strip_prefix("evidence: ") {
            lines.push(told.to_owned());
        } else if line.starts_with("Summary [")
            && let Some((_, counts)) = line.split_once(" run: ")
        {
            let skipped = counts
                .rfind(", ")
                .filter(|at| counts[*at..].ends_with(" skipped"));
            lines.push(counts[..skipped.unwrap_or(counts.len())].to_owned());
        }
    }
    if lines.is_empty() {
        lines = last_lines(&finished.output, 1);
    }
    lines
}

fn last_lines(output: &str, count: usize) -> Vec<String> {
    let lines: Vec<&str> = output
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let from = lines.len().saturating_sub(count);
    lines[from..]
        .iter()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

/// This very program with other arguments.
fn xtask(arguments: &[String]) -> Result<Command> {
    let mut command = Command::new(env::current_exe().context("cannot find this program")?);
    command.args(arguments);
    Ok(command)
}

/// The commit checked out, marked where the tree differs from it.
fn commit(workspace: &Workspace) -> Result<String> {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(&workspace.root).args(arguments);
        first_line(&mut git)
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).context("git names no commit")?;
    let changed = git(&["status", "--porcelain", "--", ".", ":!docs/evidence.toml"]).is_some();
    Ok(if changed {
        format!("{commit} with changes")
    } else {
        commit
    })
}

/// A benchmark case with all its sizes takes minutes; no row takes nearly this.
pub(crate) const COMMAND_LIMIT: Duration = Duration::from_secs(30 * 60);

/// A case prints at most one line for each of its sizes.
const BENCH_LINES: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Ending;

    #[test]
    fn a_test_run_is_kept_without_its_time() {
        let finished = Finished {
            ending: Ending::Success,
            output:
                "    running 1 test\n    evidence: 4711 states\n    test result: ok. 1 passed\n\
                     ────────────\n     Summary [   0.391s] 1 test run: 1 passed, 44 skipped\n"
                    .to_owned(),
        };
        assert_eq!(test_lines(&finished), ["4711 states", "1 passed"]);
    }

    #[test]
    fn paths_are_kept_without_the_folder_that_a_clone_lies_in() {
        let root = Path::new("/somewhere/clone");
        let line = "double: /somewhere/clone/target/lib.so";
        assert_eq!(without_root(line, root), "double: target/lib.so");
        assert_eq!(without_root("1 passed", root), "1 passed");
    }

    #[test]
    fn the_last_lines_are_those_with_text() {
        assert_eq!(last_lines("a\nb\n\nc\n\n", 2), ["b", "c"]);
        assert!(last_lines("", 2).is_empty());
    }
}
