//! How often bytes are copied, counted by the double: through the engine that users have.

use crate::common;

use common::engine::{allocate, during, manager, odd, paged, read};
use common::{assert_clean, metal, pattern};
use transload::{Method, StagingBudget, TransferManager};
use transload_metal_double::{Counters, Device};

const LEN: usize = 1 << 20;

/// Nothing at all.
const NOTHING: Counters = Counters::NOTHING;

/// One submission, which copies nothing yet.
const SUBMISSION: Counters = Counters {
    command_buffers: 1,
    commits: 1,
    signals: 1,
    handlers: 1,
    ..NOTHING
};

/// Runs `copy` once for first-time work, such as proofs, and once to count.
fn warm(mut copy: impl FnMut()) -> Counters {
    copy();
    during(copy)
}

fn end(manager: TransferManager) {
    drop(manager);
    assert_clean();
}

#[test]
fn on_unified_memory_the_host_copies_once_and_the_device_does_nothing() {
    let manager = manager(vec![Device::unified()]);
    let bytes = pattern(LEN);
    for host in [odd(&manager, &bytes), paged(&manager, &bytes)] {
        // The default memory.
        let device = allocate(&manager, "metal:0", LEN);
        let counted = warm(|| {
            let report = manager.copy(&host, &device).wait().unwrap();
            assert_eq!(report.method(), Method::DirectCopy);
            assert_eq!(report.fallbacks().len(), 0);
        });
        assert_eq!(counted, NOTHING);
        let back = manager.adopt(vec![0u8; LEN]).unwrap();
        let counted = warm(|| {
            let report = manager.copy(&device, &back).wait().unwrap();
            assert_eq!(report.method(), Method::DirectCopy);
        });
        assert_eq!(counted, NOTHING);
        assert_eq!(read(&manager, &back), bytes);
    }
    end(manager);
}

/// A device reads and writes whole pages of the host's.
fn in_place(device: Device) {
    let manager = manager(vec![device]);
    let bytes = pattern(LEN);
    let host = paged(&manager, &bytes);
    let private = allocate(&manager, "metal:0/device", LEN);
    let one_pass = Counters {
        no_copy_buffers: 1,
        copies: 1,
        copied_bytes: LEN as u64,
        ..SUBMISSION
    };
    let counted = warm(|| {
        let report = manager.copy(&host, &private).wait().unwrap();
        assert_eq!(report.method(), Method::ZeroCopy);
        assert_eq!(report.fallbacks().len(), 0);
    });
    assert_eq!(counted, one_pass);
    let back = paged(&manager, &vec![0; LEN]);
    let counted = warm(|| {
        let report = manager.copy(&private, &back).wait().unwrap();
        assert_eq!(report.method(), Method::ZeroCopy);
    });
    assert_eq!(counted, one_pass);
    assert_eq!(read(&manager, &back), bytes);
    drop((host, private, back));
    end(manager);
}

#[test]
fn whole_pages_are_reached_in_place_by_a_device_with_the_hosts_memory() {
    in_place(Device::unified());
}

#[test]
fn whole_pages_are_reached_in_place_by_a_device_with_memory_of_its_own() {
    in_place(Device::discrete());
}

#[test]
fn what_begins_inside_a_page_goes_through_shared_memory_and_the_report_says_why() {
    let manager = manager(vec![Device::discrete()]);
    let bytes = pattern(LEN);
    let (odd, device) = (odd(&manager, &bytes), allocate(&manager, "metal:0", LEN));
    let report = manager.copy(&odd, &device).wait().unwrap();
    assert_eq!(report.method(), Method::HostStaged);
    let told: Vec<String> = report
        .fallbacks()
        .iter()
        .map(|of| of.fault.to_string())
        .collect();
    assert!(
        told.iter()
            .any(|of| of.contains("does not begin with a page")),
        "{told:?}"
    );
    assert_eq!(read(&manager, &device), bytes);
    // The link was not to blame: it serves what begins with a page.
    let host = paged(&manager, &bytes);
    let report = manager.copy(&host, &device).wait().unwrap();
    assert_eq!(report.method(), Method::ZeroCopy);
    drop((odd, device, host));
    end(manager);
}

#[test]
fn shared_to_private_is_one_blit() {
    let manager = manager(vec![Device::unified()]);
    let bytes = pattern(LEN);
    let shared = allocate(&manager, "metal:0/mapped", LEN);
    let private = allocate(&manager, "metal:0/device", LEN);
    manager.copy_from_slice(&bytes, &shared).unwrap();
    let one_blit = Counters {
        copies: 1,
        copied_bytes: LEN as u64,
        ..SUBMISSION
    };
    let counted = warm(|| {
        let report = manager.copy(&shared, &private).wait().unwrap();
        assert_eq!(report.method(), Method::DirectCopy);
    });
    assert_eq!(counted, one_blit);
    let back = allocate(&manager, "metal:0/mapped", LEN);
    let counted = warm(|| {
        manager.copy(&private, &back).wait().unwrap();
    });
    assert_eq!(counted, one_blit);
    assert_eq!(read(&manager, &back), bytes);
    drop((shared, private, back));
    end(manager);
}

#[test]
fn managed_memory_is_synchronized_once_for_each_time_that_the_device_wrote() {
    // More than a chunk.
    const LONG: usize = 70 << 20;
    // With more slots the long one would be staged: the device is faster than the host where that copies past its caches.
    let one_slot = std::sync::Arc::new(StagingBudget::new(64 << 10));
    let manager = TransferManager::builder().host().staging(one_slot);
    let manager = manager.build().unwrap();
    manager
        .register_backend(metal(vec![Device::discrete()]))
        .unwrap();
    for len in [LEN, LONG] {
        let bytes = pattern(len);
        let (device, managed) = (
            allocate(&manager, "metal:0", len),
            allocate(&manager, "metal:0/managed", len),
        );
        let back = manager.adopt(vec![0u8; len]).unwrap();
        manager.copy_from_slice(&bytes, &device).unwrap();
        let written = during(|| {
            manager.copy(&device, &managed).wait().unwrap();
        });
        assert_eq!((written.synchronizes, written.modifications), (0, 0));
        let one_synchronization = Counters {
            synchronizes: 1,
            ..SUBMISSION
        };
        let counted = during(|| {
            let report = manager.copy(&managed, &back).wait().unwrap();
            assert_eq!(report.method(), Method::UnifiedMemory);
        });
        assert_eq!(counted, one_synchronization);
        assert_eq!(read(&manager, &back), bytes);
        // The host's copy is as new as the device's.
        let again = during(|| {
            manager.copy(&managed, &back).wait().unwrap();
        });
        assert_eq!(again, NOTHING);
    }
    end(manager);
}

#[test]
fn what_the_host_writes_to_managed_memory_metal_is_told_of() {
    let manager = manager(vec![Device::discrete()]);
    let bytes = pattern(LEN + 3);
    let host = manager.adopt(bytes.clone()).unwrap();
    let (managed, device) = (
        allocate(&manager, "metal:0/managed", LEN + 3),
        allocate(&manager, "metal:0", LEN + 3),
    );
    let counted = during(|| {
        let report = manager.copy(&host, &managed).wait().unwrap();
        assert_eq!(report.method(), Method::UnifiedMemory);
    });
    let told = Counters {
        modifications: 1,
        ..NOTHING
    };
    assert_eq!(counted, told);
    manager.copy(&managed, &device).wait().unwrap();
    assert_eq!(read(&manager, &device), bytes);
    drop((host, managed, device));
    end(manager);
}

#[test]
fn what_a_guard_writes_to_managed_memory_the_device_sees() {
    let manager = manager(vec![Device::discrete()]);
    let bytes = pattern(LEN);
    let (managed, device) = (
        allocate(&manager, "metal:0/managed", LEN),
        allocate(&manager, "metal:0", LEN),
    );
    let counted = during(|| managed.write().unwrap().copy_from_slice(&bytes));
    assert_eq!(counted.modifications, 1);
    manager.copy(&managed, &device).wait().unwrap();
    assert_eq!(read(&manager, &device), bytes);
    // The host's older bytes do not overwrite later writes of the device.
    let other: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    manager.copy_from_slice(&other, &device).unwrap();
    manager.copy(&device, &managed).wait().unwrap();
    let counted = during(|| assert_eq!(managed.read().unwrap()[..], other[..]));
    assert_eq!((counted.synchronizes, counted.modifications), (1, 0));
    manager.copy(&managed, &device).wait().unwrap();
    assert_eq!(read(&manager, &device), other);
    drop((managed, device));
    end(manager);
}

#[test]
fn pages_of_the_hosts_are_shared_with_a_device_without_a_copy() {
    let manager = manager(vec![Device::unified()]);
    let bytes = pattern(LEN);
    let host = paged(&manager, &bytes);
    let device = allocate(&manager, "metal:0/device", LEN);
    let counted = during(|| {
        let shared = manager
            .share(&host, "metal:0/mapped".parse().unwrap())
            .unwrap();
        manager.copy(&shared, &device).wait().unwrap();
    });
    let one_pass = Counters {
        no_copy_buffers: 1,
        copies: 1,
        copied_bytes: LEN as u64,
        ..SUBMISSION
    };
    assert_eq!(counted, one_pass);
    assert_eq!(read(&manager, &device), bytes);
    drop((host, device));
    end(manager);
}
