//! Events, handlers, the order of queues.

use crate::common;

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use block2::RcBlock;
use common::*;
use objc2::AllocAnyThread as _;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSRange;
use objc2_metal::{
    MTLBlitCommandEncoder as _, MTLCommandBuffer as _, MTLCommandBufferStatus,
    MTLCommandQueue as _, MTLDevice as _, MTLSharedEvent as _, MTLSharedEventListener,
};
use transload_metal_double::{Misuse, counters, hold, release, settle, step};

fn fill(encoder: &Encoder, buffer: &Buffer, value: u8) {
    encoder.fillBuffer_range_value(
        buffer,
        NSRange {
            location: 0,
            length: 64,
        },
        value,
    );
}

#[test]
fn a_queue_waits_for_an_event_that_the_host_sets() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let event = device.newSharedEvent().unwrap();
        let buffer = buffer(&device, 64, SHARED);
        let commands = queue.commandBuffer().unwrap();
        commands.encodeWaitForEvent_value(ProtocolObject::from_ref(&*event), 3);
        encode_into(&commands, |encoder| fill(encoder, &buffer, 9));
        commands.encodeSignalEvent_value(ProtocolObject::from_ref(&*event), 4);
        commands.commit();
        settle();
        assert_eq!(read(&buffer), [0; 64], "the event is not set");
        event.setSignaledValue(2);
        settle();
        assert_eq!(commands.status(), MTLCommandBufferStatus::Committed);
        event.setSignaledValue(3);
        assert!(event.waitUntilSignaledValue_timeoutMS(4, 60_000));
        commands.waitUntilCompleted();
        assert_eq!(read(&buffer), [9; 64]);
        assert_eq!(event.signaledValue(), 4);
        let done = counters();
        assert_eq!((done.signals, done.waits), (1, 1));
    });
}

#[test]
fn one_queue_waits_for_another() {
    clean(|| {
        let device = device();
        let (first, second) = (
            device.newCommandQueue().unwrap(),
            device.newCommandQueue().unwrap(),
        );
        let event = device.newSharedEvent().unwrap();
        let (middle, last) = (buffer(&device, 64, PRIVATE), buffer(&device, 64, SHARED));
        let waiting = second.commandBuffer().unwrap();
        waiting.encodeWaitForEvent_value(ProtocolObject::from_ref(&*event), 1);
        encode_into(&waiting, |encoder| copy(encoder, &middle, &last, 64));
        waiting.commit();
        let setting = encode(&first, |encoder| fill(encoder, &middle, 5));
        setting.encodeSignalEvent_value(ProtocolObject::from_ref(&*event), 1);
        setting.commit();
        waiting.waitUntilCompleted();
        assert_eq!(read(&last), [5; 64]);
    });
}

#[test]
fn an_event_that_goes_backwards() {
    misuses(Misuse::EventBackwards, || {
        let event = device().newSharedEvent().unwrap();
        event.setSignaledValue(5);
        event.setSignaledValue(4);
        assert_eq!(event.signaledValue(), 5);
        assert!(!event.waitUntilSignaledValue_timeoutMS(6, 0));
    });
}

#[test]
fn listeners_are_told_once_and_with_the_value() {
    clean(|| {
        let device = device();
        let event = device.newSharedEvent().unwrap();
        let listener = MTLSharedEventListener::init(MTLSharedEventListener::alloc());
        let (told, tells) = channel();
        let block = RcBlock::new(move |_, value| told.send(value).unwrap());
        for value in [2, 7] {
            // SAFETY: the block may be called on another thread.
            unsafe {
                event.notifyListener_atValue_block(&listener, value, RcBlock::as_ptr(&block))
            };
        }
        event.setSignaledValue(1);
        settle();
        assert!(tells.try_recv().is_err());
        event.setSignaledValue(3);
        assert_eq!(tells.recv(), Ok(3));
        // Late listeners are told at once.
        // SAFETY: as above.
        unsafe { event.notifyListener_atValue_block(&listener, 3, RcBlock::as_ptr(&block)) };
        assert_eq!(tells.recv(), Ok(3));
        event.setSignaledValue(9);
        assert_eq!(tells.recv(), Ok(9));
        settle();
        assert!(tells.try_recv().is_err());
    });
}

#[test]
fn handlers_are_called_before_a_wait_returns() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let commands = encode(&queue, |_| ());
        let seen = Arc::new(Mutex::new(Vec::new()));
        for name in ["scheduled", "first", "second"] {
            let seen = seen.clone();
            let block = RcBlock::new(
                move |commands: std::ptr::NonNull<
                    ProtocolObject<dyn objc2_metal::MTLCommandBuffer>,
                >| {
                    // SAFETY: handlers get the command buffer, which is there while they run.
                    let status = unsafe { commands.as_ref() }.status();
                    seen.lock().unwrap().push((name, status));
                },
            );
            let block = RcBlock::as_ptr(&block);
            if name == "scheduled" {
                // SAFETY: the block may be called on another thread.
                unsafe { commands.addScheduledHandler(block) };
            } else {
                // SAFETY: as above.
                unsafe { commands.addCompletedHandler(block) };
            }
        }
        commands.commit();
        commands.waitUntilCompleted();
        let seen = seen.lock().unwrap();
        let names: Vec<_> = seen.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["scheduled", "first", "second"]);
        assert!(
            seen[1..]
                .iter()
                .all(|(_, status)| *status == MTLCommandBufferStatus::Completed)
        );
        assert_eq!(counters().handlers, 3);
    });
}

#[test]
fn a_handler_that_waits_holds_up_all_and_is_told() {
    misuses(Misuse::WaitForever, || {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let other = encode(&queue, |_| ());
        let first = encode(&queue, |_| ());
        let waited = other.clone();
        let block = RcBlock::new(move |_| {
            waited.commit();
            waited.waitUntilCompleted();
        });
        // SAFETY: the block is called once, and this thread leaves its command buffers alone until then.
        unsafe { first.addCompletedHandler(RcBlock::as_ptr(&block)) };
        drop(block);
        first.commit();
        first.waitUntilCompleted();
        other.waitUntilCompleted();
    });
}

#[test]
fn command_buffers_go_in_the_order_in_which_they_were_enqueued() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let buffer = buffer(&device, 64, SHARED);
        let first = encode(&queue, |encoder| fill(encoder, &buffer, 1));
        let second = encode(&queue, |encoder| fill(encoder, &buffer, 2));
        first.enqueue();
        assert_eq!(first.status(), MTLCommandBufferStatus::Enqueued);
        second.commit();
        settle();
        assert_eq!(
            second.status(),
            MTLCommandBufferStatus::Committed,
            "the first holds its place"
        );
        first.commit();
        second.waitUntilCompleted();
        assert_eq!(read(&buffer), [2; 64]);
    });
}

#[test]
fn a_full_queue_gives_a_command_buffer_when_one_is_over() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueueWithMaxCommandBufferCount(2).unwrap();
        let unused = queue.commandBuffer().unwrap();
        let first = encode(&queue, |_| ());
        hold();
        first.commit();
        std::thread::scope(|scope| {
            let third =
                scope.spawn(|| objc2::rc::autoreleasepool(|_| run(&queue, |_| ()).status()));
            while counters().full_queues == 0 {
                std::thread::yield_now();
            }
            assert_eq!(counters().command_buffers, 2);
            release();
            assert_eq!(third.join().unwrap(), MTLCommandBufferStatus::Completed);
        });
        first.waitUntilCompleted();
        drop(unused);
    });
}

#[test]
fn a_held_gpu_goes_on_step_by_step() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let buffer = buffer(&device, 64, SHARED);
        let commands = encode(&queue, |encoder| {
            fill(encoder, &buffer, 1);
            fill(encoder, &buffer, 2);
        });
        hold();
        commands.commit();
        assert_eq!(
            (commands.status(), read(&buffer)[0]),
            (MTLCommandBufferStatus::Committed, 0)
        );
        step(1);
        assert_eq!(
            (commands.status(), read(&buffer)[0]),
            (MTLCommandBufferStatus::Scheduled, 1)
        );
        step(1);
        commands.waitUntilCompleted();
        assert_eq!(read(&buffer)[0], 2);
        let empty = encode(&queue, |_| ());
        empty.commit();
        settle();
        assert_eq!(empty.status(), MTLCommandBufferStatus::Committed);
        release();
        empty.waitUntilCompleted();
    });
}
