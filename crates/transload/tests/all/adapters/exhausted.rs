//! Requests for more memory than an adapter has.

use transload::hal::{AllocError, Backend as _};
use transload::{AllocSpec, Error};
use transload_wgpu::Wgpu;

use crate::adapters::machine::{Adapter, Adapters, MIB, pattern};
#[cfg(target_os = "linux")]
use crate::adapters::machine::{alone, skip};

/// Asserts that bytes can be copied to the adapter and back.
fn works(adapters: &Adapters, on: &Adapter) {
    let sent = pattern(MIB + 1, 4);
    let src = adapters.manager.adopt(sent.clone()).unwrap();
    let dst = adapters.buffer(on, sent.len() as u64);
    adapters.manager.copy(&src, &dst).wait().unwrap();
    assert!(on.bytes_of(&dst) == sent, "{on:?}");
}

#[test]
fn more_than_a_buffer_may_have_is_too_large() {
    let Some(adapters) = Adapters::open(1) else {
        return;
    };
    for adapter in &adapters.all {
        let limit = adapter.device.limits().max_buffer_size;
        let spec = AllocSpec::bytes(limit + 1);
        match adapters.manager.allocate(adapter.place(), spec) {
            Err(Error::Alloc(AllocError::TooLarge {
                memory,
                len_bytes,
                limit_bytes,
            })) => {
                assert_eq!(memory, adapter.memory());
                assert_eq!((len_bytes, limit_bytes), (limit + 1, limit));
            }
            other => panic!("{adapter:?}: {other:?}"),
        }
        works(&adapters, adapter);
    }
}

/// Limits the process to 6 GiB of addresses. A software driver takes its memory from the host, so the limit makes it
/// run out of memory.
#[cfg(target_os = "linux")]
#[test]
fn a_full_device_says_so_and_works_on() {
    let own = Wgpu::discover().inventory().devices;
    if !own.iter().all(|device| device.software) {
        return skip("no limit on addresses fills a device's own memory");
    }
    if !alone(
        "adapters::exhausted::a_full_device_says_so_and_works_on",
        "ulimit -v 6291456",
    ) {
        return;
    }
    let Some(adapters) = Adapters::open(1) else {
        return;
    };
    for adapter in &adapters.all {
        const LEN: u64 = 512 * MIB;
        let mut held = Vec::new();
        let error = loop {
            assert!(held.len() < 64, "{adapter:?} has no end");
            let spec = AllocSpec::bytes(LEN);
            match adapters.manager.allocate(adapter.place(), spec) {
                Ok(buffer) => held.push(buffer),
                Err(error) => break error,
            }
        };
        println!("{adapter:?}, after {} buffers: {error}", held.len());
        assert_eq!(
            error.class(),
            transload::hal::ErrorClass::Exhausted,
            "{error}"
        );
        match error {
            Error::Alloc(AllocError::OutOfMemory {
                memory, len_bytes, ..
            }) => assert_eq!((memory, len_bytes), (adapter.memory(), LEN)),
            other => panic!("{adapter:?}: {other:?}"),
        }
        // The adapter must work with its memory almost full, and after a buffer was freed.
        held.pop();
        works(&adapters, adapter);
        drop(held);
        works(&adapters, adapter);
    }
}
