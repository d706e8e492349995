//! The two files: demands, and the rows that answer them.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Demands and rows, as read.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// In the order of the file's sections.
    pub(crate) demands: Vec<Demand>,
    /// In the order of the file.
    pub(crate) rows: Vec<Row>,
}

/// One thing that must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Demand {
    /// `milestone.section.name`.
    pub(crate) id: String,
    /// `milestone.section`.
    pub(crate) section: String,
    pub(crate) sentence: String,
}

/// What shows one demand.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) status: Status,
    /// Commands; see [`super::shown_by`] for their words.
    #[serde(default)]
    pub(crate) shown_by: Vec<String>,
    /// Why the status is not `holds`.
    #[serde(default)]
    pub(crate) reason: String,
    /// What the commands wrote in the end, when they last ran.
    #[serde(default)]
    pub(crate) last_output: String,
    /// The commit at which they ran.
    #[serde(default)]
    pub(crate) commit: String,
}

/// What is known about a demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Status {
    /// The commands show it.
    Holds,
    /// It exists, the commands show that it is less than demanded.
    FallsShort,
    /// It does not exist.
    Missing,
    /// It may hold; nothing shows it yet.
    Open,
}

impl Demand {
    /// The last part of the id.
    pub(crate) fn name(&self) -> &str {
        self.id.rsplit('.').next().unwrap_or(&self.id)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "holds",
            Self::FallsShort => "falls-short",
            Self::Missing => "missing",
            Self::Open => "open",
        })
    }
}

impl Book {
    /// Reads `docs/demands.toml` and `docs/evidence.toml`.
    ///
    /// # Errors
    /// When one cannot be read, or says something twice or unknown.
    pub(crate) fn load(root: &Path) -> Result<Self> {
        let read = |name: &str| {
            fs::read_to_string(root.join(name)).with_context(|| format!("cannot read {name}"))
        };
        Self::parse(&read(DEMANDS)?, &read(EVIDENCE)?)
    }

    /// As [`Book::load`], from the texts.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn parse(demands: &str, evidence: &str) -> Result<Self> {
        let demands = parse_demands(demands).with_context(|| format!("in {DEMANDS}"))?;
        let file: EvidenceFile =
            toml::from_str(evidence).with_context(|| format!("in {EVIDENCE}"))?;
        for (index, row) in file.row.iter().enumerate() {
            if file.row[..index].iter().any(|other| other.id == row.id) {
                bail!("{EVIDENCE} has two rows for `{}`", row.id);
            }
        }
        Ok(Self {
            demands,
            rows: file.row,
        })
    }

    pub(crate) fn row(&self, id: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.id == id)
    }

    pub(crate) fn demand(&self, id: &str) -> Option<&Demand> {
        self.demands.iter().find(|demand| demand.id == id)
    }

    /// The sections in the order of their first demand.
    pub(crate) fn sections(&self) -> Vec<&str> {
        let mut sections: Vec<&str> = Vec::new();
        for demand in &self.demands {
            if !sections.contains(&demand.section.as_str()) {
                sections.push(&demand.section);
            }
        }
        sections
    }

    /// Writes `docs/evidence.toml` anew: the comment on top, then the rows in
    /// the order in which they were read.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn save(&self, root: &Path) -> Result<()> {
        fs::write(root.join(EVIDENCE), self.evidence_text())
            .with_context(|| format!("cannot write {EVIDENCE}"))
    }

    fn evidence_text(&self) -> String {
        let mut text = HEADING.to_owned();
        for row in &self.rows {
            let _ = writeln!(text, "\n[[row]]\nid = {}", literal(&row.id));
            let _ = writeln!(text, "status = \"{}\"", row.status);
            match row.shown_by.as_slice() {
                [] => {}
                [one] => {
                    let _ = writeln!(text, "shown_by = [{}]", literal(one));
                }
                several => {
                    text.push_str("shown_by = [\n");
                    for command in several {
                        let _ = writeln!(text, "    {},", literal(command));
                    }
                    text.push_str("]\n");
                }
            }
            for (name, value) in [
                ("reason", &row.reason),
                ("last_output", &row.last_output),
                ("commit", &row.commit),
            ] {
                if !value.is_empty() {
                    let _ = writeln!(text, "{name} = {}", literal(value));
                }
            }
        }
        text
    }
}

/// `[milestone.section]` tables of `name = "sentence"`, in the order of the file.
fn parse_demands(text: &str) -> Result<Vec<Demand>> {
    // The parser checks the syntax and finds duplicates; the order, which its
    // tables do not keep, comes from the lines.
    let file: toml::Table = toml::from_str(text)?;
    let mut demands = Vec::new();
    for (milestone, sections) in &file {
        let sections = sections
            .as_table()
            .with_context(|| format!("`{milestone}` is no table of sections"))?;
        for (section, sentences) in sections {
            let sentences = sentences
                .as_table()
                .with_context(|| format!("`{milestone}.{section}` is no table of demands"))?;
            for (name, sentence) in sentences {
                let sentence = sentence
                    .as_str()
                    .with_context(|| format!("`{milestone}.{section}.{name}` is no sentence"))?;
                demands.push(Demand {
                    id: format!("{milestone}.{section}.{name}"),
                    section: format!("{milestone}.{section}"),
                    sentence: sentence.to_owned(),
                });
            }
        }
    }
    let place = |demand: &Demand| {
        let section = text.find(&format!("[{}]", demand.section));
        let from = section.unwrap_or(0);
        (
            section,
            text[from..].find(&format!("\n{} =", demand.name())),
        )
    };
    demands.sort_by_key(place);
    Ok(demands)
}

/// `text` as TOML writes a string.
fn literal(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EvidenceFile {
    #[serde(default)]
    row: Vec<Row>,
}

const DEMANDS: &str = "docs/demands.toml";
const EVIDENCE: &str = "docs/evidence.toml";

const HEADING: &str = "\
# What shows that each demand of docs/demands.toml holds.
#
#   id           the demand
#   status       holds | falls-short | missing | open; all but `holds` give a `reason`
#   shown_by     commands: `test SUITE NAME` (NAME may end in `*`), `bench CASE`, `xtask ARGUMENTS`,
#                `file PATH`; SUITE is a package, `package::file` or `package::bin/name`
#   last_output  what they wrote in the end; `cargo xtask evidence --run ID` refreshes it
#   commit       at which commit that was
#
# `cargo xtask evidence` prints the table, `--check` checks it. This file is
# rewritten by `--run`, which keeps the rows and their order and no comment but this.
";

#[cfg(test)]
mod tests {
    use super::*;

    const SOME_DEMANDS: &str = "\
# Comment
[engine.zeta]
second = \"B.\"
first = \"A.\"
[engine.alpha]
only = \"C.\"
";

    const SOME_EVIDENCE: &str = "\
[[row]]
id = \"engine.zeta.first\"
status = \"holds\"
shown_by = [\"test a b\", \"file LICENSE\"]
last_output = \"a \\\"quoted\\\"\\nline\"
commit = \"abc\"

[[row]]
id = \"engine.alpha.only\"
status = \"open\"
reason = \"not yet\"
";

    #[test]
    fn demands_keep_the_order_of_the_file() {
        let demands = parse_demands(SOME_DEMANDS).unwrap();
        let ids: Vec<&str> = demands.iter().map(|demand| demand.id.as_str()).collect();
        assert_eq!(
            ids,
            [
                "engine.zeta.second",
                "engine.zeta.first",
                "engine.alpha.only"
            ]
        );
    }

    #[test]
    fn saved_rows_read_back_the_same() {
        let book = Book::parse(SOME_DEMANDS, SOME_EVIDENCE).unwrap();
        let again = Book::parse(SOME_DEMANDS, &book.evidence_text()).unwrap();
        assert_eq!(again.rows, book.rows);
    }

    #[test]
    fn a_second_row_for_a_demand_is_refused() {
        let twice = format!("{SOME_EVIDENCE}\n{SOME_EVIDENCE}");
        let error = Book::parse(SOME_DEMANDS, &twice).unwrap_err();
        assert!(error.to_string().contains("engine.zeta.first"));
    }

    #[test]
    fn an_unknown_status_or_field_is_refused() {
        for wrong in ["status = \"fine\"", "status = \"holds\"\nnote = \"x\""] {
            let text = format!("[[row]]\nid = \"x\"\n{wrong}\n");
            assert!(Book::parse(SOME_DEMANDS, &text).is_err(), "{wrong}");
        }
    }
}
