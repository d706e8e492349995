//! Streams and events of the user: the backend reports their ends, and makes them wait for submissions.

use crate::common;
mod events;
mod follow;
use crate::common::own;
use crate::common::streams as theirs;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use common::work::{Works, copy, device, pattern, pinned};
use common::{assert_clean, control, driver};
use theirs::{destroy, own_context, set, stack, stop, stream};
use transload_cuda::raw::{CUcontext, CUresult, CUstream, CUstreamCaptureStatus, Driver, Table};
use transload_cuda::{Cuda, StreamError};
use transload_hal::{ErrorClass, in_callback};

const LEN: usize = 10_007;

/// Receives the report of a stream's end.
fn listen(cuda: &Cuda, stream: CUstream) -> Result<Receiver<thread::ThreadId>, StreamError> {
    let (tell, told) = channel();
    let then = move || tell.send(thread::current().id()).unwrap_or_default();
    // SAFETY: the stream is the test's, or the driver reports that there is none.
    unsafe { cuda.when_done(stream, then) }.map(|()| told)
}

fn is_waiting<T>(told: &Receiver<T>) -> bool {
    matches!(told.try_recv(), Err(TryRecvError::Empty))
}

#[test]
fn who_waits_for_a_stream_hears_when_its_work_is_done_and_not_before() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        // Freeing these while the later work is blocked would wait for that work.
        let (buffer, landing) = (
            works.allocate(device(0), LEN),
            works.allocate(pinned(), LEN),
        );
        let stream = stream(&driver);
        let go_on = stop(&driver, stream);
        set(&driver, stream, buffer.position(), 7, LEN);
        let told = listen(&works.cuda, stream).unwrap();
        // The report does not wait for later work.
        let later = stop(&driver, stream);
        assert!(is_waiting(&told));
        go_on.release();
        let where_told = told.recv().unwrap();
        assert_ne!(where_told, thread::current().id(), "it was not idle");
        works.run(&[copy(&buffer, &landing)]);
        assert_eq!(common::work::read(&landing), [7; LEN]);
        later.release();
        theirs::synchronize(&driver, stream);
        destroy(&driver, stream);
    });
    drop(works);
    assert_clean();
}

#[test]
fn an_idle_stream_is_told_here_and_now() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        let stream = stream(&driver);
        let told = listen(&works.cuda, stream).unwrap();
        assert_eq!(told.try_recv(), Ok(thread::current().id()));
        destroy(&driver, stream);
    });
}

#[test]
fn a_stream_may_be_destroyed_while_somebody_waits_for_it() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    let (told, go_on) = own::beside(&driver, 0, || {
        let stream = stream(&driver);
        let go_on = stop(&driver, stream);
        let told = listen(&works.cuda, stream).unwrap();
        destroy(&driver, stream);
        (told, go_on)
    });
    assert!(is_waiting(&told));
    go_on.release();
    told.recv().unwrap();
    drop(works);
    assert_clean();
}

#[test]
fn a_copy_that_begins_when_a_stream_is_done_sees_its_bytes() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        let (src, dst) = (
            works.allocate(device(0), LEN),
            works.allocate(pinned(), LEN),
        );
        works.upload(&src, &pattern(1, LEN));
        let stream = stream(&driver);
        let go_on = stop(&driver, stream);
        set(&driver, stream, src.position(), 9, LEN);
        let told = listen(&works.cuda, stream).unwrap();
        go_on.release();
        told.recv().unwrap();
        works.run(&[copy(&src, &dst)]);
        assert_eq!(common::work::read(&dst), [9; LEN]);
        destroy(&driver, stream);
    });
}

#[test]
fn streams_of_every_context_are_heard_whatever_is_current() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    let primary = own::beside(&driver, 0, || stream(&driver));
    let context = own_context(&driver, 0);
    let own = stream(&driver);
    // The default streams belong to the context that is current here.
    let default = [CUstream::NULL, CUstream::LEGACY, CUstream::PER_THREAD];
    for stream in [primary, own].into_iter().chain(default) {
        let go_on = stop(&driver, stream);
        let told = listen(&works.cuda, stream).unwrap();
        assert_eq!(stack(&driver), [context]);
        assert!(is_waiting(&told), "{stream:?}");
        go_on.release();
        told.recv().unwrap();
    }
    // No context is current.
    let mut popped = CUcontext::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuCtxPopCurrent_v2(&raw mut popped) }.unwrap();
    for stream in [primary, own] {
        let told = listen(&works.cuda, stream).unwrap();
        told.recv().unwrap();
    }
    for stream in default {
        let error = listen(&works.cuda, stream).unwrap_err();
        assert_eq!(
            (&error, error.class()),
            (&StreamError::NoContext, ErrorClass::Caller)
        );
    }
    assert_eq!(stack(&driver), []);
    own::beside(&driver, 0, || destroy(&driver, primary));
    theirs::destroy_context(&driver, context);
    drop(works);
    assert_clean();
}

#[test]
fn a_panic_in_what_is_called_keeps_nobody_else_from_hearing() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        let stream = stream(&driver);
        let go_on = stop(&driver, stream);
        // SAFETY: the stream is the test's.
        unsafe { works.cuda.when_done(stream, || panic!("on purpose")) }.unwrap();
        let told = listen(&works.cuda, stream).unwrap();
        go_on.release();
        told.recv().unwrap();
        theirs::synchronize(&driver, stream);
        // SAFETY: as above.
        unsafe { works.cuda.when_done(stream, || panic!("on purpose, here")) }.unwrap();
        destroy(&driver, stream);
    });
}

/// The engine refuses to wait on this thread.
#[test]
fn the_thread_is_marked_while_a_callback_runs() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        let stream = stream(&driver);
        let (tell, told) = channel();
        let watch = || {
            let tell = tell.clone();
            let then = move || tell.send(in_callback()).unwrap();
            // SAFETY: the stream is the test's.
            unsafe { works.cuda.when_done(stream, then) }.unwrap();
        };
        let go_on = stop(&driver, stream);
        watch();
        go_on.release();
        assert!(told.recv().unwrap());
        theirs::synchronize(&driver, stream);
        watch();
        assert!(told.recv().unwrap());
        assert!(!in_callback());
        destroy(&driver, stream);
    });
}

#[test]
fn a_stream_that_was_destroyed_is_named() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    let gone = own::beside(&driver, 0, || {
        let stream = stream(&driver);
        destroy(&driver, stream);
        stream
    });
    let error = listen(&works.cuda, gone).unwrap_err();
    let StreamError::Unknown { what, handle, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((*what, *handle), ("stream", gone.0.addr()));
    assert_eq!(error.class(), ErrorClass::Caller);
    // The refusal changed nothing.
    works.upload(&works.allocate(device(0), LEN), &pattern(1, LEN));
}

/// A driver in which every stream is being captured.
mod capturing {
    use super::{CUresult, CUstream, CUstreamCaptureStatus};

    pub(crate) unsafe extern "C" fn active(
        _: CUstream,
        status: *mut CUstreamCaptureStatus,
    ) -> CUresult {
        // SAFETY: the caller passes a valid out-pointer.
        unsafe { status.write(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE) };
        CUresult::CUDA_SUCCESS
    }
}

/// The double with some functions replaced.
fn with(change: impl FnOnce(&mut Table)) -> Works {
    let mut table = *driver(&[]).table();
    change(&mut table);
    // SAFETY: the functions are the double's, and one that reports a status that the double does not have.
    let driver = unsafe { Driver::from_table(table, "the double, changed") };
    let works = Works::new(Cuda::with_driver(driver).unwrap());
    drop(works.allocate(device(0), 1));
    works
}

#[test]
fn a_stream_that_is_captured_is_left_alone() {
    let works = with(|table| table.cuStreamIsCapturing = Some(capturing::active));
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        let stream = stream(&driver);
        for error in [
            listen(&works.cuda, stream).unwrap_err(),
            // SAFETY: the stream is the test's.
            unsafe { works.cuda.follow(stream, &[]) }.unwrap_err(),
        ] {
            let (what, handle) = ("stream", stream.0.addr());
            assert_eq!(error, StreamError::Capturing { what, handle });
            assert_eq!(error.class(), ErrorClass::Caller);
        }
        let calls = common::calls;
        assert_eq!(
            (calls("cuStreamAddCallback"), calls("cuStreamQuery")),
            (0, 0)
        );
        destroy(&driver, stream);
    });
}

#[test]
fn a_default_stream_that_a_capture_waits_for_is_left_alone() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        control("fault call=cuStreamIsCapturing:906").unwrap();
        let error = listen(&works.cuda, CUstream::NULL).unwrap_err();
        assert!(matches!(error, StreamError::Capturing { .. }), "{error}");
        assert!(listen(&works.cuda, CUstream::NULL).is_ok());
    });
}

#[test]
fn who_is_refused_is_told_why_and_never_called() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        let stream = stream(&driver);
        let go_on = stop(&driver, stream);
        for (function, result, class) in [
            ("cuStreamGetCtx", 999, ErrorClass::Failed),
            ("cuStreamIsCapturing", 999, ErrorClass::Failed),
            ("cuStreamQuery", 999, ErrorClass::Failed),
            ("cuStreamAddCallback", 801, ErrorClass::Unsupported),
            ("cuStreamAddCallback", 2, ErrorClass::Exhausted),
        ] {
            control(&format!("fault call={function}:{result}")).unwrap();
            let witness = Arc::new(());
            let kept = Arc::clone(&witness);
            // SAFETY: the stream is the test's.
            let refused = unsafe { works.cuda.when_done(stream, move || drop(kept)) };
            let error = refused.unwrap_err();
            assert_eq!(error.class(), class, "{error}");
            assert!(error.to_string().contains(function), "{error}");
            assert_eq!(Arc::strong_count(&witness), 1, "{error}");
        }
        go_on.release();
        listen(&works.cuda, stream).unwrap().recv().unwrap();
        destroy(&driver, stream);
    });
    works.upload(&works.allocate(device(0), LEN), &pattern(1, LEN));
    drop(works);
    assert_clean();
}

/// Ruins the current context, by an operation in a stream.
fn ruin(driver: &Driver, stream: CUstream) {
    let address = own::plain(driver, 4096);
    control("fault ecc").unwrap();
    // SAFETY: the memory is the test's. The call may or may not report the error already.
    let _ = unsafe { driver.cuMemsetD8Async(address, 1, 4096, stream) };
}

#[test]
fn who_waits_for_a_context_that_is_ruined_hears_that_it_is_over() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    let context = own_context(&driver, 0);
    let stream = stream(&driver);
    let go_on = stop(&driver, stream);
    ruin(&driver, stream);
    let told = listen(&works.cuda, stream).unwrap();
    go_on.release();
    told.recv().unwrap();
    // From now on the loss is known.
    let error = listen(&works.cuda, stream).unwrap_err();
    assert!(matches!(error, StreamError::Lost { .. }), "{error}");
    // The lost context was the program's own, and not the backend's.
    works.upload(&works.allocate(device(0), LEN), &pattern(1, LEN));
    theirs::destroy_context(&driver, context);
}

#[test]
fn a_stream_of_a_device_that_is_lost_says_so() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        let stream = stream(&driver);
        ruin(&driver, stream);
        // SAFETY: the stream is the test's.
        let waited = unsafe { driver.cuStreamSynchronize(stream) };
        assert!(waited.is_err());
        for _ in 0..2 {
            let error = listen(&works.cuda, stream).unwrap_err();
            assert_eq!(error.class(), ErrorClass::Lost, "{error}");
        }
        // SAFETY: as above.
        let error = unsafe { works.cuda.follow(stream, &[]) }.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Lost, "{error}");
    });
}
