//! Times measurements in rounds.

use super::measurement::{Measurement, State};
use super::workspace::{Role, Workspace, request};
use crate::Error;

/// Times the measurements one after the other, again and again, until each has `samples` or `go_on` returns false.
/// Skips measurements whose bytes were not found right.
pub(super) fn run(
    workspace: &mut Workspace<'_>,
    measurements: &mut [Measurement],
    samples: u32,
    go_on: &mut dyn FnMut() -> bool,
) {
    for _ in 0..samples {
        for measurement in measurements
            .iter_mut()
            .filter(|measurement| measurement.state == State::Right && !measurement.is_known())
        {
            if !go_on() {
                return;
            }
            time(workspace, measurement);
        }
    }
}

fn time(workspace: &mut Workspace<'_>, measurement: &mut Measurement) {
    match steady(workspace, measurement) {
        Ok(times) => measurement.times.extend(times),
        Err(error) => measurement.state = State::Failed(error.to_string()),
    }
}

/// Returns the mean time of copies that follow one another, in nanoseconds; `None` where one of them went another way.
///
/// The other copies of a round push the bytes and the code of this one out of the caches, and take its slots: first
/// copies are not timed. So all ways between two memories are timed alike, whichever came before. On an AMD EPYC with a
/// third-level cache of 32 MiB a second copy of 16 MiB took 1.3 times as long as an eighth.
fn steady(
    workspace: &mut Workspace<'_>,
    measurement: &mut Measurement,
) -> Result<Option<u64>, Error> {
    let src = workspace.buffer(measurement.src, measurement.bytes, Role::From)?;
    let dst = workspace.buffer(measurement.dst, measurement.bytes, Role::To)?;
    let request = request(&src, &dst, measurement.only());
    let manager = workspace.manager();
    let mut first_ns = 0;
    for _ in 0..MOST_FIRST {
        first_ns = manager
            .submit(&request)
            .wait()?
            .elapsed_ns
            .saturating_add(first_ns);
        if first_ns >= FIRST_NS {
            break;
        }
    }
    let begin = manager.now();
    for copies in 1..=MOST_TIMED {
        let report = manager.submit(&request).wait()?;
        // A way that failed at first took time too, and will not be taken again.
        if !report.fallbacks().is_empty() || !measurement.is_expected(&report) {
            break;
        }
        let ns = manager.now().0.saturating_sub(begin.0);
        if copies == MOST_TIMED || ns >= TIMED_NS {
            measurement.method = Some(report.method());
            return Ok(Some(ns / copies));
        }
    }
    Ok(None)
}

/// So many copies, or copies that take so long together, fill the caches.
const MOST_FIRST: u32 = 8;
const FIRST_NS: u64 = 4_000_000;

/// So many copies, or copies that take so long together, make one time.
const MOST_TIMED: u64 = 64;
const TIMED_NS: u64 = 200_000;
