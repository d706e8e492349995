//! The processors of this machine, shared out between this process and the others.

#[cfg(target_os = "linux")]
pub(super) use linux::{on_the_first, on_the_second};

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::OnceLock;

    use anyhow::Result;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// The processors that this process had at first.
    static ALL: OnceLock<CpuSet> = OnceLock::new();

    /// Calls `f`, and keeps this thread, and what it starts meanwhile, to the first half of the processors.
    pub(in super::super) fn on_the_first<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
        keep_to(0, f)
    }

    /// The same with the second half. One processor alone is both.
    pub(in super::super) fn on_the_second<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
        keep_to(1, f)
    }

    fn keep_to<R>(half: usize, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let before = sched_getaffinity(None)?;
        let all = ALL.get_or_init(|| before);
        let numbers: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|cpu| all.is_set(*cpu))
            .collect();
        let halves = numbers.split_at(numbers.len() / 2);
        let own = match [halves.0, halves.1][half] {
            [] => halves.1,
            own => own,
        };
        let mut processors = CpuSet::new();
        own.iter().for_each(|cpu| processors.set(*cpu));
        sched_setaffinity(None, &processors)?;
        let result = f();
        sched_setaffinity(None, &before)?;
        result
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn on_the_first<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn on_the_second<R>(f: impl FnOnce() -> R) -> R {
    f()
}
