//! Times measurements in rounds.

use super::measurement::{Measurement, State};
use super::workspace::{Role, Workspace};
use crate::{Error, Report};

/// Times one copy of each measurement after the other, again and again, until each has `samples` or `go_on` returns false.
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
    let turn = 2 * measurement.times.len();
    if measurement.bytes <= WARM_BYTES
        && let Err(error) = copy(workspace, measurement, turn)
    {
        measurement.state = State::Failed(error.to_string());
        return;
    }
    match copy(workspace, measurement, turn + 1) {
        // A way that failed at first took time too, and will not be taken again.
        Ok(report) if report.fallbacks().is_empty() => {
            let ns = u64::try_from(report.elapsed().as_nanos()).unwrap_or(u64::MAX);
            measurement.times.push(ns);
            measurement.method = Some(report.method());
        }
        Ok(_) => {}
        Err(error) => measurement.state = State::Failed(error.to_string()),
    }
}

fn copy(
    workspace: &mut Workspace<'_>,
    measurement: &Measurement,
    turn: usize,
) -> Result<Report, Error> {
    let src = workspace.stretch(measurement.src, measurement.bytes, Role::From, turn)?;
    let dst = workspace.stretch(measurement.dst, measurement.bytes, Role::To, turn)?;
    workspace.copy(&src, &dst, measurement.only())
}

/// The larger copies of a round push the code that moves smaller ones out of every cache, so one copy is made that is
/// not timed. Copies above this size need no such copy.
pub(super) const WARM_BYTES: u64 = 1 << 20;
