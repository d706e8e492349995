//! Times cells in rounds.

use super::cell::{Cell, State};
use super::ground::{Ground, Role};
use crate::{Error, Report};

/// Times one copy of each cell after the other, again and again, until each has `samples` or `go_on` returns false.
/// Skips cells whose bytes were not found right.
pub(super) fn run(
    ground: &mut Ground<'_>,
    cells: &mut [Cell],
    samples: u32,
    go_on: &mut dyn FnMut() -> bool,
) {
    for _ in 0..samples {
        for cell in cells.iter_mut().filter(|cell| cell.state == State::Right) {
            if !go_on() {
                return;
            }
            time(ground, cell);
        }
    }
}

fn time(ground: &mut Ground<'_>, cell: &mut Cell) {
    let turn = 2 * cell.times.len();
    if cell.bytes <= WARM_BYTES
        && let Err(error) = copy(ground, cell, turn)
    {
        cell.state = State::Failed(error.to_string());
        return;
    }
    match copy(ground, cell, turn + 1) {
        // A way that failed at first took time too, and will not be taken again.
        Ok(report) if report.fallbacks().is_empty() => {
            let ns = u64::try_from(report.elapsed().as_nanos()).unwrap_or(u64::MAX);
            cell.times.push(ns);
            cell.method = Some(report.method());
        }
        Ok(_) => {}
        Err(error) => cell.state = State::Failed(error.to_string()),
    }
}

fn copy(ground: &mut Ground<'_>, cell: &Cell, turn: usize) -> Result<Report, Error> {
    let src = ground.stretch(cell.src, cell.bytes, Role::From, turn)?;
    let dst = ground.stretch(cell.dst, cell.bytes, Role::To, turn)?;
    ground.copy(&src, &dst, cell.over)
}

/// The larger copies of a round push the code that moves smaller ones out of every cache, so one copy is made that is
/// not timed. Copies above this size need no such copy.
const WARM_BYTES: u64 = 1 << 20;
