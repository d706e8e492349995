//! Eight threads use the driver at once, each as its documentation allows, and every byte is checked. Run under
//! AddressSanitizer and ThreadSanitizer too: see `cargo xtask test --only sanitizers`.

#[path = "../all/common/mod.rs"]
mod common;
mod slot;
mod worker;

use std::thread;

use common::{GIGABYTE, control, counter, enter, machine};
use transload_cuda::raw::CUdevice;
use worker::Worker;

const THREADS: u64 = 8;
const OPERATIONS: usize = 400;

#[test]
fn eight_threads_do_four_hundred_things_each_and_every_byte_is_right() {
    // The machine with its links, in real time.
    let driver = machine(&GIGABYTE[1..]);
    let contexts = [0, 1].map(|device| enter(&driver, device));
    thread::scope(|scope| {
        for seed in 1..=THREADS {
            let driver = &driver;
            scope.spawn(move || {
                let mut worker = Worker::new(driver, contexts, seed);
                for _ in 0..OPERATIONS {
                    worker.step();
                }
                worker.finish();
            });
        }
    });
    for device in [0, 1] {
        // SAFETY: no argument is a pointer.
        unsafe { driver.cuDevicePrimaryCtxRelease_v2(CUdevice(device)) }.unwrap();
    }
    assert_eq!(control("leaks").unwrap(), "");
    for way in [
        "peer-copies-direct",
        "peer-copies-staged",
        "pageable-copies-staged",
    ] {
        assert!(counter(way) > 0, "{way}");
    }
}
