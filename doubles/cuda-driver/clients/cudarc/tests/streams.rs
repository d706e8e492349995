//! Streams, events and host functions. CUDA Driver API: Stream Management, Event Management, Execution
//! Control.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaEvent, result};
use transload_double_cudarc::{device, driver, failure, pattern};

#[test]
fn a_stream_waits_for_what_another_one_recorded() {
    let context = device(0);
    // cudarc orders its streams by itself unless it is told not to.
    // SAFETY: the test orders them.
    unsafe { context.disable_event_tracking() };
    let (first, second) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    for round in 0..20 {
        let sent = pattern(1 << 18, round);
        let mut there = first.alloc_zeros::<u8>(sent.len()).unwrap();
        first.memcpy_htod(&sent, &mut there).unwrap();
        second.join(&first).unwrap();
        let back = second.clone_dtoh(&there).unwrap();
        second.synchronize().unwrap();
        assert!(back == sent, "round {round}");
    }
}

#[test]
fn an_event_has_come_to_pass_before_it_was_ever_recorded() {
    let event = device(0).new_event(None).unwrap();
    assert_eq!(event.try_is_complete(), Ok(true));
    event.synchronize().unwrap();
}

#[test]
fn time_passes_between_events_that_take_it() {
    let context = device(0);
    let stream = context.new_stream().unwrap();
    let timed = || -> CudaEvent {
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        stream.record_event(flags).unwrap()
    };
    let start = timed();
    // SAFETY: the bytes are numbers whatever they are.
    let pinned = unsafe { context.alloc_pinned_with_flags::<u8>(25_000_000, 0) }.unwrap();
    let there = stream.clone_htod(&pinned).unwrap();
    let end = timed();
    // At the 25 GB/s of the modelled link 25 MB take a millisecond, however fast this machine is.
    let between_ms = start.elapsed_ms(&end).unwrap();
    assert!(between_ms >= 1.0, "{between_ms} ms");
    drop(there);
}

#[test]
fn events_without_times_or_never_recorded_have_no_time_between() {
    let context = device(0);
    let stream = context.new_stream().unwrap();
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let recorded = stream.record_event(timed).unwrap();
    let untimed = stream.record_event(None).unwrap();
    let invalid = CUresult::CUDA_ERROR_INVALID_HANDLE;
    let told = failure(recorded.elapsed_ms(&untimed));
    assert_eq!(told, invalid);
    let never = context.new_event(timed).unwrap();
    let told = failure(recorded.elapsed_ms(&never));
    assert_eq!(told, invalid);
}

#[test]
fn priorities_lie_in_a_range_and_are_cut_to_it() {
    let context = device(0);
    context.bind_to_thread().unwrap();
    let (least, greatest) = result::stream::get_priority_range().unwrap();
    assert!(greatest < least, "{least} to {greatest}");
    for (asked, given) in [
        (least, least),
        (greatest, greatest),
        (greatest - 5, greatest),
        (least + 5, least),
    ] {
        let stream = context.new_stream_with_priority(asked).unwrap();
        let mut priority = i32::MAX;
        let told = driver!(cuStreamGetPriority(stream.cu_stream(), &raw mut priority));
        assert_eq!(
            (told, priority),
            (CUresult::CUDA_SUCCESS, given),
            "asked for {asked}"
        );
    }
}

#[test]
fn a_stream_knows_its_context_flags_and_number() {
    let context = device(1);
    let (one, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let (mut flags, mut of) = (9, ptr::null_mut());
    assert_eq!(
        driver!(cuStreamGetFlags(one.cu_stream(), &raw mut flags)),
        CUresult::CUDA_SUCCESS
    );
    assert_eq!(flags, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32);
    assert_eq!(
        driver!(cuStreamGetCtx(one.cu_stream(), &raw mut of)),
        CUresult::CUDA_SUCCESS
    );
    assert_eq!(of, context.cu_ctx());
    let id = |stream: sys::CUstream| {
        let mut id = 0;
        assert_eq!(
            driver!(cuStreamGetId(stream, &raw mut id)),
            CUresult::CUDA_SUCCESS
        );
        id
    };
    assert_ne!(id(one.cu_stream()), id(other.cu_stream()));
    // SAFETY: the stream is there.
    let capturing = unsafe { result::stream::is_capturing(one.cu_stream()) }.unwrap();
    assert_eq!(
        capturing,
        sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
    );
}

#[test]
fn a_destroyed_stream_or_event_is_no_longer_one() {
    let context = device(0);
    context.bind_to_thread().unwrap();
    let stream = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
    assert_eq!(driver!(cuStreamQuery(stream)), CUresult::CUDA_SUCCESS);
    assert_eq!(driver!(cuStreamDestroy_v2(stream)), CUresult::CUDA_SUCCESS);
    for answer in [
        driver!(cuStreamDestroy_v2(stream)),
        driver!(cuStreamSynchronize(stream)),
    ] {
        assert_eq!(answer, CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).unwrap();
    assert_eq!(driver!(cuEventDestroy_v2(event)), CUresult::CUDA_SUCCESS);
    assert_eq!(
        driver!(cuEventQuery(event)),
        CUresult::CUDA_ERROR_INVALID_HANDLE
    );
}

static SEEN: AtomicU32 = AtomicU32::new(u32::MAX);

extern "C" fn calls_the_driver(place: *mut c_void) {
    let mut free = 0;
    let mut total = 0;
    let answer = driver!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
    SEEN.store(answer as u32, Ordering::SeqCst);
    // SAFETY: the test keeps the place until the stream is done, and nothing else writes it.
    unsafe { place.cast::<u32>().write(7) };
}

#[test]
fn a_host_function_runs_in_order_and_may_not_call_the_driver() {
    let stream = device(0).new_stream().unwrap();
    let mut place = 0_u32;
    let data = (&raw mut place).cast();
    // SAFETY: function and data stay until the stream is done, below.
    unsafe { result::stream::launch_host_function(stream.cu_stream(), calls_the_driver, data) }
        .unwrap();
    stream.synchronize().unwrap();
    // SAFETY: the stream is done with the place.
    assert_eq!(unsafe { (&raw const place).read_volatile() }, 7);
    assert_eq!(
        SEEN.load(Ordering::SeqCst),
        CUresult::CUDA_ERROR_NOT_PERMITTED as u32
    );
}

#[test]
fn default_streams_are_used_like_others() {
    let context = device(0);
    for stream in [context.default_stream(), context.per_thread_stream()] {
        let sent = pattern(70_000, 8);
        let there = stream.clone_htod(&sent).unwrap();
        let back = stream.clone_dtoh(&there).unwrap();
        stream.synchronize().unwrap();
        assert!(back == sent);
    }
    context.synchronize().unwrap();
}
