//! Small shared memory where the process has few descriptors left. This is the only test of its process, whose limit it
//! lowers.
#![cfg(target_os = "linux")]

use std::fs::File;

use rustix::process::{Resource, Rlimit, setrlimit};
use transload_hal::{AllocSpec, Backend, Buffer, ExternalKind, ImportError};
use transload_host::{Host, memory::SHARED};

const LEN: u64 = 4096;
/// The value for `RLIMIT_NOFILE`.
const LIMIT: u64 = 64;
/// `EMFILE` of Linux.
const TOO_MANY_OPEN_FILES: i64 = 24;

#[test]
fn small_buffers_take_no_descriptor_until_they_are_exported() {
    let limit = Rlimit {
        current: Some(LIMIT),
        maximum: Some(LIMIT),
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let host = Host::new();
    let spec = AllocSpec::bytes(LEN);
    let made = (0..4096).map(|_| host.allocate(SHARED, &spec).unwrap());
    let mut buffers: Vec<Buffer> = made.collect();
    for (i, buffer) in buffers.iter().enumerate() {
        // SAFETY: this test has the buffers to itself.
        unsafe { buffer.host(0, LEN).unwrap().fill(i as u8) };
    }
    File::open("/proc/self/status").unwrap();
    // An exported address takes a descriptor of its own, too.
    // SAFETY: no code writes the bytes meanwhile, here and below.
    let address = |buffer: &Buffer| unsafe { host.export(buffer, ExternalKind::Host) };
    let refused = buffers.iter().position(|buffer| address(buffer).is_err());
    let refused = refused.expect("there are more buffers than descriptors");
    assert!((LIMIT / 2..LIMIT).contains(&(refused as u64)), "{refused}");
    for kind in [ExternalKind::Host, ExternalKind::File] {
        // SAFETY: as above.
        let error = unsafe { host.export(&buffers[refused], kind) }
            .err()
            .unwrap();
        let ImportError::Failed { fault, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(fault.code, Some(TOO_MANY_OPEN_FILES), "{error}");
        assert!(error.to_string().contains("descriptor"), "{error}");
    }
    for (i, buffer) in buffers.iter().enumerate() {
        // SAFETY: as above.
        let bytes = unsafe { buffer.host(0, LEN).unwrap().as_slice() };
        assert_eq!(bytes, [i as u8; LEN as usize], "buffer {i}");
    }
    // Dropping the buffers closes their descriptors.
    let kept = buffers.split_off(refused);
    drop(buffers);
    address(&kept[0]).unwrap();
    File::open("/proc/self/status").unwrap();
}
