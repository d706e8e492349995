//! Runs of bytes that are rows of one length, combined.

use super::{Run, Runs};

/// Rows of one length, at a pitch on either side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows {
    /// Where the first row begins on the first side.
    pub from: u64,
    /// Where it begins on the other side.
    pub to: u64,
    /// The bytes of a row.
    pub len: u64,
    /// How many rows.
    pub rows: u64,
    /// From one row to the next on the first side. 0 where there is one.
    pub from_pitch: u64,
    /// From one row to the next on the other side. 0 where there is one.
    pub to_pitch: u64,
}

/// Combines runs whose starts are equally far apart on either side; made by [`Runs::rows`].
#[derive(Clone, Debug)]
pub struct Together<I> {
    runs: I,
    /// The first run of the rows that come next.
    next: Option<Rows>,
    /// Whether combining runs gains anything.
    is_wanted: bool,
}

impl Runs {
    /// Returns the same runs as rows: those at one pitch as one, or each by itself.
    #[must_use]
    pub fn rows(self, together: bool) -> Together<Runs> {
        Together::new(self, together)
    }
}

impl<I: Iterator<Item = Run>> Together<I> {
    fn new(mut runs: I, is_wanted: bool) -> Together<I> {
        let next = runs.next().map(single);
        Together {
            runs,
            next,
            is_wanted,
        }
    }
}

impl<I: Iterator<Item = Run>> Iterator for Together<I> {
    type Item = Rows;

    fn next(&mut self) -> Option<Rows> {
        let mut rows = self.next.take()?;
        for run in self.runs.by_ref() {
            let run = single(run);
            match joined(&rows, &run).filter(|_| self.is_wanted) {
                Some(more) => rows = more,
                None => {
                    self.next = Some(run);
                    break;
                }
            }
        }
        Some(rows)
    }
}

fn single(run: Run) -> Rows {
    Rows {
        from: run.offset,
        to: run.other_offset,
        len: run.len_bytes,
        rows: 1,
        from_pitch: 0,
        to_pitch: 0,
    }
}

fn joined(rows: &Rows, run: &Rows) -> Option<Rows> {
    let (last, len) = (rows.rows - 1, rows.len);
    let from_pitch = run.from.checked_sub(rows.from + last * rows.from_pitch)?;
    let to_pitch = run.to.checked_sub(rows.to + last * rows.to_pitch)?;
    let goes_on = last == 0 || (from_pitch, to_pitch) == (rows.from_pitch, rows.to_pitch);
    (run.len == len && goes_on).then_some(Rows {
        rows: rows.rows + 1,
        from_pitch,
        to_pitch,
        ..*rows
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn run(offset: u64, other_offset: u64, len_bytes: u64) -> Run {
        Run {
            offset,
            other_offset,
            len_bytes,
        }
    }

    fn rows(from: u64, to: u64, len: u64, rows: u64, from_pitch: u64, to_pitch: u64) -> Rows {
        Rows {
            from,
            to,
            len,
            rows,
            from_pitch,
            to_pitch,
        }
    }

    #[test]
    fn runs_at_one_pitch_are_rows_and_others_are_not() {
        let runs = [
            run(3, 0, 2),
            run(10, 2, 5),
            run(20, 7, 5),
            run(30, 12, 5),
            run(41, 17, 5),
            run(51, 22, 4),
        ];
        let found: Vec<Rows> = Together::new(runs.into_iter(), true).collect();
        let wanted = [
            rows(3, 0, 2, 1, 0, 0),
            rows(10, 2, 5, 3, 10, 5),
            rows(41, 17, 5, 1, 0, 0),
            rows(51, 22, 4, 1, 0, 0),
        ];
        assert_eq!(found, wanted);
        assert_eq!(Together::new(runs.into_iter(), false).count(), 6);
    }
}
