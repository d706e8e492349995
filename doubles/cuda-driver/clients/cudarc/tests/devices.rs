//! Starting, devices and contexts. CUDA Driver API: Initialization, Version Management, Device Management,
//! Primary Context Management, Context Management.

use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use cudarc::driver::{CudaContext, DriverError, result};
use transload_double_cudarc::{control, device, driver, failure, in_own_process, load};

#[test]
fn devices_are_those_of_the_machine() {
    let context = device(0);
    assert_eq!(CudaContext::device_count(), Ok(2));
    assert!(
        context.name().unwrap().contains("RTX 4090"),
        "{:?}",
        context.name()
    );
    assert_eq!(context.total_mem(), Ok(24_000_000_000));
    assert_eq!(context.compute_capability().unwrap().0, 9);
    assert_eq!(context.uuid().unwrap(), device(0).uuid().unwrap());
    assert_ne!(context.uuid().unwrap(), device(1).uuid().unwrap());
}

#[test]
fn an_ordinal_without_a_device_is_refused() {
    assert_eq!(device(1).ordinal(), 1);
    for ordinal in [2, -1, i32::MAX] {
        assert_eq!(
            failure(result::device::get(ordinal)),
            CUresult::CUDA_ERROR_INVALID_DEVICE
        );
    }
    assert_eq!(
        failure(CudaContext::new(2)),
        CUresult::CUDA_ERROR_INVALID_DEVICE
    );
}

#[test]
fn attributes_say_what_the_double_can_do() {
    let context = device(0);
    for (attribute, value) in [
        (
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
            1,
        ),
        (CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1),
        (
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
            1,
        ),
        (CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED, 0),
    ] {
        assert_eq!(context.attribute(attribute), Ok(value), "{attribute:?}");
    }
    assert_ne!(
        context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
        device(1).attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
    );
    // What is not modelled is never answered with success.
    let kernels = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
    failure(context.attribute(kernels));
}

#[test]
fn before_init_nothing_but_the_version_is_told() {
    if !in_own_process("before_init_nothing_but_the_version_is_told", &[]) {
        return;
    }
    load();
    let mut version = 0;
    assert_eq!(
        driver!(cuDriverGetVersion(&raw mut version)),
        CUresult::CUDA_SUCCESS
    );
    assert!(version >= 13_000, "{version}");
    let uninitialised = CUresult::CUDA_ERROR_NOT_INITIALIZED;
    assert_eq!(failure(result::device::get_count()), uninitialised);
    let mut address = 0;
    assert_eq!(driver!(cuMemAlloc_v2(&raw mut address, 16)), uninitialised);
    assert_eq!(driver!(cuInit(1)), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(driver!(cuInit(0)), CUresult::CUDA_SUCCESS);
    assert_eq!(result::device::get_count(), Ok(2));
}

#[test]
fn without_a_context_memory_is_refused() {
    if !in_own_process("without_a_context_memory_is_refused", &[]) {
        return;
    }
    assert_eq!(driver!(cuInit(0)), CUresult::CUDA_SUCCESS);
    let mut address = 0;
    let allocated = driver!(cuMemAlloc_v2(&raw mut address, 16));
    assert_eq!(allocated, CUresult::CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(result::ctx::get_current(), Ok(None));
}

#[test]
fn the_primary_context_is_one_and_ends_with_its_last_holder() {
    if !in_own_process(
        "the_primary_context_is_one_and_ends_with_its_last_holder",
        &[],
    ) {
        return;
    }
    let (first, second) = (device(0), device(0));
    assert_eq!(first.cu_ctx(), second.cu_ctx());
    assert_ne!(first.cu_ctx(), device(1).cu_ctx());
    let state = || {
        let (mut flags, mut active) = (0, 0);
        let told = driver!(cuDevicePrimaryCtxGetState(
            0,
            &raw mut flags,
            &raw mut active
        ));
        assert_eq!(told, CUresult::CUDA_SUCCESS);
        active
    };
    assert_eq!(state(), 1);
    drop(first);
    assert_eq!(state(), 1);
    drop(second);
    assert_eq!(state(), 0);
    let released = driver!(cuDevicePrimaryCtxRelease_v2(0));
    assert_eq!(released, CUresult::CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(control("leaks"), "");
}

#[test]
fn contexts_are_made_pushed_and_popped() {
    let (other, primary) = (device(0), device(1));
    let current = || result::ctx::get_current().unwrap();
    let mut popped = std::ptr::null_mut();
    assert_eq!(
        driver!(cuCtxPushCurrent_v2(other.cu_ctx())),
        CUresult::CUDA_SUCCESS
    );
    assert_ne!(current(), Some(primary.cu_ctx()));
    let mut at = -1;
    assert_eq!(driver!(cuCtxGetDevice(&raw mut at)), CUresult::CUDA_SUCCESS);
    assert_eq!(at, 0);
    assert_eq!(
        driver!(cuCtxPopCurrent_v2(&raw mut popped)),
        CUresult::CUDA_SUCCESS
    );
    assert_eq!(popped, other.cu_ctx());
    let (mut of_first, mut of_second) = (0, 0);
    for (context, id) in [(popped, &mut of_first), (primary.cu_ctx(), &mut of_second)] {
        assert_eq!(driver!(cuCtxGetId(context, id)), CUresult::CUDA_SUCCESS);
    }
    assert_ne!(of_first, of_second);
}

#[test]
fn results_have_names_and_meanings() {
    load();
    let error = DriverError(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    let name = error.error_name().unwrap();
    assert_eq!(name.to_str(), Ok("CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"));
    assert!(!error.error_string().unwrap().is_empty());
    let mut text = std::ptr::null();
    // 4711 is no value of cudarc's closed enumeration, so the function is asked for by its name.
    type Ask = unsafe extern "C" fn(u32, *mut *const std::ffi::c_char) -> CUresult;
    // SAFETY: the double is loaded already.
    let library = unsafe { sys::culib() };
    // SAFETY: this is the function's type, a result being a number of 32 bits.
    let ask = unsafe { library.get::<Ask>("cuGetErrorName") }.unwrap();
    // SAFETY: the place outlives the call.
    let answer = unsafe { ask(4711, &raw mut text) };
    assert_eq!(answer, CUresult::CUDA_ERROR_INVALID_VALUE);
    assert!(text.is_null());
}
