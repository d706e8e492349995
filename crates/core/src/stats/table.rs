//! Statistics as a table.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::{Figures, Snapshot};
use crate::{ByteRate, ByteSize, Nanoseconds};

const COLUMNS: usize = 12;

/// Text columns come first and stand to the left, figures to the right.
const TEXT_COLUMNS: usize = 2;

const HEADINGS: [&str; COLUMNS] = [
    "path",
    "method",
    "size from",
    "transfers",
    "bytes",
    "busy",
    "mean",
    "best",
    "p50",
    "p99",
    "failed",
    "fallbacks",
];

impl fmt::Display for Snapshot {
    /// One line for each path and below it one for each of its size classes, from its smallest size
    /// on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.paths.is_empty() && self.other.is_none() {
            return f.write_str("no transfers so far");
        }
        let mut rows = Vec::from([HEADINGS.map(String::from)]);
        for path in &self.paths {
            let name = format!("{} → {}", path.src, path.dst);
            rows.push(row(
                name,
                path.method.to_string(),
                "all".into(),
                &path.total,
            ));
            for class in &path.classes {
                let size = ByteSize(class.from_bytes).to_string();
                rows.push(row(String::new(), String::new(), size, &class.figures));
            }
        }
        if let Some(other) = &self.other {
            rows.push(row("other".into(), String::new(), "all".into(), other));
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: [usize; COLUMNS] = core::array::from_fn(|column| width(column).unwrap_or(0));
        for (i, row) in rows.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
                if column > 0 {
                    f.write_str("  ")?;
                }
                if column < TEXT_COLUMNS {
                    write!(f, "{cell:<width$}")?;
                } else {
                    write!(f, "{cell:>width$}")?;
                }
            }
        }
        Ok(())
    }
}

fn row(path: String, method: String, size: String, figures: &Figures) -> [String; COLUMNS] {
    [
        path,
        method,
        size,
        figures.transfers.to_string(),
        ByteSize(figures.bytes).to_string(),
        time(figures.busy_ns),
        rate(figures.mean_bytes_per_s),
        rate(figures.best_bytes_per_s),
        figures.p50_ns.map_or("-".into(), time),
        figures.p99_ns.map_or("-".into(), time),
        figures.failures.to_string(),
        figures.fallbacks.to_string(),
    ]
}

fn rate(bytes_per_s: Option<u64>) -> String {
    bytes_per_s.map_or("-".into(), |rate| ByteRate(rate as f64).to_string())
}

fn time(ns: u64) -> String {
    Nanoseconds(ns).to_string()
}
