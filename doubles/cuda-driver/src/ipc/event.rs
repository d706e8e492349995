//! Events that several processes record and wait for.
//!
//! Each record has a number, unique across all processes. When the work before the record is done, its number is
//! written into its place on the event's page of numbers, where every process sees it. So a later record that is done
//! earlier does not release a thread that waits for this one. There are as many places as records may be in flight at
//! once.

use std::ptr;

use transload_cuda::raw::{CUevent, CUevent_flags, CUipcEventHandle, CUresult};

use super::record::SharedEvent;
use super::{EVENT, Name};
use crate::answer::put;
use crate::call::driver;
use crate::event::Event;
use crate::numbers::SharedNumbers;
use crate::shared::Kind;

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
        let file = shared.numbers.file().ok_or(wrong)?;
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
        let numbers = SharedNumbers::open(file, Kind::Event);
        let numbers = numbers.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let number = state.events.add(Event {
            context,
            flags: CUevent_flags::CU_EVENT_DISABLE_TIMING.0,
            recorded: None,
            shared: Some(SharedEvent { numbers, here: 0 }),
        });
        // SAFETY: the caller passes a valid out-pointer for an event.
        unsafe { put(ph_event, CUevent(ptr::without_provenance_mut(number as usize))) }
    }
}
