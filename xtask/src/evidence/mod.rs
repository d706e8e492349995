//! `cargo xtask evidence`: for each demand, what shows that it holds.
//!
//! `docs/demands.toml` holds the demands, one sentence each. `docs/evidence.toml`
//! holds one row for each demand: the commands that show it, what they last
//! wrote, at which commit, and whether that suffices.

mod book;
mod check;
mod refresh;
mod shown_by;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use clap::Args;

use self::book::{Book, Status};
use crate::stage::{Session, Verdict};
use crate::table::table;
use crate::workspace::Workspace;

/// What to do with the table.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Checks that every demand has a row, and that what the rows name exists
    #[arg(long)]
    check: bool,
    /// Runs what these rows name (`all` for every row) and writes down the results
    #[arg(long, value_name = "ID", num_args = 1.., conflicts_with = "check")]
    run: Vec<String>,
}

/// Prints, checks or refreshes the table. Says whether the check, or every
/// command that was run, succeeded.
///
/// # Errors
/// When one of the two files cannot be read or understood.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    let book = Book::load(&workspace.root)?;
    if options.check {
        let findings = check::check(workspace, &book)?;
        print!("{}", findings.text());
        return Ok(findings.complaints.is_empty());
    }
    if !options.run.is_empty() {
        return refresh::refresh(workspace, book, &options.run);
    }
    print!("{}", printed(&book));
    Ok(true)
}

/// The stage of `cargo xtask test`.
///
/// # Errors
/// As [`run`].
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let book = Book::load(&session.workspace.root)?;
    let findings = check::check(&session.workspace, &book)?;
    verdict.note = findings.summary();
    verdict.transcript = findings.text();
    if !findings.complaints.is_empty() {
        verdict.fail(&format!("{} complaints", findings.complaints.len()));
    }
    Ok(verdict)
}

/// The whole table for a terminal, section by section.
fn printed(book: &Book) -> String {
    let mut text = String::new();
    let mut totals: BTreeMap<Status, usize> = BTreeMap::new();
    for section in book.sections() {
        let _ = writeln!(text, "\n{section}\n{}", "=".repeat(section.len()));
        for demand in book
            .demands
            .iter()
            .filter(|demand| demand.section == section)
        {
            let row = book.row(&demand.id);
            let status = row.map_or(Status::Missing, |row| row.status);
            *totals.entry(status).or_default() += 1;
            let _ = writeln!(text, "[{status}] {}: {}", demand.name(), demand.sentence);
            let Some(row) = row else {
                let _ = writeln!(text, "    no row in docs/evidence.toml");
                continue;
            };
            for command in &row.shown_by {
                let _ = writeln!(text, "    {command}");
            }
            if !row.last_output.is_empty() {
                for line in row.last_output.lines() {
                    let _ = writeln!(text, "    > {line}");
                }
                let _ = writeln!(text, "    at {}", row.commit);
            }
            if !row.reason.is_empty() {
                let _ = writeln!(text, "    because {}", row.reason);
            }
        }
    }
    let rows: Vec<_> = totals
        .iter()
        .map(|(status, count)| [status.to_string(), count.to_string()])
        .collect();
    let _ = write!(text, "\n{}", table(["status", "demands"], &rows));
    text
}
