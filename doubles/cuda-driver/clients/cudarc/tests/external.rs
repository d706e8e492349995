//! Memory of another interface, by file descriptor. CUDA Driver API: External Resource Interoperability.

use std::fs::File;
use std::os::unix::fs::FileExt;

use cudarc::driver::result;
use transload_double_cudarc::{device, failure, pattern};

fn memory(bytes: &[u8]) -> File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = File::from(rustix::fs::memfd_create("external", flags).unwrap());
    file.write_all_at(bytes, 0).unwrap();
    file
}

#[test]
fn memory_by_file_descriptor_is_the_same_on_both_sides() {
    let context = device(0);
    let stream = context.default_stream();
    let file = memory(&pattern(64 << 10, 1));
    let ours = file.try_clone().unwrap();
    // SAFETY: the size is the file's.
    let imported = unsafe { context.import_external_memory(file, 64 << 10) }.unwrap();
    let mapped = imported.map_all().unwrap();
    assert!(stream.clone_dtoh(&mapped).unwrap() == pattern(64 << 10, 1));
    ours.write_all_at(&pattern(100, 2), 1000).unwrap();
    let back = stream.clone_dtoh(&mapped).unwrap();
    assert!(back[1000..1100] == pattern(100, 2));
    assert!(back[..1000] == pattern(64 << 10, 1)[..1000]);
}

#[test]
fn a_range_of_it_is_written_by_the_device() {
    let context = device(0);
    context.bind_to_thread().unwrap();
    let file = memory(&pattern(64 << 10, 3));
    let ours = file.try_clone().unwrap();
    let descriptor = std::os::fd::IntoRawFd::into_raw_fd(file);
    use result::external_memory::{
        destroy_external_memory, get_mapped_buffer, import_external_memory_opaque_fd,
    };
    // SAFETY: the descriptor is the driver's from here on, and the size is the file's.
    let imported = unsafe { import_external_memory_opaque_fd(descriptor, 64 << 10) }.unwrap();
    // SAFETY: the memory is there until below.
    let address = unsafe { get_mapped_buffer(imported, 4096, 8192) }.unwrap();
    // SAFETY: the source is read before this returns.
    unsafe { result::memcpy_htod_sync(address, &pattern(8192, 4)) }.unwrap();
    // It returns once the bytes are staged: API Synchronization Behavior, Memcpy.
    context.synchronize().unwrap();
    let mut back = vec![0; 64 << 10];
    ours.read_exact_at(&mut back, 0).unwrap();
    let mut expected = pattern(64 << 10, 3);
    expected[4096..12_288].copy_from_slice(&pattern(8192, 4));
    assert!(back == expected);
    // SAFETY: past the end, so it is refused.
    failure(unsafe { get_mapped_buffer(imported, 60 << 10, 8192) });
    // SAFETY: nothing works on it any more.
    unsafe { result::memory_free(address) }.unwrap();
    // SAFETY: nothing of it is mapped any more.
    unsafe { destroy_external_memory(imported) }.unwrap();
}

#[test]
fn what_is_no_memory_is_not_taken() {
    let context = device(0);
    context.bind_to_thread().unwrap();
    // SAFETY: no such descriptor is open, so it is refused.
    failure(unsafe { result::external_memory::import_external_memory_opaque_fd(-1, 4096) });
}
