//! Streams, events and functions of the user's.

use std::ffi::c_void;
use std::sync::mpsc::{Sender, channel};

use transload_cuda::raw::{CUevent, CUresult, CUstream, CallError, Driver};

/// The answer of a call, as a result.
pub(crate) fn result(answer: Result<(), CallError>) -> Result<(), CUresult> {
    answer.map_err(|error| error.result().expect("the double has every function"))
}

/// A stream of the current context.
pub(crate) fn stream(driver: &Driver, flags: u32) -> CUstream {
    let mut stream = CUstream::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuStreamCreate(&raw mut stream, flags) }.unwrap();
    stream
}

/// An event of the current context.
pub(crate) fn event(driver: &Driver, flags: u32) -> CUevent {
    let mut event = CUevent::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuEventCreate(&raw mut event, flags) }.unwrap();
    event
}

/// Makes a stream call a function.
pub(crate) fn launch(
    driver: &Driver,
    stream: CUstream,
    function: impl FnOnce() + Send + 'static,
) -> Result<(), CUresult> {
    unsafe extern "C" fn call(user_data: *mut c_void) {
        let function = user_data.cast::<Box<dyn FnOnce() + Send>>();
        // SAFETY: it was a box, and the stream calls it once.
        let function = unsafe { Box::from_raw(function) };
        function();
    }
    let function: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(function));
    let user_data = Box::into_raw(function).cast();
    // SAFETY: the function takes the value that it is given.
    result(unsafe { driver.cuLaunchHostFunc(stream, Some(call), user_data) })
}

/// Stops a stream until the answer is sent to, or dropped.
pub(crate) fn stop(driver: &Driver, stream: CUstream) -> Sender<()> {
    let (go, gate) = channel();
    let function = move || {
        // Either way it goes on.
        let _ = gate.recv();
    };
    launch(driver, stream, function).unwrap();
    go
}

pub(crate) fn record(driver: &Driver, event: CUevent, stream: CUstream) -> Result<(), CUresult> {
    // SAFETY: no argument is a pointer that is looked into, here and below.
    result(unsafe { driver.cuEventRecord(event, stream) })
}

/// An event that was recorded just now.
pub(crate) fn point(driver: &Driver, stream: CUstream) -> CUevent {
    let event = event(driver, 0);
    record(driver, event, stream).unwrap();
    event
}

pub(crate) fn event_query(driver: &Driver, event: CUevent) -> Result<(), CUresult> {
    // SAFETY: as above.
    result(unsafe { driver.cuEventQuery(event) })
}

pub(crate) fn event_synchronize(driver: &Driver, event: CUevent) -> Result<(), CUresult> {
    // SAFETY: as above.
    result(unsafe { driver.cuEventSynchronize(event) })
}

pub(crate) fn query(driver: &Driver, stream: CUstream) -> Result<(), CUresult> {
    // SAFETY: as above.
    result(unsafe { driver.cuStreamQuery(stream) })
}

pub(crate) fn synchronize(driver: &Driver, stream: CUstream) -> Result<(), CUresult> {
    // SAFETY: as above.
    result(unsafe { driver.cuStreamSynchronize(stream) })
}

pub(crate) fn wait_event(
    driver: &Driver,
    stream: CUstream,
    event: CUevent,
) -> Result<(), CUresult> {
    // SAFETY: as above.
    result(unsafe { driver.cuStreamWaitEvent(stream, event, 0) })
}

pub(crate) fn destroy_stream(driver: &Driver, stream: CUstream) -> Result<(), CUresult> {
    // SAFETY: as above.
    result(unsafe { driver.cuStreamDestroy_v2(stream) })
}
