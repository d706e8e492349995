//! Small allocations of shared memory: without a descriptor until they are exported (Linux).

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;

use super::super::exchange::HANDLES as KIND;
use super::super::mapping::{FileAccess, Mapping, page_bytes};
use super::super::shared::seal;
use super::shared_memory::{filled, read, reimport};
use super::*;

/// Descriptors that this process has open.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The descriptor that an export returned.
fn descriptor(buffer: &Buffer) -> File {
    let External::Handle { handle, .. } = export(buffer, KIND).unwrap() else {
        panic!("it is exported by its handle");
    };
    // SAFETY: the test writes nothing through it while it has a slice.
    unsafe { handle.into_owned() }.into()
}

/// All bytes of the pages that a descriptor shows to a process that maps it.
fn mapped(file: &File) -> Vec<u8> {
    let len = (file.metadata().unwrap().len() as usize).next_multiple_of(page_bytes());
    let mapping = Mapping::of_file(file.as_fd(), 0, len, 1, FileAccess::ReadOnly).unwrap();
    // SAFETY: the mapping is `len` bytes long, and no test writes while it reads.
    unsafe { HostSpan::new(mapping.start(), len).as_slice() }.to_vec()
}

#[test]
fn four_thousand_small_buffers_leave_the_program_its_descriptors() {
    let before = descriptors();
    let spec = AllocSpec::bytes(4096);
    let buffers: Vec<Buffer> = (0..4096)
        .map(|_| allocate(SHARED, &spec).unwrap())
        .collect();
    let grown = descriptors() - before;
    assert!(grown < 16, "{grown} descriptors more");
    File::open("/proc/self/status").unwrap();
    for (i, buffer) in buffers.iter().enumerate() {
        // SAFETY: this test has the buffer to itself.
        unsafe { buffer.host(0, 4096).unwrap().fill(i as u8) };
    }
    for (i, buffer) in buffers.iter().enumerate() {
        assert_eq!(read(buffer), vec![i as u8; 4096], "buffer {i}");
    }
    drop(buffers);
    assert!(descriptors() <= before + 1);
}

#[test]
fn an_exported_buffer_shows_its_bytes_and_zeroes_alone() {
    let len = page_bytes() as u64 + 100;
    let [before, buffer, after] = [1, 2, 3].map(|value| filled(len, value));
    let file = descriptor(&buffer);
    assert_eq!(file.metadata().unwrap().len(), len);
    let seen = mapped(&file);
    let (own, tail) = seen.split_at(len as usize);
    assert_eq!(own, vec![2; len as usize]);
    assert!(tail.iter().all(|byte| *byte == 0), "a neighbour shows");
    for (neighbour, value) in [(before, 1), (after, 3)] {
        assert_eq!(read(&neighbour), vec![value; len as usize]);
    }
}

#[test]
fn an_exported_buffer_shows_no_bytes_of_an_earlier_one() {
    for round in 0..3 {
        // The same if the earlier buffer itself was exported.
        let earlier = filled(10_000, 9);
        let file = (round > 0).then(|| descriptor(&earlier));
        drop(earlier);
        let buffer = allocate(SHARED, &AllocSpec::bytes(10_000)).unwrap();
        assert!(mapped(&descriptor(&buffer)).iter().all(|byte| *byte == 0));
        // SAFETY: this test has the buffer to itself.
        unsafe { buffer.host(0, 10_000).unwrap().fill(7) };
        if let Some(file) = file {
            assert_eq!(
                mapped(&file)[..10_000],
                vec![9; 10_000],
                "a later one shows"
            );
        }
    }
}

#[test]
fn views_from_before_and_after_an_export_show_the_same_bytes_where_they_were() {
    let buffer = filled(10_000, 1);
    let early = buffer.slice(4000, 1000).unwrap();
    let place = early.host(0, 1000).unwrap();
    let late = reimport(&early, SHARED, true).unwrap();
    assert_eq!(early.host(0, 1000), Some(place));
    assert_ne!(late.host(0, 1000), Some(place));
    // SAFETY: this test has all views to itself.
    unsafe { late.host(0, 10).unwrap().fill(2) };
    assert_eq!(read(&early)[..11], [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
    // SAFETY: as above.
    unsafe { place.fill(3) };
    assert_eq!(read(&late), vec![3; 1000]);
    // A second export gives the same memory.
    let file = descriptor(&buffer);
    file.write_all_at(&[4; 10], 4000).unwrap();
    assert_eq!((read(&early)[9], read(&late)[9]), (4, 4));
    drop((buffer, early));
    assert_eq!((read(&late)[9], read(&late)[10]), (4, 3));
}

#[test]
fn buffers_are_one_storage_with_what_their_export_is_taken_in_as_and_no_other() {
    let [one, other] = [1, 2].map(|value| filled(5000, value));
    assert_ne!(one.storage_id(), other.storage_id());
    let place = |buffer: &Buffer| (buffer.storage_id(), buffer.position());
    let part = one.slice(100, 200).unwrap();
    let mapped = reimport(&part, SHARED, true).unwrap();
    let file = reimport(&part, FILE, true).unwrap();
    assert_eq!((place(&mapped), place(&file)), (place(&part), place(&part)));
    assert_ne!(mapped.storage_id(), other.storage_id());
    // The remaining views agree when the first one has gone, and so do later views.
    drop((one, part));
    let again = reimport(&mapped, SHARED, false).unwrap();
    assert_eq!(place(&again), place(&mapped));
    assert_eq!(place(&again), place(&file));
}

#[test]
fn an_address_that_was_given_out_keeps_its_pages() {
    let buffer = filled(5000, 1);
    let External::Host { span, owner, .. } = export(&buffer, ExternalKind::Host).unwrap() else {
        panic!("it is exported by its address");
    };
    // The pages that a driver would see if it pinned them now.
    let pages = || {
        let file = File::open("/proc/self/maps").unwrap();
        let lines = std::io::read_to_string(file).unwrap();
        let start = format!("{:x}-", span.addr());
        let line = lines.lines().find(|line| line.starts_with(&start));
        line.map(str::to_owned)
    };
    let pinned = pages();
    assert!(pinned.is_some());
    drop(descriptor(&buffer));
    assert_eq!(pages(), pinned);
    drop(owner);
}

#[test]
fn descriptors_go_with_their_buffers() {
    let spec = AllocSpec::bytes(3 * page_bytes() as u64);
    let kept = allocate(SHARED, &spec).unwrap();
    let before = descriptors();
    for _ in 0..2000 {
        let buffers = [spec, spec.for_sharing()].map(|spec| allocate(SHARED, &spec).unwrap());
        for buffer in &buffers {
            drop(descriptor(buffer));
        }
    }
    assert!(descriptors() <= before + 4);
    drop(kept);
}

#[test]
fn small_memory_that_was_exported_is_sealed_too() {
    let buffer = filled(100, 5);
    drop(descriptor(&buffer));
    let sealed = seal(buffer).unwrap();
    assert!(!sealed.is_writable());
    assert_eq!(read(&sealed), vec![5; 100]);
}

#[test]
fn alignments_up_to_the_largest_are_kept_beside_each_other() {
    let aligned = |align| {
        let spec = AllocSpec::bytes(100).aligned(align);
        let buffer = allocate(SHARED, &spec).unwrap();
        assert_eq!(buffer.host(0, 100).unwrap().addr() % align, 0, "{align}");
        // SAFETY: this test has the buffer to itself.
        unsafe { buffer.host(0, 100).unwrap().fill(align.ilog2() as u8) };
        (buffer, align.ilog2() as u8)
    };
    let all: Vec<_> = (0..=24).chain(0..=24).map(|i| aligned(1 << i)).collect();
    for (buffer, value) in all {
        assert_eq!(read(&buffer), vec![value; 100]);
    }
}

#[test]
fn threads_allocate_export_and_free_at_once() {
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            scope.spawn(move || {
                for round in 0..200u64 {
                    let len = 1 + (round * 7919 + u64::from(thread) * 104_729) % 60_000;
                    let buffer = filled(len, thread);
                    if round % 3 == 0 {
                        let seen = mapped(&descriptor(&buffer));
                        assert!(seen[..len as usize].iter().all(|byte| *byte == thread));
                        assert!(seen[len as usize..].iter().all(|byte| *byte == 0));
                    }
                    assert_eq!(read(&buffer), vec![thread; len as usize]);
                }
            });
        }
    });
}
