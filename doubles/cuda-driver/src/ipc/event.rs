//! Events that several processes record and wait for.
//!
//! Each record has a number, unique across all processes. When the work before the record is done, its number is
//! written into its place on the event's board, where every process sees it. So a later record that is done earlier
//! does not release a thread that waits for this one. There are as many places as records may be in flight at once.

use std::ptr;
use std::sync::atomic::Ordering;

use transload_cuda::raw::{CUevent, CUevent_flags, CUipcEventHandle, CUresult};

use super::{EVENT, Name};
use crate::board::{Board, NUMBERS};
use crate::call::{driver, put};
use crate::engine::{Action, Engine, Ticket, Work};
use crate::event::Event;
use crate::shared::Kind;

/// The part of an event that processes share.
#[derive(Debug)]
pub(crate) struct SharedEvent {
    board: Board,
    /// The number of the last record of this process.
    here: u64,
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
    board: Board,
    number: u64,
}

/// The number of the last record, on the board. The places of records come after it.
const LAST: usize = 0;
const FIRST_PLACE: usize = 1;
const PLACES: u64 = (NUMBERS - FIRST_PLACE) as u64;

impl SharedEvent {
    /// # Errors
    /// `OUT_OF_MEMORY` when the system has none to share.
    pub(crate) fn new() -> Result<SharedEvent, CUresult> {
        let board = Board::new(Kind::Event);
        let board = board.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(SharedEvent { board, here: 0 })
    }

    /// Begins a record.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` when there is no place, because too many are under way.
    pub(crate) fn record(&self) -> Result<Record, CUresult> {
        let last = self.board.number(LAST);
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
        let record = self.of(self.board.number(LAST).load(Ordering::Acquire));
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
            board: self.board.clone(),
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
        self.board.number(self.place()).load(Ordering::Acquire) >= self.number
    }

    /// Announces to all processes that the record is done.
    pub(crate) fn done(&self) {
        self.board
            .number(self.place())
            .store(self.number, Ordering::Release);
        self.board.ring();
    }

    /// Work that is done when the record is done.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when the system has no thread to wait with.
    pub(crate) fn ticket(&self, engine: &Engine) -> Result<Ticket, CUresult> {
        let record = self.clone();
        let gate = self.board.gate(engine, move |_| record.is_done());
        let gate = gate.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(engine.submit(Work {
            after: Vec::new(),
            channels: Vec::new(),
            duration_ns: 0,
            action: Action::Until(gate),
        }))
    }
}

driver! {
    /// An event that was made with `CU_EVENT_INTERPROCESS`, in this process.
    fn cuIpcGetEventHandle(p_handle: *mut CUipcEventHandle, event: CUevent), call => {
        if p_handle.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let state = call.state();
        let wrong = CUresult::CUDA_ERROR_INVALID_HANDLE;
        let event = state.event(event)?;
        let made_here = event.flags & CUevent_flags::CU_EVENT_INTERPROCESS.0 != 0;
        let shared = event.shared.as_ref().filter(|_| made_here).ok_or(wrong)?;
        let file = shared.board.file().ok_or(wrong)?;
        let reserved = Name::of(EVENT, file)?.encode();
        // SAFETY: the caller passes a valid out-pointer for a handle.
        unsafe { put(p_handle, CUipcEventHandle { reserved }) }
    }

    /// An event of the current context, not timed, that is the other process's too.
    fn cuIpcOpenEventHandle(ph_event: *mut CUevent, handle: CUipcEventHandle), call => {
        if ph_event.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut state = call.state();
        let (context, _) = call.current(&state)?;
        let file = Name::decode(EVENT, &handle.reserved)?.open()?;
        let board = Board::open(file, Kind::Event);
        let board = board.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let number = state.events.add(Event {
            context,
            flags: CUevent_flags::CU_EVENT_DISABLE_TIMING.0,
            recorded: None,
            shared: Some(SharedEvent { board, here: 0 }),
        });
        // SAFETY: the caller passes a valid out-pointer for an event.
        unsafe { put(ph_event, CUevent(ptr::without_provenance_mut(number as usize))) }
    }
}
