//! Devices that walk the host's page tables: they read and write unregistered memory in place.

use std::ffi::c_int;

use transload::{Method, TransferManager};
use transload_cuda::raw::{CUdevice, CUdevice_attribute, CUresult, Table};

use crate::cuda::machine::{
    assert_clean, control, counter, made_up, round, with_settings, with_table,
};

const MIB: u64 = 1 << 20;
const SIZES: [u64; 4] = [1, 4097, MIB, 9 * MIB + 5];

fn goes_in_one_pass(manager: &TransferManager) {
    let staged = || counter("bytes pinned -> device 0") + counter("bytes device 0 -> pinned");
    let memories = ["cpu:0", "cpu:0/shared"];
    // The links are proven first, through other memories.
    for memory in memories {
        round(manager, 1, &[memory, "cuda:0", memory]);
    }
    let (before, sent) = (staged(), counter("bytes pageable -> device 0"));
    assert!(sent > 2, "more than the two bytes were sent");
    for len in SIZES {
        for memory in memories {
            let reports = round(manager, len, &[memory, "cuda:0", memory]);
            for report in &reports[1..3] {
                assert_eq!(report.method(), Method::ZeroCopy, "{report}");
                assert!(report.fallbacks().is_empty(), "{report}");
            }
        }
    }
    assert_eq!(staged(), before, "nothing was staged");
    let sizes: u64 = SIZES.iter().sum();
    assert_eq!(counter("bytes pageable -> device 0") - sent, 2 * sizes);
}

/// The driver's calls return before the bytes have moved.
#[test]
fn pageable_memory_reaches_the_device_in_one_pass() {
    let machine = made_up("page-tables");
    let manager = with_settings(&[("TOPOLOGY", &machine)]);
    goes_in_one_pass(&manager);
    assert_eq!(counter("pageable-copies-staged"), 0);
    // The other device does not walk the page tables, and is reached through pinned memory.
    let reports = round(&manager, MIB, &["cuda:1"]);
    assert_eq!(reports[0].method(), Method::HostStaged);
    assert_eq!(counter("pageable-copies-staged"), 0);
    drop(manager);
    assert_clean();
}

/// Reports that the device walks the page tables, above a driver whose calls stage pageable memory and return when the
/// bytes were taken or have arrived.
unsafe extern "C" fn walks(
    value: *mut c_int,
    asked: CUdevice_attribute,
    device: CUdevice,
) -> CUresult {
    if asked == CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
    {
        // SAFETY: the caller passes a valid out-pointer.
        unsafe { value.write(1) };
        return CUresult::CUDA_SUCCESS;
    }
    // SAFETY: the caller keeps the promise of the driver's function.
    unsafe { cuda::driver::cuDeviceGetAttribute(value, asked, device) }
}

#[test]
fn it_does_where_the_drivers_calls_wait_too() {
    let machine = made_up("gigabyte");
    control(&format!("set TRANSLOAD_DOUBLE_TOPOLOGY={machine}")).unwrap();
    let manager = with_table(Table {
        cuDeviceGetAttribute: Some(walks),
        ..cuda::table()
    });
    goes_in_one_pass(&manager);
    assert!(
        counter("pageable-copies-staged") > 0,
        "this driver stages by itself"
    );
    drop(manager);
    assert_clean();
}
