//! Streams of the user that wait for submissions.

use transload_cuda::StreamError;
use transload_cuda::raw::{CUdeviceptr, CUstream, Driver};
use transload_hal::{Backend, BackendId, Buffer, ErrorClass, Fence, Name, Op, Outcome};

use super::common::work::{Works, copy, device, part, pattern, pinned, read, whole};
use super::common::{assert_clean, calls};
use super::own;
use super::theirs::{self, own_context, stop, stream, synchronize};

/// On a link of one byte per nanosecond this takes eight milliseconds.
const LONG: usize = 8 << 20;
const END: u64 = LONG as u64 - 4096;

fn slow() -> Works {
    let root = env!("CARGO_MANIFEST_DIR");
    let file = format!("{root}/../../../doubles/cuda-driver/tests/machines/gigabyte.toml");
    Works::in_use(&[("TOPOLOGY", &file)])
}

/// Submits a copy in a stream of the user.
fn copy_out(driver: &Driver, stream: CUstream, to: &Buffer, from: CUdeviceptr, len: usize) {
    let to = to.host(0, len as u64).unwrap().as_ptr().cast();
    // SAFETY: both are the test's and have that length.
    unsafe { driver.cuMemcpyDtoHAsync_v2(to, from, len, stream) }.unwrap();
}

fn follow(works: &Works, stream: CUstream, fences: &[Fence]) -> Result<(), StreamError> {
    // SAFETY: the stream is the test's.
    unsafe { works.cuda.follow(stream, fences) }
}

#[test]
fn a_stream_that_follows_a_copy_sees_its_bytes() {
    let works = slow();
    let driver = works.cuda.driver().clone();
    let bytes = pattern(3, LONG);
    let src = works.pinned(&bytes);
    let landing = works.allocate(pinned(), 4096);
    let dst = works.allocate(device(0), LONG);
    own::beside(&driver, 0, || {
        theirs::set(&driver, CUstream::NULL, dst.position(), 0, LONG)
    });
    own::beside(&driver, 0, || synchronize(&driver, CUstream::NULL));
    for of_its_own in [false, true] {
        let context = of_its_own.then(|| own_context(&driver, 0));
        let act = || {
            let stream = stream(&driver);
            let fence = works.submit(&[copy(&src, &dst)]).unwrap();
            follow(&works, stream, &[fence]).unwrap();
            copy_out(&driver, stream, &landing, dst.position() + END, 4096);
            synchronize(&driver, stream);
            assert!(
                read(&landing) == bytes[END as usize..],
                "it was not waited for"
            );
            assert_eq!(works.outcome(fence), Outcome::Done);
            theirs::destroy(&driver, stream);
        };
        match context {
            Some(context) => {
                act();
                theirs::destroy_context(&driver, context);
            }
            None => own::beside(&driver, 0, act),
        }
        works.upload(&dst, &vec![0; LONG]);
    }
    drop((src, landing, dst, works));
    assert_clean();
}

#[test]
fn a_stream_follows_all_of_the_fences() {
    let works = slow();
    let driver = works.cuda.driver().clone();
    let [first, second] = [4, 5].map(|seed| pattern(seed, LONG));
    let (up, there) = (works.pinned(&first), works.allocate(device(0), LONG));
    let (other, away) = (works.allocate(device(1), LONG), works.pinned(&second));
    let landing = works.allocate(pinned(), 8192);
    works.upload(&there, &vec![0; LONG]);
    works.upload(&other, &vec![0; LONG]);
    own::beside(&driver, 0, || {
        let stream = stream(&driver);
        let fences =
            [copy(&up, &there), copy(&away, &other)].map(|op| works.submit(&[op]).unwrap());
        follow(&works, stream, &fences).unwrap();
        for (at, of) in [(0, &there), (4096, &other)] {
            let to = landing.slice(at, 4096).unwrap();
            copy_out(&driver, stream, &to, of.position() + END, 4096);
        }
        synchronize(&driver, stream);
        let wanted = [&first[END as usize..], &second[END as usize..]].concat();
        assert!(read(&landing) == wanted);
        for fence in fences {
            assert_eq!(works.outcome(fence), Outcome::Done);
        }
        theirs::destroy(&driver, stream);
    });
}

#[test]
fn what_has_settled_is_not_waited_for() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        let stream = stream(&driver);
        let (src, dst) = (works.pinned(&[1; 64]), works.allocate(device(0), 64));
        let fence = works.submit(&[copy(&src, &dst)]).unwrap();
        assert_eq!(works.outcome(fence), Outcome::Done);
        let fences = [fence, Fence::immediate(transload_cuda::BACKEND)];
        follow(&works, stream, &fences).unwrap();
        follow(&works, stream, &[]).unwrap();
        assert_eq!(calls("cuStreamWaitEvent"), 0);
        theirs::destroy(&driver, stream);
    });
}

#[test]
fn what_no_stream_can_wait_for_is_named() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    own::beside(&driver, 0, || {
        let [stream, busy] = [0; 2].map(|_| stream(&driver));
        let foreign = Fence::new(BackendId(Name::constant("other")), 77);
        let error = follow(&works, stream, &[foreign]).unwrap_err();
        assert!(matches!(error, StreamError::ForeignFence { .. }), "{error}");
        assert!(error.to_string().contains("other!77"), "{error}");
        assert_eq!(error.class(), ErrorClass::Caller);

        // A thread waits for all work of the device, the user's included.
        let go_on = stop(&driver, busy);
        let buffer = works.allocate(device(0), 64);
        buffer.expose();
        let visible = Op::MakeVisible {
            part: part(&buffer, 0, 64),
        };
        let fence = works.submit(&[visible]).unwrap();
        let error = follow(&works, stream, &[fence]).unwrap_err();
        assert!(matches!(error, StreamError::NoEvent { .. }), "{error}");
        assert!(error.to_string().contains(&format!("{fence:?}")), "{error}");
        assert_eq!(error.class(), ErrorClass::Unsupported);
        go_on.release();
        assert_eq!(works.outcome(fence), Outcome::Done);
        assert_eq!(whole(&buffer).len_bytes, 64);
        for stream in [stream, busy] {
            theirs::destroy(&driver, stream);
        }
    });
}

#[test]
fn a_stream_does_not_follow_a_device_that_is_lost() {
    let works = Works::in_use(&[("TOPOLOGY", &super::common::machine("no-peer"))]);
    let driver = works.cuda.driver().clone();
    let (src, dst) = (works.pinned(&[1; 64]), works.allocate(device(1), 64));
    super::control("fault ecc").unwrap();
    let Ok(fence) = works.submit(&[copy(&src, &dst)]) else {
        // The loss was found before the call returned.
        return;
    };
    assert!(matches!(works.outcome(fence), Outcome::Lost(_)));
    own::beside(&driver, 0, || {
        let stream = stream(&driver);
        let error = follow(&works, stream, &[fence]).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Lost, "{error}");
        assert!(error.to_string().contains("cuda:1"), "{error}");
        theirs::destroy(&driver, stream);
    });
    assert_eq!(works.cuda.inventory().devices.len(), 2);
}
