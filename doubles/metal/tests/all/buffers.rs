//! Bytes in buffers of each storage mode, moved by `objc2-metal`.

use crate::common;

use std::cell::Cell;
use std::ptr::NonNull;

use block2::RcBlock;
use common::*;
use objc2_foundation::NSRange;
use objc2_metal::{
    MTLBlitCommandEncoder as _, MTLBuffer as _, MTLCommandBuffer as _, MTLCommandBufferStatus,
    MTLDevice as _, MTLResource as _, MTLStorageMode,
};
use transload_metal_double::{Device as Described, Machine, Misuse, counters, set, settle};

#[test]
fn bytes_go_from_shared_to_private_and_back() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let bytes = pattern(1 << 20);
        let up = buffer(&device, bytes.len(), SHARED);
        let there = buffer(&device, bytes.len(), PRIVATE);
        let down = buffer(&device, bytes.len(), SHARED);
        write(&up, &bytes);
        let before = counters();
        run(&queue, |encoder| copy(encoder, &up, &there, bytes.len()));
        let commands = run(&queue, |encoder| copy(encoder, &there, &down, bytes.len()));
        assert_eq!(commands.status(), MTLCommandBufferStatus::Completed);
        assert!(commands.error().is_none());
        assert_eq!(read(&down), bytes);
        let done = counters().since(&before);
        assert_eq!(
            (done.copies, done.copied_bytes, done.commits),
            (2, 2 << 20, 2)
        );
    });
}

#[test]
fn the_work_is_done_after_commit_and_not_before() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let (from, to) = (buffer(&device, 64, SHARED), buffer(&device, 64, SHARED));
        let commands = encode(&queue, |encoder| copy(encoder, &from, &to, 64));
        // Written after it was encoded, and copied all the same: encoding reads nothing.
        write(&from, &pattern(64));
        assert_eq!(commands.status(), MTLCommandBufferStatus::NotEnqueued);
        assert_eq!(read(&to), [0; 64]);
        commands.commit();
        commands.waitUntilCompleted();
        assert_eq!(read(&to), pattern(64));
    });
}

#[test]
fn a_buffer_says_what_it_is() {
    clean(|| {
        let device = device();
        let shared = buffer(&device, 100, SHARED);
        assert_eq!(shared.length(), 100);
        assert_eq!(shared.storageMode(), MTLStorageMode::Shared);
        assert_eq!(shared.device().registryID(), device.registryID());
        assert!(shared.allocatedSize() >= 100);
        assert_eq!(read(&shared), [0; 100]);
        let private = buffer(&device, 100, PRIVATE);
        assert_eq!(private.storageMode(), MTLStorageMode::Private);
        assert_ne!(private.gpuAddress(), shared.gpuAddress());
        assert_eq!(device.currentAllocatedSize(), 200);
        drop(private);
        assert_eq!(device.currentAllocatedSize(), 100);
    });
}

#[test]
fn a_private_buffer_has_no_contents() {
    clean(|| {
        let device = device();
        let private = buffer(&device, 100, PRIVATE);
        // The binding declares `contents` as never null, which is wrong here; the test calls it with its true type.
        // SAFETY: `contents` takes no arguments and returns a pointer.
        let contents: *mut std::ffi::c_void = unsafe { objc2::msg_send![&*private, contents] };
        assert!(contents.is_null());
    });
}

#[test]
fn managed_bytes_are_stale_until_they_are_synchronized() {
    clean(|| {
        set(Machine {
            devices: vec![Described::discrete()],
            ..Machine::default()
        })
        .unwrap();
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let (from, managed) = (buffer(&device, 64, SHARED), buffer(&device, 64, MANAGED));
        write(&from, &pattern(64));
        run(&queue, |encoder| copy(encoder, &from, &managed, 64));
        assert_eq!(read(&managed), [0; 64], "no call synchronized it");
        let before = counters();
        run(&queue, |encoder| {
            encoder.synchronizeResource(objc2::runtime::ProtocolObject::from_ref(&*managed))
        });
        assert_eq!(read(&managed), pattern(64));
        assert_eq!(counters().since(&before).synchronizes, 1);
    });
}

#[test]
fn what_the_host_writes_reaches_the_device_only_where_it_says_so() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let (managed, to) = (buffer(&device, 64, MANAGED), buffer(&device, 64, SHARED));
        write(&managed, &pattern(64));
        run(&queue, |encoder| copy(encoder, &managed, &to, 64));
        assert_eq!(read(&to), [0; 64], "no call said that it was modified");
        managed.didModifyRange(NSRange {
            location: 8,
            length: 16,
        });
        run(&queue, |encoder| copy(encoder, &managed, &to, 64));
        let mut expected = vec![0; 64];
        expected[8..24].copy_from_slice(&pattern(64)[8..24]);
        assert_eq!(read(&to), expected);
    });
}

#[test]
fn only_managed_buffers_are_modified() {
    misuses(Misuse::StorageMode, || {
        buffer(&device(), 64, SHARED).didModifyRange(NSRange {
            location: 0,
            length: 64,
        });
    });
    misuses(Misuse::OutOfBounds, || {
        buffer(&device(), 64, MANAGED).didModifyRange(NSRange {
            location: 1,
            length: 64,
        });
    });
}

#[test]
fn memory_of_the_clients_is_used_in_place_and_given_back() {
    clean(|| {
        let mut pages = Pages::new(2);
        let len = pages.len();
        pages.bytes().copy_from_slice(&pattern(len));
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let given_back = std::rc::Rc::new(Cell::new(None));
        let told = given_back.clone();
        let deallocator =
            RcBlock::new(move |address: NonNull<_>, len| told.set(Some((address, len))));
        // SAFETY: the pages outlive the buffer.
        let around = unsafe {
            device.newBufferWithBytesNoCopy_length_options_deallocator(
                pages.address(),
                len,
                SHARED,
                Some(&deallocator),
            )
        };
        let around = around.unwrap();
        drop(deallocator);
        assert_eq!(around.contents(), pages.address());
        let to = buffer(&device, len, SHARED);
        run(&queue, |encoder| {
            copy(encoder, &around, &to, len);
            encoder.fillBuffer_range_value(
                &around,
                NSRange {
                    location: 4,
                    length: 8,
                },
                0xee,
            );
        });
        assert_eq!(read(&to), pattern(len));
        assert_eq!(pages.bytes()[4..12], [0xee; 8]);
        assert_eq!(given_back.get(), None);
        drop(around);
        // The command buffer may retain it a little longer than until the end of the wait.
        settle();
        assert_eq!(given_back.get(), Some((pages.address(), len)));
        assert_eq!(counters().no_copy_buffers, 1);
    });
}

#[test]
fn misaligned_memory_is_not_taken_without_a_copy() {
    clean(|| {
        let pages = Pages::new(2);
        let device = device();
        for (offset, less) in [(1, 0), (0, 1), (64, 64)] {
            let address = pages.address().as_ptr().wrapping_byte_add(offset);
            let address = NonNull::new(address).unwrap();
            // SAFETY: the pages outlive the buffer, if there were one.
            let buffer = unsafe {
                let len = pages.len() / 2 - less;
                device
                    .newBufferWithBytesNoCopy_length_options_deallocator(address, len, SHARED, None)
            };
            assert!(buffer.is_none(), "{offset} {less}");
        }
    });
}

#[test]
fn a_buffer_made_of_bytes_has_them() {
    clean(|| {
        let bytes = pattern(64);
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let to = buffer(&device, 64, SHARED);
        for options in [SHARED, MANAGED] {
            // SAFETY: the bytes are there during the call.
            let made = unsafe {
                let bytes = NonNull::from(&bytes[..]).cast();
                device.newBufferWithBytes_length_options(bytes, 64, options)
            };
            let made = made.unwrap();
            assert_eq!(read(&made), bytes);
            run(&queue, |encoder| copy(encoder, &made, &to, 64));
            assert_eq!(read(&to), bytes);
        }
    });
}

#[test]
fn what_is_too_large_is_nil() {
    clean(|| {
        let small = Described {
            memory_bytes: 1 << 20,
            max_buffer_bytes: 600 << 10,
            ..Described::unified()
        };
        set(Machine {
            devices: vec![small],
            ..Machine::default()
        })
        .unwrap();
        let device = device();
        assert_eq!(device.maxBufferLength(), 600 << 10);
        assert!(
            device
                .newBufferWithLength_options((600 << 10) + 1, SHARED)
                .is_none()
        );
        let first = buffer(&device, 600 << 10, PRIVATE);
        assert!(
            device
                .newBufferWithLength_options(600 << 10, PRIVATE)
                .is_none()
        );
        drop(first);
        assert!(
            device
                .newBufferWithLength_options(600 << 10, PRIVATE)
                .is_some()
        );
    });
}
