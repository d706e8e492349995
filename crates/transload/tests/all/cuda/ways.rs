//! The ways that bytes take, and their arrival.

use transload::Method;

use crate::cuda::machine::{assert_clean, counter, manager, round};

const MIB: u64 = 1 << 20;

#[test]
fn bytes_come_back_from_a_device_as_they_went() {
    let manager = manager("no-peer");
    for len in [1, 3, 4, 4096, 65_537, MIB, 5 * MIB + 3, 40 * MIB] {
        for report in round(&manager, len, &["cuda:0"]) {
            println!("{report}");
            assert_eq!(report.bytes(), len);
            assert_eq!(report.method(), Method::HostStaged);
        }
    }
    assert_eq!(
        counter("pageable-copies-staged"),
        0,
        "the driver was left to stage"
    );
    drop(manager);
    assert_clean();
}

#[test]
fn pinned_memory_is_read_and_written_in_place() {
    let manager = manager("no-peer");
    let reports = round(
        &manager,
        3 * MIB + 1,
        &["cpu:0/pinned", "cuda:0", "cpu:0/pinned"],
    );
    let methods: Vec<Method> = reports.iter().map(|report| report.method()).collect();
    let in_place = [
        Method::DirectCopy,
        Method::ZeroCopy,
        Method::ZeroCopy,
        Method::DirectCopy,
    ];
    assert_eq!(methods, in_place);
    drop(manager);
    assert_clean();
}

#[test]
fn devices_without_access_to_each_other_go_over_pinned_memory() {
    let manager = manager("no-peer");
    for len in [1, 4097, 20 * MIB + 7] {
        let reports = round(&manager, len, &["cuda:0", "cuda:1"]);
        println!("{}", reports[1]);
        assert_eq!(reports[1].method(), Method::HostStaged);
    }
    assert_eq!(
        counter("peer-copies-staged"),
        0,
        "the driver was left to stage"
    );
    drop(manager);
    assert_clean();
}

#[test]
fn devices_with_access_to_each_other_copy_directly() {
    let manager = manager("pcie-peer");
    for len in [1, 4097, 20 * MIB + 7] {
        let reports = round(&manager, len, &["cuda:0", "cuda:1"]);
        println!("{}", reports[1]);
        assert_eq!(reports[1].method(), Method::PeerToPeer);
    }
    assert_eq!(counter("peer-copies-staged"), 0);
    assert!(
        counter("peer-copies-direct") > 3,
        "each of them, and the proof"
    );
    drop(manager);
    assert_clean();
}

#[test]
fn access_one_way_is_used_one_way() {
    let manager = manager("one-way-peer");
    let there = round(&manager, 2 * MIB, &["cuda:0", "cuda:1"]);
    let back = round(&manager, 2 * MIB, &["cuda:1", "cuda:0"]);
    assert_eq!(there[1].method(), Method::PeerToPeer);
    assert_eq!(back[1].method(), Method::HostStaged);
    assert_eq!(counter("peer-copies-staged"), 0);
    drop(manager);
    assert_clean();
}
