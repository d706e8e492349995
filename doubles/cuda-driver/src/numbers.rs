//! Numbers that processes share, and a bell that announces a change.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

use rustix::io::Errno;
use rustix::thread::futex;

use crate::bytes::Bytes;
use crate::engine::{Engine, Gate};
use crate::shared::{Kind, Label};

/// A page of a file in memory. Every process that maps it sees the current numbers.
#[derive(Clone)]
pub(crate) struct SharedNumbers(Arc<Bytes>);

/// What lies in the page.
#[repr(C)]
struct Page {
    /// Changes with every change of a number, so that no waiting thread misses one.
    bell: AtomicU32,
    numbers: [AtomicU64; NUMBERS],
}

/// How many numbers there are. They fit into a page with the bell.
pub(crate) const NUMBERS: usize = 500;
const PAGE: usize = 4096;
const _: () = assert!(size_of::<Page>() <= PAGE);

impl SharedNumbers {
    /// A new one, all numbers 0.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub(crate) fn new(kind: Kind) -> Result<SharedNumbers, Errno> {
        let label = Label {
            kind,
            size: PAGE as u64,
            uuid: [0; 16],
            word: 0,
        };
        Ok(SharedNumbers(Bytes::of_file(label.file()?, 0, PAGE)?))
    }

    /// The page of another process; `None` if the file is no page of that kind.
    pub(crate) fn open(file: OwnedFd, kind: Kind) -> Option<SharedNumbers> {
        let label = Label::read(&file)?;
        if label.kind != kind || label.size != PAGE as u64 {
            return None;
        }
        Bytes::of_file(file, 0, PAGE).ok().map(SharedNumbers)
    }

    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.file().map(|(file, _)| file)
    }

    pub(crate) fn number(&self, index: usize) -> &AtomicU64 {
        &self.page().numbers[index]
    }

    /// Announces to every process that numbers have changed.
    pub(crate) fn ring(&self) {
        let bell = &self.page().bell;
        bell.fetch_add(1, Ordering::AcqRel);
        // The call fails only for addresses that are no futex's.
        let _ = futex::wake(bell, futex::Flags::empty(), u32::MAX >> 1);
    }

    /// Sleeps until `so` is true, checking at each ring of the bell.
    fn sleep_until(&self, so: impl Fn(&SharedNumbers) -> bool) {
        let bell = &self.page().bell;
        loop {
            let before = bell.load(Ordering::Acquire);
            if so(self) {
                return;
            }
            // Returns at once if the bell has rung since, and may return without reason: the loop checks again in both
            // cases.
            let _ = futex::wait(bell, futex::Flags::empty(), before, None);
        }
    }

    /// A gate that opens when `so` is true. A thread sleeps until then, for ever if it never is.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn gate(
        &self,
        engine: &Engine,
        so: impl Fn(&SharedNumbers) -> bool + Send + 'static,
    ) -> std::io::Result<Gate> {
        self.gate_after(engine, || true, so)
    }

    /// As [`SharedNumbers::gate`], for a thread that checks the page of numbers only after `begin`, which may block.
    /// Opens the gate at once if `begin` returns false.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn gate_after(
        &self,
        engine: &Engine,
        begin: impl FnOnce() -> bool + Send + 'static,
        so: impl Fn(&SharedNumbers) -> bool + Send + 'static,
    ) -> std::io::Result<Gate> {
        let gate = engine.gate();
        let (numbers, opened) = (self.clone(), gate.clone());
        let thread = thread::Builder::new().name("waits for a process".into());
        thread.spawn(move || {
            if begin() {
                numbers.sleep_until(so);
            }
            opened.open();
        })?;
        Ok(gate)
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is as long as a page and lives as long as `self`, a page of zeros is one, and of
        // its parts each is atomic, which is how every process uses them.
        unsafe { &*self.0.start().cast::<Page>() }
    }
}

impl fmt::Debug for SharedNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedNumbers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Action, Clock, Work};

    #[test]
    fn who_sleeps_is_told_of_a_change() {
        let numbers = SharedNumbers::new(Kind::Event).unwrap();
        // Another mapping of the same file, as another process has.
        let other = numbers.file().unwrap().try_clone_to_owned().unwrap();
        let other = SharedNumbers::open(other, Kind::Event).unwrap();
        let engine = Engine::new(Clock::Real);
        let three = |numbers: &SharedNumbers| numbers.number(7).load(Ordering::Acquire) == 3;
        let gate = numbers.gate(&engine, three).unwrap();
        let ticket = engine.submit(Work {
            after: Vec::new(),
            channels: Vec::new(),
            duration_ns: 0,
            action: Action::Until(gate.bar()),
        });
        other.ring();
        other.number(7).store(3, Ordering::Release);
        other.ring();
        engine.wait(&ticket);
    }

    #[test]
    fn a_board_of_another_kind_is_none() {
        let numbers = SharedNumbers::new(Kind::Event).unwrap();
        let file = numbers.file().unwrap().try_clone_to_owned().unwrap();
        assert!(SharedNumbers::open(file, Kind::Memory).is_none());
    }
}
