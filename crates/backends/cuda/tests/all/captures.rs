//! The user captures streams into graphs while the backend works: neither disturbs the other.

use crate::common;
use crate::common::own;
use crate::common::streams as theirs;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use common::work::{Works, copy, device, managed, part, pattern, pinned};
use common::{assert_clean, calls, control, driver, made_up};
use theirs::{destroy, stream};
use transload_cuda::Cuda;
use transload_cuda::raw::{CUgraph, CUresult, CUstreamCaptureMode, Driver};
use transload_hal::{
    Advice, AllocError, AllocSpec, Backend, ErrorClass, External, ExternalKind, HostSpan, Op,
    Outcome, Waited,
};

const LEN: usize = 10_007;
const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;

/// Runs `act` while another thread captures a stream of its own in the global mode. Returns the result of the capture.
fn while_captured(driver: &Driver, act: impl FnOnce()) -> Result<(), CUresult> {
    let (tell, told) = channel();
    let (go, gate) = channel::<()>();
    thread::scope(|scope| {
        let capture = scope.spawn(move || {
            own::beside(driver, 0, || {
                let stream = stream(driver);
                // SAFETY: the stream is the test's.
                unsafe { driver.cuStreamBeginCapture_v2(stream, GLOBAL) }.unwrap();
                tell.send(()).unwrap();
                // Whether the gate was opened or dropped, the capture ends.
                let _ = gate.recv();
                let mut graph = CUgraph::NULL;
                // SAFETY: the out-pointer is a local variable.
                let ended = unsafe { driver.cuStreamEndCapture(stream, &raw mut graph) };
                destroy(driver, stream);
                ended.map_err(|error| error.result().unwrap())
            })
        });
        told.recv().unwrap();
        act();
        drop(go);
        capture.join().unwrap()
    })
}

/// Uses a device in every way, from opening it to closing it.
fn use_all_of(works: &Works, number: u32) {
    let far = works.allocate(device(number), LEN);
    let bytes = pattern(1, LEN);
    works.upload(&far, &bytes);
    assert_eq!(works.download(&far), bytes);
    let (from, to) = (part(&far, 0, 5000), part(&far, 100, 5000));
    works.run(&[Op::Copy { src: from, dst: to }]);
    let shared = works.allocate(managed(number), LEN);
    let whole = part(&shared, 0, shared.len());
    works.run(&[Op::Prefetch {
        part: whole,
        to: device(number).device,
    }]);
    works.run(&[Op::Advise {
        part: whole,
        advice: Advice::MostlyRead,
    }]);
    let mut spec = AllocSpec::bytes(100);
    spec.shareable = true;
    let exported = works.cuda.allocate(device(number), &spec).unwrap();
    // SAFETY: nothing writes the bytes meanwhile.
    unsafe { works.cuda.export(&exported, ExternalKind::CudaIpc) }.unwrap();
    let owner: Arc<Vec<u8>> = Arc::new(vec![5; LEN]);
    let external = External::Host {
        span: HostSpan::of(&owner),
        writable: false,
        owner: Box::new(owner),
    };
    // SAFETY: the vector is there as long as its owner, and no code writes it.
    let registered = unsafe { works.cuda.import(pinned(), external) }.unwrap();
    works.run(&[copy(&registered, &far)]);
    assert_eq!(works.download(&far), [5; LEN]);
    works.cuda.trim();
}

#[test]
fn what_others_capture_forbids_nothing_here_and_is_not_spoilt() {
    let driver = driver(&[("DEVICES", "2")]);
    let works = Works::new(Cuda::with_driver(driver.clone()).unwrap());
    use_all_of(&works, 0);
    let ended = while_captured(&driver, || {
        use_all_of(&works, 0);
        // A device that was never used before.
        use_all_of(&works, 1);
    });
    assert_eq!(ended, Ok(()));
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuThreadExchangeStreamCaptureMode(&raw mut mode) }.unwrap();
    assert_eq!(mode, GLOBAL, "the thread is as it was");
    drop(works);
    assert_clean();
}

#[test]
fn streams_and_events_of_the_users_are_told_whatever_is_captured_beside_them() {
    let driver = driver(&[]);
    let works = Works::new(Cuda::with_driver(driver.clone()).unwrap());
    drop(works.allocate(device(0), 1));
    let (stream, event) = own::beside(&driver, 0, || {
        let stream = stream(&driver);
        (stream, theirs::record(&driver, stream))
    });
    let ended = while_captured(&driver, || {
        let (tell, told) = channel();
        let say = tell.clone();
        // SAFETY: the stream is the test's.
        unsafe { works.cuda.when_done(stream, move || say.send(1).unwrap()) }.unwrap();
        // SAFETY: the event is the test's.
        unsafe { works.cuda.when_event(event, move || tell.send(2).unwrap()) }.unwrap();
        assert_eq!([told.recv(), told.recv()], [Ok(1), Ok(2)]);
    });
    assert_eq!(ended, Ok(()));
}

#[test]
fn submitting_pays_nothing_for_what_others_capture() {
    let driver = driver(&[]);
    let works = Works::new(Cuda::with_driver(driver.clone()).unwrap());
    let (near, far) = (
        works.allocate(pinned(), LEN),
        works.allocate(device(0), LEN),
    );
    works.run(&[copy(&near, &far)]);
    let mut fence = None;
    let ended = while_captured(&driver, || {
        let before = calls("cuThreadExchangeStreamCaptureMode");
        fence = Some(works.submit(&[copy(&near, &far)]).unwrap());
        assert_eq!(calls("cuThreadExchangeStreamCaptureMode"), before);
    });
    assert_eq!(ended, Ok(()));
    assert_eq!(works.outcome(fence.unwrap()), Outcome::Done);
}

#[test]
fn a_driver_that_refuses_for_a_capture_loses_no_device() {
    let topology = made_up("gigabyte");
    let driver = driver(&[("TOPOLOGY", &topology), ("CLOCK", "virtual")]);
    // A driver that does not let threads leave captures.
    control("fault call=cuThreadExchangeStreamCaptureMode:801@1+").unwrap();
    let works = Works::new(Cuda::with_driver(driver.clone()).unwrap());
    let (near, far) = (
        works.pinned(&pattern(2, LEN)),
        works.allocate(device(0), LEN),
    );
    works.run(&[copy(&near, &far)]);
    let mut under_way = None;
    let ended = while_captured(&driver, || {
        let AllocError::Failed { fault, .. } = works
            .cuda
            .allocate(device(0), &AllocSpec::bytes(100))
            .unwrap_err()
        else {
            panic!("not as a capture refuses");
        };
        assert_eq!(fault.class, ErrorClass::Failed, "{fault}");
        let fence = works.submit(&[copy(&near, &far)]).unwrap();
        // Virtual time stands still while no thread may wait, so the copy is still in flight.
        let waited = works.cuda.wait(fence, Duration::from_millis(20));
        assert_eq!(waited, Waited::TimedOut);
        under_way = Some(fence);
    });
    assert_eq!(ended, Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    assert_eq!(works.outcome(under_way.unwrap()), Outcome::Done);
    assert_eq!(works.download(&far), pattern(2, LEN));
    drop((near, far, works));
    assert_clean();
}
