//! A copy from a host page that never arrives holds up only its own transfer.
#![cfg(all(target_os = "linux", not(any(loom, transload_local))))]

use crate::plain;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::stuck_page::{PAGE, StuckPages};
use crate::within::within_limit;
use transload::{Buffer, OnFailure, Report, Request, TransferError, TransferManager};

const LEN: usize = 8 << 20;
/// The pages of the source that block: worker threads start at its front, and a helping thread at its back.
const PLACES: [&[usize]; 3] = [&[0], &[LEN - PAGE], &[LEN / 2]];
/// A small copy, which the submitting thread makes; and large ones.
const SCENES: [(usize, &[usize]); 4] = [
    (PAGE, &[0]),
    (LEN, PLACES[0]),
    (LEN, PLACES[1]),
    (LEN, PLACES[2]),
];

/// A manager and a source with pages that block.
struct Scene {
    // The first field, so that it is dropped first: stuck threads then resume.
    stuck: StuckPages,
    manager: TransferManager,
    src: Buffer,
    dst: Buffer,
}

impl Scene {
    fn new(len: usize, at: &[usize]) -> Option<Scene> {
        let wanted: Vec<u8> = (0..len).map(|i| (i >> 12) as u8 ^ i as u8).collect();
        let (stuck, mapping) = match StuckPages::new(wanted, at) {
            Ok(made) => made,
            Err(error) => {
                skip(&error);
                return None;
            }
        };
        let (manager, _) = plain::manager(&["plain"]);
        Some(Scene {
            src: manager.adopt(mapping).unwrap(),
            dst: manager.adopt(vec![0u8; len]).unwrap(),
            stuck,
            manager,
        })
    }

    /// A copy that another thread waits for, and that is stuck when this returns.
    fn begin(&self) -> JoinHandle<Result<Report, TransferError>> {
        let (manager, src, dst) = (self.manager.clone(), self.src.clone(), self.dst.clone());
        let waiter = thread::spawn(move || manager.copy(&src, &dst).wait());
        self.stuck.await_touch();
        waiter
    }

    /// Fills the page, and waits for the bytes to arrive.
    fn finish(&self) {
        self.stuck.resolve();
        self.manager.wait_idle();
        assert!(*self.src.read().unwrap() == *self.dst.read().unwrap());
    }

    fn heap(&self, len: usize) -> (Buffer, Buffer) {
        let adopt = |byte| self.manager.adopt(vec![byte; len]).unwrap();
        (adopt(7), adopt(0))
    }
}

/// Reports the test as skipped, not as passed.
fn skip(error: &std::io::Error) {
    use std::io::Write as _;
    let test = thread::current().name().unwrap_or("stuck_pages").to_owned();
    println!("skipped {test}: userfaultfd is refused here: {error}");
    if let Some(file) = std::env::var_os("TRANSLOAD_SKIPS") {
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(file);
        writeln!(
            file.unwrap(),
            "{test}: userfaultfd is refused here: {error}"
        )
        .unwrap();
    }
}

/// Runs the case while a copy is stuck, for each place of the page in the source.
fn while_stuck(case: fn(&Scene)) {
    for (len, at) in SCENES {
        within_limit(&format!("{len} bytes, pages at {at:?}"), move || {
            let Some(scene) = Scene::new(len, at) else {
                return;
            };
            let waiter = scene.begin();
            case(&scene);
            scene.finish();
            waiter.join().unwrap().unwrap();
        });
    }
}

/// Calls `f` on a thread of its own.
fn elsewhere<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> Receiver<R> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(f()));
    told
}

#[test]
fn a_future_of_another_backend_is_told() {
    while_stuck(|scene| {
        let [src, dst] = [7, 0].map(|byte| plain::filled(&scene.manager, "plain", 5000, byte));
        let transfer = scene.manager.copy(&src, &dst);
        let told = elsewhere(|| pollster::block_on(transfer));
        told.recv().unwrap().unwrap();
        assert_eq!(*dst.read().unwrap(), [7; 5000]);
    });
}

#[test]
fn futures_of_the_heap_are_told() {
    while_stuck(|scene| {
        for len in [4 << 10, 8 << 20].repeat(8) {
            let (src, dst) = scene.heap(len);
            let transfer = scene.manager.copy(&src, &dst);
            let told = elsewhere(|| pollster::block_on(transfer));
            told.recv().unwrap().unwrap();
            assert!(*dst.read().unwrap() == *src.read().unwrap());
        }
    });
}

#[test]
fn waits_for_other_copies_of_the_heap_return() {
    while_stuck(|scene| {
        for len in [4 << 10, 8 << 20] {
            let (src, dst) = scene.heap(len);
            scene.manager.copy(&src, &dst).wait().unwrap();
            assert!(*dst.read().unwrap() == *src.read().unwrap());
        }
    });
}

#[test]
fn a_deadline_of_another_transfer_is_told_to_each_sort_of_handle() {
    while_stuck(|scene| {
        let never = scene.manager.event();
        let (src, dst) = scene.heap(1000);
        let submit = || {
            let deadline = scene.manager.now() + Duration::from_millis(5);
            let request = Request::new(&src, &dst).after(&never).deadline(deadline);
            scene.manager.submit(&request)
        };
        let (waited, awaited, watched) = (submit(), submit(), submit());
        let told = [
            elsewhere(|| waited.wait()),
            elsewhere(|| pollster::block_on(awaited)),
        ];
        while !watched.is_over() {
            thread::yield_now();
        }
        let told = told.map(|told| told.recv().unwrap());
        for answer in told.into_iter().chain([watched.wait()]) {
            assert_eq!(answer, Err(TransferError::Deadline { leading_bytes: 0 }));
        }
    });
}

#[test]
fn a_manager_is_not_idle_and_says_so_within_the_limit() {
    while_stuck(|scene| {
        let limit = Duration::from_millis(50);
        assert!(!scene.manager.wait_idle_timeout(limit));
    });
}

/// The waiting thread must not begin a part of the copy that it cannot leave again.
#[test]
fn a_limited_wait_for_the_stuck_transfer_itself_returns() {
    for at in PLACES.into_iter().chain([&[0, LEN - PAGE][..]]) {
        within_limit(&format!("pages at {at:?}"), move || {
            let Some(scene) = Scene::new(LEN, at) else {
                return;
            };
            let mut transfer = scene.manager.copy(&scene.src, &scene.dst);
            let limit = Duration::from_millis(50);
            assert!(transfer.wait_timeout(limit).is_none());
            scene.stuck.await_touch();
            assert!(transfer.wait_timeout(limit).is_none());
            assert!(!transfer.is_over());
            scene.stuck.resolve();
            transfer.wait().unwrap();
            scene.finish();
        });
    }
}

#[test]
fn a_deadline_of_the_stuck_transfer_itself_is_kept() {
    for at in PLACES.into_iter().chain([&[0, LEN - PAGE][..]]) {
        within_limit(&format!("pages at {at:?}"), move || {
            let Some(scene) = Scene::new(LEN, at) else {
                return;
            };
            let deadline = scene.manager.now() + Duration::from_millis(50);
            let request = Request::new(&scene.src, &scene.dst).deadline(deadline);
            let result = scene.manager.submit(&request).wait();
            let Err(TransferError::Deadline { leading_bytes }) = result else {
                panic!("{result:?}");
            };
            assert!(leading_bytes <= at[0] as u64);
            // The deadline leaves out the pieces that no thread has begun: on a busy machine that may be all.
            scene.stuck.resolve();
            scene.manager.wait_idle();
            let (src, dst) = (scene.src.read().unwrap(), scene.dst.read().unwrap());
            let mut bytes = src.iter().zip(&*dst);
            assert!(bytes.all(|(src, dst)| dst == src || *dst == 0));
            assert!(src[..leading_bytes as usize] == dst[..leading_bytes as usize]);
        });
    }
}

/// The thread that starts a copy of one page makes the copy; here an event's setter starts it.
#[test]
fn a_small_copy_that_an_event_starts_holds_up_no_thread_of_another_transfer() {
    within_limit("one page", || {
        let Some(scene) = Scene::new(PAGE, &[0]) else {
            return;
        };
        let gate = scene.manager.event();
        let request = Request::new(&scene.src, &scene.dst).after(&gate);
        drop(scene.manager.submit(&request));
        gate.setter()();
        for len in [4 << 10, 8 << 20] {
            let (src, dst) = scene.heap(len);
            let (waited, awaited) = (
                scene.manager.copy(&src, &dst),
                scene.manager.copy(&dst, &src),
            );
            let told = elsewhere(|| pollster::block_on(awaited));
            waited.wait().unwrap();
            told.recv().unwrap().unwrap();
        }
        scene.stuck.await_touch();
        scene.finish();
    });
}

#[test]
fn a_batch_of_larger_copies_is_submitted_whatever_pages_they_need() {
    within_limit("one page", || {
        let (len, each) = (1 << 20, 64 << 10);
        let Some(scene) = Scene::new(len, &[0]) else {
            return;
        };
        let part = |buffer: &Buffer, at: u64| buffer.slice(at..at + each).unwrap();
        let requests: Vec<Request> = (0..len as u64)
            .step_by(each as usize)
            .map(|at| Request::new(part(&scene.src, at), part(&scene.dst, at)))
            .collect();
        let batch = scene.manager.copy_batch(&requests, OnFailure::GoOn);
        scene.stuck.await_touch();
        scene.finish();
        assert!(batch.unwrap().wait().iter().all(Result::is_ok));
    });
}
