//! A call that would wait for a guard of the same thread returns an error that names the guard.
#![cfg(not(any(loom, transload_local)))]

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::within::within_limit;
use transload::hal::{Advice, ErrorClass, ExternalKind};
use transload::{AllocSpec, Buffer, Error, Request, TransferError, TransferManager};

const LEN: usize = 1000;

struct Scene {
    manager: TransferManager,
    buffer: Buffer,
    other: Buffer,
}

/// Runs the case with two buffers. Afterwards the buffers must be usable as before.
fn with_buffers(case: fn(&Scene)) {
    within_limit("two buffers", move || {
        let manager = TransferManager::builder().host().build().unwrap();
        let scene = Scene {
            buffer: manager.adopt(vec![1u8; LEN]).unwrap(),
            other: manager.adopt(vec![2u8; LEN]).unwrap(),
            manager,
        };
        case(&scene);
        scene.manager.wait_idle();
        scene.buffer.write().unwrap().fill(3);
        scene
            .manager
            .copy(&scene.buffer, &scene.other)
            .wait()
            .unwrap();
        assert_eq!(*scene.other.read().unwrap(), [3; LEN]);
    });
}

#[track_caller]
fn names_the_guard<T, E: Into<Error>>(answer: Result<T, E>) {
    let error: Error = answer.err().expect("there was no error").into();
    let text = error.to_string();
    assert!(text.contains("guard"), "{text}");
    assert_eq!(error.class(), ErrorClass::Caller, "{text}");
}

#[test]
fn writing_what_this_thread_reads_is_an_error() {
    with_buffers(|scene| {
        let guard = scene.buffer.read().unwrap();
        names_the_guard(scene.buffer.write());
        // The held guard stays as it is.
        assert_eq!(*guard, [1; LEN]);
    });
}

#[test]
fn reading_and_writing_what_this_thread_writes_are_errors() {
    with_buffers(|scene| {
        let mut guard = scene.buffer.write().unwrap();
        names_the_guard(scene.buffer.read());
        names_the_guard(scene.buffer.write());
        guard.fill(4);
    });
}

#[test]
fn a_slice_of_what_this_thread_holds_is_no_other_buffer() {
    with_buffers(|scene| {
        let guard = scene.buffer.slice(..10).unwrap().read().unwrap();
        names_the_guard(scene.buffer.write());
        names_the_guard(scene.buffer.slice(9..20).unwrap().write());
        // Other bytes do not conflict.
        scene.buffer.slice(10..).unwrap().write().unwrap().fill(1);
        assert_eq!(*guard, [1; 10]);
    });
}

#[test]
fn two_guards_of_one_thread_that_only_read_live_together() {
    with_buffers(|scene| {
        let guards = [(); 2].map(|()| scene.buffer.read().unwrap());
        assert_eq!(*guards[0], *guards[1]);
    });
}

#[test]
fn waiting_for_a_copy_into_what_this_thread_holds_is_an_error() {
    with_buffers(|scene| {
        let guard = scene.buffer.read().unwrap();
        names_the_guard(scene.manager.copy(&scene.other, &scene.buffer).wait());
        assert_eq!(*guard, [1; LEN]);
    });
    with_buffers(|scene| {
        let guard = scene.buffer.write().unwrap();
        names_the_guard(scene.manager.copy(&scene.other, &scene.buffer).wait());
        assert_eq!(*guard, [1; LEN]);
    });
}

#[test]
fn waiting_for_a_copy_out_of_what_this_thread_writes_is_an_error() {
    with_buffers(|scene| {
        let guard = scene.buffer.write().unwrap();
        names_the_guard(scene.manager.copy(&scene.buffer, &scene.other).wait());
        drop(guard);
    });
}

#[test]
fn copying_borrowed_bytes_to_and_from_what_this_thread_holds_is_an_error() {
    with_buffers(|scene| {
        let mut bytes = [5; LEN];
        let guard = scene.buffer.write().unwrap();
        names_the_guard(scene.manager.copy_from_slice(&bytes, &scene.buffer));
        names_the_guard(scene.manager.copy_into_slice(&scene.buffer, &mut bytes));
        assert_eq!(bytes, [5; LEN]);
        assert_eq!(*guard, [1; LEN]);
    });
}

/// The second guard follows the copy in the order, and the copy follows the first guard.
#[test]
fn reading_behind_a_copy_that_waits_for_this_threads_guard_is_an_error() {
    with_buffers(|scene| {
        let guard = scene.buffer.read().unwrap();
        let copy = scene.manager.copy(&scene.other, &scene.buffer);
        names_the_guard(scene.buffer.read());
        assert!(!copy.is_over());
        drop(guard);
        copy.wait().unwrap();
    });
}

#[test]
fn a_copy_that_was_submitted_under_a_guard_ends_when_the_guard_was_dropped() {
    with_buffers(|scene| {
        let guard = scene.buffer.read().unwrap();
        let copy = scene.manager.copy(&scene.other, &scene.buffer);
        drop(guard);
        copy.wait().unwrap();
        assert_eq!(*scene.buffer.read().unwrap(), [2; LEN]);
    });
}

#[test]
fn a_guard_of_another_thread_is_waited_for() {
    with_buffers(|scene| {
        for _ in 0..50 {
            let buffer = scene.buffer.clone();
            let ((held, is_held), (end, ends)) = (mpsc::channel(), mpsc::channel());
            let holder = thread::spawn(move || {
                let guard = buffer.read().unwrap();
                held.send(()).unwrap();
                ends.recv().unwrap();
                drop(guard);
            });
            is_held.recv().unwrap();
            end.send(()).unwrap();
            scene.buffer.write().unwrap().fill(1);
            holder.join().unwrap();
        }
    });
}

#[test]
fn hints_and_exports_of_what_this_thread_writes_are_errors() {
    with_buffers(|scene| {
        let place = "cpu:0/shared".parse().unwrap();
        let shared = scene.manager.allocate(place, AllocSpec::bytes(100));
        let shared = shared.unwrap();
        let guard = shared.write().unwrap();
        let cpu = "cpu:0".parse().unwrap();
        names_the_guard(scene.manager.prefetch(&shared, cpu));
        names_the_guard(scene.manager.advise(&shared, Advice::Sequential));
        names_the_guard(scene.manager.export(&shared, ExternalKind::File));
        drop(guard);
        let _guard = shared.read().unwrap();
        scene.manager.prefetch(&shared, cpu).unwrap();
        scene.manager.advise(&shared, Advice::Sequential).unwrap();
    });
}

#[test]
fn a_batch_behind_a_guard_tells_so_of_each_transfer_that_waits_for_it() {
    with_buffers(|scene| {
        let third = scene.manager.adopt(vec![4u8; LEN]).unwrap();
        let guard = scene.buffer.read().unwrap();
        let requests = [
            Request::new(&scene.buffer, &scene.other),
            Request::new(&scene.other, &scene.buffer),
            Request::new(&scene.buffer, &third),
        ];
        let batch = scene.manager.copy_batch(&requests, Default::default());
        let [first, second, third]: [_; 3] = batch.unwrap().wait().try_into().unwrap();
        first.unwrap();
        names_the_guard(second);
        names_the_guard(third);
        drop(guard);
    });
}

#[test]
fn a_transfer_with_a_deadline_is_waited_for_behind_a_guard_of_this_thread() {
    with_buffers(|scene| {
        let guard = scene.buffer.read().unwrap();
        let soon = scene.manager.now() + Duration::from_millis(5);
        let request = Request::new(&scene.other, &scene.buffer).deadline(soon);
        let late = scene.manager.submit(&request);
        // The guard follows the copy, which ends at its deadline.
        assert_eq!(*scene.buffer.read().unwrap(), [1; LEN]);
        let ended = late.wait();
        assert_eq!(ended, Err(TransferError::Deadline { leading_bytes: 0 }));
        drop(guard);
    });
}

#[test]
fn a_limited_wait_behind_a_guard_of_this_thread_times_out() {
    with_buffers(|scene| {
        let guard = scene.buffer.read().unwrap();
        let mut copy = scene.manager.copy(&scene.other, &scene.buffer);
        assert_eq!(copy.wait_timeout(Duration::ZERO), None);
        drop(guard);
        copy.wait().unwrap();
    });
}

#[test]
fn a_transfer_that_a_wait_was_refused_for_goes_on_after_the_guard() {
    with_buffers(|scene| {
        let guard = scene.buffer.read().unwrap();
        names_the_guard(scene.manager.copy(&scene.other, &scene.buffer).wait());
        drop(guard);
        assert_eq!(*scene.buffer.read().unwrap(), [2; LEN]);
    });
}

#[test]
fn a_copy_of_borrowed_bytes_that_was_refused_never_moves_them() {
    with_buffers(|scene| {
        let guard = scene.buffer.read().unwrap();
        names_the_guard(scene.manager.copy_from_slice(&[5; LEN], &scene.buffer));
        drop(guard);
        scene.manager.wait_idle();
        assert_eq!(*scene.buffer.read().unwrap(), [1; LEN]);
    });
}

#[test]
fn guards_of_another_manager_are_no_concern() {
    with_buffers(|scene| {
        let manager = TransferManager::builder().host().build().unwrap();
        let theirs = manager.adopt(vec![1u8; LEN]).unwrap();
        let guards = [(); 10].map(|()| theirs.read().unwrap());
        scene.buffer.write().unwrap().fill(3);
        names_the_guard(theirs.write());
        drop(guards);
        theirs.write().unwrap().fill(3);
    });
}

/// The copy waits for an event that another thread sets, and not for a guard of this thread.
#[test]
fn a_transfer_that_waits_for_another_thread_is_waited_for_under_guards() {
    with_buffers(|scene| {
        let event = scene.manager.event();
        let (third, fourth) = (vec![6u8; LEN], vec![0u8; LEN]);
        let [third, fourth] = [third, fourth].map(|bytes| scene.manager.adopt(bytes).unwrap());
        let guard = scene.buffer.write().unwrap();
        let request = Request::new(&third, &fourth).after(&event);
        let copy = scene.manager.submit(&request);
        let setter = thread::spawn(move || event.set());
        copy.wait().unwrap();
        setter.join().unwrap();
        drop(guard);
    });
}
