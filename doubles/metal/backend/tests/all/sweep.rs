//! A fault at every step of every route: a typed error or a reported fallback, right bytes where they are promised, and
//! no resource left.

use crate::common;

use common::engine::{allocate, during, manager, odd, paged, read};
use common::{assert_clean, pattern};
use transload::hal::ErrorClass;
use transload::{Buffer, Report, TransferError, TransferManager};
use transload_metal_double::{Counters, Device, fault};

/// Several words and a rest, of more than a page.
const LEN: usize = 150_003;

/// The most steps of one route that are made to fail.
const MOST: u64 = 12;

const UNIFIED: [(&str, &str); 7] = [
    ("odd", "metal:0"),
    ("metal:0", "odd"),
    ("paged", "metal:0/device"),
    ("odd", "metal:0/device"),
    ("metal:0", "metal:0/device"),
    ("metal:0/device", "metal:0/device"),
    ("metal:0/device", "paged"),
];

const DISCRETE: [(&str, &str); 7] = [
    ("paged", "metal:0"),
    ("odd", "metal:0"),
    ("metal:0", "odd"),
    ("odd", "metal:0/managed"),
    ("metal:0", "metal:0/managed"),
    ("metal:0/managed", "odd"),
    ("metal:0/managed", "metal:0/mapped"),
];

/// A fault, and the counter of the double that limits the number of its positions.
type Order = (&'static str, fn(&Counters) -> u64);

const OF_WORK: [Order; 6] = [
    ("blit=timeout", blits),
    ("blit=page-fault", blits),
    ("commit=internal", |counted| counted.commits),
    ("commit=out-of-memory", |counted| counted.commits),
    ("commit=invalid-resource", |counted| counted.commits),
    ("commit=99", |counted| counted.commits),
];

const OF_OBJECTS: [Order; 5] = [
    ("oom", |counted| {
        counted.shared_buffers
            + counted.private_buffers
            + counted.no_copy_buffers
            + counted.textures
    }),
    ("nil=commandBuffer", |counted| counted.command_buffers),
    ("nil=blitCommandEncoder", |counted| counted.command_buffers),
    (
        "nil=newBufferWithBytesNoCopy:length:options:deallocator:",
        |counted| counted.no_copy_buffers,
    ),
    ("nil=newTextureWithDescriptor:", |counted| counted.textures),
];

fn blits(counted: &Counters) -> u64 {
    counted.copies + counted.copies_to_texture + counted.copies_from_texture + counted.synchronizes
}

fn buffer(manager: &TransferManager, place: &str, bytes: &[u8]) -> Buffer {
    match place {
        "odd" => odd(manager, bytes),
        "paged" => paged(manager, bytes),
        place => {
            let buffer = allocate(manager, place, bytes.len());
            manager.copy_from_slice(bytes, &buffer).unwrap();
            buffer
        }
    }
}

/// One transfer with its buffers, and its result while a fault was ordered.
fn transfer(
    manager: &TransferManager,
    (from, to): (&str, &str),
    order: Option<&str>,
) -> Result<Report, TransferError> {
    let bytes = pattern(LEN);
    let poison: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    let (src, dst) = (buffer(manager, from, &bytes), buffer(manager, to, &poison));
    // The engine must make proofs again.
    manager.clear_cache();
    if let Some(order) = order {
        fault(order).unwrap();
    }
    let result = manager.copy(&src, &dst).wait();
    manager.wait_idle();
    fault("none").unwrap();
    manager.clear_cache();
    if result.is_ok() {
        assert!(read(manager, &dst) == bytes, "{from} to {to}, {order:?}");
    }
    // A copy that failed once works again.
    manager.copy(&src, &dst).wait().unwrap();
    assert!(
        read(manager, &dst) == bytes,
        "{from} to {to}, after {order:?}"
    );
    result
}

fn sweep(device: Device, ways: &[(&str, &str)]) {
    let manager = manager(vec![device]);
    for way in ways {
        // Twice, since the first makes what lanes keep.
        transfer(&manager, *way, None).unwrap();
        let (src, dst) = (
            buffer(&manager, way.0, &pattern(LEN)),
            buffer(&manager, way.1, &pattern(LEN)),
        );
        manager.clear_cache();
        let counted = during(|| {
            manager.copy(&src, &dst).wait().unwrap();
        });
        drop((src, dst));
        for (what, count) in OF_WORK {
            for step in 1..=count(&counted).min(MOST) {
                let order = format!("{what}@{step}");
                let told = match transfer(&manager, *way, Some(&order)) {
                    Ok(report) => !report.fallbacks().is_empty(),
                    Err(error) => is_typed(&error),
                };
                assert!(told, "{way:?}, {order}: the sink was not told");
            }
        }
        for (what, count) in OF_OBJECTS {
            for step in 1..=count(&counted).min(MOST) {
                let order = format!("{what}@{step}");
                if let Err(error) = transfer(&manager, *way, Some(&order)) {
                    assert!(is_typed(&error), "{way:?}, {order}: {error}");
                }
            }
        }
    }
    drop(manager);
    assert_clean();
}

/// Whether an error is a failure of the work, and not a mistake of the caller.
fn is_typed(error: &TransferError) -> bool {
    let class = error.class();
    matches!(error, TransferError::Failed(_))
        && matches!(
            class,
            ErrorClass::Failed | ErrorClass::Exhausted | ErrorClass::Unsupported
        )
}

#[test]
fn every_step_of_a_unified_device_fails_once() {
    sweep(Device::unified(), &UNIFIED);
}

#[test]
fn every_step_of_a_device_with_memory_of_its_own_fails_once() {
    sweep(Device::discrete(), &DISCRETE);
}
