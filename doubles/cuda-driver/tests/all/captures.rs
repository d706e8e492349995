//! Captures: the calls that have no effect, the calls that are refused to each thread, and those that spoil a capture.

use crate::common;

use std::sync::mpsc::channel;
use std::thread;

use common::work::{
    event, event_query, event_synchronize, query, record, result, stream, synchronize,
};
use common::{control, enter, machine_in_context, refused};
use transload_cuda::raw::{
    CUcontext, CUdeviceptr, CUgraph, CUresult, CUstream, CUstream_flags, CUstreamCaptureMode,
    CUstreamCaptureStatus, Driver,
};

const NON_BLOCKING: u32 = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const OF_THREAD: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
const UNSUPPORTED: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
const INVALIDATED: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

fn begin(driver: &Driver, stream: CUstream, mode: CUstreamCaptureMode) -> Result<(), CUresult> {
    // SAFETY: no argument is a pointer that is looked into.
    result(unsafe { driver.cuStreamBeginCapture_v2(stream, mode) })
}

fn end(driver: &Driver, stream: CUstream) -> Result<(), CUresult> {
    let mut graph = CUgraph::NULL;
    // SAFETY: the out-pointer is a local variable.
    let ended = result(unsafe { driver.cuStreamEndCapture(stream, &raw mut graph) });
    assert!(graph.is_null(), "there are none");
    ended
}

fn status(driver: &Driver, stream: CUstream) -> Result<CUstreamCaptureStatus, CUresult> {
    let mut status = CUstreamCaptureStatus(7);
    // SAFETY: the out-pointer is a local variable.
    let asked = unsafe { driver.cuStreamIsCapturing(stream, &raw mut status) };
    result(asked).map(|()| status)
}

/// Swaps the mode of this thread.
fn exchange(driver: &Driver, mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    let mut mode = mode;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuThreadExchangeStreamCaptureMode(&raw mut mode) }.unwrap();
    mode
}

fn allocate(driver: &Driver) -> Result<CUdeviceptr, CUresult> {
    let mut address = 0;
    // SAFETY: the out-pointer is a local variable.
    result(unsafe { driver.cuMemAlloc_v2(&raw mut address, 100) }).map(|()| address)
}

/// Runs `act` while another thread captures in a mode. Returns the end of that capture.
fn beside(
    driver: &Driver,
    (context, mode): (CUcontext, CUstreamCaptureMode),
    act: impl FnOnce(CUstream),
) -> Result<(), CUresult> {
    let stream = stream(driver, NON_BLOCKING);
    let (tell, told) = channel();
    let (go, gate) = channel::<()>();
    thread::scope(|scope| {
        let capture = scope.spawn(move || {
            // SAFETY: the context is there.
            unsafe { driver.cuCtxSetCurrent(context) }.unwrap();
            begin(driver, stream, mode).unwrap();
            tell.send(()).unwrap();
            // Either way it goes on.
            let _ = gate.recv();
            end(driver, stream)
        });
        told.recv().unwrap();
        act(stream);
        drop(go);
        capture.join().unwrap()
    })
}

#[test]
fn what_a_captured_stream_is_given_is_not_done() {
    let driver = machine_in_context(&[]);
    let address = allocate(&driver).unwrap();
    let set = |stream, value| {
        // SAFETY: the memory has that length.
        result(unsafe { driver.cuMemsetD8Async(address, value, 100, stream) })
    };
    let stream = stream(&driver, NON_BLOCKING);
    set(stream, 1).unwrap();
    synchronize(&driver, stream).unwrap();
    let none = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    assert_eq!(status(&driver, stream), Ok(none));
    begin(&driver, stream, RELAXED).unwrap();
    let active = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    assert_eq!(status(&driver, stream), Ok(active));
    let again = begin(&driver, stream, RELAXED);
    assert_eq!(again, Err(CUresult::CUDA_ERROR_ILLEGAL_STATE));
    set(stream, 2).unwrap();
    // These calls would need a graph.
    let unsupported = Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(record(&driver, event(&driver, 0), stream), unsupported);
    end(&driver, stream).unwrap();
    assert_eq!(
        end(&driver, stream),
        Err(CUresult::CUDA_ERROR_ILLEGAL_STATE)
    );
    assert!(control("notes").unwrap().contains("captured is dropped"));
    let mut seen = [0u8; 100];
    // SAFETY: the memory has that length.
    unsafe { driver.cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), address, 100) }.unwrap();
    assert_eq!(seen, [1; 100]);
    set(stream, 3).unwrap();
    synchronize(&driver, stream).unwrap();
}

#[test]
fn a_global_capture_forbids_every_thread_what_may_be_unsafe() {
    let driver = machine_in_context(&[]);
    let context = enter(&driver, 0);
    let other = stream(&driver, NON_BLOCKING);
    let mark = event(&driver, 0);
    let spoilt = beside(&driver, (context, GLOBAL), |stream| {
        // Work for other streams does not affect the capture.
        record(&driver, mark, other).unwrap();
        let active = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
        assert_eq!(status(&driver, stream), Ok(active));
        assert_eq!(event_query(&driver, mark), UNSUPPORTED);
        assert_eq!(query(&driver, other), UNSUPPORTED);
        assert_eq!(allocate(&driver).map(drop), UNSUPPORTED);
        let invalidated = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        assert_eq!(status(&driver, stream), Ok(invalidated));
        let wrong_thread = Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        let mut graph = CUgraph::NULL;
        // SAFETY: the out-pointer is a local variable.
        let ended = result(unsafe { driver.cuStreamEndCapture(stream, &raw mut graph) });
        assert_eq!(ended, wrong_thread);
    });
    assert_eq!(spoilt, INVALIDATED);
    assert_eq!(event_synchronize(&driver, mark), Ok(()), "it is over");
    for relaxed in [OF_THREAD, RELAXED] {
        assert_eq!(exchange(&driver, relaxed), GLOBAL);
        let ended = beside(&driver, (context, GLOBAL), |_| {
            assert_eq!(query(&driver, other), Ok(()));
            allocate(&driver).unwrap();
        });
        assert_eq!(ended, Ok(()), "{relaxed:?}");
        assert_eq!(exchange(&driver, GLOBAL), relaxed);
    }
}

#[test]
fn a_capture_of_a_thread_forbids_that_one_alone() {
    let driver = machine_in_context(&[]);
    let context = enter(&driver, 0);
    for mode in [OF_THREAD, RELAXED] {
        let ended = beside(&driver, (context, mode), |_| {
            assert!(allocate(&driver).is_ok())
        });
        assert_eq!(ended, Ok(()), "{mode:?}");
    }
    let stream = stream(&driver, NON_BLOCKING);
    begin(&driver, stream, OF_THREAD).unwrap();
    assert_eq!(allocate(&driver).map(drop), UNSUPPORTED);
    assert_eq!(end(&driver, stream), INVALIDATED);
    begin(&driver, stream, RELAXED).unwrap();
    allocate(&driver).unwrap();
    assert_eq!(end(&driver, stream), Ok(()));
    // A capture that ends with its stream forbids nothing any more.
    begin(&driver, stream, OF_THREAD).unwrap();
    exchange(&driver, RELAXED);
    // SAFETY: the stream is the test's.
    unsafe { driver.cuStreamDestroy_v2(stream) }.unwrap();
    exchange(&driver, GLOBAL);
    allocate(&driver).unwrap();
}

#[test]
fn nobody_hears_how_far_a_captured_stream_is() {
    let driver = machine_in_context(&[]);
    let context = enter(&driver, 0);
    exchange(&driver, RELAXED);
    let spoilt = beside(&driver, (context, GLOBAL), |stream| {
        assert_eq!(query(&driver, stream), UNSUPPORTED);
        // From here on it is of no use.
        assert_eq!(synchronize(&driver, stream), INVALIDATED);
    });
    assert_eq!(spoilt, INVALIDATED);
    let spoilt = beside(&driver, (context, GLOBAL), |_| {
        // SAFETY: the call takes no arguments.
        let all = unsafe { driver.cuCtxSynchronize() };
        assert_eq!(result(all), UNSUPPORTED);
    });
    assert_eq!(spoilt, INVALIDATED);
    // The legacy default stream waits for blocking ones.
    let blocking = stream(&driver, 0);
    begin(&driver, blocking, RELAXED).unwrap();
    let implicit = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    assert_eq!(status(&driver, CUstream::NULL), Err(implicit));
    assert_eq!(query(&driver, CUstream::LEGACY), Err(implicit));
    assert_eq!(end(&driver, blocking), INVALIDATED);
    assert_eq!(query(&driver, CUstream::LEGACY), Ok(()));
    assert_eq!(begin(&driver, CUstream::LEGACY, RELAXED), UNSUPPORTED);
}

#[test]
fn modes_that_there_are_not_are_refused() {
    let driver = machine_in_context(&[]);
    let wrong = CUresult::CUDA_ERROR_INVALID_VALUE;
    let mut mode = CUstreamCaptureMode(3);
    // SAFETY: the out-pointer is a local variable.
    let answer = unsafe { driver.cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    assert_eq!(refused(answer), wrong);
    let stream = stream(&driver, 0);
    assert_eq!(begin(&driver, stream, mode), Err(wrong));
}
