//! The log: counters, calls by function, and leaks at the end.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of calls of one function. Each function has its own count, so that counting takes no lock.
#[derive(Debug)]
pub(crate) struct Calls {
    name: &'static str,
    count: AtomicU64,
    listed: AtomicBool,
}

/// The functions that were called.
static CALLED: Mutex<Vec<&'static Calls>> = Mutex::new(Vec::new());

impl Calls {
    pub(crate) const fn new(name: &'static str) -> Calls {
        Calls {
            name,
            count: AtomicU64::new(0),
            listed: AtomicBool::new(false),
        }
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn count(&'static self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if !self.listed.swap(true, Ordering::Relaxed) {
            lock(&CALLED).push(self);
        }
    }
}

/// The number of calls of each function, by name, without those that were never called.
pub(crate) fn calls() -> Vec<(&'static str, u64)> {
    let mut calls: Vec<_> = lock(&CALLED)
        .iter()
        .map(|of| (of.name, of.count.load(Ordering::Relaxed)))
        .collect();
    calls.sort_unstable();
    calls
}

/// The counters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Count {
    /// Copies between devices that went from one to the other.
    PeerDirect,
    /// Copies between devices that went through the host.
    PeerStaged,
    /// Pageable memory that was copied into staging memory, or out of it.
    PageableStaged,
    /// Registrations of host memory.
    Registrations,
    /// Registrations that were undone.
    Unregistrations,
    /// Allocations of memory, of any kind.
    Allocations,
    /// Bytes submitted to a link. They count when the call is made.
    Bytes(String),
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Count::PeerDirect => f.write_str("peer-copies-direct"),
            Count::PeerStaged => f.write_str("peer-copies-staged"),
            Count::PageableStaged => f.write_str("pageable-copies-staged"),
            Count::Registrations => f.write_str("registrations"),
            Count::Unregistrations => f.write_str("unregistrations"),
            Count::Allocations => f.write_str("allocations"),
            Count::Bytes(link) => write!(f, "bytes {link}"),
        }
    }
}

/// Counters, and notes of misuse and internal failures.
#[derive(Debug, Default)]
pub(crate) struct Log {
    counts: Mutex<BTreeMap<Count, u64>>,
    notes: Mutex<Vec<String>>,
}

impl Log {
    pub(crate) fn add(&self, what: Count, by: u64) {
        *lock(&self.counts).entry(what).or_default() += by;
    }

    #[cfg(test)]
    pub(crate) fn count(&self, what: &Count) -> u64 {
        lock(&self.counts).get(what).copied().unwrap_or(0)
    }

    /// Keeps a line for the report, and prints it on standard error at once: a client misused the driver in a way that
    /// a real one would punish, or the double failed.
    pub(crate) fn note(&self, line: impl fmt::Display) {
        let line = line.to_string();
        // If standard error is closed, there is no other place to report to.
        let _ = writeln!(std::io::stderr(), "CUDA driver double: {line}");
        lock(&self.notes).push(line);
    }

    /// Every counter, a line each: `registrations 3`.
    pub(crate) fn counters(&self) -> String {
        let mut text = String::new();
        for (what, count) in lock(&self.counts).iter() {
            // A string takes everything.
            let _ = writeln!(text, "{what} {count}");
        }
        text
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        lock(&self.notes).clone()
    }
}

/// The report at the end of a process: counters, notes, and resources that were not freed.
pub(crate) fn report(log: &Log, leaks: &[String]) -> String {
    let mut text = String::from("CUDA driver double, process ");
    // A string takes everything, here and below.
    let _ = writeln!(text, "{}", std::process::id());
    text.push_str(&log.counters());
    for note in log.notes() {
        let _ = writeln!(text, "note: {note}");
    }
    for leak in leaks {
        let _ = writeln!(text, "leak: {leak}");
    }
    let _ = writeln!(text, "leaks {}", leaks.len());
    text
}

/// Appends a report to a file; `-` is standard error.
pub(crate) fn write_report(path: &Path, report: &str) {
    let written = if path.as_os_str() == "-" {
        std::io::stderr().write_all(report.as_bytes())
    } else {
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(report.as_bytes()))
    };
    tell_failure(path, written);
}

/// Writes the names of the functions that this process called into a file of its own.
pub(crate) fn write_calls(folder: &Path) {
    let names: String = calls()
        .iter()
        .map(|(name, _)| format!("{name}\n"))
        .collect();
    let path = folder.join(std::process::id().to_string());
    tell_failure(&path, fs::write(&path, names));
}

fn tell_failure(path: &Path, written: std::io::Result<()>) {
    if let Err(error) = written {
        // As in `note`.
        let _ = writeln!(
            std::io::stderr(),
            "CUDA driver double: {}: {error}",
            path.display()
        );
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_told_by_name() {
        let log = Log::default();
        log.add(Count::Registrations, 1);
        log.add(Count::Bytes("cpu:0/pinned -> cuda:0/device".into()), 40);
        log.add(Count::Bytes("cpu:0/pinned -> cuda:0/device".into()), 2);
        assert_eq!(log.count(&Count::PeerStaged), 0);
        assert_eq!(
            log.counters(),
            "registrations 1\nbytes cpu:0/pinned -> cuda:0/device 42\n"
        );
        let report = report(&log, &["a stream".into()]);
        assert!(report.ends_with("leak: a stream\nleaks 1\n"), "{report}");
    }

    #[test]
    fn calls_are_counted_by_function() {
        static CALLS: Calls = Calls::new("cuNothing");
        CALLS.count();
        CALLS.count();
        assert!(calls().contains(&("cuNothing", 2)));
    }
}
