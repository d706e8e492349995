//! Memory in stream order. CUDA Driver API: Stream Ordered Memory Allocator.

use cudarc::driver::result::{self, mem_pool};
use cudarc::driver::sys::{self, CUresult};
use transload_double_cudarc::{device, failure, pattern};

fn number(pool: sys::CUmemoryPool, attribute: sys::CUmemPool_attribute) -> u64 {
    let mut value = u64::MAX;
    // SAFETY: amounts are 64 bits.
    unsafe { mem_pool::get_attribute(pool, attribute, (&raw mut value).cast()) }.unwrap();
    value
}

#[test]
fn memory_is_had_and_given_back_in_stream_order() {
    let context = device(0);
    let stream = context.new_stream().unwrap();
    // SAFETY: the device is there.
    let pool = unsafe { result::device::get_mem_pool(context.cu_device()) }.unwrap();
    // SAFETY: as above.
    let default = unsafe { result::device::get_default_mem_pool(context.cu_device()) }.unwrap();
    assert_eq!(pool, default);
    let used = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
    let before = number(pool, used);
    // SAFETY: all of it is written before it is read.
    let address = unsafe { result::malloc_async(stream.cu_stream(), 1 << 20) }.unwrap();
    assert!(number(pool, used) >= before + (1 << 20));
    // SAFETY: the source is pageable: it is read before this returns.
    unsafe { result::memcpy_htod_async(address, &pattern(1 << 20, 1), stream.cu_stream()) }
        .unwrap();
    let mut back = vec![0; 1 << 20];
    // SAFETY: the place stays until the stream is done, below.
    unsafe { result::memcpy_dtoh_async(&mut back, address, stream.cu_stream()) }.unwrap();
    // SAFETY: in stream order nothing works on it any more.
    unsafe { result::free_async(address, stream.cu_stream()) }.unwrap();
    stream.synchronize().unwrap();
    assert!(back == pattern(1 << 20, 1));
    assert_eq!(number(pool, used), before);
}

#[test]
fn a_pool_is_made_used_and_ended() {
    let context = device(1);
    let stream = context.new_stream().unwrap();
    // SAFETY: zero is a value of each field: no handle, no size, nothing reserved.
    let mut wanted: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    wanted.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.__bindgen_anon_1.id = 1;
    // SAFETY: the wishes outlive the call.
    let pool = unsafe { mem_pool::create(&raw const wanted) }.unwrap();
    let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let mut keep = 1_u64 << 24;
    // SAFETY: amounts are 64 bits.
    unsafe { mem_pool::set_attribute(pool, threshold, (&raw mut keep).cast()) }.unwrap();
    assert_eq!(number(pool, threshold), keep);
    // SAFETY: it is written before it is read.
    let address = unsafe { mem_pool::alloc_async(pool, 4096, stream.cu_stream()) }.unwrap();
    // SAFETY: in stream order it is there.
    unsafe { result::memset_d8_async(address, 9, 4096, stream.cu_stream()) }.unwrap();
    let mut back = [0_u8; 4096];
    // SAFETY: the place stays until the stream is done, below.
    unsafe { result::memcpy_dtoh_async(&mut back, address, stream.cu_stream()) }.unwrap();
    stream.synchronize().unwrap();
    assert_eq!(back, [9; 4096]);
    // SAFETY: nothing works on it any more.
    unsafe { result::free_async(address, stream.cu_stream()) }.unwrap();
    stream.synchronize().unwrap();
    // SAFETY: the pool is there.
    unsafe { mem_pool::trim_to(pool, 0) }.unwrap();
    let reserved = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
    assert_eq!(number(pool, reserved), 0);
    // SAFETY: nothing of it is in use.
    unsafe { mem_pool::destroy(pool) }.unwrap();
}

#[test]
fn the_default_pool_cannot_be_ended() {
    let context = device(0);
    // SAFETY: the device is there.
    let pool = unsafe { result::device::get_default_mem_pool(context.cu_device()) }.unwrap();
    // SAFETY: it is refused.
    let ended = unsafe { mem_pool::destroy(pool) };
    assert_eq!(failure(ended), CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn more_than_there_is_is_refused() {
    let context = device(0);
    let stream = context.new_stream().unwrap();
    // SAFETY: it is refused.
    let allocated = unsafe { result::malloc_async(stream.cu_stream(), 1 << 40) };
    assert_eq!(failure(allocated), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
}
