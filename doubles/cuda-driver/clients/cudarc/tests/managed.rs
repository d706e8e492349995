//! Managed memory. CUDA Driver API: Memory Management, cuMemAllocManaged; Unified Addressing.

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, result};
use transload_double_cudarc::{device, driver, pattern};

fn place(ordinal: i32) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        __bindgen_anon_1: sys::CUmemLocation_st__bindgen_ty_1 { id: ordinal },
    }
}

fn attribute(attribute: sys::CUmem_range_attribute, address: u64, bytes: usize) -> i32 {
    let mut value = i32::MIN;
    let data = (&raw mut value).cast();
    let asked = driver!(cuMemRangeGetAttribute(data, 4, attribute, address, bytes));
    assert_eq!(asked, CUresult::CUDA_SUCCESS);
    value
}

#[test]
fn the_host_writes_it_and_the_device_copies_it() {
    let context = device(0);
    let stream = context.new_stream().unwrap();
    // SAFETY: bytes are bytes whatever they are.
    let mut managed = unsafe { context.alloc_unified::<u8>(100_000, true) }.unwrap();
    managed
        .as_mut_slice()
        .unwrap()
        .copy_from_slice(&pattern(100_000, 1));
    managed.prefetch().unwrap();
    let mut there = stream.alloc_zeros::<u8>(100_000).unwrap();
    stream.memcpy_dtod(&managed, &mut there).unwrap();
    let back = stream.clone_dtoh(&there).unwrap();
    stream.synchronize().unwrap();
    assert!(back == pattern(100_000, 1));
    stream.memset_zeros(&mut managed).unwrap();
    stream.synchronize().unwrap();
    assert!(managed.as_slice().unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn what_was_said_of_it_is_remembered() {
    let context: std::sync::Arc<CudaContext> = device(1);
    context.bind_to_thread().unwrap();
    let flags = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
    let bytes = 1 << 20;
    // SAFETY: it is not read.
    let address = unsafe { result::malloc_managed(bytes, flags) }.unwrap();
    let read_mostly = sys::CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;
    let prefetched = sys::CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION;
    let preferred = sys::CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION;
    assert_eq!(attribute(read_mostly, address, bytes), 0);
    // SAFETY: the range is the allocation.
    unsafe {
        result::mem_advise(
            address,
            bytes,
            sys::CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY,
            place(1),
        )
    }
    .unwrap();
    assert_eq!(attribute(read_mostly, address, bytes), 1);
    let advice = sys::CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    // SAFETY: as above.
    unsafe { result::mem_advise(address, bytes, advice, place(1)) }.unwrap();
    assert_eq!(attribute(preferred, address, bytes), 1);
    let stream = context.new_stream().unwrap();
    // SAFETY: as above.
    unsafe { result::mem_prefetch_async(address, bytes, place(1), stream.cu_stream()) }.unwrap();
    stream.synchronize().unwrap();
    assert_eq!(attribute(prefetched, address, bytes), 1);
    // SAFETY: the stream is done with it.
    unsafe { result::free_sync(address) }.unwrap();
}

#[test]
fn it_is_attached_to_one_stream() {
    let context = device(0);
    let stream = context.new_stream().unwrap();
    // SAFETY: numbers are numbers whatever they are.
    let mut managed = unsafe { context.alloc_unified::<u32>(1000, false) }.unwrap();
    managed.as_mut_slice().unwrap().fill(5);
    managed
        .attach(&stream, sys::CUmemAttach_flags::CU_MEM_ATTACH_SINGLE)
        .unwrap();
    stream.synchronize().unwrap();
    assert_eq!(stream.clone_dtoh(&managed).unwrap(), [5; 1000]);
}
