//! Transfers by each method, one after the other, and the expected bytes of each buffer afterwards.

use std::sync::LazyLock;

use transload::hal::ErrorClass;
use transload::{AllocSpec, Buffer, Region, Request, TransferManager};

/// Several chunks of the smallest size, and some bytes more.
pub(crate) const LEN: u64 = 150_001;

/// The distance of a copy within a buffer: the copy reads most of the bytes that it writes.
const SHIFT: u64 = 1_000;

/// A buffer and its expected bytes; `None` where any byte is allowed.
struct Stop {
    buffer: Buffer,
    holds: Option<Vec<u8>>,
}

/// A step that failed.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) class: ErrorClass,
    pub(crate) text: String,
}

/// The steps that were done, and the wrong bytes that they left.
#[derive(Default)]
pub(crate) struct Journey {
    stops: Vec<Stop>,
    pub(crate) troubles: Vec<Trouble>,
    pub(crate) crimes: Vec<String>,
    /// Routes that failed before another route succeeded.
    pub(crate) detours: Vec<String>,
}

impl Journey {
    /// Visits every memory that can be reached.
    pub(crate) fn go(manager: &TransferManager) -> Journey {
        let mut journey = Journey::default();
        static BYTES: LazyLock<Vec<u8>> =
            LazyLock::new(|| (0..LEN).map(|at| (at * 7 + at / 251) as u8).collect());
        let bytes = BYTES.clone();
        let start = manager.adopt(bytes.clone());
        let start = journey.take(start.map_err(|error| (error.class(), error.to_string())));
        if let Some(start) = start {
            journey.stops[start].holds = Some(bytes);
        }
        // Staged to the device; within the device, also over its own source; to another device; in place; through the
        // driver's own paging; and staged back.
        let near = journey.allocate(manager, "cuda:0");
        journey.copy(manager, start, near);
        journey.shift(manager, near);
        let beside = journey.allocate(manager, "cuda:0");
        journey.copy(manager, near, beside);
        let far = journey.allocate(manager, "cuda:1");
        journey.copy(manager, beside, far);
        let pinned = journey.allocate(manager, "cpu:0/pinned");
        journey.copy(manager, far, pinned);
        let managed = journey.allocate(manager, "cuda:0/managed");
        journey.copy(manager, pinned, managed);
        let landing = journey.allocate(manager, "cpu:0/pinned");
        journey.copy(manager, managed, landing);
        let end = manager.adopt(vec![0xA5u8; LEN as usize]);
        let end = journey.take(end.map_err(|error| (error.class(), error.to_string())));
        journey.copy(manager, landing, end);
        journey.copy(manager, managed, end);
        journey.copy(manager, end, managed);
        journey.copy(manager, far, end);
        journey
    }

    fn allocate(&mut self, manager: &TransferManager, place: &str) -> Option<usize> {
        let made = manager.allocate(place.parse().unwrap(), AllocSpec::bytes(LEN));
        self.take(made.map_err(|error| (error.class(), error.to_string())))
    }

    fn take(&mut self, made: Result<Buffer, (ErrorClass, String)>) -> Option<usize> {
        match made {
            Ok(buffer) => {
                self.stops.push(Stop {
                    buffer,
                    holds: None,
                });
                Some(self.stops.len() - 1)
            }
            Err((class, text)) => {
                self.troubles.push(Trouble { class, text });
                None
            }
        }
    }

    fn copy(&mut self, manager: &TransferManager, from: Option<usize>, to: Option<usize>) {
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        let [src, dst] = [from, to].map(|stop| Region::from(&self.stops[stop].buffer));
        let arrived = self.transfer(manager, src, dst);
        let holds = self.stops[from].holds.clone();
        self.stops[to].holds = holds.filter(|_| arrived);
    }

    /// Copies most of a buffer to a place a little further on in the same buffer.
    fn shift(&mut self, manager: &TransferManager, stop: Option<usize>) {
        let Some(stop) = stop else {
            return;
        };
        let buffer = &self.stops[stop].buffer;
        let src = buffer.slice(..LEN - SHIFT).unwrap();
        let dst = buffer.slice(SHIFT..).unwrap();
        let arrived = self.transfer(manager, Region::from(&src), Region::from(&dst));
        let holds = &mut self.stops[stop].holds;
        match holds {
            Some(bytes) if arrived => {
                bytes.copy_within(..(LEN - SHIFT) as usize, SHIFT as usize);
            }
            _ => *holds = None,
        }
    }

    fn transfer(&mut self, manager: &TransferManager, src: Region, dst: Region) -> bool {
        match manager.submit(&Request::new(src, dst)).wait() {
            Ok(report) => {
                for fallback in report.fallbacks() {
                    self.detours.push(format!("{fallback:?}"));
                }
                true
            }
            Err(error) => {
                let (class, text) = (error.class(), error.to_string());
                self.troubles.push(Trouble { class, text });
                false
            }
        }
    }

    /// Checks every buffer, over any way that exists now. A buffer on a lost device cannot be read.
    pub(crate) fn look(&mut self, manager: &TransferManager, may_lose: bool) {
        for stop in &self.stops {
            let Some(holds) = &stop.holds else {
                continue;
            };
            let seen = manager.adopt(vec![0u8; LEN as usize]).unwrap();
            match manager.copy(&stop.buffer, &seen).wait() {
                Ok(_) if *seen.read().unwrap() == **holds => {}
                Ok(_) => {
                    let memory = stop.buffer.memory();
                    self.crimes.push(format!("wrong bytes in {memory}"));
                }
                Err(error) if may_lose && error.to_string().contains("is lost: ") => {}
                Err(error) => self.crimes.push(format!("cannot be read: {error}")),
            }
        }
    }
}
