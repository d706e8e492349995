//! The suite that every backend passes. It tests an implementation of
//! [`Backend`](transload_hal::Backend) where implementations tend to fail.
//!
//! Each destination lies between guard bands and first holds the complement of the expected bytes. The [`Harness`]
//! writes and reads bytes without the operations under test. Lengths lie on the edges of words, lines, pages and
//! chunks. Features that a backend lacks are skipped with the reason, never passed. Cases that a backend cannot pass
//! stand in [`Exceptions`]: "never" for those that the memory system rules out, "known bug" for bugs to be fixed. An
//! exception that no case needs any more fails the run.
//!
//! A harness needs little where the host can address the memory:
//!
//! ```
//! use transload_hal::Backend;
//! use transload_testkit::conformance::{self, Exceptions, Harness};
//!
//! struct Mine<B>(B);
//!
//! impl<B: Backend> Harness for Mine<B> {
//!     fn backend(&self) -> &dyn Backend {
//!         &self.0
//!     }
//! }
//!
//! fn check(backend: impl Backend) {
//!     let report = conformance::run(&Mine(backend), &Exceptions::none());
//!     println!("{report}");
//!     report.assert_passed();
//! }
//! ```

mod batch;
mod bench;
mod copies;
mod exceptions;
mod exchange;
mod fences;
mod harness;
mod memories;
mod order;
mod report;
mod stops;
mod transforms;
mod visible;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use exceptions::{Exception, Exceptions, List};
pub use harness::{Harness, SIZES};
pub use report::{Entry, Report, Verdict};

use bench::{Bench, Case, CaseError};

/// Runs every case on everything that the backend lists. A case that panics fails.
///
/// Attaches a sink, so each backend is run once.
pub fn run(harness: &dyn Harness, exceptions: &Exceptions) -> Report {
    let bench = Bench::new(harness);
    let mut report = Report::new(&bench.name());
    for suite in SUITES {
        for case in suite(&bench) {
            let result = catch_unwind(AssertUnwindSafe(|| (case.run)(&bench)));
            let verdict = match result {
                Ok(Ok(())) => Verdict::Passed,
                Ok(Err(CaseError::Skip(reason))) => Verdict::Skipped(reason),
                Ok(Err(CaseError::Fail(failure))) => Verdict::Failed(failure),
                Err(panic) => Verdict::Failed(format!("panicked: {}", text_of(&*panic))),
            };
            report.push(case.name, case.subject, verdict);
        }
    }
    report.except(exceptions);
    report
}

/// The last suite checks all fences of the suites before it.
const SUITES: [fn(&Bench<'_>) -> Vec<Case>; 10] = [
    memories::cases,
    exchange::cases,
    copies::cases,
    order::cases,
    batch::cases,
    transforms::cases,
    visible::cases,
    fences::cases,
    stops::cases,
    fences::closing_cases,
];

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "something that is no text".into())
}
