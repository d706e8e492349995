//! Memory and events of two processes.

use crate::common;

use std::ffi::c_void;
use std::sync::mpsc;

use common::process::{self, Other, hex, is_other, unhex};
use common::{control, machine_in_context, refused};
use transload_cuda::raw::{
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUcontext, CUdevice, CUdeviceptr, CUevent, CUevent_flags,
    CUipcEventHandle, CUipcMemHandle, CUresult, CUstream, CUstream_flags, CallError, Driver,
};

const LAZY: u32 = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const NO_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
const NOT_READY: CUresult = CUresult::CUDA_ERROR_NOT_READY;

fn allocate(driver: &Driver, bytes: usize) -> CUdeviceptr {
    let mut address = 0;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuMemAlloc_v2(&raw mut address, bytes) }.unwrap();
    address
}

fn handle_of(driver: &Driver, address: CUdeviceptr) -> Result<CUipcMemHandle, CallError> {
    let mut handle = CUipcMemHandle::default();
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuIpcGetMemHandle(&raw mut handle, address) }.map(|()| handle)
}

fn open(driver: &Driver, handle: CUipcMemHandle, flags: u32) -> Result<CUdeviceptr, CallError> {
    let mut address = 0;
    // SAFETY: the out-pointer is a local variable; the double refuses anything that is no handle.
    unsafe { driver.cuIpcOpenMemHandle_v2(&raw mut address, handle, flags) }.map(|()| address)
}

fn close(driver: &Driver, address: CUdeviceptr) -> Result<(), CallError> {
    // SAFETY: the double refuses an invalid address.
    unsafe { driver.cuIpcCloseMemHandle(address) }
}

fn write(driver: &Driver, address: CUdeviceptr, bytes: &[u8]) {
    // SAFETY: the buffer has that length.
    unsafe { driver.cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) }.unwrap();
    // SAFETY: the default stream is always there.
    unsafe { driver.cuStreamSynchronize(CUstream::NULL) }.unwrap();
}

fn read<const LEN: usize>(driver: &Driver, address: CUdeviceptr) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    // SAFETY: the buffer has that length.
    unsafe { driver.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, LEN) }.unwrap();
    bytes
}

fn heard_handle() -> CUipcMemHandle {
    CUipcMemHandle {
        reserved: unhex(&process::hear()),
    }
}

#[test]
fn bytes_of_one_process_are_seen_in_the_other() {
    if is_other() {
        let driver = machine_in_context(&[]);
        let handle = heard_handle();
        let address = open(&driver, handle, LAZY).unwrap();
        assert_eq!(
            open(&driver, handle, LAZY).unwrap(),
            address,
            "opened once more"
        );
        assert_eq!(read(&driver, address + 1000), *b"from one");
        write(&driver, address + 4992, b"from two");
        let beyond = address + 5000;
        let mut byte = 0u8;
        // SAFETY: the out-pointers are local variables, and the double refuses anything that is no memory.
        let answer = unsafe { driver.cuMemcpyDtoH_v2((&raw mut byte).cast(), beyond, 1) };
        assert_eq!(refused(answer), INVALID, "the handle is of 5000 bytes");
        // SAFETY: the double refuses an address that was not allocated here.
        assert_eq!(refused(unsafe { driver.cuMemFree_v2(address) }), INVALID);
        assert_eq!(refused(handle_of(&driver, address).map(drop)), INVALID);
        process::tell("written");
        close(&driver, address).unwrap();
        assert_eq!(
            read(&driver, address + 1000),
            *b"from one",
            "it is open still"
        );
        assert_eq!(control("leaks").unwrap().matches("Ipc").count(), 1);
        close(&driver, address).unwrap();
        assert_eq!(control("leaks").unwrap().matches("Ipc").count(), 0);
        assert_eq!(refused(close(&driver, address)), INVALID);
        return;
    }
    let driver = machine_in_context(&[]);
    let before = allocate(&driver, 5000);
    let address = allocate(&driver, 5000);
    write(&driver, before, &[7; 5000]);
    write(&driver, address + 1000, b"from one");
    let mut other = Other::start("ipc::bytes_of_one_process_are_seen_in_the_other");
    let handle = handle_of(&driver, address).unwrap();
    assert_eq!(handle_of(&driver, address).unwrap(), handle);
    assert_ne!(handle_of(&driver, before).unwrap(), handle);
    other.tell(&hex(&handle.reserved));
    assert_eq!(other.hear(), "written");
    assert_eq!(read(&driver, address + 4992), *b"from two");
    assert_eq!(read::<5000>(&driver, before), [7; 5000]);
    other.end();
}

#[test]
fn a_handle_opens_what_is_there_and_nothing_else() {
    if is_other() {
        let driver = machine_in_context(&[]);
        let handle = heard_handle();
        assert_eq!(refused(open(&driver, handle, 0).map(drop)), INVALID);
        let address = open(&driver, handle, LAZY).unwrap();
        let mut second = CUcontext::NULL;
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuCtxCreate_v2(&raw mut second, 0, CUdevice(0)) }.unwrap();
        let none = CUresult::CUDA_ERROR_INVALID_CONTEXT;
        assert_eq!(
            refused(open(&driver, handle, LAZY).map(drop)),
            none,
            "the first context has it"
        );
        // SAFETY: the context is the test's.
        unsafe { driver.cuCtxDestroy_v2(second) }.unwrap();
        close(&driver, address).unwrap();
        let mut garbage = handle;
        garbage.reserved[40] = 1;
        assert_eq!(refused(open(&driver, garbage, LAZY).map(drop)), NO_HANDLE);
        assert_eq!(
            refused(open(&driver, CUipcMemHandle::default(), LAZY).map(drop)),
            NO_HANDLE
        );
        let mut event = CUevent::NULL;
        let as_event = CUipcEventHandle {
            reserved: handle.reserved,
        };
        // SAFETY: the out-pointer is a local variable.
        let answer = unsafe { driver.cuIpcOpenEventHandle(&raw mut event, as_event) };
        assert_eq!(refused(answer), NO_HANDLE, "memory is no event");
        process::tell("opened");
        process::hear();
        assert_eq!(
            refused(open(&driver, handle, LAZY).map(drop)),
            NO_HANDLE,
            "it was freed"
        );
        return;
    }
    let driver = machine_in_context(&[]);
    let address = allocate(&driver, 5000);
    let handle = handle_of(&driver, address).unwrap();
    let own = refused(open(&driver, handle, LAZY).map(drop));
    assert_eq!(own, CUresult::CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(refused(handle_of(&driver, address + 1).map(drop)), INVALID);
    assert_eq!(refused(handle_of(&driver, 0).map(drop)), INVALID);
    assert_eq!(refused(close(&driver, address)), INVALID);
    let mut other = Other::start("ipc::a_handle_opens_what_is_there_and_nothing_else");
    other.tell(&hex(&handle.reserved));
    assert_eq!(other.hear(), "opened");
    // SAFETY: the address is ours.
    unsafe { driver.cuMemFree_v2(address) }.unwrap();
    assert_eq!(refused(handle_of(&driver, address).map(drop)), INVALID);
    // The next one lies where the first one lay, and may get its descriptor.
    let next = allocate(&driver, 5000);
    assert_ne!(handle_of(&driver, next).unwrap(), handle);
    other.tell("freed");
    other.end();
}

fn event(driver: &Driver) -> CUevent {
    let flags = CUevent_flags::CU_EVENT_INTERPROCESS.0 | CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
    let mut event = CUevent::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuEventCreate(&raw mut event, flags) }.unwrap();
    event
}

fn event_handle(driver: &Driver, event: CUevent) -> Result<CUipcEventHandle, CallError> {
    let mut handle = CUipcEventHandle::default();
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuIpcGetEventHandle(&raw mut handle, event) }.map(|()| handle)
}

fn open_event(driver: &Driver, reserved: [u8; 64]) -> Result<CUevent, CallError> {
    let mut event = CUevent::NULL;
    // SAFETY: the out-pointer is a local variable; the double refuses anything that is no handle.
    let answer =
        unsafe { driver.cuIpcOpenEventHandle(&raw mut event, CUipcEventHandle { reserved }) };
    answer.map(|()| event)
}

fn stream(driver: &Driver) -> CUstream {
    let mut stream = CUstream::NULL;
    let apart = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuStreamCreate(&raw mut stream, apart) }.unwrap();
    stream
}

fn record(driver: &Driver, event: CUevent, stream: CUstream) {
    // SAFETY: both are the driver's.
    unsafe { driver.cuEventRecord(event, stream) }.unwrap();
}

fn query(driver: &Driver, event: CUevent) -> Option<CUresult> {
    // SAFETY: the event is the driver's.
    let answer = unsafe { driver.cuEventQuery(event) };
    answer.err().map(|error| error.result().unwrap())
}

/// Blocks a stream until the sender sends.
fn stop(driver: &Driver, stream: CUstream) -> mpsc::Sender<()> {
    unsafe extern "C" fn wait(receiver: *mut c_void) {
        // SAFETY: it is what `stop` made of a box, and comes here once.
        let receiver = unsafe { Box::from_raw(receiver.cast::<mpsc::Receiver<()>>()) };
        // A test that fails drops the other end.
        let _ = receiver.recv();
    }
    let (sender, receiver) = mpsc::channel();
    let receiver = Box::into_raw(Box::new(receiver));
    // SAFETY: the function takes the value that it is given, once.
    unsafe { driver.cuLaunchHostFunc(stream, Some(wait), receiver.cast()) }.unwrap();
    sender
}

#[test]
fn an_event_is_recorded_in_one_process_and_waited_for_in_the_other() {
    if is_other() {
        let driver = machine_in_context(&[]);
        let event = open_event(&driver, unhex(&process::hear())).unwrap();
        assert_eq!(query(&driver, event), None, "it was never recorded");
        assert_eq!(
            refused(event_handle(&driver, event).map(drop)),
            NO_HANDLE,
            "it is not ours"
        );
        let stream = stream(&driver);
        let go_on = stop(&driver, stream);
        record(&driver, event, stream);
        assert_eq!(query(&driver, event), Some(NOT_READY));
        process::tell("recorded");
        process::hear();
        go_on.send(()).unwrap();
        process::hear();
        return;
    }
    let driver = machine_in_context(&[]);
    let event = event(&driver);
    let handle = event_handle(&driver, event).unwrap();
    let own = refused(open_event(&driver, handle.reserved).map(drop));
    assert_eq!(own, CUresult::CUDA_ERROR_INVALID_CONTEXT);
    let mut plain = CUevent::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuEventCreate(&raw mut plain, 0) }.unwrap();
    assert_eq!(refused(event_handle(&driver, plain).map(drop)), NO_HANDLE);
    assert_eq!(refused(open_event(&driver, [1; 64]).map(drop)), NO_HANDLE);

    let mut other =
        Other::start("ipc::an_event_is_recorded_in_one_process_and_waited_for_in_the_other");
    other.tell(&hex(&handle.reserved));
    assert_eq!(other.hear(), "recorded");
    assert_eq!(query(&driver, event), Some(NOT_READY));
    let stream = stream(&driver);
    // SAFETY: both are the driver's.
    unsafe { driver.cuStreamWaitEvent(stream, event, 0) }.unwrap();
    record(&driver, plain, stream);
    assert_eq!(
        query(&driver, plain),
        Some(NOT_READY),
        "the stream waits for the other process"
    );
    other.tell("go on");
    // SAFETY: as above.
    unsafe { driver.cuEventSynchronize(event) }.unwrap();
    assert_eq!(query(&driver, event), None);
    // SAFETY: as above.
    unsafe { driver.cuStreamSynchronize(stream) }.unwrap();
    assert_eq!(query(&driver, plain), None);
    other.tell("done");
    other.end();
}

/// So often two processes take turns until what could have gone wrong meanwhile has, all but certainly.
const TURNS: usize = 100;

#[test]
fn who_waits_for_a_record_is_not_let_go_by_a_later_one() {
    if is_other() {
        let driver = machine_in_context(&[]);
        let event = open_event(&driver, unhex(&process::hear())).unwrap();
        let stream = stream(&driver);
        // SAFETY: both are the driver's.
        unsafe { driver.cuStreamWaitEvent(stream, event, 0) }.unwrap();
        process::tell("waits");
        for _ in 0..TURNS {
            process::hear();
            process::tell("heard");
        }
        assert_eq!(query(&driver, event), None, "its last record is done");
        // SAFETY: the stream is the driver's.
        let busy = unsafe { driver.cuStreamQuery(stream) };
        assert_eq!(
            refused(busy),
            NOT_READY,
            "the one that was waited for is not"
        );
        process::tell("still waits");
        // SAFETY: as above.
        unsafe { driver.cuStreamSynchronize(stream) }.unwrap();
        process::tell("done");
        return;
    }
    let driver = machine_in_context(&[]);
    let event = event(&driver);
    let (slow, fast) = (stream(&driver), stream(&driver));
    let go_on = stop(&driver, slow);
    record(&driver, event, slow);
    let mut other = Other::start("ipc::who_waits_for_a_record_is_not_let_go_by_a_later_one");
    other.tell(&hex(&event_handle(&driver, event).unwrap().reserved));
    assert_eq!(other.hear(), "waits");
    record(&driver, event, fast);
    // SAFETY: the stream is the driver's.
    unsafe { driver.cuStreamSynchronize(fast) }.unwrap();
    for _ in 0..TURNS {
        other.tell("recorded again");
        assert_eq!(other.hear(), "heard");
    }
    assert_eq!(other.hear(), "still waits");
    go_on.send(()).unwrap();
    assert_eq!(other.hear(), "done");
    other.end();
}

#[test]
fn an_error_lets_go_who_waits_in_another_process() {
    if is_other() {
        let driver = machine_in_context(&[]);
        let event = open_event(&driver, unhex(&process::hear())).unwrap();
        process::tell("waits");
        // SAFETY: the event is the driver's.
        unsafe { driver.cuEventSynchronize(event) }.unwrap();
        process::tell("done");
        return;
    }
    let driver = machine_in_context(&[]);
    let event = event(&driver);
    let address = allocate(&driver, 4096);
    let stream = stream(&driver);
    let go_on = stop(&driver, stream);
    control("fault ecc@1").unwrap();
    // SAFETY: the address is ours.
    unsafe { driver.cuMemsetD8Async(address, 1, 4096, stream) }.unwrap();
    record(&driver, event, stream);
    let mut other = Other::start("ipc::an_error_lets_go_who_waits_in_another_process");
    other.tell(&hex(&event_handle(&driver, event).unwrap().reserved));
    assert_eq!(other.hear(), "waits");
    go_on.send(()).unwrap();
    // SAFETY: the stream is the driver's.
    let answer = refused(unsafe { driver.cuStreamSynchronize(stream) });
    assert_eq!(answer, CUresult::CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_eq!(other.hear(), "done");
    other.end();
}

#[test]
fn records_of_an_event_have_a_limit_and_then_places_again() {
    let driver = machine_in_context(&[]);
    let event = event(&driver);
    let stream = stream(&driver);
    let go_on = stop(&driver, stream);
    let many = |driver: &Driver| {
        // SAFETY: both are the driver's.
        let answers = (0..1000).map(|_| unsafe { driver.cuEventRecord(event, stream) });
        answers.filter(Result::is_ok).count()
    };
    assert_eq!(many(&driver), 499);
    // SAFETY: as above.
    let answer = refused(unsafe { driver.cuEventRecord(event, stream) });
    assert_eq!(answer, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    go_on.send(()).unwrap();
    // SAFETY: as above.
    unsafe { driver.cuStreamSynchronize(stream) }.unwrap();
    record(&driver, event, stream);
}
