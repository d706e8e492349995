//! Abilities of Linux memfds that Windows sections lack.

use super::super::exchange::HANDLES as KIND;
use super::super::shared::{SealReason, SharedMemory, seal};
use super::shared_memory::{filled, read, reimport};
use super::*;

#[test]
fn sealed_memory_is_read_only_and_shares_copy_on_write() {
    let buffer = seal(filled(10_000, 3)).unwrap();
    assert!(!buffer.is_writable() && buffer.native::<SharedMemory>().unwrap().is_sealed());
    assert_eq!(read(&buffer), vec![3; 10_000]);
    let own = reimport(&buffer, PAGEABLE, true).unwrap();
    assert_eq!(own.storage_id(), StorageId::Host);
    // SAFETY: the view is this test's own.
    unsafe { own.host(0, 100).unwrap().fill(4) };
    assert_eq!(read(&buffer), vec![3; 10_000]);
    assert_eq!((read(&own)[99], read(&own)[100]), (4, 3));
    assert!(matches!(
        export(&own, KIND),
        Err(ImportError::Unsupported { .. })
    ));
    assert!(
        reimport(&buffer, SHARED, true).is_err(),
        "a sealed file was mapped for writing"
    );
    assert_eq!(
        read(&reimport(&buffer, SHARED, false).unwrap()),
        vec![3; 10_000]
    );
}

#[test]
fn what_cannot_be_sealed_comes_back_as_it_was() {
    let buffer = filled(100, 5);
    let view = buffer.slice(0, 50).unwrap();
    let error = seal(buffer).unwrap_err();
    assert_eq!(error.reason, SealReason::OtherViews);
    let buffer = error.buffer.unwrap();
    drop(view);
    // Another mapping of the same memory, which the kernel knows of and this process need not.
    let other = reimport(&buffer, SHARED, true).unwrap();
    let error = seal(buffer).unwrap_err();
    let buffer = error.buffer.unwrap();
    assert!(buffer.is_writable());
    drop(other);
    assert_eq!(read(&seal(buffer).unwrap()), vec![5; 100]);
    let heap = allocate(PAGEABLE, &AllocSpec::bytes(8)).unwrap();
    let error = seal(heap).unwrap_err();
    assert_eq!(error.reason, SealReason::NotShared { memory: PAGEABLE });
    assert!(error.buffer.is_some());
}

#[test]
fn unsealed_memory_gives_no_copy_on_write_view() {
    let error = reimport(&filled(100, 1), PAGEABLE, true).unwrap_err();
    assert!(matches!(error, ImportError::Invalid { .. }), "{error}");
}

#[test]
fn shared_memory_seen_as_a_file_gives_no_file_out() {
    let shared = allocate(SHARED, &AllocSpec::bytes(4096)).unwrap();
    let handle = export(&shared, KIND).unwrap();
    // SAFETY: the handle was just exported.
    let seen = unsafe { import(FILE, handle) }.unwrap();
    assert_eq!(seen.storage_id(), shared.storage_id());
    assert!(seen.native::<HostFile>().unwrap().file().is_none());
    let back = seen.into_owner::<HostFile>().unwrap();
    assert!(back.into_file().is_err());
}

#[test]
fn what_the_machine_has_no_room_for_is_refused_before_it_is_filled() {
    use transload_hal::Backend;
    let memories = crate::Host::new().inventory().memories;
    let limit_bytes = |id| {
        let mut known = memories.iter().filter(|memory| memory.id == id);
        known.next().unwrap().max_alloc_bytes
    };
    for memory in [SHARED, PAGEABLE] {
        let most = limit_bytes(memory);
        let error = allocate(memory, &AllocSpec::bytes(most + 1)).unwrap_err();
        assert!(
            matches!(error, AllocError::TooLarge { limit_bytes, .. } if limit_bytes == most),
            "{error}"
        );
    }
}

#[test]
fn alignment_is_kept_and_nothing_is_a_length_too() {
    let buffer = allocate(SHARED, &AllocSpec::bytes(100).aligned(1 << 20)).unwrap();
    assert_eq!(buffer.host(0, 100).unwrap().addr() % (1 << 20), 0);
    assert_eq!(allocate(SHARED, &AllocSpec::bytes(0)).unwrap().len(), 0);
}
