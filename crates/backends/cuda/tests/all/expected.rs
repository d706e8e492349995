//! Reports of outcomes for which no caller waits: they come after the engine has called `expect`, and not before.

use crate::common;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use common::work::{copy, device, pinned};
use common::{backend, calls};
use transload_cuda::Cuda;
use transload_cuda::raw::{CUcontext, CUdevice};
use transload_hal::{AllocSpec, Backend, Buffer, CompletionSink, Fence, Outcome};

/// Forwards the outcomes that it is told.
struct Ear(Mutex<Sender<(Fence, Outcome)>>);

impl CompletionSink for Ear {
    fn settle(&self, fence: Fence, outcome: Outcome) {
        self.0.lock().unwrap().send((fence, outcome)).unwrap();
    }
}

/// A backend, the outcomes that it reports, and two of its buffers.
fn listening() -> (Cuda, Receiver<(Fence, Outcome)>, [Buffer; 2]) {
    let cuda = backend(&[]);
    let (tell, told) = channel();
    assert!(cuda.attach(Arc::new(Ear(Mutex::new(tell)))));
    let spec = AllocSpec::bytes(1000);
    let buffers = [pinned(), device(0)].map(|memory| cuda.allocate(memory, &spec).unwrap());
    (cuda, told, buffers)
}

fn submit(cuda: &Cuda, [host, there]: &[Buffer; 2]) -> Fence {
    // SAFETY: the buffers stay until the copy is over, and no code touches them.
    unsafe { cuda.submit(None, &[copy(host, there)], &[]) }.unwrap()
}

/// Waits for all work of the device, by the driver's own call.
fn synchronize(cuda: &Cuda) {
    let (driver, mut context) = (cuda.driver(), CUcontext::NULL);
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, CUdevice(0)) }.unwrap();
    // SAFETY: the context was retained.
    unsafe { driver.cuCtxSetCurrent(context) }.unwrap();
    // SAFETY: the call takes no arguments.
    unsafe { driver.cuCtxSynchronize() }.unwrap();
    // SAFETY: it was retained above.
    unsafe { driver.cuDevicePrimaryCtxRelease_v2(CUdevice(0)) }.unwrap();
}

#[test]
fn no_thread_is_woken_before_the_end_is_expected_and_one_tells_it_then() {
    let (cuda, told, buffers) = listening();
    let fences = [(); 3].map(|()| submit(&cuda, &buffers));
    synchronize(&cuda);
    assert_eq!(calls("cuEventSynchronize"), 0);
    assert!(told.try_recv().is_err(), "the engine did not ask");
    cuda.expect();
    for fence in fences {
        assert_eq!(told.recv().unwrap(), (fence, Outcome::Done));
    }
    // A fence that follows after a pause is expected again.
    synchronize(&cuda);
    let fence = submit(&cuda, &buffers);
    cuda.expect();
    assert_eq!(told.recv().unwrap(), (fence, Outcome::Done));
}

#[test]
fn who_waits_hears_of_what_nobody_expected() {
    let (cuda, told, buffers) = listening();
    let fences = [(); 3].map(|()| submit(&cuda, &buffers));
    let [.., last] = fences;
    while cuda.wait(last, std::time::Duration::MAX) != transload_hal::Waited::Settled {}
    for fence in fences {
        assert_eq!(told.recv().unwrap(), (fence, Outcome::Done));
    }
}

#[test]
fn what_nobody_expected_ends_with_the_backend() {
    let (cuda, told, buffers) = listening();
    let fence = submit(&cuda, &buffers);
    drop(cuda);
    assert_eq!(told.recv().unwrap(), (fence, Outcome::Done));
    drop(buffers);
}
