//! Calls that wait within a callback of the backend.

use std::sync::mpsc;

use transload::{GuardError, Request, TransferError};
use transload_cuda::Cuda;
use transload_cuda::raw::{CUcontext, CUdevice, CUstream};

use crate::cuda::machine::{assert_clean, at, made_up, with_settings};

const LEN: usize = 1 << 20;

#[test]
fn waiting_for_a_device_in_a_callback_is_an_error() {
    let machine = made_up("gigabyte");
    let manager = with_settings(&[("CLOCK", "real"), ("TOPOLOGY", &machine)]);
    let device = at(&manager, "cuda:0", LEN as u64);
    let managed = at(&manager, "cuda:0/managed", LEN as u64);
    let host = manager.adopt(vec![7u8; LEN]).unwrap();
    // From here on the context is in use.
    manager.copy(&host, &managed).wait().unwrap();
    let cuda = manager.backend::<Cuda>().unwrap();
    let driver = cuda.driver().clone();
    let mut context = CUcontext::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, CUdevice(0)) }.unwrap();
    // SAFETY: the context was retained and is not released before the end.
    unsafe { driver.cuCtxPushCurrent_v2(context) }.unwrap();
    let (tell, told) = mpsc::channel();
    let event = manager.event();
    let copy = manager.submit(&Request::new(&host, &device).after(&event));
    let of_callback = (manager.clone(), device.clone());
    let then = move || {
        let (manager, device) = of_callback;
        let waited = copy.wait();
        let copied = manager.copy_from_slice(&[1; LEN], &device);
        let looked = managed.read().map(drop);
        tell.send((waited, copied, looked)).unwrap();
    };
    // SAFETY: it is the default stream, which has no work.
    unsafe { cuda.when_done(CUstream::NULL, then) }.unwrap();
    let mut popped = CUcontext::NULL;
    // SAFETY: it was pushed above.
    unsafe { driver.cuCtxPopCurrent_v2(&raw mut popped) }.unwrap();
    let (waited, copied, looked) = told.recv().unwrap();
    assert_eq!(waited, Err(TransferError::WouldBlock));
    assert_eq!(copied, Err(TransferError::WouldBlock));
    assert!(matches!(looked, Err(GuardError::NotVisible { .. })));
    event.set();
    let landing = manager.adopt(vec![0u8; LEN]).unwrap();
    manager.copy(&device, &landing).wait().unwrap();
    assert_eq!(*landing.read().unwrap(), [7; LEN]);
    // SAFETY: it was retained above, and is not current any more.
    unsafe { driver.cuDevicePrimaryCtxRelease_v2(CUdevice(0)) }.unwrap();
    drop((event, cuda, device, host, landing, manager));
    assert_clean();
}
