//! What would wait for a guard that the same thread holds is an error that names the guard.
#![cfg(not(any(loom, transload_local)))]

mod within;

use std::sync::mpsc;
use std::thread;

use transload::hal::ErrorClass;
use transload::{Buffer, Error, TransferManager};
use within::within_limit;

const LEN: usize = 1000;

struct Scene {
    manager: TransferManager,
    buffer: Buffer,
    other: Buffer,
}

/// Runs the case with two buffers. After it the buffers are usable as before.
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
        // The guard that is held stays as it is.
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
        // Other bytes are no conflict.
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

/// The second guard comes behind the copy in the order, and the copy behind the first guard.
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
