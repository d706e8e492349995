//! The results for every pair of memories, as a matrix that fits the terminal.

use transload::probe::{Found, Interval, PairReport};
use transload::{ByteRate, ByteSize, MemoryId, Nanoseconds};

use crate::failure::Failure;
use crate::output::Output;

/// The figure that a cell of the matrix shows above the method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    Rates,
    Times,
}

/// One size between every two memories.
pub(super) struct Matrix<'a> {
    pairs: Vec<&'a PairReport>,
    memories: Vec<MemoryId>,
    bytes: u64,
    shown: Figure,
}

impl<'a> Matrix<'a> {
    pub(super) fn new(pairs: &'a [PairReport], bytes: u64, shown: Figure) -> Matrix<'a> {
        let pairs: Vec<&PairReport> = pairs.iter().filter(|pair| pair.bytes == bytes).collect();
        let mut memories: Vec<MemoryId> = Vec::new();
        for pair in &pairs {
            if !memories.contains(&pair.src) {
                memories.push(pair.src);
            }
        }
        Matrix {
            pairs,
            memories,
            bytes,
            shown,
        }
    }

    /// Prints as many columns beside each other as fit, and the others below.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn print(&self, output: &mut Output) -> Result<(), Failure> {
        let what = match self.shown {
            Figure::Rates => "rate",
            Figure::Times => "time",
        };
        let size = ByteSize(self.bytes);
        output.line(output.style().bold(&format!(
            "{size} from row to column: median {what}, its 95 % interval, method"
        )))?;
        let widest = self.memories.iter().map(|memory| memory.to_string().len());
        let label = widest.max().unwrap_or(0);
        let all = self.memories.iter().flat_map(|src| {
            let cells = self.memories.iter().map(|dst| self.cell(*src, *dst));
            cells.collect::<Vec<_>>()
        });
        let width = |cell: String| cell.lines().map(|line| line.chars().count()).max();
        let cell = all.filter_map(width).max().unwrap_or(0);
        let beside = (output.columns().saturating_sub(label) / (label.max(cell) + GAP)).max(1);
        for columns in self.memories.chunks(beside) {
            let names: Vec<String> = columns.iter().map(MemoryId::to_string).collect();
            let mut header = vec![""];
            header.extend(names.iter().map(String::as_str));
            let row = |src: &MemoryId| {
                let cells = columns.iter().map(|dst| self.cell(*src, *dst));
                std::iter::once(src.to_string()).chain(cells).collect()
            };
            output.figures(&header, self.memories.iter().map(row).collect())?;
            output.line("")?;
        }
        Ok(())
    }

    fn cell(&self, src: MemoryId, dst: MemoryId) -> String {
        let pair = self
            .pairs
            .iter()
            .find(|pair| (pair.src, pair.dst) == (src, dst));
        let Some(pair) = pair else {
            return "–".into();
        };
        match &pair.found {
            Found::Time(interval) => {
                let method = pair.method.map(|method| method.to_string());
                let figure = self.figure(interval);
                format!("{figure}\n{}", method.unwrap_or_default())
            }
            Found::WrongBytes => "wrong bytes".into(),
            Found::NotReached => "not reached".into(),
            _ => "no way".into(),
        }
    }

    fn figure(&self, interval: &Interval) -> String {
        let figure = match self.shown {
            Figure::Times => Nanoseconds(interval.median_ns).to_string(),
            Figure::Rates if interval.median_ns == 0 => return "–".into(),
            Figure::Rates => {
                let rate = self.bytes as f64 / interval.median_ns as f64 * 1e9;
                ByteRate(rate).to_string()
            }
        };
        let mark = if is_doubtful(interval) { "!" } else { "" };
        // A few times have no such interval. Beyond 999 % it says no more than that it is worth nothing.
        match interval.confidence >= SURE {
            true => {
                let spread = (interval.spread() * 100.0).ceil().min(999.0);
                format!("{figure} ±{spread:.0}%{mark}")
            }
            false => format!("{figure} ±?{mark}"),
        }
    }
}

/// Whether a figure is not to be trusted.
pub(super) fn is_doubtful(interval: &Interval) -> bool {
    interval.confidence < SURE || interval.spread() > WIDE
}

/// The confidence of an interval that is shown.
pub(super) const SURE: f64 = 0.95;

/// A wider interval can hide which of two ways is the faster one: those of a machine often differ by as much.
pub(super) const WIDE: f64 = 0.2;

/// Between two columns.
const GAP: usize = 2;
