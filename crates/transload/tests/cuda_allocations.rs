//! In a steady state, moving bytes to and from CUDA devices allocates nothing in the library. The driver's allocations
//! do not count; here the driver is the double.
#![cfg(all(target_os = "linux", not(any(loom, transload_local))))]
#![allow(non_snake_case, reason = "the driver's functions have their own names")]
#![allow(
    clippy::too_many_arguments,
    reason = "so do they have their own arguments"
)]

mod counted;

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;

use counted::{Pause, allocations, assert_allocates_nothing, start};
use transload::{AllocSpec, Buffer, Request, TransferManager};
use transload_cuda::Cuda;
use transload_cuda::raw::*;

macro_rules! uncounted {
    ($( $(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $since:literal; )*) => {
        /// The double's functions, whose allocations do not count.
        mod uncounted {
            use super::*;

            $(
                pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
                    let _pause = Pause::new();
                    // SAFETY: the caller keeps the promise of the driver's function.
                    unsafe { cuda::driver::$name($($argument),*) }
                }
            )*
        }

        fn table() -> Table {
            Table { $( $name: Some(uncounted::$name), )* }
        }
    };
}
transload_cuda::for_each_cuda_function!(uncounted);

/// Makes the double start its threads, which do not belong to the library.
fn warm_up(driver: &Driver) {
    let mut context = CUcontext::NULL;
    // SAFETY: the out-pointers here and below are local variables; flags are zero.
    unsafe { driver.cuInit(0) }.unwrap();
    // SAFETY: as above.
    unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, CUdevice(0)) }.unwrap();
    // SAFETY: the context was retained and is not released.
    unsafe { driver.cuCtxPushCurrent_v2(context) }.unwrap();
    let mut memory = 0;
    // SAFETY: as above.
    unsafe { driver.cuMemAlloc_v2(&raw mut memory, 4096) }.unwrap();
    // SAFETY: the memory was allocated above.
    unsafe { driver.cuMemsetD8Async(memory, 7, 4096, CUstream::NULL) }.unwrap();
    // SAFETY: the call takes no arguments.
    unsafe { driver.cuCtxSynchronize() }.unwrap();
    // SAFETY: the memory was allocated above.
    unsafe { driver.cuMemFree_v2(memory) }.unwrap();
    let mut popped = CUcontext(ptr::null_mut());
    // SAFETY: as above.
    unsafe { driver.cuCtxPopCurrent_v2(&raw mut popped) }.unwrap();
}

fn every_way_to_copy(manager: &TransferManager, (from, to): (&str, &str), len: u64) {
    let allocate = |place: &str| -> Buffer {
        let spec = AllocSpec::bytes(len);
        manager.allocate(place.parse().unwrap(), spec).unwrap()
    };
    let (src, dst) = (allocate(from), allocate(to));
    let what = |call: &str| format!("{call} of {len} bytes from {from} to {to}");
    let prepared = manager.prepare(&Request::new(&src, &dst)).unwrap();
    assert_allocates_nothing(&what("Prepared::post"), || {
        prepared.post().wait().unwrap();
    });
    assert_allocates_nothing(&what("copy"), || {
        manager.copy(&src, &dst).wait().unwrap();
    });
    let frame = vec![3; len as usize];
    assert_allocates_nothing(&what("copy_from_slice"), || {
        manager.copy_from_slice(&frame, &dst).unwrap();
    });
    let mut out = vec![0; len as usize];
    assert_allocates_nothing(&what("copy_into_slice"), || {
        manager.copy_into_slice(&src, &mut out).unwrap();
    });
    assert_allocates_nothing(&what("two copies at once"), || {
        let first = manager.copy(&src, &dst);
        let second = manager.copy(&src, &dst);
        second.wait().unwrap();
        first.wait().unwrap();
    });
}

#[test]
fn a_warm_manager_of_devices_allocates_nothing() {
    cuda::control("set TRANSLOAD_DOUBLE_DEVICES=2").unwrap();
    // SAFETY: the functions are the double's, which stay loaded.
    let driver = unsafe { Driver::from_table(table(), "the double") };
    warm_up(&driver);
    start();
    let before = allocations();
    let devices = Cuda::with_driver(driver).unwrap();
    assert!(allocations() > before, "allocations are counted");
    // Plans that are made anew, because a real copy's time has changed, are allocated.
    let builder = TransferManager::builder().host().learning(false);
    let manager = builder.backend(Arc::new(devices)).build().unwrap();
    for len in [64, 4096, 3 << 20] {
        for ways in [
            ("cpu:0", "cuda:0"),
            ("cuda:0", "cpu:0"),
            ("cpu:0/pinned", "cuda:0"),
            ("cuda:0", "cuda:0"),
            ("cuda:0", "cuda:1"),
        ] {
            every_way_to_copy(&manager, ways, len);
        }
    }
}
