//! Streams, events and contexts of the user.
#![allow(dead_code, reason = "no test uses all of it")]

use transload_cuda::raw::{
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC, CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS,
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, CUcontext, CUdevice, CUdeviceptr, CUevent,
    CUexternalSemaphore, CUexternalSemaphoreHandleType, CUstream, CUstream_flags, Driver,
    ExternalHandle, FenceValue,
};

/// A stream of the current context.
pub(crate) fn stream(driver: &Driver) -> CUstream {
    let mut stream = CUstream::NULL;
    let apart = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuStreamCreate(&raw mut stream, apart) }.unwrap();
    stream
}

pub(crate) fn destroy(driver: &Driver, stream: CUstream) {
    // SAFETY: the stream is the test's.
    unsafe { driver.cuStreamDestroy_v2(stream) }.unwrap();
}

/// A stream that is blocked. A host function of the user could not block it: the driver runs host functions one after
/// the other, and the one that waits for a stream would never run.
pub(crate) struct Stop {
    driver: Driver,
    context: CUcontext,
    semaphore: CUexternalSemaphore,
    past: CUevent,
}

/// Blocks a stream until `release` is called.
pub(crate) fn stop(driver: &Driver, stream: CUstream) -> Stop {
    let fd = cuda::control("semaphore timeline 0").unwrap();
    let desc = CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
        type_:
            CUexternalSemaphoreHandleType::CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD,
        handle: ExternalHandle {
            fd: fd.parse().unwrap(),
        },
        flags: 0,
        reserved: [0; 16],
    };
    let context = of(driver, stream);
    let act = || {
        let mut semaphore = CUexternalSemaphore::NULL;
        // SAFETY: the out-pointers are local variables.
        unsafe { driver.cuImportExternalSemaphore(&raw mut semaphore, &raw const desc) }.unwrap();
        let wait = CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS {
            fence: FenceValue { value: 1 },
            ..Default::default()
        };
        // SAFETY: there is one of each.
        unsafe {
            driver.cuWaitExternalSemaphoresAsync(&raw const semaphore, &raw const wait, 1, stream)
        }
        .unwrap();
        (semaphore, record(driver, stream))
    };
    let (semaphore, past) = within(driver, context, act);
    Stop {
        driver: driver.clone(),
        context,
        semaphore,
        past,
    }
}

impl Stop {
    /// Lets the stream continue.
    pub(crate) fn release(self) {
        let driver = &self.driver;
        within(driver, self.context, || {
            let beside = stream(driver);
            let signal = CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS {
                fence: FenceValue { value: 1 },
                ..Default::default()
            };
            let semaphore = &raw const self.semaphore;
            // SAFETY: there is one of each.
            unsafe {
                driver.cuSignalExternalSemaphoresAsync(semaphore, &raw const signal, 1, beside)
            }
            .unwrap();
            // SAFETY: the event is the test's. For a ruined context the call returns an error.
            let _ = unsafe { driver.cuEventSynchronize(self.past) };
            // SAFETY: no operation waits for it any more.
            let _ = unsafe { driver.cuDestroyExternalSemaphore(self.semaphore) };
            // SAFETY: as above.
            let _ = unsafe { driver.cuEventDestroy_v2(self.past) };
            // SAFETY: as above.
            let _ = unsafe { driver.cuStreamDestroy_v2(beside) };
        });
    }
}

/// The context of a stream.
fn of(driver: &Driver, stream: CUstream) -> CUcontext {
    let mut context = CUcontext::NULL;
    // SAFETY: the stream is the test's, and the place ours.
    unsafe { driver.cuStreamGetCtx(stream, &raw mut context) }.unwrap();
    context
}

fn within<T>(driver: &Driver, context: CUcontext, act: impl FnOnce() -> T) -> T {
    // SAFETY: the context is there.
    unsafe { driver.cuCtxPushCurrent_v2(context) }.unwrap();
    let answer = act();
    let mut popped = CUcontext::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuCtxPopCurrent_v2(&raw mut popped) }.unwrap();
    answer
}

pub(crate) fn synchronize(driver: &Driver, stream: CUstream) {
    // SAFETY: the stream is the test's.
    unsafe { driver.cuStreamSynchronize(stream) }.unwrap();
}

/// Sets bytes of a device, in a stream.
pub(crate) fn set(driver: &Driver, stream: CUstream, address: CUdeviceptr, byte: u8, len: usize) {
    // SAFETY: the memory is the test's and has that length.
    unsafe { driver.cuMemsetD8Async(address, byte, len, stream) }.unwrap();
}

/// An event that is recorded after the stream's work.
pub(crate) fn record(driver: &Driver, stream: CUstream) -> CUevent {
    let event = event(driver);
    // SAFETY: both are the test's.
    unsafe { driver.cuEventRecord(event, stream) }.unwrap();
    event
}

/// An event that was never recorded.
pub(crate) fn event(driver: &Driver) -> CUevent {
    let mut event = CUevent::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuEventCreate(&raw mut event, 0) }.unwrap();
    event
}

pub(crate) fn destroy_event(driver: &Driver, event: CUevent) {
    // SAFETY: the event is the test's.
    unsafe { driver.cuEventDestroy_v2(event) }.unwrap();
}

/// A context of the test's own, which is current on this thread from now on.
pub(crate) fn own_context(driver: &Driver, device: i32) -> CUcontext {
    let mut context = CUcontext::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuCtxCreate_v2(&raw mut context, 0, CUdevice(device)) }.unwrap();
    context
}

pub(crate) fn destroy_context(driver: &Driver, context: CUcontext) {
    // SAFETY: the context is the test's.
    unsafe { driver.cuCtxDestroy_v2(context) }.unwrap();
}

/// The thread's contexts, the current one first. Pops all of them and pushes them back.
pub(crate) fn stack(driver: &Driver) -> Vec<CUcontext> {
    let mut all = Vec::new();
    loop {
        let mut context = CUcontext::NULL;
        // SAFETY: the out-pointer is a local variable.
        let popped = unsafe { driver.cuCtxPopCurrent_v2(&raw mut context) };
        if popped.is_err() {
            break;
        }
        all.push(context);
    }
    for context in all.iter().rev() {
        // SAFETY: the context was popped a moment ago.
        unsafe { driver.cuCtxPushCurrent_v2(*context) }.unwrap();
    }
    all
}
