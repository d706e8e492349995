//! A forked child has small shared memory of its own. This is the only test of its process: if another thread allocated
//! during the fork, the child could inherit a lock that no thread releases.
#![cfg(target_os = "linux")]

use transload_hal::{AllocSpec, Backend, Buffer};
use transload_host::{Host, memory::SHARED};

const LEN: usize = 5000;

unsafe extern "C" {
    safe fn fork() -> i32;
    safe fn alarm(seconds: u32) -> u32;
    safe fn _exit(status: i32) -> !;
    fn waitpid(child: i32, status: *mut i32, options: i32) -> i32;
}

fn filled(host: &Host, value: u8) -> Buffer {
    let buffer = host.allocate(SHARED, &AllocSpec::bytes(LEN as u64));
    let buffer = buffer.unwrap();
    // SAFETY: just allocated.
    unsafe { buffer.host(0, LEN as u64).unwrap().fill(value) };
    buffer
}

fn is_full_of(buffer: &Buffer, value: u8) -> bool {
    // SAFETY: the test writes a buffer only while it fills it.
    let bytes = unsafe { buffer.host(0, LEN as u64).unwrap().as_slice() };
    bytes == [value; LEN]
}

#[test]
fn parent_and_child_give_out_no_page_twice() {
    let host = Host::new();
    let early = filled(&host, 1);
    let child = fork();
    assert!(child >= 0);
    if child == 0 {
        // The alarm kills a child that hangs.
        alarm(300);
        // The child goes on with a copy of the parent's list of free pages.
        let own = filled(&host, 2);
        drop(early);
        let again = filled(&host, 2);
        _exit(i32::from(!is_full_of(&own, 2) || !is_full_of(&again, 2)));
    }
    let own = filled(&host, 3);
    let mut status = 0;
    // SAFETY: the out-pointer is a local variable.
    assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child saw other bytes than its own");
    assert!(is_full_of(&early, 1) && is_full_of(&own, 3));
}
