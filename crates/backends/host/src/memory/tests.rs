use transload_hal::{External, ExternalKind, HostSpan, ImportError, Span};

use super::*;

#[test]
fn adopted_memory_is_used_in_place_and_given_back() {
    let mut bytes = vec![5u8; 1000];
    let span = HostSpan::of_mut(&mut bytes);
    let external = External::Host {
        span,
        writable: true,
        owner: Box::new(bytes),
    };
    // SAFETY: the vector's block does not move with the vector, and nothing else touches it.
    let buffer = unsafe { import(PAGEABLE, external) }.unwrap();
    assert_eq!(buffer.host(0, 1000), Some(span));
    assert_eq!(buffer.position(), span.addr());
    // SAFETY: this test has the bytes to itself.
    unsafe { span.fill(6) };
    assert_eq!(buffer.into_owner::<Vec<u8>>().unwrap(), vec![6; 1000]);
}

#[test]
fn an_exported_buffer_stays_alive_and_keeps_its_identity() {
    let buffer = allocate(PAGEABLE, &AllocSpec::bytes(200_000)).unwrap();
    let view = buffer.slice(1000, 500).unwrap();
    let external = export(&view, ExternalKind::Host).unwrap();
    // SAFETY: the export holds a view of the buffer.
    let again = unsafe { import(PAGEABLE, external) }.unwrap();
    assert_eq!(
        (again.storage_id(), again.position()),
        (view.storage_id(), view.position())
    );
    assert!(!buffer.is_unique());
    drop((buffer, view));
    // SAFETY: this test has the bytes to itself; `again` keeps them.
    unsafe { again.host(0, 500).unwrap().fill(1) };
}

#[test]
fn unknown_memories_and_wrong_kinds_are_told_apart() {
    let pinned = transload_hal::DeviceId::CPU0.memory(MemoryKind::Pinned);
    let error = allocate(pinned, &AllocSpec::bytes(1)).unwrap_err();
    assert!(matches!(error, AllocError::UnknownMemory { memory } if memory == pinned));
    let buffer = allocate(PAGEABLE, &AllocSpec::bytes(1)).unwrap();
    assert!(matches!(
        export(&buffer, ExternalKind::DmaBuf),
        Err(ImportError::Unsupported { .. })
    ));
    assert!(matches!(
        export(&buffer, ExternalKind::File),
        Err(ImportError::Unsupported { .. })
    ));
    // SAFETY: refused before anything is touched.
    let error = unsafe { import(pinned, External::Object(Box::new(1u8))) }.unwrap_err();
    assert!(matches!(error, ImportError::UnknownMemory { .. }));
    // SAFETY: as above.
    let error = unsafe { import(FILE, External::Object(Box::new(1u8))) }.unwrap_err();
    assert!(matches!(error, ImportError::Invalid { .. }), "{error}");
}

#[cfg(any(unix, windows))]
#[test]
fn files_become_buffers_with_their_length_and_rights() {
    let file = HostFile::temporary(1234).unwrap().into_file().unwrap();
    // SAFETY: nothing else touches the file.
    let buffer = unsafe { import(FILE, External::Object(Box::new(file))) }.unwrap();
    assert_eq!(
        (buffer.len(), buffer.is_writable(), buffer.host(0, 1)),
        (1234, true, None)
    );
    assert!(matches!(
        export(&buffer, ExternalKind::Host),
        Err(ImportError::Unsupported { .. })
    ));
    assert!(buffer.into_owner::<HostFile>().is_ok());
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod sealed;
#[cfg(any(target_os = "linux", target_os = "android", windows))]
mod shared_memory;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod small;
