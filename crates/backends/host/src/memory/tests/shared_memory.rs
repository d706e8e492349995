//! Memory with a handle, seen through several views.

use super::super::exchange::HANDLES as KIND;
use super::*;

pub(super) fn filled(len: u64, value: u8) -> Buffer {
    let buffer = allocate(SHARED, &AllocSpec::bytes(len)).unwrap();
    // SAFETY: just allocated.
    unsafe { buffer.host(0, len).unwrap().fill(value) };
    buffer
}

pub(super) fn read(buffer: &Buffer) -> Vec<u8> {
    // SAFETY: no test writes while it reads.
    unsafe { buffer.host(0, buffer.len()).unwrap().as_slice() }.to_vec()
}

pub(super) fn reimport(
    buffer: &Buffer,
    memory: MemoryId,
    writable: bool,
) -> Result<Buffer, ImportError> {
    let External::Handle {
        kind,
        handle,
        span,
        id,
        ..
    } = export(buffer, KIND)?
    else {
        panic!("it is exported by its handle");
    };
    // SAFETY: the handle was made for this import.
    unsafe {
        import(
            memory,
            External::Handle {
                kind,
                handle,
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
fn a_range_past_the_end_of_a_file_is_not_mapped() {
    let buffer = filled(100, 1);
    let External::Handle {
        kind, handle, id, ..
    } = export(&buffer, KIND).unwrap()
    else {
        panic!("it is exported by its handle");
    };
    let span = Span::new(50, 51);
    // SAFETY: the handle was made for this import.
    let error = unsafe {
        import(
            SHARED,
            External::Handle {
                kind,
                handle,
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
    let by_position = file_buffer(FILE, file).unwrap();
    // SAFETY: no other code touches the file.
    let mapped = unsafe { import(SHARED, External::Object(Box::new(again))) }.unwrap();
    assert_eq!(mapped.storage_id(), by_position.storage_id());
    // SAFETY: as above.
    unsafe { mapped.host(0, 5000).unwrap().fill(7) };
    let mut bytes = [0; 10];
    let file = by_position.native::<HostFile>().unwrap().raw();
    #[cfg(unix)]
    let count = std::os::unix::fs::FileExt::read_at(file, &mut bytes, 4990);
    #[cfg(windows)]
    let count = std::os::windows::fs::FileExt::seek_read(file, &mut bytes, 4990);
    assert_eq!(count.unwrap(), 10);
    assert_eq!(bytes, [7; 10]);
}

#[test]
fn a_file_goes_by_its_handle() {
    let file = file_buffer(FILE, HostFile::temporary(5000).unwrap()).unwrap();
    let again = reimport(&file.slice(1000, 100).unwrap(), FILE, false).unwrap();
    assert_eq!(
        (again.storage_id(), again.position(), again.len()),
        (file.storage_id(), 1000, 100)
    );
    assert!(!again.is_writable());
}

#[cfg(windows)]
#[test]
fn sections_begin_where_views_may() {
    use super::super::section::granularity;
    let most = granularity();
    let buffer = allocate(SHARED, &AllocSpec::bytes(100).aligned(most)).unwrap();
    assert_eq!(buffer.host(0, 100).unwrap().addr() % most, 0);
    let error = allocate(SHARED, &AllocSpec::bytes(100).aligned(most * 2)).unwrap_err();
    assert!(matches!(error, AllocError::Alignment { limit, .. } if limit == most));
    assert_eq!(allocate(SHARED, &AllocSpec::bytes(0)).unwrap().len(), 0);
    // A view that begins in the middle of what the system maps at once.
    let long = filled(200_000, 3);
    let view = reimport(&long.slice(100_001, 99).unwrap(), SHARED, false).unwrap();
    assert_eq!(read(&view), vec![3; 99]);
    assert!(!view.is_writable());
}

#[cfg(windows)]
#[test]
fn two_openings_of_one_file_are_one_storage() {
    let path = std::env::temp_dir().join(format!("transload-section-{}", std::process::id()));
    let created = HostFile::create(&path, 10).unwrap();
    let opened = HostFile::open(&path).unwrap();
    assert_eq!(created.storage_id(), opened.storage_id());
    drop((created, opened));
    std::fs::remove_file(&path).unwrap();
}
