//! Starting, devices and contexts.

use crate::common;

use std::ffi::{CStr, c_char};
use std::sync::mpsc::channel;
use std::{ptr, thread};

use common::bytes::{copy, uploaded};
use common::work::{launch, stream, synchronize};
use common::{GIGABYTE, advance, control, enter, machine, refused};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use transload_cuda::raw::{CUcontext, CUdevice, CUdevice_attribute, CUresult, CUuuid, Driver};

const LEN: usize = 4096;

#[test]
fn nothing_works_before_init_but_the_questions_that_may_come_first() {
    // SAFETY: the functions are the double's.
    let driver = unsafe { Driver::from_table(cuda::table(), "the double") };
    assert_eq!(driver.version().to_string(), "13.5");
    let mut count = 0;
    // SAFETY: the out-pointers here and below are local variables.
    let answer = refused(unsafe { driver.cuDeviceGetCount(&raw mut count) });
    assert_eq!(answer, CUresult::CUDA_ERROR_NOT_INITIALIZED);
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: as above.
    unsafe { driver.cuGetErrorName(answer, &raw mut name) }.unwrap();
    // SAFETY: the driver's texts end with a zero and are static.
    let name = unsafe { CStr::from_ptr(name) };
    assert_eq!(name, c"CUDA_ERROR_NOT_INITIALIZED");
    // SAFETY: flags mean nothing.
    let answer = refused(unsafe { driver.cuInit(1) });
    assert_eq!(answer, CUresult::CUDA_ERROR_INVALID_VALUE);
    // SAFETY: flags are zero.
    unsafe { driver.cuInit(0) }.unwrap();
    // SAFETY: as above.
    unsafe { driver.cuDeviceGetCount(&raw mut count) }.unwrap();
    assert_eq!(count, 1);
}

#[test]
fn a_machine_without_devices_says_so() {
    control("set TRANSLOAD_DOUBLE_DEVICES=0").unwrap();
    // SAFETY: the functions are the double's.
    let driver = unsafe { Driver::from_table(cuda::table(), "the double") };
    // SAFETY: flags are zero.
    let answer = refused(unsafe { driver.cuInit(0) });
    assert_eq!(answer, CUresult::CUDA_ERROR_NO_DEVICE);
}

#[test]
fn settings_that_mean_nothing_fail_init() {
    control("set TRANSLOAD_DOUBLE_TOPOLOGY=/nowhere.toml").unwrap();
    // SAFETY: the functions are the double's.
    let driver = unsafe { Driver::from_table(cuda::table(), "the double") };
    // SAFETY: flags are zero.
    let answer = refused(unsafe { driver.cuInit(0) });
    assert_eq!(answer, CUresult::CUDA_ERROR_OPERATING_SYSTEM);
    let late = control("set TRANSLOAD_DOUBLE_DEVICES=2").unwrap_err();
    assert!(late.contains("before the first call"), "{late}");
}

#[test]
fn devices_are_told_apart() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_DEVICES", "2")]);
    let uuid = |device| {
        let mut uuid = CUuuid::default();
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuDeviceGetUuid_v2(&raw mut uuid, CUdevice(device)) }.unwrap();
        uuid
    };
    assert_ne!(uuid(0), uuid(1));
    let mut text = [0u8; 13];
    let room = text.len() as i32;
    // SAFETY: the buffer has that length.
    unsafe { driver.cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), room, CUdevice(1)) }.unwrap();
    assert_eq!(&text, b"0000:02:00.0\0");
    let mut found = CUdevice(-1);
    let mut name = [1u8; 7];
    // SAFETY: the buffer has that length.
    unsafe { driver.cuDeviceGetName(name.as_mut_ptr().cast(), 7, CUdevice(0)) }.unwrap();
    assert_eq!(&name, b"Double\0");
    // SAFETY: the out-pointer is a local variable.
    let answer = refused(unsafe { driver.cuDeviceGet(&raw mut found, 2) });
    assert_eq!(answer, CUresult::CUDA_ERROR_INVALID_DEVICE);
}

#[test]
fn attributes_that_are_not_modelled_are_no_attributes() {
    let driver = machine(&[]);
    let ask = |attribute| {
        let mut value = -7;
        // SAFETY: the out-pointer is a local variable.
        let answer = unsafe { driver.cuDeviceGetAttribute(&raw mut value, attribute, CUdevice(0)) };
        answer.map(|()| value)
    };
    let addressing = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
    assert_eq!(ask(addressing), Ok(1));
    let error = ask(CUdevice_attribute(100_000)).unwrap_err();
    assert!(error.is(CUresult::CUDA_ERROR_INVALID_VALUE));
}

#[test]
fn each_thread_has_a_stack_of_contexts() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_DEVICES", "2")]);
    let current = |driver: &Driver| {
        let mut context = CUcontext::NULL;
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuCtxGetCurrent(&raw mut context) }.unwrap();
        context
    };
    let device = |driver: &Driver| {
        let mut device = CUdevice(-7);
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuCtxGetDevice(&raw mut device) }.map(|()| device)
    };
    assert!(
        device(&driver)
            .unwrap_err()
            .is(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    );
    let first = enter(&driver, 0);
    let mut second = CUcontext::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuCtxCreate_v2(&raw mut second, 0, CUdevice(1)) }.unwrap();
    assert_eq!(current(&driver), second);
    assert_eq!(device(&driver), Ok(CUdevice(1)));
    thread::scope(|scope| {
        let other = scope.spawn(|| current(&driver));
        assert_eq!(other.join().unwrap(), CUcontext::NULL);
    });
    // SAFETY: the context is the driver's.
    unsafe { driver.cuCtxDestroy_v2(second) }.unwrap();
    assert_eq!(
        current(&driver),
        first,
        "it was popped where it was current"
    );
    // SAFETY: the double reports a handle of a destroyed context, and does not dereference it.
    let answer = refused(unsafe { driver.cuCtxPushCurrent_v2(second) });
    assert_eq!(answer, CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
    // SAFETY: as above.
    let answer = refused(unsafe {
        driver.cuCtxPushCurrent_v2(CUcontext(std::ptr::without_provenance_mut(7)))
    });
    assert_eq!(answer, CUresult::CUDA_ERROR_INVALID_CONTEXT);
}

#[test]
fn a_primary_context_lives_as_long_as_somebody_holds_it() {
    let driver = machine(&[]);
    let first = enter(&driver, 0);
    assert_eq!(enter(&driver, 0), first);
    let mut flags = 7;
    let mut active = 7;
    let state = |flags: &mut u32, active: &mut i32| {
        // SAFETY: the out-pointers are local variables.
        unsafe { driver.cuDevicePrimaryCtxGetState(CUdevice(0), flags, active) }.unwrap();
    };
    // SAFETY: no argument is a pointer, here and below.
    unsafe { driver.cuDevicePrimaryCtxRelease_v2(CUdevice(0)) }.unwrap();
    state(&mut flags, &mut active);
    assert_eq!((flags, active), (0, 1));
    assert!(control("leaks").unwrap().starts_with("context "));
    // SAFETY: as above.
    unsafe { driver.cuDevicePrimaryCtxRelease_v2(CUdevice(0)) }.unwrap();
    state(&mut flags, &mut active);
    assert_eq!((flags, active), (0, 0));
    assert_eq!(control("leaks").unwrap(), "");
    // SAFETY: as above.
    let again = refused(unsafe { driver.cuDevicePrimaryCtxRelease_v2(CUdevice(0)) });
    assert_eq!(again, CUresult::CUDA_ERROR_INVALID_CONTEXT);
    let mut device = CUdevice(-7);
    // SAFETY: the out-pointer is a local variable.
    let gone = refused(unsafe { driver.cuCtxGetDevice(&raw mut device) });
    assert_eq!(gone, CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

#[test]
fn a_reset_context_is_still_to_be_released() {
    let driver = machine(&[]);
    let first = enter(&driver, 0);
    // SAFETY: no argument is a pointer, here and below.
    unsafe { driver.cuDevicePrimaryCtxReset_v2(CUdevice(0)) }.unwrap();
    let second = enter(&driver, 0);
    assert_ne!(first, second);
    // SAFETY: as above; this is the first one's.
    unsafe { driver.cuDevicePrimaryCtxRelease_v2(CUdevice(0)) }.unwrap();
    let mut device = CUdevice(-7);
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuCtxGetDevice(&raw mut device) }.expect("the second one is held");
    // SAFETY: as above.
    unsafe { driver.cuDevicePrimaryCtxRelease_v2(CUdevice(0)) }.unwrap();
    assert_eq!(control("leaks").unwrap(), "");
}

#[test]
fn who_has_no_place_for_a_context_holds_none() {
    let driver = machine(&[]);
    // SAFETY: the double refuses a null pointer.
    let answer = refused(unsafe { driver.cuDevicePrimaryCtxRetain(ptr::null_mut(), CUdevice(0)) });
    assert_eq!(answer, CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(control("leaks").unwrap(), "");
}

/// Ends a context for which another thread waits, and which is in the middle of a copy to registered memory.
fn end_under_way(driver: &Driver, context: CUcontext, end: impl FnOnce()) {
    let made = stream(driver, 1);
    let src = uploaded(driver, &[7; LEN]);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping touches nothing that is there.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), LEN, protection, MapFlags::PRIVATE) };
    let start = start.unwrap();
    // SAFETY: the memory stays for as long as it is registered.
    unsafe { driver.cuMemHostRegister_v2(start, LEN, 0) }.unwrap();
    let ((begins, begun), (go, gate)) = (channel(), channel::<()>());
    let function = move || {
        begins.send(()).unwrap();
        // It ends when the sender does.
        let _ = gate.recv();
    };
    launch(driver, made, function).unwrap();
    copy(driver, start.addr() as u64, src, LEN, made).unwrap();
    let context = context.0.addr();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let context = CUcontext(ptr::without_provenance_mut(context));
            // SAFETY: the context is the driver's.
            unsafe { driver.cuCtxSetCurrent(context) }.unwrap();
            synchronize(driver, made)
        });
        // In virtual time the waiting thread calls the function.
        begun.recv().unwrap();
        end();
        // SAFETY: the registration has ended with its context, and the memory is the test's alone.
        unsafe { munmap(start, LEN) }.unwrap();
        drop(go);
        let destroyed = Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        assert_eq!(waits.join().unwrap(), destroyed, "the copy was not made");
    });
    advance(10 * LEN as u64);
}

#[test]
fn nothing_is_written_after_the_end_of_a_context() {
    let driver = machine(&GIGABYTE);
    let mut own = CUcontext::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuCtxCreate_v2(&raw mut own, 0, CUdevice(0)) }.unwrap();
    // SAFETY: the context is the driver's.
    let destroy = || unsafe { driver.cuCtxDestroy_v2(own) }.unwrap();
    end_under_way(&driver, own, destroy);
    let primary = enter(&driver, 0);
    // SAFETY: the call takes no pointer, here and below.
    let release = || unsafe { driver.cuDevicePrimaryCtxRelease_v2(CUdevice(0)) }.unwrap();
    end_under_way(&driver, primary, release);
    let primary = enter(&driver, 0);
    // SAFETY: as above.
    let reset = || unsafe { driver.cuDevicePrimaryCtxReset_v2(CUdevice(0)) }.unwrap();
    end_under_way(&driver, primary, reset);
}

#[test]
fn a_call_that_is_to_fail_fails_with_its_number() {
    let driver = machine(&[]);
    control("fault call=cuDevicePrimaryCtxRetain:46;call=cuDevicePrimaryCtxRetain:4711@2").unwrap();
    let retain = || {
        let mut context = CUcontext::NULL;
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, CUdevice(0)) }
    };
    assert_eq!(refused(retain()), CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE);
    assert_eq!(refused(retain()), CUresult(4711));
    assert_eq!(retain(), Ok(()));
}
