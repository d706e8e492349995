//! Events of the user.

use std::sync::mpsc::{Receiver, channel};

use transload_cuda::raw::CUevent;
use transload_cuda::{Cuda, StreamError};
use transload_hal::ErrorClass;

use super::common::work::{Works, copy, device};
use super::common::{assert_clean, calls, control, machine};
use super::theirs::{self, destroy_event, record, stop, stream};
use super::{LEN, is_waiting, own};

fn listen(cuda: &Cuda, event: CUevent) -> Result<Receiver<()>, StreamError> {
    let (tell, told) = channel();
    let then = move || tell.send(()).unwrap_or_default();
    // SAFETY: the event is the test's, or the driver reports that there is none.
    unsafe { cuda.when_event(event, then) }.map(|()| told)
}

#[test]
fn events_are_heard_one_by_one_in_the_order_in_which_they_come_to_pass() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        let streams = [0; 3].map(|_| stream(&driver));
        let mut go_on = streams.map(|stream| Some(stop(&driver, stream)));
        let events = streams.map(|stream| record(&driver, stream));
        let told = events.map(|event| listen(&works.cuda, event).unwrap());
        for last in [1, 2, 0] {
            assert!(is_waiting(&told[last]), "{last}");
            go_on[last].take().unwrap().release();
            told[last].recv().unwrap();
        }
        // The report does not wait for events that a stream recorded later.
        let event = events[0];
        let later = stop(&driver, streams[0]);
        listen(&works.cuda, event).unwrap().try_recv().unwrap();
        later.release();
        for event in events {
            destroy_event(&driver, event);
        }
        for stream in streams {
            theirs::synchronize(&driver, stream);
        }
        for stream in streams {
            theirs::destroy(&driver, stream);
        }
    });
    drop(works);
    assert_clean();
}

#[test]
fn one_stream_of_ours_serves_events_that_come_one_after_the_other() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        let stream = stream(&driver);
        let mut made = 0;
        for _ in 0..20 {
            let go_on = stop(&driver, stream);
            let event = record(&driver, stream);
            let before = calls("cuStreamCreate");
            let told = listen(&works.cuda, event).unwrap();
            made += calls("cuStreamCreate") - before;
            go_on.release();
            told.recv().unwrap();
            destroy_event(&driver, event);
        }
        assert_eq!(made, 1);
        theirs::destroy(&driver, stream);
    });
    drop(works);
    assert_clean();
}

#[test]
fn an_event_that_was_never_recorded_has_come_to_pass() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        let event = theirs::event(&driver);
        listen(&works.cuda, event).unwrap().try_recv().unwrap();
        destroy_event(&driver, event);
        let error = listen(&works.cuda, event).unwrap_err();
        let handle = event.0.addr();
        let is_named = matches!(
            &error,
            StreamError::Unknown { what: "event", handle: at, .. } if *at == handle
        );
        assert!(is_named, "{error}");
    });
}

#[test]
fn an_event_of_a_graph_that_is_captured_never_comes_to_pass_by_itself() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        let event = theirs::event(&driver);
        control("fault call=cuEventQuery:907").unwrap();
        let error = listen(&works.cuda, event).unwrap_err();
        assert!(
            matches!(error, StreamError::Capturing { what: "event", .. }),
            "{error}"
        );
        destroy_event(&driver, event);
    });
}

#[test]
fn a_driver_that_refuses_loses_no_stream_of_ours() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        let stream = stream(&driver);
        let go_on = stop(&driver, stream);
        let event = record(&driver, stream);
        for (function, result, class) in [
            ("cuEventQuery", 999, ErrorClass::Failed),
            ("cuStreamCreate", 2, ErrorClass::Exhausted),
            ("cuStreamWaitEvent", 999, ErrorClass::Failed),
            ("cuStreamAddCallback", 801, ErrorClass::Unsupported),
        ] {
            control(&format!("fault call={function}:{result}")).unwrap();
            let error = listen(&works.cuda, event).unwrap_err();
            assert_eq!(error.class(), class, "{error}");
            assert!(error.to_string().contains(function), "{error}");
        }
        let told = listen(&works.cuda, event).unwrap();
        assert!(is_waiting(&told));
        go_on.release();
        told.recv().unwrap();
        destroy_event(&driver, event);
        theirs::destroy(&driver, stream);
    });
    drop(works);
    assert_clean();
}

#[test]
fn an_event_of_another_device_is_heard_although_the_device_that_waited_is_lost() {
    let works = Works::in_use(&[("TOPOLOGY", &machine("no-peer"))]);
    let driver = works.cuda.driver().clone();
    let (src, dst) = (works.pinned(&[1; LEN]), works.allocate(device(1), LEN));
    let (event, go_on) = own::beside(&driver, 1, || {
        let stream = stream(&driver);
        let go_on = stop(&driver, stream);
        (record(&driver, stream), go_on)
    });
    // With the first device's context current, a stream of that device waits.
    let told = own::beside(&driver, 0, || {
        let told = listen(&works.cuda, event).unwrap();
        let stream = stream(&driver);
        super::ruin(&driver, stream);
        // SAFETY: the stream is the test's.
        assert!(unsafe { driver.cuStreamSynchronize(stream) }.is_err());
        told
    });
    assert!(is_waiting(&told));
    go_on.release();
    told.recv().unwrap();
    // From now on the other device's own thread receives its report.
    listen(&works.cuda, event).unwrap().recv().unwrap();
    works.run(&[copy(&src, &dst)]);
}
