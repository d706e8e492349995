//! The driver's functions on events.

use std::ffi::c_uint;
use std::ptr;

use transload_cuda::raw::{CUcontext, CUevent, CUevent_flags, CUresult, CUstream};

use super::Event;
use crate::answer::{Answer, put};
use crate::call::{Call, driver};
use crate::context;
use crate::engine::{Action, Ticket};
use crate::ipc::{Last, SharedEvent};
use crate::state::State;
use crate::stream::synchronize;
use crate::work::at_once;

impl State {
    /// The event of a handle.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it was destroyed or never was, with itself or with its context.
    pub(crate) fn event(&self, handle: CUevent) -> Result<&Event, CUresult> {
        let event = self.events.get(handle.0.addr() as u64);
        event.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Removes all events of a context.
    pub(crate) fn end_events_of(&mut self, context: CUcontext) {
        self.events.retain(|event| event.context != context);
    }
}

const TIMELESS: c_uint = CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
const INTERPROCESS: c_uint = CUevent_flags::CU_EVENT_INTERPROCESS.0;
const KNOWN: c_uint = TIMELESS | INTERPROCESS | CUevent_flags::CU_EVENT_BLOCKING_SYNC.0;

driver! {
    /// Makes an event of the current context. Spinning waits are not modelled: no wait spins.
    fn cuEventCreate(ph_event: *mut CUevent, flags: c_uint), call => {
        let shared_and_timed = flags & INTERPROCESS != 0 && flags & TIMELESS == 0;
        if ph_event.is_null() || flags & !KNOWN != 0 || shared_and_timed {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut state = call.state();
        let (context, _) = call.current(&state)?;
        let shared = (flags & INTERPROCESS != 0).then(SharedEvent::new).transpose()?;
        let number = state.events.add(Event { context, flags, recorded: None, shared });
        // SAFETY: the caller passes a valid out-pointer for an event.
        unsafe { put(ph_event, CUevent(ptr::without_provenance_mut(number as usize))) }
    }

    /// The event and the stream have to be of one context.
    fn cuEventRecord(h_event: CUevent, h_stream: CUstream), call => {
        record(call, h_event, h_stream)
    }

    /// Done if it was never recorded.
    fn cuEventQuery(h_event: CUevent), call => {
        call.world.settle();
        let state = call.state();
        let event = state.event(h_event)?;
        let done = match event.shared.as_ref().map(SharedEvent::last) {
            Some(Last::Done) => true,
            Some(Last::Elsewhere(_)) => false,
            Some(Last::Here) | None => event.recorded.as_ref().is_none_or(Ticket::is_done),
        };
        // Asked afterwards: work that ruins its context meanwhile is done too.
        state.context(event.context)?.ruin.check()?;
        if done { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
    }

    /// Returns at once if it was never recorded.
    fn cuEventSynchronize(h_event: CUevent), call => {
        let state = call.state();
        context::present(&state)?;
        let event = state.event(h_event)?;
        let recorded = Vec::from_iter(event.unfinished(&call.world.engine)?);
        let ruin = state.context(event.context)?.ruin.clone();
        drop(state);
        ruin.check()?;
        synchronize(call, &recorded, &ruin)
    }

    /// Returns at once; threads that wait for the recorded work go on waiting.
    fn cuEventDestroy_v2(h_event: CUevent), call => {
        let mut state = call.state();
        context::present(&state)?;
        let gone = state.events.remove(h_event.0.addr() as u64);
        let gone = gone.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        state.context(gone.context)?.ruin.check()
    }

    /// Fails with the error of either context, if it has one.
    fn cuEventElapsedTime(p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent), call => {
        let state = call.state();
        for event in [h_start, h_end] {
            state.context(state.event(event)?.context)?.ruin.check()?;
        }
        drop(state);
        // SAFETY: the caller passes a valid out-pointer for a number.
        unsafe { elapsed(call, p_milliseconds, h_start, h_end) }
    }

    /// Does not check for errors of work in flight.
    fn cuEventElapsedTime_v2(p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent), call => {
        // SAFETY: the caller passes a valid out-pointer for a number.
        unsafe { elapsed(call, p_milliseconds, h_start, h_end) }
    }
}

fn record(call: &Call, event: CUevent, stream: CUstream) -> Answer {
    let mut state = call.state();
    let number = state.stream_number(stream)?;
    if state.event(event)?.context != state.stream(number)?.context {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    let shared = state.event(event)?.shared.as_ref();
    let record = shared.map(SharedEvent::record).transpose()?;
    let action = match record.clone() {
        Some(record) => Action::Move(Box::new(move || record.done())),
        None => Action::Nothing,
    };
    let ticket = state.append(call.world, number, vec![at_once(Vec::new(), action)]);
    let event = state.events.get_mut(event.0.addr() as u64);
    match (ticket, record, event) {
        (Ok(ticket), record, Some(event)) => {
            event.recorded = Some(ticket);
            if let (Some(shared), Some(record)) = (&mut event.shared, record) {
                shared.recorded_here(&record);
            }
            Ok(())
        }
        (Ok(_), _, None) => Ok(()),
        (Err(result), record, _) => {
            // No thread may wait for a record that will never come.
            if let Some(record) = record {
                record.done();
            }
            Err(result)
        }
    }
}

/// Events of two contexts have no time between them (CUDA C++ Programming Guide, Stream and Event Behavior, of two
/// devices).
///
/// # Safety
/// The place is null, or one for a number.
unsafe fn elapsed(call: &Call, place: *mut f32, start: CUevent, end: CUevent) -> Answer {
    if place.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    call.world.settle();
    let state = call.state();
    context::present(&state)?;
    let (start, end) = (state.event(start)?, state.event(end)?);
    let timed = |event: &Event| event.flags & TIMELESS == 0;
    if start.context != end.context || !timed(start) || !timed(end) {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    let at = |event: &Event| {
        let recorded = event.recorded.as_ref();
        let recorded = recorded.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        Ok(recorded.done_at_ns())
    };
    let (Some(start_ns), Some(end_ns)) = (at(start)?, at(end)?) else {
        return Err(CUresult::CUDA_ERROR_NOT_READY);
    };
    // The sign says which one was first.
    let ns = i128::from(end_ns) - i128::from(start_ns);
    // SAFETY: the caller keeps the same promise.
    unsafe { put(place, (ns as f64 / 1e6) as f32) }
}
