//! Guards that callers try or await.
#![cfg(not(any(loom, transload_local)))]

use std::future::Future;
use std::pin::pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use crate::within::within_limit;
use transload::hal::{ErrorClass, External, ExternalKind};
use transload::{
    Buffer, GuardError, ReadFuture, ReadGuard, Request, TransferError, TransferManager,
    WriteFuture, WriteGuard,
};

const LEN: usize = 1000;

struct Scene {
    manager: TransferManager,
    buffer: Buffer,
    other: Buffer,
}

fn with_buffers(case: fn(&Scene)) {
    within_limit("two buffers", move || {
        let manager = TransferManager::builder().host().build().unwrap();
        case(&Scene {
            buffer: manager.adopt(vec![1u8; LEN]).unwrap(),
            other: manager.adopt(vec![2u8; LEN]).unwrap(),
            manager,
        });
    });
}

#[track_caller]
fn would_block<G>(tried: Result<G, GuardError>) {
    let error = tried.err().expect("there was a guard");
    assert!(matches!(error, GuardError::WouldBlock { .. }), "{error}");
    assert_eq!(error.class(), ErrorClass::Exhausted);
}

#[track_caller]
fn is_held_here<G>(tried: Result<G, GuardError>) {
    let error = tried.err().expect("there was a guard");
    assert!(matches!(error, GuardError::GuardHeld { .. }), "{error}");
}

/// Counts wake-ups.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Woken {
    fn poll<F: Future + Unpin>(self: &Arc<Self>, future: &mut F) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(self));
        pin!(future).poll(&mut Context::from_waker(&waker))
    }

    fn times(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn a_guard_is_tried_in_vain_while_others_forbid_it() {
    with_buffers(|scene| {
        let reads = scene.buffer.try_read().unwrap();
        assert_eq!(*scene.buffer.try_read().unwrap(), [1; LEN]);
        is_held_here(scene.buffer.try_write());
        drop(reads);
        let mut writes = scene.buffer.try_write().unwrap();
        writes.fill(7);
        is_held_here(scene.buffer.try_write());
        is_held_here(scene.buffer.slice(..1).unwrap().try_read());
        let buffer = scene.buffer.clone();
        thread::spawn(move || would_block(buffer.try_read()))
            .join()
            .unwrap();
        drop(writes);
        assert_eq!(*scene.buffer.try_read().unwrap(), [7; LEN]);
    });
}

#[test]
fn a_guard_is_tried_in_vain_before_a_transfer_that_was_submitted_has_ended() {
    with_buffers(|scene| {
        let event = scene.manager.event();
        let request = Request::new(&scene.other, &scene.buffer).after(&event);
        let copy = scene.manager.submit(&request);
        would_block(scene.buffer.try_read());
        would_block(scene.buffer.try_write());
        would_block(scene.other.try_write());
        assert_eq!(*scene.other.try_read().unwrap(), [2; LEN]);
        event.set();
        copy.wait().unwrap();
        assert_eq!(*scene.buffer.try_read().unwrap(), [2; LEN]);
    });
}

#[test]
fn what_can_never_be_written_is_not_tried() {
    with_buffers(|scene| {
        let fixed = scene.manager.adopt(&[1u8; 4][..]).unwrap();
        let read_only = |error| matches!(error, Err(GuardError::ReadOnly { .. }));
        assert!(read_only(fixed.try_write().map(drop)));
        let awaited = pollster::block_on(fixed.write_async());
        assert!(read_only(awaited.map(drop)));
    });
}

#[test]
fn an_awaited_guard_comes_behind_the_transfers_before_it() {
    with_buffers(|scene| {
        let event = scene.manager.event();
        let request = Request::new(&scene.other, &scene.buffer).after(&event);
        let copy = scene.manager.submit(&request);
        let woken = Arc::<Woken>::default();
        let mut coming = scene.buffer.read_async();
        assert!(woken.poll(&mut coming).is_pending());
        let setter = thread::spawn(move || event.set());
        assert_eq!(*pollster::block_on(coming).unwrap(), [2; LEN]);
        setter.join().unwrap();
        copy.wait().unwrap();
    });
}

#[test]
fn an_awaited_guard_has_its_place_before_it_is_polled() {
    with_buffers(|scene| {
        let coming = scene.buffer.read_async();
        let copy = scene.manager.copy(&scene.other, &scene.buffer);
        let guard = pollster::block_on(coming).unwrap();
        assert_eq!(*guard, [1; LEN]);
        assert!(!copy.is_over());
        drop(guard);
        copy.wait().unwrap();
        let mut guard = pollster::block_on(scene.buffer.write_async()).unwrap();
        assert_eq!(*guard, [2; LEN]);
        guard.fill(3);
    });
}

#[test]
fn a_guard_shows_where_the_bytes_are_when_its_turn_comes() {
    with_buffers(|scene| {
        let mut elsewhere = vec![9u8; LEN];
        let writes = scene.buffer.write().unwrap();
        let woken = Arc::new(Woken::default());
        let mut coming = scene.buffer.read_async();
        assert!(woken.poll(&mut coming).is_pending());
        // SAFETY: these bytes outlive the guard, and the test does not touch them meanwhile.
        unsafe {
            scene
                .buffer
                .raw()
                .set_mapped(NonNull::new(elsewhere.as_mut_ptr()))
        };
        drop(writes);
        let Poll::Ready(Ok(guard)) = woken.poll(&mut coming) else {
            panic!("nothing stands before it");
        };
        assert_eq!(*guard, [9; LEN]);
        drop(guard);
    });
}

#[test]
fn the_end_of_a_guard_wakes_the_task_that_awaits_the_next() {
    with_buffers(|scene| {
        let woken = Arc::<Woken>::default();
        let guard = scene.buffer.write().unwrap();
        let mut coming = scene.buffer.read_async();
        assert!(woken.poll(&mut coming).is_pending());
        assert_eq!(woken.times(), 0);
        drop(guard);
        assert_eq!(woken.times(), 1);
        assert!(woken.poll(&mut coming).is_ready());
    });
}

#[test]
fn a_future_that_is_dropped_gives_its_place_back() {
    with_buffers(|scene| {
        let woken = Arc::<Woken>::default();
        let guard = scene.buffer.read().unwrap();
        let mut coming = scene.buffer.write_async();
        assert!(woken.poll(&mut coming).is_pending());
        let mut behind = scene.buffer.read_async();
        assert!(woken.poll(&mut behind).is_pending());
        is_held_here(scene.buffer.try_read());
        drop(coming);
        assert_eq!(woken.times(), 1, "the reader behind it, and not the writer");
        assert!(woken.poll(&mut behind).is_ready());
        drop(guard);
        // This future has no conflict, and is never polled.
        let unpolled = scene.buffer.write_async();
        would_block(scene.buffer.try_read());
        drop(unpolled);
        scene.buffer.try_write().unwrap().fill(3);
    });
}

#[test]
fn a_broadcast_that_a_guard_of_the_waiting_thread_holds_up_is_told() {
    with_buffers(|scene| {
        let third = scene.manager.adopt(vec![3u8; LEN]).unwrap();
        let guard = scene.buffer.write().unwrap();
        let requests = [&scene.other, &third].map(|to| Request::new(&scene.buffer, to));
        let group = scene.manager.broadcast(&requests).unwrap();
        for refused in group.wait() {
            assert!(
                matches!(refused, Err(TransferError::GuardHeld { .. })),
                "{refused:?}"
            );
        }
        drop(guard);
    });
}

#[test]
fn a_guard_is_of_the_thread_that_awaited_it() {
    with_buffers(|scene| {
        let (buffer, coming) = (scene.buffer.clone(), scene.buffer.write_async());
        let elsewhere = thread::spawn(move || {
            let guard = pollster::block_on(coming).unwrap();
            let refused = buffer.read().unwrap_err();
            assert!(matches!(refused, GuardError::GuardHeld { .. }), "{refused}");
            drop(guard);
        });
        // This thread holds no guard, so it waits.
        assert_eq!(*scene.buffer.read().unwrap(), [1; LEN]);
        elsewhere.join().unwrap();
    });
}

#[test]
fn many_tasks_that_await_guards_all_get_them() {
    with_buffers(|scene| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let buffer = scene.buffer.clone();
                thread::spawn(move || {
                    for _ in 0..100 {
                        let count = async {
                            let mut guard = buffer.write_async().await.unwrap();
                            guard[0] = guard[0].wrapping_add(1);
                        };
                        pollster::block_on(count);
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_eq!(scene.buffer.read().unwrap()[0], (1 + 400 % 256) as u8);
    });
}

/// Futures may be sent to other threads; guards may be shared by reference.
#[test]
fn futures_of_guards_are_sent_and_guards_are_shared() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    is_send::<(ReadFuture, WriteFuture)>();
    is_sync::<(ReadGuard, WriteGuard)>();
}

#[test]
fn lent_bytes_are_those_of_earlier_transfers_and_stay_when_all_else_is_gone() {
    with_buffers(|scene| {
        let go = scene.manager.event();
        let manager = &scene.manager;
        let copy = manager.submit(&Request::new(&scene.other, &scene.buffer).after(&go));
        let lent = thread::scope(|scope| {
            let lend = || scene.buffer.lend(ExternalKind::Host).unwrap();
            let lent = scope.spawn(lend);
            assert!(!lent.is_finished());
            go.set();
            lent.join().unwrap()
        });
        copy.wait().unwrap();
        let External::Host { span, writable, .. } = &lent else {
            panic!("{lent:?}");
        };
        // SAFETY: the buffer keeps the bytes, and nothing writes them.
        assert!(unsafe { span.as_slice() } == [2; LEN] && *writable);
        // Nothing waits for the borrower.
        manager.copy(&scene.other, &scene.buffer).wait().unwrap();
        assert!(!scene.buffer.is_unique());
        drop(lent);
        // Another thread that turned the engine may drop its view a moment later.
        while !scene.buffer.is_unique() {
            thread::yield_now();
        }
        let guard = scene.buffer.write().unwrap();
        let error = scene.buffer.lend(ExternalKind::Host).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Caller, "{error}");
        drop(guard);
        let error = scene.buffer.lend(ExternalKind::DevicePointer).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Unsupported, "{error}");
    });
}
