//! A call within a backend's callback waits neither for a device nor for other transfers.
#![cfg(not(any(loom, transload_local)))]

use crate::within::within_limit;
use transload::hal::{ErrorClass, run_callback};
use transload::{Buffer, Cancelled, Event, GuardError, Request, TransferError, TransferManager};

const LEN: usize = 1000;

struct Scene {
    manager: TransferManager,
    src: Buffer,
    dst: Buffer,
    event: Event,
}

impl Scene {
    /// A copy that waits for the event.
    fn waiting(&self) -> transload::Transfer {
        let request = Request::new(&self.src, &self.dst).after(&self.event);
        self.manager.submit(&request)
    }
}

fn with_buffers(len: usize, case: fn(&Scene)) {
    within_limit("two buffers", move || {
        let manager = TransferManager::builder().host().build().unwrap();
        case(&Scene {
            src: manager.adopt(vec![1u8; len]).unwrap(),
            dst: manager.adopt(vec![0u8; len]).unwrap(),
            event: manager.event(),
            manager,
        });
    });
}

#[test]
fn a_wait_for_others_is_refused_and_the_transfer_goes_on() {
    with_buffers(LEN, |scene| {
        let copy = scene.waiting();
        let error = run_callback(|| copy.wait()).unwrap_err();
        assert_eq!(error, TransferError::WouldBlock);
        assert_eq!(error.class(), ErrorClass::Unsupported);
        scene.event.set();
        assert_eq!(*scene.dst.read().unwrap(), [1; LEN]);
    });
}

#[test]
fn a_guard_that_has_to_wait_is_refused() {
    with_buffers(LEN, |scene| {
        let copy = scene.waiting();
        run_callback(|| {
            let refused = [scene.dst.read().err(), scene.dst.write().err()];
            for error in refused.map(|error| error.expect("there was a guard")) {
                assert!(matches!(error, GuardError::WouldBlock { .. }), "{error}");
            }
            // No transfer precedes this one.
            assert_eq!(*scene.src.read().unwrap(), [1; LEN]);
        });
        scene.event.set();
        copy.wait().unwrap();
    });
}

#[test]
fn a_copy_of_borrowed_bytes_that_has_to_wait_never_moves_them() {
    with_buffers(LEN, |scene| {
        let copy = scene.waiting();
        let refused = run_callback(|| scene.manager.copy_from_slice(&[5; LEN], &scene.dst));
        assert_eq!(refused, Err(TransferError::WouldBlock));
        scene.event.set();
        copy.wait().unwrap();
        assert_eq!(*scene.dst.read().unwrap(), [1; LEN]);
        run_callback(|| scene.manager.copy_from_slice(&[5; LEN], &scene.dst)).unwrap();
        assert_eq!(*scene.dst.read().unwrap(), [5; LEN]);
    });
}

#[test]
fn a_transfer_that_has_not_begun_is_cancelled() {
    with_buffers(LEN, |scene| {
        let copy = scene.waiting();
        assert_eq!(run_callback(|| copy.cancel()), Cancelled::NotStarted);
        assert_eq!(*scene.dst.read().unwrap(), [0; LEN]);
    });
}

/// The host's threads do not need the callback to return.
#[test]
fn a_copy_between_memories_of_the_host_that_has_begun_is_waited_for() {
    with_buffers(32 << 20, |scene| {
        run_callback(|| scene.manager.copy(&scene.src, &scene.dst).wait()).unwrap();
        assert!(scene.dst.read().unwrap().iter().all(|byte| *byte == 1));
    });
}
