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
    // SAFETY: the vector's block does not move with the vector, and nobody else touches it.
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
    // SAFETY: nobody else touches the file.
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

#[test]
fn the_code_of_a_system_error_is_told_once() {
    let fault = io_fault("writing", &io::Error::from_raw_os_error(28));
    assert_eq!(fault.code, Some(28));
    let told = fault.to_string();
    assert_eq!(told.matches("28").count(), 1, "{told}");
    let made_up = io_fault("writing", &io::Error::other("no"));
    assert_eq!(made_up.to_string(), "writing: no");
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod shared_memory {
    use super::super::shared::{SharedMemory, seal};
    use super::*;

    fn filled(len: u64, value: u8) -> Buffer {
        let buffer = allocate(SHARED, &AllocSpec::bytes(len)).unwrap();
        // SAFETY: just allocated.
        unsafe { buffer.host(0, len).unwrap().fill(value) };
        buffer
    }

    fn read(buffer: &Buffer) -> Vec<u8> {
        // SAFETY: no test writes while it reads.
        unsafe { buffer.host(0, buffer.len()).unwrap().as_slice() }.to_vec()
    }

    fn reimport(buffer: &Buffer, memory: MemoryId, writable: bool) -> Result<Buffer, ImportError> {
        let External::Handle {
            kind,
            value,
            span,
            id,
            ..
        } = export(buffer, ExternalKind::File)?
        else {
            panic!("a file is exported by its handle");
        };
        // SAFETY: the handle was made for this import.
        unsafe {
            import(
                memory,
                External::Handle {
                    kind,
                    value,
                    span,
                    writable,
                    id,
                },
            )
        }
    }

    #[test]
    fn a_second_view_shows_the_same_bytes_and_is_known_to() {
        let buffer = filled(10_000, 1);
        let part = buffer.slice(5000, 4000).unwrap();
        let view = reimport(&part, SHARED, true).unwrap();
        assert_eq!(
            (view.storage_id(), view.position()),
            (buffer.storage_id(), 5000)
        );
        // SAFETY: this test has both views to itself.
        unsafe { view.host(0, 4000).unwrap().fill(2) };
        assert_eq!(read(&part), vec![2; 4000]);
        assert_eq!(read(&buffer)[..5000], vec![1; 5000]);
    }

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
            export(&own, ExternalKind::File),
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
        assert!(seal(heap).unwrap_err().buffer.is_some());
    }

    #[test]
    fn unsealed_memory_gives_no_copy_on_write_view() {
        let error = reimport(&filled(100, 1), PAGEABLE, true).unwrap_err();
        assert!(matches!(error, ImportError::Invalid { .. }), "{error}");
    }

    #[test]
    fn a_range_past_the_end_of_a_file_is_not_mapped() {
        let External::Handle {
            kind, value, id, ..
        } = export(&filled(100, 1), ExternalKind::File).unwrap()
        else {
            panic!("a file is exported by its handle");
        };
        let span = Span::new(50, 51);
        // SAFETY: the handle was made for this import.
        let error = unsafe {
            import(
                SHARED,
                External::Handle {
                    kind,
                    value,
                    span,
                    writable: false,
                    id,
                },
            )
        }
        .unwrap_err();
        assert!(matches!(error, ImportError::Invalid { .. }), "{error}");
    }

    #[test]
    fn a_file_is_mapped_where_asked_and_is_one_storage_with_its_reads() {
        let file = HostFile::temporary(5000).unwrap();
        let again = HostFile::from_file(file.raw().try_clone().unwrap(), "again", true).unwrap();
        let by_position = file_buffer(file);
        // SAFETY: nobody else touches the file.
        let mapped = unsafe { import(SHARED, External::Object(Box::new(again))) }.unwrap();
        assert_eq!(mapped.storage_id(), by_position.storage_id());
        // SAFETY: as above.
        unsafe { mapped.host(0, 5000).unwrap().fill(7) };
        let mut bytes = [0; 10];
        use std::os::unix::fs::FileExt;
        by_position
            .native::<HostFile>()
            .unwrap()
            .raw()
            .read_exact_at(&mut bytes, 4990)
            .unwrap();
        assert_eq!(bytes, [7; 10]);
    }

    #[test]
    fn shared_memory_seen_as_a_file_gives_no_file_out() {
        let shared = allocate(SHARED, &AllocSpec::bytes(4096)).unwrap();
        let handle = export(&shared, ExternalKind::File).unwrap();
        // SAFETY: the handle is the one just given out.
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
        let shared = limit_bytes(SHARED);
        let error = allocate(SHARED, &AllocSpec::bytes(shared + 1)).unwrap_err();
        assert!(
            matches!(error, AllocError::TooLarge { limit_bytes, .. } if limit_bytes == shared),
            "{error}"
        );
        let error = allocate(PAGEABLE, &AllocSpec::bytes(shared * 2)).unwrap_err();
        assert!(matches!(error, AllocError::OutOfMemory { .. }), "{error}");
    }

    #[test]
    fn alignment_is_kept_and_nothing_is_a_length_too() {
        let buffer = allocate(SHARED, &AllocSpec::bytes(100).aligned(1 << 20)).unwrap();
        assert_eq!(buffer.host(0, 100).unwrap().addr() % (1 << 20), 0);
        assert_eq!(allocate(SHARED, &AllocSpec::bytes(0)).unwrap().len(), 0);
    }
}
