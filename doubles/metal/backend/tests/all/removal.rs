//! Devices that are not there, or go away.

use crate::common;

use common::engine::{allocate, manager, odd, paged, read};
use common::{assert_clean, metal, pattern, pose};
use transload::hal::{Backend as _, ErrorClass};
use transload::{AllocSpec, TransferManager};
use transload_metal::{AbsentReason, Metal, OpenError};
use transload_metal_double::{Device, fault, hold, release, remove};

const LEN: usize = 150_003;

#[test]
fn a_machine_without_a_device_has_a_reason_and_no_backend() {
    pose(Vec::new());
    let error = Metal::discover().unwrap_err();
    assert_eq!(error, OpenError::NoDevice { absent: Vec::new() });
    assert_eq!(error.class(), ErrorClass::Unsupported);
    assert_eq!(error.to_string(), "Metal has no device for this process");
    assert_clean();
}

#[test]
fn a_device_that_gives_no_queue_takes_no_part() {
    pose(vec![Device::unified(), Device::discrete()]);
    fault("nil=newCommandQueue@2").unwrap();
    let metal = Metal::discover().unwrap();
    assert_eq!(metal.len(), 1);
    let absent = metal.absent();
    assert_eq!(absent.len(), 1);
    assert_eq!(absent[0].device.to_string(), "metal:0");
    let (made, needed) = (1, 4);
    assert_eq!(absent[0].reason, AbsentReason::NoQueue { made, needed });
    assert_eq!(metal.inventory().devices[0].id.to_string(), "metal:1");
    drop(metal);
    fault("nil=newSharedEvent@1+").unwrap();
    let error = Metal::discover().unwrap_err().to_string();
    assert!(error.contains("newSharedEvent gave nothing"), "{error}");
    assert_clean();
}

/// Asserts that all calls on the device return at once that it is lost; the host and other devices go on.
fn assert_lost(manager: &TransferManager) {
    let bytes = pattern(LEN);
    let host = manager.adopt(bytes.clone()).unwrap();
    let spec = AllocSpec::bytes(64);
    for place in ["metal:0/mapped", "metal:0/device"] {
        let error = manager.allocate(place.parse().unwrap(), spec).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Lost, "{error}");
    }
    let back = manager.adopt(vec![0u8; LEN]).unwrap();
    manager.copy(&host, &back).wait().unwrap();
    assert_eq!(read(manager, &back), bytes);
    let other = allocate(manager, "metal:1", LEN);
    manager.copy(&host, &other).wait().unwrap();
    assert_eq!(read(manager, &other), bytes);
}

/// The device goes at one step of a transfer.
fn removed_at(step: u32, from: &str, to: &str) {
    let manager = manager(vec![Device::external(), Device::unified()]);
    let bytes = pattern(LEN);
    let buffer = |place: &str| match place {
        "odd" => odd(&manager, &bytes),
        "paged" => paged(&manager, &bytes),
        place => allocate(&manager, place, LEN),
    };
    let (src, dst) = (buffer(from), buffer(to));
    // A proof fails on a device that is removed.
    manager.copy(&src, &dst).wait().unwrap();
    fault(&format!("removed@{step}")).unwrap();
    let error = manager.copy(&src, &dst).wait().unwrap_err();
    assert_eq!(error.class(), ErrorClass::Lost, "{error}");
    assert!(error.to_string().contains("device removed"), "{error}");
    assert!(error.to_string().contains("metal:0"), "{error}");
    // Lost, or no way is left, and why.
    let again = manager.copy(&src, &dst).wait().unwrap_err().to_string();
    assert!(again.contains("device removed"), "{again}");
    assert_lost(&manager);
    drop((src, dst, manager));
    assert_clean();
}

macro_rules! removed {
    ($($name:ident: $step:literal, $from:literal, $to:literal;)*) => {
        $(
            #[test]
            fn $name() {
                removed_at($step, $from, $to);
            }
        )*
    };
}

removed! {
    a_device_removed_at_the_first_step_in: 1, "paged", "metal:0/device";
    a_device_removed_while_it_is_staged_for: 1, "odd", "metal:0/device";
    a_device_removed_at_the_first_step_out: 1, "metal:0/device", "odd";
    a_device_removed_within: 1, "metal:0/device", "metal:0/managed";
    a_device_removed_while_it_writes_in_place: 1, "metal:0/device", "paged";
}

/// The engine tries every route, and reports the error of the last one.
#[test]
fn a_device_removed_during_a_proof_is_told() {
    let manager = manager(vec![Device::external(), Device::unified()]);
    let (src, dst) = (
        paged(&manager, &pattern(LEN)),
        allocate(&manager, "metal:0/device", LEN),
    );
    fault("removed@1").unwrap();
    let error = manager.copy(&src, &dst).wait().unwrap_err().to_string();
    assert!(error.contains("metal:0/device"), "{error}");
    assert!(error.contains("device removed"), "{error}");
    assert_lost(&manager);
    drop((src, dst, manager));
    assert_clean();
}

#[test]
fn what_is_in_flight_when_a_device_goes_is_lost_and_let_go_of() {
    let manager = manager(vec![Device::external(), Device::unified()]);
    let bytes = pattern(LEN);
    let (src, dst) = (
        allocate(&manager, "metal:0/mapped", LEN),
        allocate(&manager, "metal:0/device", LEN),
    );
    manager.copy_from_slice(&bytes, &src).unwrap();
    hold();
    let transfers: Vec<_> = (0..8).map(|_| manager.copy(&src, &dst)).collect();
    remove(0);
    release();
    for transfer in transfers {
        let error = transfer.wait().unwrap_err();
        assert_eq!(error.class(), ErrorClass::Lost, "{error}");
    }
    assert_lost(&manager);
    drop((src, dst, manager));
    assert_clean();
}

#[test]
fn a_backend_that_is_dropped_leaves_what_is_under_way_to_metal() {
    let manager = TransferManager::builder().host().build().unwrap();
    manager
        .register_backend(metal(vec![Device::unified()]))
        .unwrap();
    let bytes = pattern(LEN);
    let (src, dst) = (
        paged(&manager, &bytes),
        allocate(&manager, "metal:0/device", LEN),
    );
    manager.copy(&src, &dst).wait().unwrap();
    hold();
    drop(manager.copy(&src, &dst));
    drop((src, dst, manager));
    release();
    assert_clean();
}
