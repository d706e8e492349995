//! Streams: making them, querying them, and the user's functions between their works.
//!
//! Source: CUDA Driver API, Stream Management, and Execution Control (`cuLaunchHostFunc`). Functions whose
//! documentation lists `CUDA_ERROR_INVALID_CONTEXT` need a current context here, and any context will do.
//!
//! Priorities are stored and clamped, and change no order: NVIDIA says the same of copies
//! (`cuStreamCreateWithPriority`).

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use transload_cuda::raw::{
    CUcontext, CUhostFn, CUresult, CUstream, CUstream_flags, CUstreamCallback,
};

use crate::answer::{Answer, put, put_if_wanted};
use crate::call::{Call, driver, within_host_function};
use crate::context::{self, Ruin};
use crate::engine::{Action, Ticket};
use crate::work::{Role, at_once};

/// Lower is more urgent. The documentation says that 0 is the default and names no range: this one is made up.
const LEAST_PRIORITY: c_int = 0;
const GREATEST_PRIORITY: c_int = -5;

driver! {
    /// A stream of the current context.
    fn cuStreamCreate(ph_stream: *mut CUstream, flags: c_uint), call => {
        // SAFETY: the caller passes a valid out-pointer for a stream.
        unsafe { create(call, ph_stream, flags, 0) }
    }

    /// A priority that is out of range is clamped.
    fn cuStreamCreateWithPriority(ph_stream: *mut CUstream, flags: c_uint, priority: c_int), call => {
        let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
        // SAFETY: the caller passes a valid out-pointer for a stream.
        unsafe { create(call, ph_stream, flags, priority) }
    }

    /// Returns at once; work in flight goes on.
    fn cuStreamDestroy_v2(h_stream: CUstream), call => {
        let mut state = call.state();
        context::present(&state)?;
        let context = state.streams.destroy(h_stream.0.addr() as u64)?;
        state.context(context)?.ruin.check()
    }

    /// Whether the stream has work in flight.
    fn cuStreamQuery(h_stream: CUstream), call => {
        call.world.settle();
        let mut state = call.state();
        let number = state.stream_number(h_stream)?;
        state.ensure_no_capture(number)?;
        let (tickets, _) = state.unfinished(number)?;
        if tickets.is_empty() { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
    }

    /// Waiting for the legacy default stream waits for the blocking streams of its context too.
    fn cuStreamSynchronize(h_stream: CUstream), call => {
        let mut state = call.state();
        let number = state.stream_number(h_stream)?;
        state.ensure_no_capture(number)?;
        let (tickets, ruin) = state.unfinished(number)?;
        drop(state);
        synchronize(call, &tickets, &ruin)
    }

    /// An event that was never recorded is no reason to wait.
    fn cuStreamWaitEvent(h_stream: CUstream, h_event: transload_cuda::raw::CUevent, flags: c_uint), call => {
        // The only flag matters only while a graph is captured.
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut state = call.state();
        let number = state.stream_number(h_stream)?;
        state.unfinished(number)?;
        let recorded = state.event(h_event)?.unfinished(&call.world.engine)?;
        if let Some(ticket) = recorded {
            state.append(call.world, number, vec![at_once(vec![ticket], Action::Nothing)])?;
        }
        Ok(())
    }

    /// The function is called exactly once: with the context's error, if it has one by then.
    fn cuStreamAddCallback(h_stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: c_uint), call => {
        let function = callback.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let user_data = UserData(user_data);
        host_function(call, h_stream, move |ruin| {
            let status = ruin.check().err().unwrap_or(CUresult::CUDA_SUCCESS);
            let user_data = user_data;
            within_host_function(|| {
                // SAFETY: the caller that added the function promised that it may be called with this, on any thread.
                unsafe { function(h_stream, status, user_data.0) };
            });
        })
    }

    /// The function is not called if the context has an error by then.
    fn cuLaunchHostFunc(h_stream: CUstream, function: CUhostFn, user_data: *mut c_void), call => {
        let function = function.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let user_data = UserData(user_data);
        host_function(call, h_stream, move |ruin| {
            let user_data = user_data;
            if ruin.check().is_ok() {
                within_host_function(|| {
                    // SAFETY: as in `cuStreamAddCallback`.
                    unsafe { function(user_data.0) };
                });
            }
        })
    }

    /// As clamped; 0 of a default stream.
    fn cuStreamGetPriority(h_stream: CUstream, priority: *mut c_int), call => {
        let mut state = call.state();
        let number = state.stream_number(h_stream)?;
        // SAFETY: the caller passes a valid out-pointer for a number.
        unsafe { put(priority, state.stream(number)?.priority) }
    }

    /// As it was made; 0 of a default stream.
    fn cuStreamGetFlags(h_stream: CUstream, flags: *mut c_uint), call => {
        let mut state = call.state();
        let number = state.stream_number(h_stream)?;
        // SAFETY: the caller passes a valid out-pointer for flags.
        unsafe { put(flags, state.stream(number)?.flags) }
    }

    /// The context that was current when the stream was made; of a default stream the one that is.
    fn cuStreamGetCtx(h_stream: CUstream, pctx: *mut CUcontext), call => {
        let mut state = call.state();
        let number = state.stream_number(h_stream)?;
        // SAFETY: the caller passes a valid out-pointer for a context.
        unsafe { put(pctx, state.stream(number)?.context) }
    }

    /// A number that no other stream of this process ever has, of default streams too.
    fn cuStreamGetId(h_stream: CUstream, stream_id: *mut u64), call => {
        let number = call.state().stream_number(h_stream)?;
        // SAFETY: the caller passes a valid out-pointer for a number.
        unsafe { put(stream_id, number) }
    }

    /// Either place may be null.
    fn cuCtxGetStreamPriorityRange(least_priority: *mut c_int, greatest_priority: *mut c_int), call => {
        call.current(&call.state())?;
        // SAFETY: the caller passes null or a valid out-pointer for a number.
        unsafe { put_if_wanted(least_priority, LEAST_PRIORITY) };
        // SAFETY: as above.
        unsafe { put_if_wanted(greatest_priority, GREATEST_PRIORITY) };
        Ok(())
    }

    /// Waits for all work in flight in the current context, in destroyed streams too. Refused while one of its streams
    /// is captured.
    fn cuCtxSynchronize(), call => {
        let state = call.state();
        let (current, _) = call.current(&state)?;
        for number in state.streams.captured_of(current) {
            state.ensure_no_capture(number)?;
        }
        let tickets = state.unfinished_of(current);
        let ruin = state.context(current)?.ruin.clone();
        drop(state);
        synchronize(call, &tickets, &ruin)
    }
}

/// Waits without a lock, and returns the state of the context afterwards.
pub(crate) fn wait(call: &Call, tickets: &[Ticket], ruin: &Ruin) -> Answer {
    call.world.engine.wait_all(tickets);
    ruin.after_waiting()
}

/// As [`wait`], for a client's synchronisation. Pools then collect memory that has become free.
pub(crate) fn synchronize(call: &Call, tickets: &[Ticket], ruin: &Ruin) -> Answer {
    let answer = wait(call, tickets, ruin);
    call.state().pools.observe();
    answer
}

/// # Safety
/// The place is null, or one for a stream.
unsafe fn create(call: &Call, place: *mut CUstream, flags: c_uint, priority: c_int) -> Answer {
    if place.is_null() || flags & !CUstream_flags::CU_STREAM_NON_BLOCKING.0 != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mut state = call.state();
    let (current, _) = call.current(&state)?;
    let number = state.streams.make(current, Role::Made, flags, priority);
    let stream = CUstream(ptr::without_provenance_mut(number as usize));
    // SAFETY: the caller keeps the same promise.
    unsafe { put(place, stream) }
}

fn host_function(
    call: &Call,
    stream: CUstream,
    function: impl FnOnce(&Ruin) + Send + 'static,
) -> Answer {
    let mut state = call.state();
    let number = state.stream_number(stream)?;
    let context = state.stream(number)?.context;
    let ruin = state.context(context)?.ruin.clone();
    let action = Action::Host(Box::new(move || function(&ruin)));
    state.append(call.world, number, vec![at_once(Vec::new(), action)])?;
    Ok(())
}

/// The argument of a user's function. Only the user knows its type.
struct UserData(*mut c_void);

// SAFETY: it is only ever handed to the user's function, which by its contract is called on a thread of the
// driver's (CUDA Driver API, cuLaunchHostFunc).
unsafe impl Send for UserData {}
