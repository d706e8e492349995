//! Host memory that the driver allocates as pinned memory, and the kind that it reports.

use crate::common;

use common::user::User;
use common::work::{Works, copy, device, pattern, pinned, read, write};
use common::{assert_clean, backend, calls, control};
use transload_cuda::raw::CU_MEMHOSTALLOC;
use transload_hal::{AllocError, AllocSpec, Backend, Buffer, External, HostSpan};

/// The flags of memory that the driver allocated; `None` for memory that it only registered.
fn flags(works: &Works, buffer: &Buffer) -> Option<u32> {
    let start = buffer.host(0, 1).unwrap().as_ptr();
    let mut flags = 0;
    let driver = works.cuda.driver();
    // SAFETY: the out-pointer is a local variable.
    let ask = || unsafe { driver.cuMemHostGetFlags(&raw mut flags, start.cast()) };
    works.beside(0, ask).ok().map(|()| flags)
}

/// Copies bytes through pinned memory to the device and back.
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

#[test]
fn a_system_that_registers_nothing_gives_memory_of_the_drivers() {
    let works = Works::new(backend(&[]));
    let spec = AllocSpec::bytes(10_000).aligned(1 << 16);
    for result in [801, 800] {
        control(&format!("fault call=cuMemHostRegister_v2:{result}")).unwrap();
        let buffer = works.cuda.allocate(pinned(), &spec).unwrap();
        let all = CU_MEMHOSTALLOC::PORTABLE | CU_MEMHOSTALLOC::DEVICEMAP;
        assert_eq!(flags(&works, &buffer), Some(all));
        assert_eq!(buffer.position() % (1 << 16), 0);
        carries_bytes(&works, &buffer, 6);
    }
    assert_eq!(calls("cuMemFreeHost"), 2);
    // Where both calls fail, the error names the first refusal.
    control("fault call=cuMemHostRegister_v2:801;call=cuMemHostAlloc:801").unwrap();
    let refused = works.cuda.allocate(pinned(), &spec).unwrap_err();
    assert!(
        refused.to_string().contains("cuMemHostRegister"),
        "{refused}"
    );
    drop(works);
    assert_clean();
}

#[test]
fn memory_begins_and_ends_with_the_pages_of_the_host() {
    let works = Works::new(backend(&[]));
    let page = rustix::param::page_size() as u64;
    let buffer = works.allocate(pinned(), 10);
    assert_eq!(buffer.position() % page, 0);
    let memories = works.cuda.inventory().memories;
    let info = memories.iter().find(|of| of.id == pinned()).unwrap();
    assert_eq!(info.alignment, page);
}

#[test]
fn a_device_that_is_found_lost_leaves_it_to_the_next() {
    let works = Works::new(backend(&[("DEVICES", "2")]));
    drop((works.allocate(device(0), 1), works.allocate(device(1), 1)));
    let mut user = User::of(&works.cuda, 0);
    let theirs = user.upload(&[1; 100]);
    control("fault ecc").unwrap();
    user.start(theirs, theirs, 10).unwrap();
    // SAFETY: the stream is the user's.
    let ruined = unsafe { works.cuda.driver().cuStreamSynchronize(user.stream) };
    assert!(ruined.is_err());
    let buffer = works.allocate(pinned(), 1000);
    let far = works.allocate(device(1), 1000);
    write(&buffer, &[7; 1000]);
    works.run(&[copy(&buffer, &far)]);
    let bytes = vec![5u8; 1000];
    let external = External::Host {
        span: HostSpan::of(&bytes),
        writable: false,
        owner: Box::new(bytes),
    };
    // SAFETY: the vector's block stays where it is as long as the owner lives.
    let taken = unsafe { works.cuda.import(pinned(), external) }.unwrap();
    works.run(&[copy(&taken, &far)]);
}
