//! Failures that a test orders.

use crate::common;

use common::*;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSRange;
use objc2_metal::{
    MTLBlitCommandEncoder as _, MTLCommandBuffer as _, MTLCommandBufferError,
    MTLCommandBufferStatus, MTLCommandQueue as _, MTLCopyAllDevices, MTLDevice as _,
    MTLSharedEvent as _,
};
use transload_metal_double::{Device as Described, Machine, fault, hold, remove, set, settle};

fn code(commands: &Commands) -> MTLCommandBufferError {
    assert_eq!(commands.status(), MTLCommandBufferStatus::Error);
    let error = commands.error().expect("there is an error");
    MTLCommandBufferError(error.code() as usize)
}

fn fill(encoder: &Encoder, buffer: &Buffer, at: usize, value: u8) {
    encoder.fillBuffer_range_value(
        buffer,
        NSRange {
            location: at,
            length: 4,
        },
        value,
    );
}

#[test]
fn a_command_buffer_that_fails_midway_has_done_what_came_before() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let buffer = buffer(&device, 16, SHARED);
        let codes = [
            ("internal", MTLCommandBufferError::Internal),
            ("timeout", MTLCommandBufferError::Timeout),
            ("page-fault", MTLCommandBufferError::PageFault),
            ("access-revoked", MTLCommandBufferError::AccessRevoked),
            ("not-permitted", MTLCommandBufferError::NotPermitted),
            ("out-of-memory", MTLCommandBufferError::OutOfMemory),
            ("device-removed", MTLCommandBufferError::DeviceRemoved),
            ("4711", MTLCommandBufferError(4711)),
        ];
        for (name, expected) in codes {
            write(&buffer, &[0; 16]);
            fault(&format!("blit={name}@3")).unwrap();
            let commands = run(&queue, |encoder| {
                for at in [0, 4, 8, 12] {
                    fill(encoder, &buffer, at, 1);
                }
            });
            assert_eq!(code(&commands), expected, "{name}");
            assert_eq!(read(&buffer), [[1; 8], [0; 8]].concat(), "{name}");
        }
        // The fault was one blit's; the queue goes on.
        let commands = run(&queue, |encoder| fill(encoder, &buffer, 12, 9));
        assert_eq!(commands.status(), MTLCommandBufferStatus::Completed);
        assert_eq!(read(&buffer)[12..], [9; 4]);
    });
}

#[test]
fn a_command_buffer_that_fails_whole_does_nothing() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let buffer = buffer(&device, 16, SHARED);
        fault("commit=timeout@2").unwrap();
        run(&queue, |encoder| fill(encoder, &buffer, 0, 1));
        let commands = run(&queue, |encoder| fill(encoder, &buffer, 4, 1));
        assert_eq!(code(&commands), MTLCommandBufferError::Timeout);
        run(&queue, |encoder| fill(encoder, &buffer, 8, 1));
        assert_eq!(
            read(&buffer),
            [1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]
        );
    });
}

#[test]
fn a_signal_behind_a_fault_does_not_come() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let event = device.newSharedEvent().unwrap();
        let buffer = buffer(&device, 16, SHARED);
        fault("blit=internal").unwrap();
        let commands = encode(&queue, |encoder| fill(encoder, &buffer, 0, 1));
        commands.encodeSignalEvent_value(ProtocolObject::from_ref(&*event), 1);
        commands.commit();
        commands.waitUntilCompleted();
        assert_eq!(event.signaledValue(), 0);
    });
}

#[test]
fn an_allocation_is_refused_in_its_turn() {
    clean(|| {
        let device = device();
        fault("oom@2").unwrap();
        assert!(device.newBufferWithLength_options(16, SHARED).is_some());
        assert!(device.newBufferWithLength_options(16, PRIVATE).is_none());
        assert!(device.newBufferWithLength_options(16, PRIVATE).is_some());
        let pages = Pages::new(1);
        fault("oom@1+").unwrap();
        // SAFETY: the pages outlive the buffer, if there were one.
        let around = unsafe {
            let len = pages.len();
            device.newBufferWithBytesNoCopy_length_options_deallocator(
                pages.address(),
                len,
                SHARED,
                None,
            )
        };
        assert!(around.is_none());
        assert!(device.newBufferWithLength_options(16, PRIVATE).is_none());
        fault("none").unwrap();
        assert!(device.newBufferWithLength_options(16, PRIVATE).is_some());
    });
}

#[test]
fn a_message_answers_nil_in_its_turn() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        fault(
            "nil=newCommandQueue; nil=newSharedEvent; nil=commandBuffer@2; nil=blitCommandEncoder",
        )
        .unwrap();
        assert!(device.newCommandQueue().is_none());
        assert!(device.newCommandQueue().is_some());
        assert!(device.newSharedEvent().is_none());
        let commands = queue.commandBuffer().unwrap();
        assert!(queue.commandBuffer().is_none());
        assert!(commands.blitCommandEncoder().is_none());
        encode_into(&commands, |_| ());
    });
}

#[test]
fn a_device_that_goes_in_flight_takes_all_its_work_along() {
    clean(|| {
        let devices = vec![Described::unified(), Described::external()];
        set(Machine {
            devices,
            ..Machine::default()
        })
        .unwrap();
        let devices = MTLCopyAllDevices().to_vec();
        let queues: Vec<Queue> = devices
            .iter()
            .map(|device| device.newCommandQueue().unwrap())
            .collect();
        let buffers: Vec<Buffer> = devices
            .iter()
            .map(|device| buffer(device, 16, SHARED))
            .collect();
        fault("removed@2").unwrap();
        let commands = encode(&queues[1], |encoder| {
            for at in [0, 4, 8] {
                fill(encoder, &buffers[1], at, 1);
            }
        });
        let next = encode(&queues[1], |encoder| fill(encoder, &buffers[1], 12, 1));
        commands.commit();
        next.commit();
        for commands in [&commands, &next] {
            commands.waitUntilCompleted();
            assert_eq!(code(commands), MTLCommandBufferError::DeviceRemoved);
        }
        assert_eq!(read(&buffers[1])[..8], [1, 1, 1, 1, 0, 0, 0, 0]);
        // Nothing more is to be had of it, and the other device works.
        assert!(devices[1].newBufferWithLength_options(16, SHARED).is_none());
        assert!(devices[1].newCommandQueue().is_none());
        assert_eq!(MTLCopyAllDevices().len(), 1);
        let late = run(&queues[1], |encoder| fill(encoder, &buffers[1], 12, 1));
        assert_eq!(code(&late), MTLCommandBufferError::DeviceRemoved);
        let commands = run(&queues[0], |encoder| fill(encoder, &buffers[0], 0, 1));
        assert_eq!(commands.status(), MTLCommandBufferStatus::Completed);
    });
}

#[test]
fn a_device_that_is_taken_away_ends_what_waits() {
    clean(|| {
        let device = device();
        let (held, waiting) = (
            device.newCommandQueue().unwrap(),
            device.newCommandQueue().unwrap(),
        );
        let event = device.newSharedEvent().unwrap();
        let buffer = buffer(&device, 16, SHARED);
        let blocked = waiting.commandBuffer().unwrap();
        blocked.encodeWaitForEvent_value(ProtocolObject::from_ref(&*event), 1);
        blocked.commit();
        hold();
        let commands = encode(&held, |encoder| fill(encoder, &buffer, 0, 1));
        commands.commit();
        settle();
        assert_eq!(commands.status(), MTLCommandBufferStatus::Committed);
        remove(0);
        for commands in [&commands, &blocked] {
            commands.waitUntilCompleted();
            assert_eq!(code(commands), MTLCommandBufferError::DeviceRemoved);
        }
        assert_eq!(read(&buffer), [0; 16]);
    });
}
