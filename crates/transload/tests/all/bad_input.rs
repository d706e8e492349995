//! Mistakes of users and in files: the caller gets a typed error that names the thing and the limit, and nothing is
//! done.

mod files;
mod handles;
mod read_only;
mod texts;

use std::error::Error as _;
use std::ops::Bound;
use std::sync::Arc;

use transload::hal::{AllocError, ErrorClass};
use transload::model::{ParseError, ShapeError};
use transload::{
    AllocSpec, Buffer, ByteSize, Error, GuardError, IntoInnerReason, Method, OnFailure, Place,
    PlaceError, Region, RegionError, RegisterError, Request, Shape, TransferError, TransferManager,
};
use transload_testkit::sim::{Call, Completion, Rule, Sim};
use transload_testkit::topology;

use crate::common::{Bench, SLOT, marked, place, two_devices};

fn bench() -> Bench {
    Bench::new(&two_devices(), Completion::Timed, 3)
}

fn host() -> TransferManager {
    TransferManager::builder().host().build().unwrap()
}

#[test]
fn absent_devices_and_memories_are_named_with_what_is_there() {
    let bench = bench();
    let error = bench
        .manager
        .allocate(place("cuda:3"), AllocSpec::bytes(1))
        .unwrap_err();
    let Error::Place(PlaceError::UnknownDevice { device, known, .. }) = &error else {
        panic!("{error}");
    };
    assert_eq!(device.to_string(), "cuda:3");
    assert_eq!(known, "cpu:0, sim:0, sim:1");
    assert_eq!(error.class(), ErrorClass::Unsupported);

    let error = bench
        .manager
        .allocate(place("sim:0/file"), AllocSpec::bytes(1))
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("sim:0/file") && text.contains("device"),
        "{text}"
    );

    let none = TransferManager::new().resolve(place("cpu:0")).unwrap_err();
    assert!(none.to_string().contains("there are: none"), "{none}");
    assert_eq!(bench.sim.memory_use()[0].allocations, 0);
}

#[test]
fn malformed_names_and_sizes_are_quoted() {
    for text in [
        "",
        ":",
        "cpu:",
        "cpu:x",
        "cpu:-1",
        "cpu:4294967296",
        "CPU:0",
        "cpu:0/",
        "cpu:0/ram",
        "cpu 0",
        "a-name-of-17-char:0",
        "node/7:cpu:0",
    ] {
        let error = text.parse::<Place>().unwrap_err();
        let part = text.rsplit_once('/').map_or(text, |(_, memory)| memory);
        let quoted = [format!("{text:?}"), format!("{part:?}")];
        assert!(
            quoted
                .iter()
                .any(|quoted| error.to_string().contains(quoted)),
            "{text:?}: {error}"
        );
    }
    for text in [
        "",
        "MiB",
        "1.5.5GB",
        "12 parsecs",
        "-3",
        "1e400",
        "99999999999999999999",
        "9e9TiB",
    ] {
        let error = text.parse::<ByteSize>().unwrap_err();
        assert!(
            matches!(error, ParseError::Size { .. }),
            "{text:?}: {error}"
        );
    }
}

#[test]
fn impossible_shapes_name_their_figures() {
    let overlap = Shape::pitched(65, 2, 64).unwrap_err();
    assert_eq!(
        overlap,
        ShapeError::RowsOverlap {
            width_bytes: 65,
            row_pitch: 64
        }
    );
    assert!(Shape::pitched(64, 2, 64).is_ok());
    let planes = Shape::pitched_3d(64, 4, 100, 3, 363);
    assert!(
        matches!(planes, Err(ShapeError::PlanesOverlap { .. })),
        "{planes:?}"
    );
    let large = Shape::pitched(1 << 40, 1 << 40, 1 << 40);
    assert!(
        matches!(large, Err(ShapeError::TooLarge { .. })),
        "{large:?}"
    );
    assert_eq!(Error::from(overlap).class(), ErrorClass::Caller);
}

#[test]
fn regions_past_the_end_and_past_the_last_address_are_refused() {
    let bench = bench();
    let buffer = bench.empty("sim:0", 1000);
    let whole = |offset, len| Region::new(&buffer, offset, Shape::contiguous(len));
    assert!(whole(0, 1000).is_ok());
    assert!(whole(1000, 0).is_ok());
    for (offset, len) in [
        (1, 1000),
        (1001, 0),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
        (1, u64::MAX),
        (u64::MAX - 999, 1000),
    ] {
        let error = whole(offset, len).unwrap_err();
        let RegionError::OutOfBounds {
            offset: o,
            len: l,
            limit,
            ..
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!((o, l, limit), (offset, len, 1000), "{error}");
    }
    #[allow(clippy::reversed_empty_ranges, reason = "that is what is tried")]
    for range in [
        1..1001u64,
        1001..1001,
        u64::MAX..u64::MAX,
        7..3,
        0..u64::MAX,
    ] {
        assert!(buffer.slice(range.clone()).is_err(), "{range:?}");
    }
    let refused = |range: (Bound<u64>, Bound<u64>)| buffer.slice(range).unwrap_err();
    let (from, to) = (Bound::Included, Bound::Excluded);
    for (range, offset, len) in [
        ((from(0), from(u64::MAX)), 0, u64::MAX),
        ((from(5), from(u64::MAX)), 5, u64::MAX - 4),
        ((from(5), from(2000)), 5, 1996),
        ((from(1001), Bound::Unbounded), 1001, 0),
        ((to(u64::MAX), Bound::Unbounded), u64::MAX, 1),
    ] {
        let memory = buffer.memory();
        let limit = 1000;
        let wanted = RegionError::OutOfBounds {
            memory,
            offset,
            len,
            limit,
        };
        assert_eq!(refused(range), wanted);
    }
    let error = refused((from(50), to(10)));
    assert!(
        matches!(
            error,
            RegionError::Reversed {
                start: 50,
                end: 10,
                ..
            }
        ),
        "{error}"
    );
    let said = error.to_string();
    assert!(
        said.contains("starts at byte 50") && said.contains("byte 10"),
        "{said}"
    );
    assert!(buffer.slice(..=999).is_ok());
    let rows = Shape::pitched(10, 10, 110).unwrap();
    assert!(Region::new(&buffer, 0, rows).is_ok(), "ends at byte 1000");
    assert!(Region::new(&buffer, 1, rows).is_err(), "ends at byte 1001");
    // A view ends at its own end, and not at its parent's.
    let view = buffer.slice(100..200).unwrap();
    assert!(Region::new(&view, 0, Shape::contiguous(101)).is_err());
}

#[test]
fn nothing_to_move_is_ok_and_moves_nothing() {
    let bench = bench();
    let src = bench.filled("sim:0", marked(64));
    let dst = bench.filled("sim:1", marked(64));
    let before = bench.read(&dst);
    for at in [0, 17, 64] {
        let none = |buffer: &Buffer| buffer.slice(at..at).unwrap();
        let request = Request::new(none(&src), none(&dst)).verify();
        let report = bench.manager.submit(&request).wait().unwrap();
        assert_eq!(report.bytes(), 0);
    }
    let empty = [bench.empty("sim:0", 0), bench.empty("cpu:0", 0)];
    bench.manager.copy(&empty[0], &empty[1]).wait().unwrap();
    let operations: u64 = bench.sim.engine_use().iter().map(|e| e.operations).sum();
    assert_eq!(operations, 0);
    assert_eq!(bench.read(&dst), before);
    let host = host();
    let nothing = host.adopt(Vec::<u8>::new()).unwrap();
    host.copy_from_slice(&[], &nothing).unwrap();
    host.copy_into_slice(&nothing, &mut []).unwrap();
    assert_eq!(*nothing.read().unwrap(), [0u8; 0]);
    assert_eq!(nothing.into_inner::<Vec<u8>>().unwrap(), [0u8; 0]);
}

#[test]
fn lengths_that_differ_are_refused_with_both() {
    let bench = bench();
    let (src, dst) = (bench.empty("sim:0", 100), bench.filled("sim:1", marked(99)));
    let error = bench.manager.copy(&src, &dst).wait().unwrap_err();
    assert_eq!(
        error,
        TransferError::LengthMismatch {
            src_bytes: 100,
            dst_bytes: 99
        }
    );
    assert_eq!(error.class(), ErrorClass::Caller);
    assert!(bench.read(&dst) == marked(99));
    // Shapes may differ if the payloads have the same length.
    let rows = Region::new(&src, 0, Shape::pitched(5, 5, 20).unwrap()).unwrap();
    let flat = Region::new(&dst, 0, Shape::contiguous(25)).unwrap();
    bench.manager.copy(rows, flat).wait().unwrap();
}

#[test]
fn pitched_regions_that_overlap_are_refused() {
    let manager = host();
    let buffer = manager.adopt(marked(4096).to_vec()).unwrap();
    let rows = |offset| Region::new(&buffer, offset, Shape::pitched(30, 20, 64).unwrap()).unwrap();
    for shift in [0, 1, 29, 64, 35, 64 * 19] {
        let error = manager.copy(rows(0), rows(shift)).wait().unwrap_err();
        assert!(
            matches!(error, TransferError::Overlap { .. }),
            "{shift}: {error}"
        );
        assert_eq!(error.class(), ErrorClass::Caller);
    }
    assert!(*buffer.read().unwrap() == *marked(4096));
    // Rows that lie between the rows of the other region do not overlap them.
    manager.copy(rows(0), rows(30)).wait().unwrap();
    let view = buffer.read().unwrap();
    assert!(view[30..60] == marked(4096)[..30] && view[60..64] == marked(4096)[60..64]);
}

#[test]
fn an_overlapping_copy_cannot_be_verified_and_says_so() {
    let bench = bench();
    let buffer = bench.filled("sim:0", marked(1000));
    let half = |at: u64| buffer.slice(at..at + 500).unwrap();
    let error = bench
        .manager
        .submit(&Request::new(half(0), half(100)).verify())
        .wait()
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Caller, "{error}");
    assert!(bench.read(&buffer) == marked(1000));
}

#[test]
fn buffers_events_and_backends_of_another_manager_are_refused() {
    let (one, other) = (bench(), bench());
    let mine = one.filled("sim:0", marked(100));
    let theirs = other.filled("sim:1", marked(100));
    for (src, dst) in [(&mine, &theirs), (&theirs, &mine)] {
        let refused = [
            one.manager.copy(src, dst).wait().map(drop),
            one.manager.prepare(&Request::new(src, dst)).map(drop),
            one.manager.explain(&Request::new(src, dst)).map(drop),
            one.manager
                .copy_batch(&[Request::new(src, dst)], OnFailure::GoOn)
                .map(drop)
                .map_err(|error| error.source),
        ];
        for error in refused.map(Result::unwrap_err) {
            assert!(
                matches!(error, TransferError::ForeignBuffer { .. }),
                "{error}"
            );
            assert_eq!(error.class(), ErrorClass::Caller);
        }
    }
    let slice = one
        .manager
        .copy_from_slice(marked(100), &theirs)
        .unwrap_err();
    assert!(
        matches!(slice, TransferError::ForeignBuffer { .. }),
        "{slice}"
    );
    let own = one.empty("sim:1", 100);
    let event = other.manager.event();
    for request in [
        Request::new(&mine, &own).after(&event),
        Request::new(&mine, &own).then(&event),
    ] {
        let error = one.manager.submit(&request).wait().unwrap_err();
        assert_eq!(error, TransferError::ForeignEvent);
    }
    assert!(!event.is_set());
    assert!(one.read(&mine) == marked(100) && other.read(&theirs) == marked(100));
}

#[test]
fn a_batch_with_one_bad_request_does_nothing_and_names_it() {
    let bench = bench();
    let (src, dst) = (
        bench.filled("sim:0", marked(100)),
        bench.empty("sim:1", 100),
    );
    let before = bench.read(&dst);
    let short = bench.empty("sim:1", 50);
    let requests = [
        Request::new(&src, &dst),
        Request::new(&src, &short),
        Request::new(&src, &dst),
    ];
    let copy_batch = || bench.manager.copy_batch(&requests, OnFailure::GoOn);
    let error = copy_batch().unwrap_err();
    assert_eq!(error.index, 1);
    assert!(
        matches!(error.source, TransferError::LengthMismatch { .. }),
        "{error}"
    );
    assert!(
        error.to_string().starts_with("request 1 of the batch: "),
        "{error}"
    );
    assert_eq!(Error::from(error).class(), ErrorClass::Caller);
    bench.run();
    assert_eq!(bench.read(&dst), before);
    assert_eq!(bench.manager.stats().paths, []);
}

#[test]
fn device_memory_has_no_guards_and_says_so() {
    let bench = bench();
    let buffer = bench.empty("sim:0", 100);
    let memory = buffer.memory();
    let error = buffer.read().map(drop).unwrap_err();
    assert_eq!(error, GuardError::NotHostAddressable { memory });
    assert_eq!(error.class(), ErrorClass::Unsupported);
}

#[test]
fn an_owner_stays_where_it_is_while_others_see_it() {
    let manager = host();
    let buffer = manager.adopt(marked(5000).to_vec()).unwrap();
    let view = buffer.slice(10..20).unwrap();
    let busy = buffer.into_inner::<Vec<u8>>().unwrap_err();
    assert_eq!(busy.reason, IntoInnerReason::InUse);
    drop(view);
    let other = busy.buffer.into_inner::<String>().unwrap_err();
    assert_eq!(other.reason, IntoInnerReason::OtherOwner);
    let guard = other.buffer.read().unwrap();
    drop(guard);
    let region = Region::from(&other.buffer);
    let busy = other.buffer.into_inner::<Vec<u8>>().unwrap_err();
    assert_eq!(busy.reason, IntoInnerReason::InUse, "a region is a view");
    drop(region);
    assert!(busy.buffer.into_inner::<Vec<u8>>().unwrap() == marked(5000));
}

/// 10 PB do not depend on the memory that is free now: each memory of the host reports that a retry will not help.
#[cfg(target_os = "linux")]
#[test]
fn what_no_memory_of_the_host_could_hold_is_of_one_class() {
    let manager = host();
    let spec = AllocSpec::bytes(10_000_000_000_000_000);
    for at in ["cpu:0", "cpu:0/shared", "cpu:0/file"] {
        match manager.allocate(place(at), spec) {
            Ok(_) => assert_eq!(at, "cpu:0/file", "file systems have room for holes"),
            Err(error) => assert_eq!(error.class(), ErrorClass::Caller, "{at}: {error}"),
        }
    }
    let error = manager.allocate(place("cpu:0"), spec).unwrap_err();
    let Error::Alloc(AllocError::TooLarge { limit_bytes, .. }) = &error else {
        panic!("{error}");
    };
    let known = manager.memories();
    let heap = known
        .iter()
        .find(|memory| memory.id.to_string() == "cpu:0/pageable");
    assert_eq!(heap.unwrap().max_alloc_bytes, *limit_bytes);
    let folder = files::Folder::new("long");
    if let Err(error) = manager.create_file(folder.path("long"), spec.len_bytes) {
        assert_eq!(error.class(), ErrorClass::Caller, "{error}");
        assert!(error.to_string().contains("10000000000000000"), "{error}");
    }
}

#[test]
fn memory_that_is_full_says_so_and_loses_nothing() {
    let bench = bench();
    let at = place("sim:0");
    let half = bench.empty("sim:0", 40_000_000);
    let error = bench
        .manager
        .allocate(at, AllocSpec::bytes(40_000_000))
        .unwrap_err();
    let Error::Alloc(AllocError::OutOfMemory {
        memory, len_bytes, ..
    }) = &error
    else {
        panic!("{error}");
    };
    assert_eq!((memory, *len_bytes), (&half.memory(), 40_000_000));
    assert_eq!(error.class(), ErrorClass::Exhausted);
    let use_of = bench.sim.use_of(half.memory()).unwrap();
    assert_eq!(
        (use_of.live_allocations, use_of.live_bytes),
        (1, 40_000_000)
    );
    let large = bench
        .manager
        .allocate(at, AllocSpec::bytes(1 << 40))
        .unwrap_err();
    assert!(large.to_string().contains("64000000"), "{large}");
    for alignment in [0, 3, 1 << 63] {
        let spec = AllocSpec::bytes(10).aligned(alignment);
        let error = bench.manager.allocate(at, spec).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Caller, "{error}");
        let wanted = match alignment {
            0 | 3 => "is not a power of two",
            _ => "exceeds the largest",
        };
        let wanted = format!("alignment {alignment} {wanted}");
        assert!(error.to_string().contains(&wanted), "{error}");
    }
    drop(half);
    bench.empty("sim:0", 64_000_000);
    // The real host answers for impossible sizes too.
    for memory in ["cpu:0", "cpu:0/shared"] {
        for len in [u64::MAX, 1 << 62] {
            let error = host()
                .allocate(place(memory), AllocSpec::bytes(len))
                .unwrap_err();
            let class = error.class();
            let fits = matches!(class, ErrorClass::Exhausted | ErrorClass::Caller);
            assert!(fits, "{memory}, {len}: {error}");
        }
    }
}

#[test]
fn a_backend_is_registered_once() {
    let bench = bench();
    let known = bench.manager.backends();
    let again = bench.manager.register_shared(Arc::new(bench.sim.clone()));
    let again = again.unwrap_err();
    assert!(matches!(again, RegisterError::Duplicate { .. }), "{again}");
    assert_eq!(again.class(), ErrorClass::Caller);
    let other = Sim::new(&two_devices().machine()).unwrap();
    let other = bench.manager.register_backend(other).unwrap_err();
    assert!(matches!(other, RegisterError::Duplicate { .. }), "{other}");
    // One backend cannot report outcomes to two engines.
    let taken = TransferManager::new().register_shared(Arc::new(bench.sim.clone()));
    assert!(
        matches!(taken, Err(RegisterError::Taken { .. })),
        "{taken:?}"
    );
    assert_eq!(bench.manager.backends(), known);
    let src = bench.filled("sim:0", marked(SLOT));
    let dst = bench.empty("sim:1", SLOT);
    bench.manager.copy(&src, &dst).wait().unwrap();
    assert!(bench.read(&dst) == marked(SLOT));
}

#[test]
fn memories_that_nothing_joins_name_every_way_that_was_looked_at() {
    let bench = bench();
    let src = bench.empty("cpu:0/pageable", 100);
    let dst = bench.empty("sim:0", 100);
    // Pinned memory is the only way between them, and its room for slots is used up.
    let narrow = Bench::new(&two_devices(), Completion::Timed, 0);
    let (from, to) = (narrow.empty("sim:0", 100), narrow.empty("sim:1", 100));
    let error = narrow.manager.copy(&from, &to).wait().unwrap_err();
    let TransferError::NoRoute {
        src: a,
        dst: b,
        reasons,
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!((*a, *b), (from.memory(), to.memory()));
    assert!(reasons.contains("65536"), "{reasons}");
    assert_eq!(error.class(), ErrorClass::Unsupported);
    bench.manager.copy(&src, &dst).wait().unwrap();
}

#[test]
fn refused_allocations_pass_on_what_the_backend_said() {
    for class in [ErrorClass::Exhausted, ErrorClass::Lost, ErrorClass::Failed] {
        let bench = bench();
        bench.sim.add_rule(Rule::refuse(Call::Allocate, class));
        let error = bench
            .manager
            .allocate(place("cpu:0"), AllocSpec::bytes(10))
            .unwrap_err();
        assert_eq!(error.class(), class, "{error}");
        assert!(error.to_string().contains("cpu:0"), "{error}");
        bench.empty("cpu:0", 10);
    }
}

#[test]
fn results_are_taken_once() {
    let bench = bench();
    let (src, dst) = (bench.empty("sim:0", 10), bench.empty("sim:1", 10));
    let mut transfer = bench.manager.copy(&src, &dst);
    let limit = std::time::Duration::from_secs(1);
    let report = transfer.wait_timeout(limit).unwrap().unwrap();
    assert_eq!(report.method(), Method::HostStaged);
    assert_eq!(transfer.wait(), Err(TransferError::ResultTaken));
}

#[test]
fn topologies_name_the_field_and_the_figure_that_are_wrong() {
    let good = "schema = 1\nname = \"m\"\n[[device]]\nid = \"sim:0\"\nname = \"d\"\n\
                memory = [{ kind = \"device\", memory_bytes = 1000 }]\n";
    assert!(topology::from_str(good).is_ok());
    let link = "[[link]]\nsrc = \"sim:0/device\"\ndst = \"sim:0/device\"\nengine = \"sim:0#0\"\n\
                class = \"pcie\"\n";
    assert!(topology::from_str(&format!("{good}{link}")).is_ok());
    for (text, named) in [
        (format!("{good}colour = 3\n"), "colour"),
        (format!("{good}{link}bandwith = 3\n"), "bandwith"),
        (good.replace("schema = 1", "schema = 2"), "2"),
        (good.replace("= 1000", "= -1"), "-1"),
        (format!("{good}{link}latency_ns = -5\n"), "-5"),
        (
            format!("{good}{link}bytes_per_second = 0\n"),
            "bytes_per_second",
        ),
        (
            format!("{good}{link}").replace("dst = \"sim:0", "dst = \"sim:9"),
            "sim:9",
        ),
        (
            format!("{good}{link}").replace("\"pcie\"", "\"rope\""),
            "rope",
        ),
        (good.replace("sim:0", "sim:zero"), "sim:zero"),
        ("schema = 1\nname = \"m\"\n".into(), "no devices"),
        ("schema = ".into(), "line 1"),
    ] {
        let error = topology::from_str(&text).unwrap_err().to_string();
        assert!(error.contains(named), "{named:?} is not in {error:?}");
    }
    let missing = topology::from_file("/nowhere/at/all.toml").unwrap_err();
    assert!(
        missing.to_string().contains("/nowhere/at/all.toml"),
        "{missing}"
    );
}
