use alloc::string::ToString;

use super::*;
use crate::{DeviceId, DeviceKind, MemoryKind};

const HEAP: MemoryId = DeviceId::CPU0.memory(MemoryKind::Pageable);
const SHARED: MemoryId = DeviceId::CPU0.memory(MemoryKind::Shared);

#[test]
fn counts_and_rates_follow_from_the_samples() {
    let mut stats = Stats::new();
    stats.record(&sample(1_000, 500));
    stats.record(&sample(1_000, 2_000));
    stats.record(&Sample {
        failed: true,
        fallbacks: 2,
        ..sample(1_000, 9_999)
    });
    let snapshot = stats.snapshot();
    let [path] = snapshot.paths.as_slice() else {
        panic!("one path, not {}", snapshot.paths.len());
    };
    assert_eq!(
        (path.src, path.dst, path.method),
        (HEAP, SHARED, Method::DirectCopy)
    );
    assert_eq!(
        path.total,
        Figures {
            transfers: 2,
            bytes: 2_000,
            busy_ns: 2_500,
            failures: 1,
            fallbacks: 2,
            mean_bytes_per_s: Some(800_000_000),
            best_bytes_per_s: Some(2_000_000_000),
            // 500 shares a bucket with 496 to 511; the middle, 503, is within the shortest and the
            // longest.
            p50_ns: Some(503),
            p99_ns: Some(2_000),
        }
    );
    let [class] = path.classes.as_slice() else {
        panic!("one class, not {}", path.classes.len());
    };
    assert_eq!((class.from_bytes, class.to_bytes), (512, 1_023));
    assert_eq!(class.figures, path.total);
}

#[test]
fn each_power_of_two_starts_a_class() {
    assert_eq!(class_bounds(class_of(0)), (0, 0));
    assert_eq!(class_bounds(class_of(u64::MAX)), (1 << 63, u64::MAX));
    for power in 0..64 {
        let from = 1u64 << power;
        let to = from + (from - 1);
        assert_eq!(class_bounds(class_of(from)), (from, to));
        assert_eq!(class_bounds(class_of(to)), (from, to));
    }
}

#[test]
fn durations_of_no_time_are_counted_like_others() {
    let mut stats = Stats::new();
    for _ in 0..3 {
        stats.record(&sample(64, 0));
    }
    let total = stats.snapshot().paths[0].total;
    assert_eq!((total.transfers, total.busy_ns), (3, 0));
    assert_eq!((total.p50_ns, total.p99_ns), (Some(0), Some(0)));
    assert_eq!(total.best_bytes_per_s, Some(64_000_000_000));
    assert_eq!(total.mean_bytes_per_s, Some(192_000_000_000));
    stats.record(&sample(1, 0));
    let total = stats.snapshot().paths[0].total;
    assert_eq!(total.best_bytes_per_s, Some(64_000_000_000));
}

#[test]
fn empty_transfers_have_a_class_and_a_rate_of_nothing() {
    let mut stats = Stats::new();
    stats.record(&sample(0, 40));
    let path = &stats.snapshot().paths[0];
    assert_eq!(
        (path.classes[0].from_bytes, path.classes[0].to_bytes),
        (0, 0)
    );
    assert_eq!(path.total.best_bytes_per_s, Some(0));
    assert_eq!(path.total.p99_ns, Some(40));
}

#[test]
fn a_path_that_only_failed_has_no_rates() {
    let mut stats = Stats::new();
    stats.record(&Sample {
        failed: true,
        ..sample(1, 1)
    });
    let total = stats.snapshot().paths[0].total;
    assert_eq!((total.transfers, total.failures), (0, 1));
    assert_eq!(
        (total.mean_bytes_per_s, total.best_bytes_per_s),
        (None, None)
    );
    assert_eq!((total.p50_ns, total.p99_ns), (None, None));
}

#[test]
fn counters_stop_at_their_largest_value() {
    let mut stats = Stats::new();
    for _ in 0..3 {
        stats.record(&sample(u64::MAX, u64::MAX));
    }
    let total = stats.snapshot().paths[0].total;
    assert_eq!((total.bytes, total.busy_ns), (u64::MAX, u64::MAX));
    assert_eq!(total.best_bytes_per_s, Some(1_000_000_000));
    assert_eq!(total.p50_ns, Some(u64::MAX));
    stats.record(&sample(u64::MAX, 1));
    assert_eq!(
        stats.snapshot().paths[0].total.best_bytes_per_s,
        Some(u64::MAX)
    );
}

#[test]
fn paths_beyond_the_bound_are_counted_together() {
    let mut stats = Stats::with_max_paths(2);
    for index in 0..5 {
        let src = DeviceId::new(DeviceKind::SIM, index).memory(MemoryKind::Device);
        stats.record(&Sample {
            src,
            ..sample(8, 1)
        });
    }
    let first = DeviceId::new(DeviceKind::SIM, 0).memory(MemoryKind::Device);
    stats.record(&Sample {
        src: first,
        ..sample(8, 1)
    });
    let snapshot = stats.snapshot();
    assert_eq!(snapshot.paths.len(), 2);
    assert_eq!(snapshot.paths[0].total.transfers, 2);
    assert_eq!(snapshot.other.unwrap().transfers, 3);
}

#[test]
fn a_reset_forgets_everything() {
    let mut stats = Stats::with_max_paths(1);
    stats.record(&sample(1, 1));
    stats.record(&Sample {
        method: Method::ZeroCopy,
        ..sample(1, 1)
    });
    stats.reset();
    assert_eq!(stats.snapshot(), Snapshot::default());
    assert_eq!(stats.snapshot().to_string(), "no transfers so far");
    stats.record(&sample(1, 1));
    assert_eq!(stats.snapshot().paths.len(), 1);
}

#[test]
fn a_snapshot_prints_as_a_table() {
    let mut stats = Stats::with_max_paths(1);
    stats.record(&sample(90_900_000, 10_000_000));
    stats.record(&sample(4_096, 900));
    stats.record(&Sample {
        method: Method::HostStaged,
        failed: true,
        fallbacks: 1,
        ..sample(1, 1)
    });
    let lines = [
        "path                           method      size from  transfers     bytes     busy       mean       best      p50      p99  failed  fallbacks",
        "cpu:0/pageable → cpu:0/shared  DirectCopy        all          2  86.7 MiB  10.0 ms  9.09 GB/s  9.09 GB/s   911 ns  10.0 ms       0          0",
        "                                               4 KiB          1     4 KiB   900 ns  4.55 GB/s  4.55 GB/s   900 ns   900 ns       0          0",
        "                                              64 MiB          1  86.7 MiB  10.0 ms  9.09 GB/s  9.09 GB/s  10.0 ms  10.0 ms       0          0",
        "other                                            all          0       0 B     0 ns          -          -        -        -       1          1",
    ];
    assert_eq!(stats.snapshot().to_string(), lines.join("\n"));
}

#[cfg(feature = "serde")]
#[test]
fn a_snapshot_serialises_with_names_as_text() {
    let mut stats = Stats::with_max_paths(1);
    stats.record(&sample(3, 4));
    let json = serde_json::to_value(stats.snapshot()).unwrap();
    let figures = serde_json::json!({
        "transfers": 1, "bytes": 3, "busy_ns": 4, "failures": 0, "fallbacks": 0,
        "mean_bytes_per_s": 750_000_000, "best_bytes_per_s": 750_000_000,
        "p50_ns": 4, "p99_ns": 4,
    });
    let wanted = serde_json::json!({
        "paths": [{
            "src": "cpu:0/pageable", "dst": "cpu:0/shared", "method": "DirectCopy",
            "total": figures,
            "classes": [{"from_bytes": 2, "to_bytes": 3, "figures": figures}],
        }],
        "other": null,
    });
    assert_eq!(json, wanted);
}

fn sample(bytes: u64, duration_ns: u64) -> Sample {
    Sample {
        src: HEAP,
        dst: SHARED,
        method: Method::DirectCopy,
        bytes,
        duration_ns,
        fallbacks: 0,
        failed: false,
    }
}
