//! The double notices each forbidden act of a client, and the act does no other harm.

use crate::common;

use common::*;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSRange;
use objc2_metal::{
    MTLBlitCommandEncoder as _, MTLBuffer as _, MTLCommandBuffer as _, MTLCommandBufferError,
    MTLCommandBufferErrorDomain, MTLCommandBufferStatus, MTLCommandEncoder as _,
    MTLCommandQueue as _, MTLCopyAllDevices, MTLDevice as _,
};
use transload_metal_double::{
    Device as Described, Machine, Misuse, hold, leaks, release, set, settle, take_violations,
    violations,
};

/// The commands end in an error of that code, and their handlers are called all the same.
fn fails(commands: &Commands, code: MTLCommandBufferError) {
    commands.commit();
    commands.waitUntilCompleted();
    assert_eq!(commands.status(), MTLCommandBufferStatus::Error);
    let error = commands.error().expect("there is an error");
    assert_eq!(error.code(), code.0 as isize);
    // SAFETY: a constant of the framework.
    let domain = unsafe { MTLCommandBufferErrorDomain };
    assert_eq!(*error.domain(), *domain);
    assert!(!error.localizedDescription().to_string().is_empty());
}

#[test]
fn an_encoder_that_has_not_ended_before_commit() {
    misuses(Misuse::EncoderOpen, || {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let (from, to) = (buffer(&device, 64, SHARED), buffer(&device, 64, SHARED));
        write(&from, &pattern(64));
        let commands = queue.commandBuffer().unwrap();
        let encoder = commands.blitCommandEncoder().unwrap();
        copy(&encoder, &from, &to, 64);
        fails(&commands, MTLCommandBufferError::Internal);
        assert_eq!(read(&to), [0; 64], "nothing of it was carried out");
        // Ended now: its release would be reported too.
        encoder.endEncoding();
    });
}

#[test]
fn an_encoder_that_has_not_ended_before_the_next() {
    misuses(Misuse::EncoderOpen, || {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let commands = queue.commandBuffer().unwrap();
        let encoder = commands.blitCommandEncoder().unwrap();
        assert!(commands.blitCommandEncoder().is_none());
        encoder.endEncoding();
        fails(&commands, MTLCommandBufferError::Internal);
    });
}

#[test]
fn an_encoder_that_is_released_before_its_end() {
    misuses(Misuse::EncoderOpen, || {
        let queue = device().newCommandQueue().unwrap();
        let commands = queue.commandBuffer().unwrap();
        drop(autoreleasepool(|_| commands.blitCommandEncoder().unwrap()));
    });
}

#[test]
fn an_encoder_that_is_used_after_its_end() {
    misuses(Misuse::EncoderEnded, || {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let buffer = buffer(&device, 64, SHARED);
        let commands = queue.commandBuffer().unwrap();
        let encoder = commands.blitCommandEncoder().unwrap();
        encoder.endEncoding();
        encoder.fillBuffer_range_value(
            &buffer,
            NSRange {
                location: 0,
                length: 64,
            },
            1,
        );
        fails(&commands, MTLCommandBufferError::Internal);
        assert_eq!(read(&buffer), [0; 64]);
    });
}

#[test]
fn a_command_buffer_that_is_committed_twice() {
    misuses(Misuse::Committed, || {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let buffer = buffer(&device, 64, SHARED);
        let commands = run(&queue, |encoder| {
            encoder.fillBuffer_range_value(
                &buffer,
                NSRange {
                    location: 0,
                    length: 64,
                },
                7,
            );
        });
        write(&buffer, &[0; 64]);
        commands.commit();
        settle();
        assert_eq!(commands.status(), MTLCommandBufferStatus::Completed);
        assert_eq!(read(&buffer), [0; 64], "it was not carried out again");
    });
}

#[test]
fn a_command_buffer_that_is_changed_after_commit() {
    misuses(Misuse::Committed, || {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let handler = block2::RcBlock::new(|_| ());
        let commands = run(&queue, |_| ());
        // SAFETY: the block may be called anywhere.
        unsafe { commands.addCompletedHandler(block2::RcBlock::as_ptr(&handler)) };
    });
}

#[test]
fn a_command_that_comes_after_commit() {
    autoreleasepool(|_| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let buffer = buffer(&device, 64, SHARED);
        let commands = queue.commandBuffer().unwrap();
        let encoder = commands.blitCommandEncoder().unwrap();
        commands.commit();
        let range = NSRange {
            location: 0,
            length: 64,
        };
        encoder.fillBuffer_range_value(&buffer, range, 1);
        encoder.endEncoding();
        commands.waitUntilCompleted();
        assert_eq!(read(&buffer), [0; 64]);
    });
    assert_eq!(leaks(), []);
    let seen = take_violations();
    let seen: Vec<Misuse> = seen.iter().map(|violation| violation.misuse).collect();
    assert_eq!(seen, [Misuse::EncoderOpen, Misuse::Committed]);
}

#[test]
fn a_wait_for_what_nobody_commits() {
    misuses(Misuse::WaitForever, || {
        let queue = device().newCommandQueue().unwrap();
        encode(&queue, |_| ()).waitUntilCompleted();
    });
}

#[test]
fn ranges_outside_their_buffers() {
    for (from, to, len) in [(4, 0, 64), (0, 4, 64), (0, 0, 128), (usize::MAX - 3, 0, 8)] {
        misuses(Misuse::OutOfBounds, || {
            let device = device();
            let queue = device.newCommandQueue().unwrap();
            let (source, destination) = (buffer(&device, 64, SHARED), buffer(&device, 64, PRIVATE));
            let commands = encode(&queue, |encoder| {
                copy_at(encoder, (&source, from), (&destination, to), len);
            });
            fails(&commands, MTLCommandBufferError::Internal);
        });
    }
    misuses(Misuse::OutOfBounds, || {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let buffer = buffer(&device, 64, SHARED);
        let commands = encode(&queue, |encoder| {
            encoder.fillBuffer_range_value(
                &buffer,
                NSRange {
                    location: 32,
                    length: 36,
                },
                1,
            );
        });
        fails(&commands, MTLCommandBufferError::Internal);
    });
}

#[test]
fn copies_that_are_no_words_on_a_mac() {
    for (from, to, len) in [(1, 0, 4), (0, 2, 4), (0, 0, 7)] {
        misuses(Misuse::Misaligned, || {
            let device = device();
            let queue = device.newCommandQueue().unwrap();
            let (source, destination) = (buffer(&device, 64, SHARED), buffer(&device, 64, SHARED));
            let commands = encode(&queue, |encoder| {
                copy_at(encoder, (&source, from), (&destination, to), len);
            });
            fails(&commands, MTLCommandBufferError::Internal);
        });
    }
}

#[test]
fn copies_of_any_bytes_on_a_phone() {
    clean(|| {
        set(Machine {
            copy_alignment: 1,
            ..Machine::default()
        })
        .unwrap();
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let (source, destination) = (buffer(&device, 64, SHARED), buffer(&device, 64, SHARED));
        write(&source, &pattern(64));
        run(&queue, |encoder| {
            copy_at(encoder, (&source, 1), (&destination, 3), 7)
        });
        assert_eq!(read(&destination)[3..10], pattern(64)[1..8]);
    });
}

#[test]
fn ranges_of_one_buffer_that_overlap() {
    misuses(Misuse::Overlap, || {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let buffer = buffer(&device, 64, SHARED);
        let commands = encode(&queue, |encoder| {
            copy_at(encoder, (&buffer, 0), (&buffer, 28), 32)
        });
        fails(&commands, MTLCommandBufferError::Internal);
    });
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let buffer = buffer(&device, 64, SHARED);
        run(&queue, |encoder| {
            copy_at(encoder, (&buffer, 0), (&buffer, 32), 32)
        });
    });
}

#[test]
fn a_resource_of_another_device() {
    set(Machine {
        devices: vec![Described::unified(), Described::external()],
        ..Machine::default()
    })
    .unwrap();
    misuses(Misuse::OtherDevice, || {
        let devices = MTLCopyAllDevices().to_vec();
        let queue = devices[0].newCommandQueue().unwrap();
        let (mine, other) = (
            buffer(&devices[0], 64, SHARED),
            buffer(&devices[1], 64, SHARED),
        );
        let commands = encode(&queue, |encoder| copy(encoder, &other, &mine, 64));
        fails(&commands, MTLCommandBufferError::Internal);
    });
}

#[test]
fn synchronizing_what_has_one_copy() {
    misuses(Misuse::StorageMode, || {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let shared = buffer(&device, 64, SHARED);
        let commands = encode(&queue, |encoder| {
            encoder.synchronizeResource(ProtocolObject::from_ref(&*shared));
        });
        fails(&commands, MTLCommandBufferError::Internal);
    });
}

#[test]
fn a_buffer_that_ends_in_flight() {
    misuses(Misuse::FreedInUse, || {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let (from, to) = (buffer(&device, 64, SHARED), buffer(&device, 64, SHARED));
        write(&from, &pattern(64));
        let commands = queue.commandBufferWithUnretainedReferences().unwrap();
        assert!(!commands.retainedReferences());
        encode_into(&commands, |encoder| copy(encoder, &from, &to, 64));
        drop(from);
        fails(&commands, MTLCommandBufferError::InvalidResource);
        assert_eq!(read(&to), [0; 64]);
    });
}

#[test]
fn a_buffer_that_ends_in_flight_and_is_retained() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let (from, to) = (buffer(&device, 64, SHARED), buffer(&device, 64, SHARED));
        write(&from, &pattern(64));
        hold();
        let commands = encode(&queue, |encoder| copy(encoder, &from, &to, 64));
        drop(from);
        commands.commit();
        assert_eq!(read(&to), [0; 64], "the GPU is held");
        release();
        commands.waitUntilCompleted();
        assert_eq!(read(&to), pattern(64));
    });
}

#[test]
fn memory_that_is_given_back_in_flight_is_not_touched() {
    misuses(Misuse::FreedInUse, || {
        let mut pages = Pages::new(1);
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let from = buffer(&device, pages.len(), SHARED);
        write(&from, &pattern(pages.len()));
        // SAFETY: the pages outlive the commands, whatever becomes of the buffer.
        let around = unsafe {
            let len = pages.len();
            device.newBufferWithBytesNoCopy_length_options_deallocator(
                pages.address(),
                len,
                SHARED,
                None,
            )
        };
        let around = around.unwrap();
        let commands = queue.commandBufferWithUnretainedReferences().unwrap();
        encode_into(&commands, |encoder| {
            copy(encoder, &from, &around, pages.len())
        });
        drop(around);
        fails(&commands, MTLCommandBufferError::InvalidResource);
        assert!(pages.bytes().iter().all(|&byte| byte == 0));
    });
}

#[test]
fn an_object_that_is_released_too_often() {
    misuses(Misuse::OverReleased, || {
        let buffer = buffer(&device(), 64, SHARED);
        let address = Retained::as_ptr(&buffer).cast_mut();
        drop(buffer);
        // SAFETY: it is not sound, which the test is about: the double keeps the header.
        drop(unsafe { Retained::from_raw(address) });
    });
}

#[test]
fn an_object_that_is_used_after_its_end() {
    misuses(Misuse::OverReleased, || {
        let buffer = buffer(&device(), 64, SHARED);
        let address = Retained::as_ptr(&buffer);
        drop(buffer);
        // SAFETY: as above.
        assert_eq!(unsafe { &*address }.length(), 0, "as nil answers");
    });
}

#[test]
fn an_object_for_a_pool_that_is_not_there() {
    let device = device();
    let queue = device.newCommandQueue().unwrap();
    assert_eq!(violations(), []);
    let commands = queue.commandBuffer();
    let seen = take_violations();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].misuse, Misuse::NoPool);
    assert!(seen[0].told.contains("MTLCommandBuffer"));
    drop(commands);
}
