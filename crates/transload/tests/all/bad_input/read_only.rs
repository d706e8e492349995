//! Destinations that may not be written.

use std::fs;

use super::files::Folder;
use super::*;

#[test]
fn static_bytes_are_read_only() {
    let manager = host();
    let fixed = manager.adopt(marked(100)).unwrap();
    refuses_writes(&manager, &fixed);
}

#[cfg(feature = "bytes")]
#[test]
fn bytes_are_read_only() {
    let manager = host();
    let fixed = manager
        .adopt(bytes::Bytes::from_static(marked(100)))
        .unwrap();
    refuses_writes(&manager, &fixed);
}

#[cfg(all(feature = "mmap", target_os = "linux"))]
#[test]
fn a_read_only_map_is_read_only() {
    let folder = Folder::new("read-only-map");
    fs::write(folder.path("file"), marked(100)).unwrap();
    let file = fs::File::open(folder.path("file")).unwrap();
    // SAFETY: no other code knows the file.
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    let manager = host();
    let fixed = manager.adopt(map).unwrap();
    refuses_writes(&manager, &fixed);
}

#[cfg(target_os = "linux")]
#[test]
fn sealed_memory_and_files_opened_for_reading_are_read_only() {
    let manager = host();
    let shared = manager
        .allocate(place("cpu:0/shared"), AllocSpec::bytes(100))
        .unwrap();
    manager.copy_from_slice(marked(100), &shared).unwrap();
    let raw = shared.raw().clone();
    drop(shared);
    let sealed = transload::host::seal(raw).unwrap();
    // SAFETY: no other manager knows the memory.
    let sealed = unsafe { manager.wrap(sealed) };
    refuses_writes(&manager, &sealed);

    let folder = Folder::new("read-only-file");
    fs::write(folder.path("file"), marked(100)).unwrap();
    let file = manager.open_file(folder.path("file")).unwrap();
    let error = manager.copy_from_slice(&[0; 100], &file).unwrap_err();
    assert!(matches!(error, TransferError::ReadOnly { .. }), "{error}");
    assert_eq!(fs::read(folder.path("file")).unwrap(), marked(100));
}

fn refuses_writes(manager: &TransferManager, fixed: &Buffer) {
    let src = manager.adopt(vec![0u8; 100]).unwrap();
    let memory = fixed.memory();
    let error = manager.copy(&src, fixed).wait().unwrap_err();
    assert_eq!(error, TransferError::ReadOnly { memory });
    assert_eq!(error.class(), ErrorClass::Caller);
    assert!(error.to_string().contains("read-only"));
    let error = manager.copy_from_slice(&[0; 100], fixed).unwrap_err();
    assert_eq!(error, TransferError::ReadOnly { memory });
    let error = fixed.write().map(drop).unwrap_err();
    assert_eq!(error, GuardError::ReadOnly { memory });
    assert!(*fixed.read().unwrap() == *marked(100));
    manager.copy(fixed, &src).wait().unwrap();
    assert!(*src.read().unwrap() == *marked(100));
}
