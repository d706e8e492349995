//! Semaphores of other interfaces, as far as they are modelled.

use crate::common;

use std::ffi::c_void;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::mpsc;

use common::process::{self, Other, is_other};
use common::{control, machine_in_context, refused};
use transload_cuda::raw::{
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC, CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS,
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, CUcontext, CUdevice, CUexternalSemaphore,
    CUexternalSemaphoreHandleType, CUresult, CUstream, CUstream_flags, CallError, Driver,
    ExternalHandle, FenceValue,
};

const NO_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
const NOT_READY: CUresult = CUresult::CUDA_ERROR_NOT_READY;
const BINARY: CUexternalSemaphoreHandleType =
    CUexternalSemaphoreHandleType::CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD;
const TIMELINE: CUexternalSemaphoreHandleType =
    CUexternalSemaphoreHandleType::CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD;

fn make(what: &str) -> RawFd {
    let answer = control(&format!("semaphore {what}")).unwrap();
    answer.parse().unwrap()
}

/// Another descriptor of the same file, which this process or another has.
fn again(path: &str) -> RawFd {
    let file = File::options().read(true).write(true).open(path).unwrap();
    file.into_raw_fd()
}

fn path(fd: RawFd) -> String {
    format!("/proc/{}/fd/{fd}", std::process::id())
}

fn import(
    driver: &Driver,
    type_: CUexternalSemaphoreHandleType,
    fd: RawFd,
) -> Result<CUexternalSemaphore, CallError> {
    let desc = CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
        type_,
        handle: ExternalHandle { fd },
        flags: 0,
        reserved: [0; 16],
    };
    let mut semaphore = CUexternalSemaphore::NULL;
    // SAFETY: the out-pointers are local variables.
    unsafe { driver.cuImportExternalSemaphore(&raw mut semaphore, &desc) }.map(|()| semaphore)
}

fn signal(
    driver: &Driver,
    stream: CUstream,
    semaphores: &[(CUexternalSemaphore, u64)],
) -> Result<(), CallError> {
    let (handles, values): (Vec<_>, Vec<_>) = semaphores.iter().copied().unzip();
    let params: Vec<_> = values
        .into_iter()
        .map(|value| CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS {
            fence: FenceValue { value },
            ..Default::default()
        })
        .collect();
    let count = handles.len() as u32;
    let (handles, params) = (handles.as_ptr(), params.as_ptr());
    // SAFETY: both arrays are as long as that.
    unsafe { driver.cuSignalExternalSemaphoresAsync(handles, params, count, stream) }
}

fn wait(
    driver: &Driver,
    stream: CUstream,
    semaphores: &[(CUexternalSemaphore, u64)],
) -> Result<(), CallError> {
    let (handles, values): (Vec<_>, Vec<_>) = semaphores.iter().copied().unzip();
    let params: Vec<_> = values
        .into_iter()
        .map(|value| CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS {
            fence: FenceValue { value },
            ..Default::default()
        })
        .collect();
    let count = handles.len() as u32;
    let (handles, params) = (handles.as_ptr(), params.as_ptr());
    // SAFETY: both arrays are as long as that.
    unsafe { driver.cuWaitExternalSemaphoresAsync(handles, params, count, stream) }
}

fn stream(driver: &Driver) -> CUstream {
    let mut stream = CUstream::NULL;
    let apart = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuStreamCreate(&raw mut stream, apart) }.unwrap();
    stream
}

fn synchronise(driver: &Driver, stream: CUstream) -> Result<(), CallError> {
    // SAFETY: the stream is the driver's.
    unsafe { driver.cuStreamSynchronize(stream) }
}

fn is_busy(driver: &Driver, stream: CUstream) -> bool {
    // SAFETY: the stream is the driver's.
    let answer = unsafe { driver.cuStreamQuery(stream) };
    answer.is_err_and(|error| error.is(NOT_READY))
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
fn a_stream_waits_until_another_process_has_brought_a_timeline_there() {
    let driver = machine_in_context(&[]);
    let stream = stream(&driver);
    if is_other() {
        let timeline = import(&driver, TIMELINE, again(&process::hear())).unwrap();
        for value in [6, 7] {
            process::hear();
            signal(&driver, stream, &[(timeline, value)]).unwrap();
            synchronise(&driver, stream).unwrap();
            process::tell("signalled");
        }
        process::hear();
        return;
    }
    let fd = make("timeline 5");
    let path = path(fd);
    let mut other = Other::start(
        "semaphores::a_stream_waits_until_another_process_has_brought_a_timeline_there",
    );
    other.tell(&path);
    // One descriptor for each, of which the driver takes the ones that it is given.
    let other_fd = again(&path);
    other.tell("go on");
    assert_eq!(other.hear(), "signalled");
    let timeline = import(&driver, TIMELINE, fd).unwrap();
    wait(&driver, stream, &[(timeline, 5)]).unwrap();
    wait(&driver, stream, &[(timeline, 6)]).unwrap();
    synchronise(&driver, stream).expect("a wait leaves the value as it is");
    wait(&driver, stream, &[(timeline, 7)]).unwrap();
    assert!(is_busy(&driver, stream));
    other.tell("go on");
    synchronise(&driver, stream).unwrap();
    assert_eq!(other.hear(), "signalled");
    other.tell("done");
    other.end();
    let copy = import(&driver, TIMELINE, other_fd).unwrap();
    wait(&driver, stream, &[(copy, 7)]).unwrap();
    synchronise(&driver, stream).unwrap();
}

#[test]
fn a_signal_lets_one_wait_through_whose_turn_it_is() {
    let driver = machine_in_context(&[]);
    let binary = import(&driver, BINARY, make("binary")).unwrap();
    let (first, second, signals) = (stream(&driver), stream(&driver), stream(&driver));
    let go_on = stop(&driver, first);
    wait(&driver, first, &[(binary, 0)]).unwrap();
    wait(&driver, second, &[(binary, 0)]).unwrap();
    assert!(is_busy(&driver, second));
    signal(&driver, signals, &[(binary, 0)]).unwrap();
    synchronise(&driver, second).expect("the first one has not come to it");
    go_on.send(()).unwrap();
    // Its function has run when this one, of another stream, has: they are called one after the other.
    drop(stop(&driver, signals));
    synchronise(&driver, signals).unwrap();
    assert!(is_busy(&driver, first), "the signal was taken");
    signal(&driver, signals, &[(binary, 0)]).unwrap();
    synchronise(&driver, first).unwrap();
}

#[test]
fn a_signal_comes_after_what_is_before_it_in_its_stream() {
    let driver = machine_in_context(&[]);
    let [one, two] = [0; 2].map(|_| import(&driver, TIMELINE, make("timeline")).unwrap());
    let (waits, signals) = (stream(&driver), stream(&driver));
    let go_on = stop(&driver, signals);
    signal(&driver, signals, &[(one, 1), (two, 9)]).unwrap();
    wait(&driver, waits, &[(two, 8), (one, 1)]).unwrap();
    assert!(is_busy(&driver, waits));
    for semaphore in [one, two] {
        // SAFETY: the semaphore is the test's; work in flight is completed.
        unsafe { driver.cuDestroyExternalSemaphore(semaphore) }.unwrap();
    }
    go_on.send(()).unwrap();
    synchronise(&driver, waits).unwrap();
}

#[test]
fn what_is_no_semaphore_of_the_double_is_refused() {
    let driver = machine_in_context(&[]);
    let refusal = |type_, fd| refused(import(&driver, type_, fd).map(drop));
    let (binary, timeline) = (make("binary"), make("timeline"));
    assert_eq!(refusal(TIMELINE, binary), NO_HANDLE);
    assert_eq!(refusal(BINARY, timeline), NO_HANDLE);
    assert_eq!(refusal(BINARY, -1), NO_HANDLE);
    assert_eq!(refusal(BINARY, 100_000), NO_HANDLE);
    let (reader, _writer) = std::io::pipe().unwrap();
    assert_eq!(refusal(BINARY, reader.as_raw_fd()), NO_HANDLE);
    let not_modelled = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let of_others: OwnedFd = rustix::fs::memfd_create("SwiftShader.Semaphore", flags).unwrap();
    assert_eq!(refusal(BINARY, of_others.as_raw_fd()), not_modelled);
    let windows = CUexternalSemaphoreHandleType::CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_WIN32;
    assert_eq!(refusal(windows, binary), not_modelled);
    assert!(fs::read_link(path(binary)).is_ok(), "it stays the caller's");
    let taken = import(&driver, BINARY, binary).unwrap();
    assert!(fs::read_link(path(binary)).is_err(), "it is the driver's");

    assert!(control("leaks").unwrap().contains("external semaphore"));
    let stream = stream(&driver);
    let unknown = CUexternalSemaphore(std::ptr::without_provenance_mut(7));
    let both = [(taken, 0), (unknown, 0)];
    assert_eq!(refused(signal(&driver, stream, &both)), NO_HANDLE);
    assert_eq!(refused(wait(&driver, stream, &both)), NO_HANDLE);
    assert!(!is_busy(&driver, stream), "nothing was put in");
    let nowhere = std::ptr::null();
    // SAFETY: the double refuses a missing argument.
    let missing = unsafe { driver.cuWaitExternalSemaphoresAsync(&taken, nowhere, 1, stream) };
    assert_eq!(refused(missing), CUresult::CUDA_ERROR_INVALID_VALUE);
    wait(&driver, stream, &[]).unwrap();
    // SAFETY: the double refuses anything that is no semaphore.
    unsafe { driver.cuDestroyExternalSemaphore(taken) }.unwrap();
    // SAFETY: as above.
    let again = refused(unsafe { driver.cuDestroyExternalSemaphore(taken) });
    assert_eq!(again, NO_HANDLE);
    assert_eq!(refused(signal(&driver, stream, &[(taken, 0)])), NO_HANDLE);
}

#[test]
fn in_a_ruined_context_nobody_waits() {
    let driver = machine_in_context(&[]);
    let binary = import(&driver, BINARY, make("binary")).unwrap();
    let stream = stream(&driver);
    let go_on = stop(&driver, stream);
    control("fault ecc@1").unwrap();
    signal(&driver, stream, &[(binary, 0)]).unwrap();
    wait(&driver, stream, &[(binary, 0)]).unwrap();
    go_on.send(()).unwrap();
    let answer = refused(synchronise(&driver, stream));
    assert_eq!(answer, CUresult::CUDA_ERROR_ECC_UNCORRECTABLE);
}

#[test]
fn in_virtual_time_a_signal_is_waited_for_too() {
    let driver = machine_in_context(&[("TRANSLOAD_DOUBLE_CLOCK", "virtual")]);
    let timeline = import(&driver, TIMELINE, make("timeline")).unwrap();
    let (waits, signals) = (stream(&driver), stream(&driver));
    wait(&driver, waits, &[(timeline, 1)]).unwrap();
    signal(&driver, signals, &[(timeline, 1)]).unwrap();
    synchronise(&driver, waits).unwrap();
}

#[test]
fn the_control_function_makes_what_it_is_asked_for() {
    for nonsense in ["", "binary 1", "timeline x", "timeline 1 2", "mutex"] {
        let told = control(&format!("semaphore {nonsense}")).unwrap_err();
        assert!(told.starts_with("semaphore wants `binary`, or"), "{told}");
    }
}

#[test]
fn semaphores_go_with_their_context() {
    let driver = machine_in_context(&[]);
    let mut own = CUcontext::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuCtxCreate_v2(&raw mut own, 0, CUdevice(0)) }.unwrap();
    let gone = import(&driver, TIMELINE, make("timeline")).unwrap();
    // SAFETY: the context is the driver's.
    unsafe { driver.cuCtxDestroy_v2(own) }.unwrap();
    let answer = refused(signal(&driver, CUstream::NULL, &[(gone, 1)]));
    assert_eq!(answer, NO_HANDLE);
}
