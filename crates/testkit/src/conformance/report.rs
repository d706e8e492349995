//! The results of the suite.

use std::fmt;

use super::exceptions::{Exceptions, List};

/// The end of one case on one subject.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The case passed.
    Passed,
    /// The backend does not offer what the case needs.
    Skipped(String),
    /// The case failed, and an exception gives the reason.
    Excepted {
        /// The list.
        list: List,
        /// The reason that the exception gives.
        reason: String,
        /// The failure.
        failure: String,
    },
    /// The case failed.
    Failed(String),
}

/// One line of a [`Report`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// The case: `copy/sizes`.
    pub case: String,
    /// The subject of the case: a memory or a link.
    pub subject: String,
    /// The end of the case.
    pub verdict: Verdict,
}

/// All cases of a run, in order. Prints a line for each entry that did not pass and a line of totals.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    backend: String,
    entries: Vec<Entry>,
}

impl Report {
    pub(super) fn new(backend: &str) -> Report {
        Report {
            backend: backend.into(),
            entries: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, case: &str, subject: String, verdict: Verdict) {
        self.entries.push(Entry {
            case: case.into(),
            subject,
            verdict,
        });
    }

    /// Marks failures with an exception as excepted, and reports exceptions without a failure.
    pub(super) fn except(&mut self, exceptions: &Exceptions) {
        for exception in &exceptions.all {
            let mut needed = false;
            for entry in &mut self.entries {
                if !exception.covers(&entry.case, &entry.subject) {
                    continue;
                }
                if let Verdict::Failed(failure) = &entry.verdict {
                    needed = true;
                    entry.verdict = Verdict::Excepted {
                        list: exception.list,
                        reason: exception.reason.clone(),
                        failure: failure.clone(),
                    };
                }
            }
            if !needed {
                let failure = format!("nothing fails that it excuses ({})", exception.reason);
                self.push(
                    "exceptions/stale",
                    exception.case.clone(),
                    Verdict::Failed(failure),
                );
            }
        }
    }

    /// Every entry.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entries that failed without an exception.
    pub fn failures(&self) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(|entry| matches!(entry.verdict, Verdict::Failed(_)))
    }

    /// The number of entries that passed.
    pub fn passed(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Passed))
    }

    /// The number of entries that were skipped.
    pub fn skipped(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Skipped(_)))
    }

    /// The number of entries that failed with an exception.
    pub fn excepted(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Excepted { .. }))
    }

    /// # Panics
    /// Panics with the report if a case failed without an exception, or no case passed.
    pub fn assert_passed(&self) {
        assert!(self.failures().next().is_none(), "{self}");
        assert!(self.passed() > 0, "nothing passed\n{self}");
    }

    fn count(&self, is: impl Fn(&Verdict) -> bool) -> usize {
        self.entries
            .iter()
            .filter(|entry| is(&entry.verdict))
            .count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "conformance of {}", self.backend)?;
        for entry in &self.entries {
            let (case, subject) = (&entry.case, &entry.subject);
            match &entry.verdict {
                Verdict::Passed => {}
                Verdict::Skipped(reason) => writeln!(f, "  skipped {case} [{subject}]: {reason}")?,
                Verdict::Excepted {
                    list,
                    reason,
                    failure,
                } => {
                    let list = match list {
                        List::Never => "never",
                        List::KnownBug => "known bug",
                    };
                    writeln!(f, "  {list} {case} [{subject}]: {reason} ({failure})")?;
                }
                Verdict::Failed(failure) => {
                    writeln!(f, "  FAILED {case} [{subject}]: {failure}")?;
                }
            }
        }
        write!(
            f,
            "  {} passed, {} skipped, {} excepted, {} failed",
            self.passed(),
            self.skipped(),
            self.excepted(),
            self.failures().count()
        )
    }
}
