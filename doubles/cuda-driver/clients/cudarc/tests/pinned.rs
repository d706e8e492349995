//! Pinned memory of the host. CUDA Driver API: Memory Management, cuMemHostAlloc, cuMemHostRegister.

use cudarc::driver::sys::{self, CUresult};
use transload_double_cudarc::{device, driver, pattern};

#[test]
fn pinned_memory_is_a_source_and_a_destination() {
    let context = device(0);
    let stream = context.new_stream().unwrap();
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: bytes are bytes whatever they are.
    let mut source = unsafe { context.alloc_pinned_with_flags::<u8>(1 << 20, flags) }.unwrap();
    // SAFETY: as above.
    let mut destination = unsafe { context.alloc_pinned::<u8>(1 << 20) }.unwrap();
    source
        .as_mut_slice()
        .unwrap()
        .copy_from_slice(&pattern(1 << 20, 1));
    let there = stream.clone_htod(&source).unwrap();
    stream.memcpy_dtoh(&there, &mut destination).unwrap();
    // Waits for the event that cudarc recorded behind the copy, not for the stream.
    assert!(destination.as_slice().unwrap() == pattern(1 << 20, 1));
    let mut told = 0;
    let place = source.as_mut_ptr().unwrap();
    assert_eq!(
        driver!(cuMemHostGetFlags(&raw mut told, place.cast())),
        CUresult::CUDA_SUCCESS
    );
    assert_eq!(told & flags, flags);
}

#[test]
fn pinned_memory_is_freed_once() {
    let _context = device(0);
    let mut place = std::ptr::null_mut();
    assert_eq!(
        driver!(cuMemHostAlloc(&raw mut place, 4096, 0)),
        CUresult::CUDA_SUCCESS
    );
    assert_eq!(driver!(cuMemFreeHost(place)), CUresult::CUDA_SUCCESS);
    assert_eq!(
        driver!(cuMemFreeHost(place)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
fn memory_of_the_caller_is_registered_once() {
    let context = device(0);
    context.bind_to_thread().unwrap();
    let mut bytes = pattern(3 * 4096, 2);
    let place = bytes.as_mut_ptr().cast();
    let register = || {
        driver!(cuMemHostRegister_v2(
            place,
            3 * 4096,
            sys::CU_MEMHOSTREGISTER_PORTABLE
        ))
    };
    assert_eq!(register(), CUresult::CUDA_SUCCESS);
    assert_eq!(
        register(),
        CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    );
    let mut address = 0;
    let asked = driver!(cuMemHostGetDevicePointer_v2(&raw mut address, place, 0));
    assert_eq!(asked, CUresult::CUDA_SUCCESS);
    let stream = context.new_stream().unwrap();
    let there = stream.clone_htod(&bytes).unwrap();
    assert!(stream.clone_dtoh(&there).unwrap() == bytes);
    stream.synchronize().unwrap();
    assert_eq!(driver!(cuMemHostUnregister(place)), CUresult::CUDA_SUCCESS);
    let again = driver!(cuMemHostUnregister(place));
    assert_eq!(again, CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}
