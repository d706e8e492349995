//! Devices, drivers and callers that misbehave.

use std::sync::Arc;
use std::time::Duration;

use cuda::control;
use transload::hal::ErrorClass;
use transload::{Method, Request, StagingBudget, TransferError, TransferManager};
use transload_cuda::raw::{CUcontext, CUdevice, CUresult, DRIVER_VARIABLE, Driver, Table, Version};
use transload_cuda::{Cuda, OpenError};

use crate::cuda::machine::{assert_clean, at, counter, double, manager, pattern, round};

const MIB: u64 = 1 << 20;

/// A table whose `cuInit` gives this answer, and that has no other function.
fn answering(init: unsafe extern "C" fn(u32) -> CUresult) -> Driver {
    let table = Table {
        cuInit: Some(init),
        ..Table::EMPTY
    };
    // SAFETY: the driver's only function takes a number and has no promise to keep.
    unsafe { Driver::from_table(table, "a stand-in") }
}

#[test]
fn a_toolkits_stub_is_told_from_a_driver() {
    unsafe extern "C" fn stub(_: u32) -> CUresult {
        CUresult::CUDA_ERROR_STUB_LIBRARY
    }
    let error = Cuda::with_driver(answering(stub)).unwrap_err();
    assert!(matches!(error, OpenError::Stub { .. }), "{error}");
    assert!(error.to_string().contains("stub"), "{error}");
    assert_eq!(error.class(), ErrorClass::Unsupported);
}

#[test]
fn a_driver_that_is_too_old_says_what_it_lacks() {
    let whole = double(&[("VERSION", "10.2")]);
    let mut table = *whole.table();
    // CUDA 11.0 lacks this function.
    table.cuDevicePrimaryCtxRelease_v2 = None;
    // SAFETY: the functions are the double's.
    let old = unsafe { Driver::from_table(table, "an old driver") };
    let error = Cuda::with_driver(old).unwrap_err();
    let OpenError::TooOld {
        driver, function, ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(*driver, Version::new(10, 2));
    assert_eq!(*function, "cuDevicePrimaryCtxRelease_v2");
    assert!(
        error
            .to_string()
            .contains("the oldest that will do is CUDA 11"),
        "{error}"
    );
}

#[test]
fn a_driver_without_devices_is_an_error_and_no_backend() {
    let error = Cuda::with_driver(double(&[("DEVICES", "0")])).unwrap_err();
    assert!(matches!(error, OpenError::NoDevice { .. }), "{error}");
    assert_eq!(error.class(), ErrorClass::Unsupported);
}

#[test]
fn a_driver_that_does_not_start_says_what_it_answered() {
    unsafe extern "C" fn broken(_: u32) -> CUresult {
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
    }
    let error = Cuda::with_driver(answering(broken)).unwrap_err();
    assert!(matches!(error, OpenError::Failed(_)), "{error}");
    assert!(
        error.to_string().contains("SYSTEM_DRIVER_MISMATCH"),
        "{error}"
    );
}

/// The process has no other thread yet, so the test may set the variable.
#[test]
fn discovery_without_a_driver_brings_the_rest_of_the_machine() {
    // SAFETY: the test is alone in its process.
    unsafe { std::env::set_var(DRIVER_VARIABLE, "/nowhere/libcuda.so.1") };
    let error = Cuda::discover().unwrap_err();
    assert!(matches!(error, OpenError::NoDriver(_)), "{error}");
    assert!(
        error.to_string().contains("/nowhere/libcuda.so.1"),
        "{error}"
    );
    let manager = TransferManager::builder()
        .discover()
        .default_costs()
        .build()
        .unwrap();
    // CUDA's memory of the host names its driver as a device does, and is told why it is not there.
    for place in ["cuda:0", "cpu:0/pinned"] {
        let refused = manager.resolve(place.parse().unwrap()).unwrap_err();
        assert!(
            refused.to_string().contains("/nowhere/libcuda.so.1"),
            "{refused}"
        );
    }
    let src = manager.adopt(pattern(MIB, 1)).unwrap();
    let dst = manager.adopt(vec![0u8; MIB as usize]).unwrap();
    manager.copy(&src, &dst).wait().unwrap();
    assert!(*dst.read().unwrap() == *src.read().unwrap());
}

/// Another process uses the device exclusively: opening the device fails, and may succeed later.
#[test]
fn a_device_that_another_process_has_is_refused_until_it_is_free_and_others_work() {
    let manager = manager("no-peer");
    let unavailable = CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE.0;
    control(&format!(
        "fault call=cuDevicePrimaryCtxRetain:{unavailable}"
    ))
    .unwrap();
    let spec = transload::AllocSpec::bytes(4096);
    let refused = manager
        .allocate("cuda:0".parse().unwrap(), spec)
        .unwrap_err();
    assert!(
        refused.to_string().contains("cuda:0 cannot be opened"),
        "{refused}"
    );
    assert!(
        refused.to_string().contains("DEVICE_UNAVAILABLE"),
        "{refused}"
    );
    round(&manager, MIB, &["cuda:1"]);
    round(&manager, MIB, &["cuda:0"]);
    drop(manager);
    assert_clean();
}

#[test]
fn the_context_that_a_user_made_current_stays_current() {
    let manager = manager("no-peer");
    let backend = manager.backend::<Cuda>().unwrap();
    let driver = backend.driver();
    let mut theirs = CUcontext::NULL;
    // SAFETY: the out-pointers here and below are local variables.
    unsafe { driver.cuCtxCreate_v2(&raw mut theirs, 0, CUdevice(1)) }.unwrap();
    let current = || {
        let mut current = CUcontext::NULL;
        // SAFETY: as above.
        unsafe { driver.cuCtxGetCurrent(&raw mut current) }.unwrap();
        current
    };
    assert_eq!(current(), theirs);
    round(
        &manager,
        5 * MIB + 1,
        &["cuda:0", "cpu:0/pinned", "cuda:1", "cuda:0/managed"],
    );
    assert_eq!(current(), theirs);
    let refused = manager.copy(at(&manager, "cuda:0", 8), at(&manager, "cuda:0", 9));
    assert!(refused.wait().is_err());
    assert_eq!(current(), theirs);
    // SAFETY: it was made above.
    unsafe { driver.cuCtxDestroy_v2(theirs) }.unwrap();
    drop((backend, manager));
    assert_clean();
}

#[test]
fn memory_of_the_device_that_runs_out_is_an_error_that_names_it_and_leaves_the_rest_alone() {
    let manager = manager("no-peer");
    let held = at(&manager, "cuda:0", MIB);
    let spec = transload::AllocSpec::bytes(23_999_000_000);
    let error = manager
        .allocate("cuda:0".parse().unwrap(), spec)
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Exhausted, "{error}");
    assert!(error.to_string().contains("cuda:0/device"), "{error}");
    round(&manager, MIB, &["cuda:0"]);
    drop((held, manager));
    assert_clean();
}

#[test]
fn staging_that_cannot_be_had_is_reported_and_nothing_leaks() {
    let manager = manager("no-peer");
    // Every registration fails with this result.
    let full = CUresult::CUDA_ERROR_OUT_OF_MEMORY.0;
    control(&format!("fault call=cuMemHostRegister_v2:{full}@1+")).unwrap();
    let src = manager.adopt(pattern(MIB, 1)).unwrap();
    let dst = at(&manager, "cuda:0", MIB);
    let error = manager.copy(&src, &dst).wait().unwrap_err();
    assert_eq!(error.class(), ErrorClass::Exhausted, "{error}");
    assert!(error.to_string().contains("OUT_OF_MEMORY"), "{error}");
    control("fault none").unwrap();
    let report = manager.copy(&src, &dst).wait();
    drop((report, src, dst, manager));
    assert_clean();
}

#[test]
fn pinned_memory_stays_within_the_budget() {
    let budget = Arc::new(StagingBudget::new(8 * MIB));
    let devices = Cuda::with_driver(double(&[("DEVICES", "2")])).unwrap();
    let manager = TransferManager::builder()
        .host()
        .backend(Arc::new(devices))
        .staging(Arc::clone(&budget))
        .build()
        .unwrap();
    let sent = pattern(64 * MIB, 3);
    let src = manager.adopt(sent).unwrap();
    let dsts = ["cuda:0", "cuda:1"].map(|place| at(&manager, place, 64 * MIB));
    let transfers = dsts.each_ref().map(|dst| manager.copy(&src, dst));
    for transfer in transfers {
        transfer.wait().unwrap();
    }
    assert!(
        budget.peak_bytes() > 0 && budget.peak_bytes() <= 8 * MIB,
        "{budget:?}"
    );
    drop((src, dsts, manager));
    assert_clean();
}

/// The second operation never ends: the engine abandons the transfer at its deadline, and other lanes go on.
#[test]
fn a_stream_that_never_answers_holds_up_nobody_but_its_own() {
    let manager = manager("no-peer");
    let stuck = at(&manager, "cuda:0", 4096);
    let pinned = at(&manager, "cpu:0/pinned", 4096);
    // Both directions are proven while the driver still answers.
    round(&manager, MIB, &["cuda:0"]);
    manager.copy(&pinned, &stuck).wait().unwrap();
    control("fault stuck").unwrap();
    let request = Request::new(&pinned, &stuck).deadline(manager.now() + Duration::from_millis(50));
    let error = manager.submit(&request).wait().unwrap_err();
    assert!(matches!(error, TransferError::Deadline { .. }), "{error}");
    round(&manager, MIB, &["cuda:1"]);
    let (out, sent) = (at(&manager, "cuda:0", 64), at(&manager, "cpu:0/pinned", 64));
    manager.copy(&out, &sent).wait().unwrap();
    // Dropping the manager does not wait for the operation that never ends.
    drop((out, sent, manager));
}

#[test]
fn peer_access_that_lies_is_found_out_before_it_carries_anything() {
    let manager = manager("pcie-peer");
    control("fault peer-corrupts=0>1").unwrap();
    for _ in 0..2 {
        let reports = round(&manager, 3 * MIB, &["cuda:0", "cuda:1"]);
        assert_eq!(reports[1].method(), Method::HostStaged, "{}", reports[1]);
    }
    let [src, dst] = ["cuda:0", "cuda:1"].map(|place| at(&manager, place, MIB));
    let explained = manager
        .explain(&Request::new(&src, &dst))
        .unwrap()
        .to_string();
    assert!(explained.contains("came back changed"), "{explained}");
    assert_eq!(counter("peer-copies-direct"), 1, "the proof alone");
    drop((src, dst, manager));
    assert_clean();
}

#[test]
fn a_lost_device_says_so_and_another_one_works() {
    let manager = manager("no-peer");
    let src = manager.adopt(pattern(4 * MIB, 1)).unwrap();
    let dst = at(&manager, "cuda:0", 4 * MIB);
    control("fault ecc@2").unwrap();
    let error = manager.copy(&src, &dst).wait().unwrap_err();
    assert_eq!(error.class(), ErrorClass::Lost, "{error}");
    assert_eq!(error.to_string().matches("is lost").count(), 1, "{error}");
    // The links of the device rest; the error keeps its reason.
    let again = manager.copy(&src, &dst).wait().unwrap_err();
    assert_eq!(again.to_string().matches("is lost").count(), 1, "{again}");
    let spec = transload::AllocSpec::bytes(16);
    let refused = manager
        .allocate("cuda:0".parse().unwrap(), spec)
        .unwrap_err();
    assert_eq!(refused.class(), ErrorClass::Lost, "{refused}");
    round(&manager, 4 * MIB, &["cuda:1"]);
}
