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
    // The other copies of a round push the bytes and the code of this one out of the caches, and take its slots: a first
    // copy is not timed. So all ways between two memories are timed alike, whichever came before.
    if let Err(error) = copy(workspace, measurement) {
        measurement.state = State::Failed(error.to_string());
        return;
    }
    match copy(workspace, measurement) {
        // A way that failed at first took time too, and will not be taken again.
        Ok(report) if report.fallbacks().is_empty() && measurement.is_expected(&report) => {
            measurement.times.push(report.elapsed_ns);
            measurement.method = Some(report.method());
        }
        Ok(_) => {}
        Err(error) => measurement.state = State::Failed(error.to_string()),
    }
}

fn copy(workspace: &mut Workspace<'_>, measurement: &Measurement) -> Result<Report, Error> {
    let src = workspace.buffer(measurement.src, measurement.bytes, Role::From)?;
    let dst = workspace.buffer(measurement.dst, measurement.bytes, Role::To)?;
    workspace.copy(&src, &dst, measurement.only())
}
