//! Statistics as a table.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::{Figures, Snapshot};
use crate::ByteSize;

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
                let size = size(class.from_bytes);
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
    bytes_per_s.map_or("-".into(), |rate| format!("{}/s", ByteSize(rate)))
}

/// Returns the smallest size of a class, which is 0 or a power of two.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = bytes.checked_ilog2().unwrap_or(0) / 10;
    format!("{} {}", bytes >> (10 * unit), UNITS[unit as usize])
}

fn time(ns: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")];
    for (unit, name) in UNITS {
        if ns >= unit {
            return format!("{}.{:02} {name}", ns / unit, ns % unit / (unit / 100));
        }
    }
    format!("{ns} ns")
}
