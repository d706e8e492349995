//! `evidence --check`: every demand has its row, every row names what exists.

use std::fmt::Write as _;

use anyhow::Result;
use clap::Parser;

use super::book::{Book, Row, Status};
use super::shown_by::ShownBy;
use crate::Arguments;
use crate::process;
use crate::testlist::TestList;
use crate::workspace::Workspace;

/// What the check found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Each of them fails the check.
    pub(crate) complaints: Vec<String>,
    /// Demands that are known not to be shown, each with its reason.
    unshown: Vec<(Status, String)>,
    demands: usize,
}

impl Findings {
    /// One line: how many demands are not shown.
    pub(crate) fn summary(&self) -> String {
        let count = |status| {
            self.unshown
                .iter()
                .filter(|(other, _)| *other == status)
                .count()
        };
        let mut text = format!(
            "open: {} of {} demands not shown yet",
            count(Status::Open),
            self.demands
        );
        for status in [Status::FallsShort, Status::Missing] {
            if count(status) > 0 {
                let _ = write!(text, ", {} {status}", count(status));
            }
        }
        text
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (status, line) in &self.unshown {
            let _ = writeln!(text, "{status}: {line}");
        }
        for complaint in &self.complaints {
            let _ = writeln!(text, "error: {complaint}");
        }
        let _ = writeln!(text, "{}", self.summary());
        text
    }
}

/// Checks the book against the tests, benchmarks and files that exist.
///
/// # Errors
/// When the tests or the benchmarks do not build.
pub(crate) fn check(workspace: &Workspace, book: &Book) -> Result<Findings> {
    let tests = TestList::load(workspace)?;
    let existing = Existing {
        workspace,
        cases: if names_a_bench(book) {
            bench_cases(&tests)?
        } else {
            Vec::new()
        },
        tests,
    };
    Ok(compare(book, &existing))
}

/// What rows may name.
struct Existing<'a> {
    workspace: &'a Workspace,
    tests: TestList,
    cases: Vec<String>,
}

fn compare(book: &Book, existing: &Existing<'_>) -> Findings {
    let mut findings = Findings {
        demands: book.demands.len(),
        ..Findings::default()
    };
    for demand in &book.demands {
        match book.row(&demand.id) {
            None => findings
                .complaints
                .push(format!("no row for `{}`: {}", demand.id, demand.sentence)),
            Some(row) if row.status != Status::Holds => findings
                .unshown
                .push((row.status, format!("{}: {}", row.id, row.reason))),
            Some(_) => {}
        }
    }
    for row in &book.rows {
        if book.demand(&row.id).is_none() {
            findings
                .complaints
                .push(format!("the row `{}` answers no demand", row.id));
        }
        findings.complaints.extend(complaints(row, existing));
    }
    findings
}

fn complaints(row: &Row, existing: &Existing<'_>) -> Vec<String> {
    let mut complaints = Vec::new();
    let shows = matches!(row.status, Status::Holds | Status::FallsShort);
    if shows && row.shown_by.is_empty() {
        complaints
            .push("has the status of something shown, and names nothing that shows it".into());
    }
    if row.status != Status::Holds && row.reason.trim().is_empty() {
        complaints.push(format!("is `{}` without a reason", row.status));
    }
    for entry in &row.shown_by {
        let complaint = match ShownBy::parse(entry) {
            Err(error) => Some(error.to_string()),
            Ok(shown_by) => existing.complaint(&shown_by),
        };
        complaints.extend(complaint);
    }
    complaints
        .into_iter()
        .map(|complaint| format!("`{}`: {complaint}", row.id))
        .collect()
}

impl Existing<'_> {
    fn complaint(&self, shown_by: &ShownBy) -> Option<String> {
        match shown_by {
            ShownBy::Test { suite, name } => {
                let none = self.tests.matching(suite, name).is_empty();
                none.then(|| self.no_such_test(suite, name))
            }
            ShownBy::Bench { case } => {
                let none = !self.cases.iter().any(|other| glob(case, other));
                none.then(|| format!("there is no benchmark case `{case}`"))
            }
            ShownBy::Xtask { arguments } => {
                let words = ["cargo xtask"]
                    .into_iter()
                    .chain(arguments.iter().map(String::as_str));
                let refused = Arguments::try_parse_from(words).is_err();
                refused.then(|| format!("xtask takes no `{}`", arguments.join(" ")))
            }
            ShownBy::File { path } => {
                let none = !self.workspace.root.join(path).is_file();
                none.then(|| format!("there is no file {path}"))
            }
        }
    }

    fn no_such_test(&self, suite: &str, name: &str) -> String {
        if self.tests.suites().any(|other| other == suite) {
            format!("there is no test `{name}` in {suite}")
        } else {
            format!("there is no test suite `{suite}`")
        }
    }
}

fn names_a_bench(book: &Book) -> bool {
    let entries = book.rows.iter().flat_map(|row| &row.shown_by);
    entries
        .filter_map(|entry| ShownBy::parse(entry).ok())
        .any(|shown_by| matches!(shown_by, ShownBy::Bench { .. }))
}

/// The cases that the benchmarks list, one name a line.
fn bench_cases(tests: &TestList) -> Result<Vec<String>> {
    let mut list = tests.program("transload-bench")?;
    list.arg("--list");
    let finished = process::run(&mut list, crate::evidence::refresh::COMMAND_LIMIT)?;
    anyhow::ensure!(
        finished.success(),
        "the benchmarks do not list their cases:\n{}",
        finished.output
    );
    Ok(finished
        .output
        .lines()
        .map(|line| line.trim().to_owned())
        .collect())
}

/// Whether `text` fits `pattern`, where `*` stands for any characters.
fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, tail)) => text.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len())
                .filter(|&at| rest.is_char_boundary(at))
                .any(|at| glob(tail, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const DEMANDS: &str = "[m.s]\none = \"One.\"\ntwo = \"Two.\"\n";

    fn checked(evidence: &str) -> Findings {
        let workspace = Workspace {
            root: PathBuf::from(env!("CARGO_MANIFEST_DIR")),
            target: PathBuf::new(),
            members: Vec::new(),
            patched_for: None,
        };
        let existing = Existing {
            workspace: &workspace,
            tests: TestList::of("suite", &["a::b"]),
            cases: vec!["host-host".to_owned()],
        };
        compare(&Book::parse(DEMANDS, evidence).unwrap(), &existing)
    }

    fn row(name: &str, rest: &str) -> String {
        format!("[[row]]\nid = \"m.s.{name}\"\n{rest}\n")
    }

    fn holds(by: &str) -> String {
        format!("status = \"holds\"\nshown_by = [\"{by}\"]")
    }

    #[test]
    fn a_demand_without_a_row_fails() {
        let findings = checked(&row("one", &holds("test suite a::b")));
        assert_eq!(findings.complaints, ["no row for `m.s.two`: Two."]);
    }

    #[test]
    fn a_full_table_passes() {
        let text = row("one", &holds("test suite a::*")) + &row("two", &holds("file Cargo.toml"));
        assert_eq!(checked(&text).complaints, Vec::<String>::new());
    }

    #[test]
    fn an_open_row_passes_and_is_counted() {
        let text = row("one", &holds("bench host-*"))
            + &row("two", "status = \"open\"\nreason = \"being built\"");
        let findings = checked(&text);
        assert!(findings.complaints.is_empty());
        assert_eq!(findings.summary(), "open: 1 of 2 demands not shown yet");
    }

    #[test]
    fn what_a_row_names_must_exist() {
        for (by, words) in [
            ("test suite a::gone", "no test `a::gone` in suite"),
            ("test other a::b", "no test suite `other`"),
            ("bench device", "no benchmark case"),
            ("xtask dance", "xtask takes no `dance`"),
            ("file none.md", "no file none.md"),
            ("believe me", "is none of"),
        ] {
            let text = row("one", &holds(by)) + &row("two", &holds("xtask test --only lint"));
            let findings = checked(&text);
            assert_eq!(findings.complaints.len(), 1, "{by}");
            assert!(
                findings.complaints[0].contains(words),
                "{:?}",
                findings.complaints
            );
        }
    }

    #[test]
    fn a_row_says_what_shows_it_or_why_not() {
        let text = row("one", "status = \"holds\"") + &row("two", "status = \"missing\"");
        let findings = checked(&text);
        assert_eq!(findings.complaints.len(), 2);
        assert!(findings.complaints[1].contains("without a reason"));
    }

    #[test]
    fn a_row_for_no_demand_fails() {
        let text = row("one", &holds("test suite a::b"))
            + &row("two", &holds("test suite a::b"))
            + &row("three", &holds("test suite a::b"));
        assert_eq!(
            checked(&text).complaints,
            ["the row `m.s.three` answers no demand"]
        );
    }

    #[test]
    fn stars_stand_for_any_characters() {
        assert!(glob("host-*/1M*", "host-host/1MiB"));
        assert!(glob("*", ""));
        assert!(!glob("host", "host-host"));
    }
}
