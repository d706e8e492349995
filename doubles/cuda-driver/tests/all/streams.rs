//! Streams: the order of their work, and the answers of calls.

use crate::common;

use std::ffi::c_void;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::{ptr, thread};

use common::work::{
    destroy_stream, event_query, event_synchronize, launch, point, query, result, stop, stream,
    synchronize, wait_event,
};
use common::{control, enter, machine, machine_in_context, refused};
use transload_cuda::raw::{
    CUcontext, CUdevice, CUresult, CUstream, CUstream_flags, CUstreamCaptureStatus, Driver,
};

const NON_BLOCKING: u32 = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
const NOT_READY: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_NOT_READY);
const INVALID_HANDLE: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_INVALID_HANDLE);

fn id(driver: &Driver, stream: CUstream) -> u64 {
    let mut id = 0;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuStreamGetId(stream, &raw mut id) }.unwrap();
    id
}

fn context_synchronize(driver: &Driver) -> Result<(), CUresult> {
    // SAFETY: the call takes no arguments.
    result(unsafe { driver.cuCtxSynchronize() })
}

#[test]
fn a_stream_does_one_thing_after_the_other() {
    let driver = machine_in_context(&[]);
    let stream = stream(&driver, NON_BLOCKING);
    assert_eq!(query(&driver, stream), Ok(()));
    let done = Arc::new(Mutex::new(Vec::new()));
    let go = stop(&driver, stream);
    for number in 0..5 {
        let done = Arc::clone(&done);
        launch(&driver, stream, move || done.lock().unwrap().push(number)).unwrap();
    }
    assert_eq!(query(&driver, stream), NOT_READY);
    assert_eq!(*done.lock().unwrap(), []);
    drop(go);
    assert_eq!(synchronize(&driver, stream), Ok(()));
    assert_eq!(query(&driver, stream), Ok(()));
    assert_eq!(*done.lock().unwrap(), [0, 1, 2, 3, 4]);
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let driver = machine_in_context(&[]);
    let [first, second] = [0; 2].map(|flags| stream(&driver, flags));
    let apart = stream(&driver, NON_BLOCKING);
    let go = stop(&driver, first);
    let in_second = point(&driver, second);
    assert_eq!(event_synchronize(&driver, in_second), Ok(()));
    assert_eq!(query(&driver, CUstream::NULL), NOT_READY, "it waits too");
    let in_legacy = point(&driver, CUstream::LEGACY);
    let behind = point(&driver, second);
    let beside = point(&driver, apart);
    assert_eq!(event_synchronize(&driver, beside), Ok(()));
    assert_eq!(event_query(&driver, in_legacy), NOT_READY);
    assert_eq!(event_query(&driver, behind), NOT_READY);
    drop(go);
    assert_eq!(synchronize(&driver, CUstream::NULL), Ok(()));
    assert_eq!(event_query(&driver, in_legacy), Ok(()));
    assert_eq!(event_synchronize(&driver, behind), Ok(()));
}

#[test]
fn the_legacy_stream_leaves_streams_apart_alone() {
    let driver = machine_in_context(&[]);
    let apart = stream(&driver, NON_BLOCKING);
    let go = stop(&driver, apart);
    assert_eq!(synchronize(&driver, CUstream::NULL), Ok(()));
    let in_legacy = point(&driver, CUstream::NULL);
    assert_eq!(event_synchronize(&driver, in_legacy), Ok(()));
    assert_eq!(query(&driver, apart), NOT_READY);
    drop(go);
    assert_eq!(context_synchronize(&driver), Ok(()));
    assert_eq!(query(&driver, apart), Ok(()), "the context is all of them");
}

#[test]
fn each_thread_has_a_default_stream_that_is_a_blocking_one() {
    let driver = machine_in_context(&[]);
    let own = id(&driver, CUstream::PER_THREAD);
    assert_eq!(own, id(&driver, CUstream::PER_THREAD));
    assert_ne!(own, id(&driver, CUstream::LEGACY));
    assert_eq!(id(&driver, CUstream::NULL), id(&driver, CUstream::LEGACY));
    let go = stop(&driver, CUstream::PER_THREAD);
    thread::scope(|scope| {
        let driver = &driver;
        let other = scope.spawn(move || {
            enter(driver, 0);
            let in_other = point(driver, CUstream::PER_THREAD);
            assert_eq!(event_synchronize(driver, in_other), Ok(()));
            id(driver, CUstream::PER_THREAD)
        });
        assert_ne!(own, other.join().unwrap());
    });
    let in_legacy = point(&driver, CUstream::NULL);
    assert_eq!(event_query(&driver, in_legacy), NOT_READY);
    drop(go);
    assert_eq!(event_synchronize(&driver, in_legacy), Ok(()));
    let mut context = CUcontext::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuStreamGetCtx(CUstream::PER_THREAD, &raw mut context) }.unwrap();
    assert_eq!(context, enter(&driver, 0));
}

#[test]
fn default_streams_are_the_current_contexts() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_DEVICES", "2")]);
    enter(&driver, 1);
    let of_second = id(&driver, CUstream::NULL);
    let go = stop(&driver, CUstream::NULL);
    enter(&driver, 0);
    assert_ne!(id(&driver, CUstream::NULL), of_second);
    assert_eq!(synchronize(&driver, CUstream::NULL), Ok(()));
    assert_eq!(context_synchronize(&driver), Ok(()));
    enter(&driver, 1);
    assert_eq!(query(&driver, CUstream::NULL), NOT_READY);
    drop(go);
    assert_eq!(context_synchronize(&driver), Ok(()));
}

#[test]
fn a_stream_waits_for_an_event_of_another_device() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_DEVICES", "2")]);
    enter(&driver, 1);
    let far = stream(&driver, 0);
    let go = stop(&driver, far);
    let in_far = point(&driver, far);
    enter(&driver, 0);
    let near = stream(&driver, 0);
    wait_event(&driver, near, in_far).unwrap();
    assert_eq!(query(&driver, near), NOT_READY);
    drop(go);
    assert_eq!(synchronize(&driver, near), Ok(()));
    assert_eq!(event_query(&driver, in_far), Ok(()));
    // SAFETY: no argument is a pointer that is looked into.
    let flagged = refused(unsafe { driver.cuStreamWaitEvent(near, in_far, 1) });
    assert_eq!(flagged, CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn a_destroyed_stream_works_on_and_is_no_stream_any_more() {
    let driver = machine_in_context(&[]);
    let stream = stream(&driver, 0);
    let (say, said) = channel();
    let go = stop(&driver, stream);
    launch(&driver, stream, move || say.send(7).unwrap()).unwrap();
    assert_eq!(destroy_stream(&driver, stream), Ok(()));
    let in_legacy = point(&driver, CUstream::NULL);
    assert_eq!(event_query(&driver, in_legacy), NOT_READY, "it blocks on");
    assert_eq!(query(&driver, stream), INVALID_HANDLE);
    assert_eq!(synchronize(&driver, stream), INVALID_HANDLE);
    assert_eq!(launch(&driver, stream, || {}), INVALID_HANDLE);
    assert_eq!(destroy_stream(&driver, stream), INVALID_HANDLE);
    drop(go);
    assert_eq!(context_synchronize(&driver), Ok(()));
    assert_eq!(said.try_recv(), Ok(7));
}

#[test]
fn default_streams_are_not_destroyed_and_numbers_are_no_streams() {
    let driver = machine_in_context(&[]);
    for stream in [CUstream::NULL, CUstream::LEGACY, CUstream::PER_THREAD] {
        assert_eq!(query(&driver, stream), Ok(()));
        assert_eq!(destroy_stream(&driver, stream), INVALID_HANDLE);
        let by_id = CUstream(std::ptr::without_provenance_mut(
            id(&driver, stream) as usize
        ));
        assert_eq!(destroy_stream(&driver, by_id), INVALID_HANDLE);
    }
    let made_up = CUstream(std::ptr::without_provenance_mut(4096));
    assert_eq!(query(&driver, made_up), INVALID_HANDLE);
    assert_eq!(query(&driver, CUstream::NULL), Ok(()));
}

#[test]
fn streams_end_with_their_context_and_are_leaks_before() {
    let driver = machine_in_context(&[]);
    let mut context = CUcontext::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuCtxCreate_v2(&raw mut context, 0, CUdevice(0)) }.unwrap();
    let made = stream(&driver, 0);
    let recorded = point(&driver, CUstream::NULL);
    let go = stop(&driver, made);
    let leaks = control("leaks").unwrap();
    let kinds: Vec<&str> = leaks
        .lines()
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert_eq!(kinds, ["context", "context", "stream", "event"]);
    // SAFETY: the context is the driver's.
    unsafe { driver.cuCtxDestroy_v2(context) }.unwrap();
    assert_eq!(query(&driver, made), INVALID_HANDLE);
    assert_eq!(event_query(&driver, recorded), INVALID_HANDLE);
    assert_eq!(control("leaks").unwrap().lines().count(), 1);
    drop(go);
}

#[test]
fn no_stream_without_a_context() {
    let driver = machine(&[]);
    let none = Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    let mut made = CUstream::NULL;
    // SAFETY: the out-pointer is a local variable.
    let answer = result(unsafe { driver.cuStreamCreate(&raw mut made, 0) });
    assert_eq!(answer, none);
    assert_eq!(query(&driver, CUstream::NULL), none);
    assert_eq!(synchronize(&driver, CUstream::PER_THREAD), none);
    assert_eq!(context_synchronize(&driver), none);
    enter(&driver, 0);
    // SAFETY: as above.
    let flagged = result(unsafe { driver.cuStreamCreate(&raw mut made, 2) });
    assert_eq!(flagged, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    // SAFETY: the double refuses a null place.
    let nowhere = result(unsafe { driver.cuStreamCreate(std::ptr::null_mut(), 0) });
    assert_eq!(nowhere, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
}

#[test]
fn a_stream_is_as_it_was_made() {
    let driver = machine_in_context(&[]);
    let (mut least, mut greatest) = (7, 7);
    // SAFETY: the out-pointers here and below are local variables.
    unsafe { driver.cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest) }.unwrap();
    assert!(least == 0 && greatest < 0);
    // SAFETY: either may be null.
    unsafe { driver.cuCtxGetStreamPriorityRange(std::ptr::null_mut(), std::ptr::null_mut()) }
        .unwrap();
    for (wanted, given) in [(0, 0), (-1, -1), (greatest - 9, greatest), (5, least)] {
        let mut made = CUstream::NULL;
        // SAFETY: as above.
        unsafe { driver.cuStreamCreateWithPriority(&raw mut made, NON_BLOCKING, wanted) }.unwrap();
        let (mut priority, mut flags) = (7, 7);
        // SAFETY: as above.
        unsafe { driver.cuStreamGetPriority(made, &raw mut priority) }.unwrap();
        // SAFETY: as above.
        unsafe { driver.cuStreamGetFlags(made, &raw mut flags) }.unwrap();
        assert_eq!((priority, flags), (given, NON_BLOCKING));
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
        // SAFETY: as above.
        unsafe { driver.cuStreamIsCapturing(made, &raw mut status) }.unwrap();
        assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    }
}

#[test]
fn a_function_of_a_stream_may_call_nothing() {
    let driver = machine_in_context(&[]);
    let (say, said) = channel();
    let inside = driver.clone();
    let function = move || {
        let answer = query(&inside, CUstream::NULL);
        let mut count = 0;
        // SAFETY: the out-pointer is a local variable.
        let counted = result(unsafe { inside.cuDeviceGetCount(&raw mut count) });
        say.send([answer, counted]).unwrap();
    };
    launch(&driver, CUstream::NULL, function).unwrap();
    assert_eq!(synchronize(&driver, CUstream::NULL), Ok(()));
    let refused = Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
    assert_eq!(said.recv().unwrap(), [refused; 2]);
    // SAFETY: the double refuses a null function.
    let none =
        result(unsafe { driver.cuLaunchHostFunc(CUstream::NULL, None, std::ptr::null_mut()) });
    assert_eq!(none, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
}

#[test]
fn a_callback_hears_of_its_stream_and_how_it_fares() {
    static HEARD: Mutex<Vec<(CUstream, CUresult, usize)>> = Mutex::new(Vec::new());
    unsafe extern "C" fn hear(stream: CUstream, status: CUresult, user_data: *mut c_void) {
        let heard = (stream, status, user_data.addr());
        HEARD.lock().unwrap().push(heard);
    }
    let driver = machine_in_context(&[]);
    let made = stream(&driver, 0);
    let add = |stream, number, flags| {
        let user_data = std::ptr::without_provenance_mut(number);
        // SAFETY: the function looks into nothing.
        result(unsafe { driver.cuStreamAddCallback(stream, Some(hear), user_data, flags) })
    };
    add(made, 7, 0).unwrap();
    synchronize(&driver, made).unwrap();
    add(CUstream::NULL, 8, 0).unwrap();
    assert_eq!(add(made, 9, 1), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    context_synchronize(&driver).unwrap();
    let fine = CUresult::CUDA_SUCCESS;
    let expected = [(made, fine, 7), (CUstream::NULL, fine, 8)];
    assert_eq!(*HEARD.lock().unwrap(), expected);
}

#[test]
fn in_virtual_time_asking_does_what_is_due() {
    let driver = machine_in_context(&[("TRANSLOAD_DOUBLE_CLOCK", "virtual")]);
    let (say, said) = channel();
    let made = stream(&driver, 0);
    launch(&driver, made, move || say.send(1).unwrap()).unwrap();
    assert!(said.try_recv().is_err(), "time stands still");
    assert_eq!(query(&driver, made), Ok(()));
    assert_eq!(said.try_recv(), Ok(1));
    assert_eq!(control("now").unwrap(), "0");
}

/// In virtual time users' functions run on the thread that waits.
#[test]
fn asking_never_waits_for_a_function_of_the_users() {
    let driver = machine_in_context(&[("TRANSLOAD_DOUBLE_CLOCK", "virtual")]);
    let mut context = CUcontext::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuCtxGetCurrent(&raw mut context) }.unwrap();
    let context = context.0.addr();
    let made = stream(&driver, 1);
    let (begins, begun) = channel();
    let (go, gate) = channel::<()>();
    let function = move || {
        begins.send(()).unwrap();
        // It ends when the sender does.
        let _ = gate.recv();
    };
    launch(&driver, made, function).unwrap();
    let end = point(&driver, made);
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let context = CUcontext(ptr::without_provenance_mut(context));
            // SAFETY: the context is the driver's.
            unsafe { driver.cuCtxSetCurrent(context) }.unwrap();
            synchronize(&driver, made)
        });
        begun.recv().unwrap();
        assert_eq!(query(&driver, made), NOT_READY);
        assert_eq!(event_query(&driver, end), NOT_READY);
        drop(go);
        assert_eq!(waits.join().unwrap(), Ok(()));
    });
    assert_eq!(event_query(&driver, end), Ok(()));
}
