//! Host memory that is allocated locked in place: what sort of memory it is.
#![cfg(all(target_os = "linux", feature = "backend", not(transload_local)))]

mod common;

use common::work::{Works, copy, device, pattern, pinned, read, write};
use common::{assert_clean, backend, calls, control};
use transload_cuda::raw::CU_MEMHOSTALLOC;
use transload_hal::{AllocError, AllocSpec, Backend, Buffer};

/// The flags of memory that the driver allocated; none of memory that it only registered.
fn flags(works: &Works, buffer: &Buffer) -> Option<u32> {
    let start = buffer.host(0, 1).unwrap().as_ptr();
    let mut flags = 0;
    let driver = works.cuda.driver();
    // SAFETY: the place is ours.
    let ask = || unsafe { driver.cuMemHostGetFlags(&raw mut flags, start.cast()) };
    works.beside(0, ask).ok().map(|()| flags)
}

/// Bytes go through pinned memory to the device and back.
fn carries_bytes(works: &Works, buffer: &Buffer, seed: u8) {
    let bytes = pattern(seed, buffer.len() as usize);
    write(buffer, &bytes);
    let far = works.allocate(device(0), bytes.len());
    works.run(&[copy(buffer, &far)]);
    write(buffer, &vec![0; bytes.len()]);
    works.run(&[copy(&far, buffer)]);
    assert_eq!(read(buffer), bytes);
}

#[test]
fn memory_is_cached_unless_asked_otherwise() {
    let works = Works::new(backend(&[]));
    let plain = works.allocate(pinned(), 10_000);
    assert_eq!((flags(&works, &plain), calls("cuMemHostAlloc")), (None, 0));
    let spec = AllocSpec::bytes(10_000).with_write_combining();
    let combined = works.cuda.allocate(pinned(), &spec).unwrap();
    let all =
        CU_MEMHOSTALLOC::PORTABLE | CU_MEMHOSTALLOC::DEVICEMAP | CU_MEMHOSTALLOC::WRITECOMBINED;
    assert_eq!(flags(&works, &combined), Some(all));
    carries_bytes(&works, &plain, 1);
    carries_bytes(&works, &combined, 2);
    drop((plain, combined));
    assert_eq!(calls("cuMemFreeHost"), 1);
    drop(works);
    assert_clean();
}

#[test]
fn write_combined_memory_is_aligned_as_asked() {
    let works = Works::new(backend(&[]));
    for alignment in [1, 4096, 1 << 16, 2 << 20] {
        let spec = AllocSpec::bytes(100).aligned(alignment);
        let buffer = works.cuda.allocate(pinned(), &spec.with_write_combining());
        let buffer = buffer.unwrap();
        assert_eq!(buffer.position() % alignment.max(4096), 0);
        carries_bytes(&works, &buffer, 3);
    }
    drop(works);
    assert_clean();
}

#[test]
fn a_system_without_write_combining_gives_cached_memory() {
    let works = Works::new(backend(&[]));
    control("fault call=cuMemHostAlloc:801").unwrap();
    let spec = AllocSpec::bytes(100).with_write_combining();
    let buffer = works.cuda.allocate(pinned(), &spec).unwrap();
    assert_eq!(flags(&works, &buffer), None);
    carries_bytes(&works, &buffer, 4);
    control("fault call=cuMemHostAlloc:2@1+").unwrap();
    let refused = works.cuda.allocate(pinned(), &spec);
    assert!(
        matches!(refused, Err(AllocError::OutOfMemory { .. })),
        "{refused:?}"
    );
    drop((buffer, works));
    assert_clean();
}

#[test]
fn large_memory_carries_bytes_to_its_ends() {
    let works = Works::new(backend(&[]));
    for len in [(2 << 20) - 1, 2 << 20, (5 << 20) + 3] {
        let buffer = works.allocate(pinned(), len);
        carries_bytes(&works, &buffer, 5);
    }
    drop(works);
    assert_clean();
}
