//! The records of an event that several processes make and wait for.

use std::sync::atomic::Ordering;

use transload_cuda::raw::CUresult;

use crate::engine::{Action, Engine, Ticket, Work};
use crate::numbers::{NUMBERS, SharedNumbers};
use crate::shared::Kind;

/// The part of an event that processes share.
#[derive(Debug)]
pub(crate) struct SharedEvent {
    pub(super) numbers: SharedNumbers,
    /// The number of the last record of this process.
    pub(super) here: u64,
}

/// The place of the last record of an event.
pub(crate) enum Last {
    /// It is done, or there is none.
    Done,
    /// In this process.
    Here,
    /// In another process.
    Elsewhere(Record),
}

/// One record of an event.
#[derive(Clone)]
pub(crate) struct Record {
    pub(super) numbers: SharedNumbers,
    number: u64,
}

/// The number of the last record, on the page of numbers. The places of records come after it.
const LAST: usize = 0;
const FIRST_PLACE: usize = 1;
const PLACES: u64 = (NUMBERS - FIRST_PLACE) as u64;

impl SharedEvent {
    /// # Errors
    /// `OUT_OF_MEMORY` when the system has none to share.
    pub(crate) fn new() -> Result<SharedEvent, CUresult> {
        let numbers = SharedNumbers::new(Kind::Event);
        let numbers = numbers.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(SharedEvent { numbers, here: 0 })
    }

    /// Begins a record.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` when there is no place, because too many are under way.
    pub(crate) fn record(&self) -> Result<Record, CUresult> {
        let last = self.numbers.number(LAST);
        let taken = last.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| {
            let before = (last + 1).saturating_sub(PLACES);
            (before == 0 || self.of(before).is_done()).then_some(last + 1)
        });
        let last = taken.map_err(|_| CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        Ok(self.of(last + 1))
    }

    pub(crate) fn recorded_here(&mut self, record: &Record) {
        self.here = record.number;
    }

    pub(crate) fn last(&self) -> Last {
        let record = self.of(self.numbers.number(LAST).load(Ordering::Acquire));
        if record.number == 0 || record.is_done() {
            Last::Done
        } else if record.number == self.here {
            Last::Here
        } else {
            Last::Elsewhere(record)
        }
    }

    fn of(&self, number: u64) -> Record {
        Record {
            numbers: self.numbers.clone(),
            number,
        }
    }
}

impl Record {
    fn place(&self) -> usize {
        FIRST_PLACE + (self.number % PLACES) as usize
    }

    fn is_done(&self) -> bool {
        // A later record took the place after this one was done.
        self.numbers.number(self.place()).load(Ordering::Acquire) >= self.number
    }

    /// Announces to all processes that the record is done.
    pub(crate) fn done(&self) {
        self.numbers
            .number(self.place())
            .store(self.number, Ordering::Release);
        self.numbers.ring();
    }

    /// Work that is done when the record is done.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when the system has no thread to wait with.
    pub(crate) fn ticket(&self, engine: &Engine) -> Result<Ticket, CUresult> {
        let record = self.clone();
        let gate = self.numbers.gate(engine, move |_| record.is_done());
        let gate = gate.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(engine.submit(Work {
            after: Vec::new(),
            channels: Vec::new(),
            duration_ns: 0,
            action: Action::Until(gate.bar()),
        }))
    }
}
