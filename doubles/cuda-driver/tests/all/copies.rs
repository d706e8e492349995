//! Copies: the time at which their bytes move, their duration, and the calls that wait for them.

use crate::common;

use std::ptr;

use common::bytes::{Host, allocate, copy, download, free, pattern, upload, uploaded};
use common::work::{point, query, result, stream, synchronize};
use common::{GIGABYTE, advance, counter, enter, machine, machine_in_context, now};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use transload_cuda::raw::{CUcontext, CUctx_flags, CUdevice, CUresult, CUstream, Driver};

const MIB: usize = 1 << 20;
const NOT_READY: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_NOT_READY);
const WRONG: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_INVALID_VALUE);

#[test]
fn sixteen_mebibytes_over_a_gigabyte_a_second_take_just_that() {
    let driver = machine_in_context(&GIGABYTE);
    let bytes = pattern(1, 16 * MIB);
    let src = Host::pinned(&driver, &bytes);
    let dst = allocate(&driver, 16 * MIB);
    let stream = stream(&driver, 1);
    let start = point(&driver, stream);
    copy(&driver, dst, src.address(), 16 * MIB, stream).unwrap();
    let end = point(&driver, stream);
    advance(16 * MIB as u64 - 1);
    assert_eq!(query(&driver, stream), NOT_READY);
    advance(1);
    assert_eq!(query(&driver, stream), Ok(()));
    assert_eq!(now(), 16_777_216);
    let mut ms = 0.0;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuEventElapsedTime(&raw mut ms, start, end) }.unwrap();
    assert_eq!(ms, 16.777216);
    assert!(download(&driver, dst, 16 * MIB) == bytes);
}

#[test]
fn two_copies_over_a_link_go_one_after_the_other() {
    let driver = machine_in_context(&GIGABYTE);
    let host = [0; 2].map(|_| Host::pinned(&driver, &[0; MIB]).address());
    let device = [0; 2].map(|_| allocate(&driver, MIB));
    let streams = [0, 1].map(|at: usize| {
        let stream = stream(&driver, 1);
        copy(&driver, device[at], host[at], MIB, stream).unwrap();
        stream
    });
    for (stream, copies) in streams.into_iter().zip(1..) {
        // Time moves no further than to the end of the awaited work.
        synchronize(&driver, stream).unwrap();
        assert_eq!(now(), copies * MIB as u64);
    }
}

#[test]
fn each_direction_and_each_device_has_its_own_time() {
    let driver = machine_in_context(&GIGABYTE);
    let host = [0; 3].map(|_| Host::pinned(&driver, &[0; MIB]).address());
    let device = [0; 2].map(|_| allocate(&driver, MIB));
    enter(&driver, 1);
    let other = allocate(&driver, MIB);
    enter(&driver, 0);
    let begun = now();
    let ways = [(device[0], host[0]), (host[1], device[1]), (other, host[2])];
    for (dst, src) in ways {
        copy(&driver, dst, src, MIB, stream(&driver, 1)).unwrap();
    }
    // SAFETY: the call takes no arguments.
    unsafe { driver.cuCtxSynchronize() }.unwrap();
    assert_eq!(now() - begun, MIB as u64);
}

#[test]
fn a_source_that_is_reused_early_arrives_wrong() {
    let driver = machine_in_context(&GIGABYTE);
    let (first, second) = (pattern(1, MIB), pattern(2, MIB));
    let src = Host::pinned(&driver, &first);
    let dst = allocate(&driver, MIB);
    let stream = stream(&driver, 0);
    copy(&driver, dst, src.address(), MIB, stream).unwrap();
    src.write(&second);
    synchronize(&driver, stream).unwrap();
    assert!(download(&driver, dst, MIB) == second, "not what was there");
    src.write(&first);
    copy(&driver, dst, src.address(), MIB, stream).unwrap();
    synchronize(&driver, stream).unwrap();
    src.write(&second);
    assert!(download(&driver, dst, MIB) == first, "after waiting it is");
}

#[test]
fn a_destination_that_is_read_early_has_its_old_bytes() {
    let driver = machine_in_context(&GIGABYTE);
    let (old, new) = (pattern(1, MIB), pattern(2, MIB));
    let src = uploaded(&driver, &new);
    let dst = Host::pinned(&driver, &old);
    let stream = stream(&driver, 0);
    copy(&driver, dst.address(), src, MIB, stream).unwrap();
    advance(MIB as u64 - 1);
    assert!(dst.read() == old);
    advance(1);
    assert!(dst.read() == new);
}

#[test]
fn a_stream_that_does_not_wait_copies_what_is_not_there_yet() {
    let driver = machine_in_context(&GIGABYTE);
    let (old, new) = (pattern(1, MIB), pattern(2, MIB));
    let src = Host::pinned(&driver, &new);
    let [between, dst] = [0; 2].map(|_| uploaded(&driver, &old));
    let [up, down] = [0; 2].map(|_| stream(&driver, 1));
    copy(&driver, between, src.address(), MIB, up).unwrap();
    copy(&driver, dst, between, MIB, down).unwrap();
    synchronize(&driver, down).unwrap();
    synchronize(&driver, up).unwrap();
    assert!(download(&driver, dst, MIB) == old);
}

#[test]
fn pageable_memory_is_staged_and_may_be_reused_at_once() {
    let driver = machine_in_context(&GIGABYTE);
    let bytes = pattern(1, MIB);
    let src = Host::pageable(&bytes);
    let dst = allocate(&driver, MIB);
    let apart = stream(&driver, 1);
    let pinned = Host::pinned(&driver, &[0; MIB]);
    copy(&driver, pinned.address(), dst, MIB, apart).unwrap();
    assert_eq!(now(), 0);
    copy(&driver, dst, src.address(), MIB, apart).unwrap();
    assert_eq!(now(), MIB as u64, "it waited for the stream, and no longer");
    assert_eq!(query(&driver, apart), NOT_READY);
    src.write(&[0; MIB]);
    synchronize(&driver, apart).unwrap();
    assert_eq!(now(), 3 * MIB as u64, "pageable memory takes twice as long");
    assert!(download(&driver, dst, MIB) == bytes);
    // SAFETY: the source is there for the call.
    unsafe { driver.cuMemcpyHtoD_v2(dst, src.start.cast(), MIB) }.unwrap();
    assert_eq!(query(&driver, CUstream::NULL), NOT_READY);
    assert_eq!(counter("pageable-copies-staged"), 3);
}

#[test]
fn who_waits_depends_on_the_memories() {
    let driver = machine_in_context(&GIGABYTE);
    let [first, second] = [0; 2].map(|_| allocate(&driver, MIB));
    let pinned = Host::pinned(&driver, &[0; MIB]);
    let pageable = Host::pageable(&[0; MIB]);
    let (there, back) = (pinned.address(), pageable.address());
    let made = stream(&driver, 0);
    for (dst, src, waits_async, waits_sync) in [
        (first, there, false, true),
        (there, first, false, true),
        (first, second, false, false),
        (first, back, false, false),
        (back, first, true, true),
        (back, there, true, true),
        (there, back, true, true),
        (there, there, true, true),
    ] {
        copy(&driver, dst, src, MIB, made).unwrap();
        assert_eq!(query(&driver, made).is_ok(), waits_async, "{dst:x} {src:x}");
        synchronize(&driver, made).unwrap();
        // SAFETY: all of it stays.
        unsafe { driver.cuMemcpy(dst, src, MIB) }.unwrap();
        let waited = query(&driver, CUstream::NULL).is_ok();
        assert_eq!(waited, waits_sync, "{dst:x} {src:x}");
        synchronize(&driver, CUstream::NULL).unwrap();
    }
}

#[test]
fn a_synchronous_copy_waits_for_blocking_streams_and_no_others() {
    let driver = machine_in_context(&GIGABYTE);
    let host = [0; 2].map(|_| Host::pinned(&driver, &[0; MIB]));
    let device = allocate(&driver, MIB);
    for (flags, time) in [(0, 2), (1, 1)] {
        let made = stream(&driver, flags);
        let begun = now();
        copy(&driver, host[0].address(), device, MIB, made).unwrap();
        // SAFETY: all of it stays.
        unsafe { driver.cuMemcpyHtoD_v2(device, host[1].start.cast(), MIB) }.unwrap();
        assert_eq!(now() - begun, time * MIB as u64);
        synchronize(&driver, made).unwrap();
    }
}

#[test]
fn a_copy_lies_within_memory_and_within_one_piece_of_it() {
    let driver = machine_in_context(&GIGABYTE);
    let device = allocate(&driver, 1024);
    let gone = allocate(&driver, 1024);
    free(&driver, gone);
    let pinned = Host::pinned(&driver, &[0; 1024]).address();
    let local = Host::pageable(&[0; 1024]).address();
    let apart = stream(&driver, 1);
    for (dst, src, len) in [
        (device, pinned, 1025),
        (device + 1, pinned, 1024),
        (pinned + 1, device, 1024),
        (gone, pinned, 1),
        (pinned, gone, 1),
        (0, pinned, 1),
        (device, 0, 1),
        (device, local, usize::MAX),
    ] {
        assert_eq!(copy(&driver, dst, src, len, apart), WRONG);
    }
    let host = |address: u64| ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: the double refuses anything that is no memory of the kind, here and below.
    let up = |dst, src| result(unsafe { driver.cuMemcpyHtoD_v2(dst, host(src).cast(), 8) });
    assert_eq!(up(local, pinned), WRONG, "no device reaches it");
    assert_eq!(up(device, device), WRONG, "no memory of the host");
    assert_eq!(up(pinned, local), Ok(()));
    // SAFETY: as above.
    let down = |dst, src| {
        let dst = host(dst).cast_mut().cast();
        // SAFETY: as above.
        result(unsafe { driver.cuMemcpyDtoH_v2(dst, src, 8) })
    };
    assert_eq!(down(device, device), WRONG);
    assert_eq!(down(local, local), WRONG);
    assert_eq!(down(local, device), Ok(()));
    // SAFETY: as above.
    let across = |dst, src| result(unsafe { driver.cuMemcpyDtoD_v2(dst, src, 8) });
    assert_eq!(across(device, local), WRONG);
    assert_eq!(across(pinned, device), Ok(()));
}

#[test]
fn nothing_to_copy_is_no_error_and_no_work() {
    let driver = machine_in_context(&GIGABYTE);
    let device = allocate(&driver, 16);
    assert_eq!(copy(&driver, device, 0, 0, CUstream::NULL), Ok(()));
    assert_eq!(
        copy(&driver, device + 16, device, 0, CUstream::NULL),
        Ok(())
    );
    assert_eq!(query(&driver, CUstream::NULL), Ok(()));
    let none = CUstream(ptr::without_provenance_mut(77));
    let invalid = Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(copy(&driver, device, device, 0, none), invalid);
    assert_eq!(copy(&driver, device, device, 8, none), invalid);
    // SAFETY: null takes the context off.
    unsafe { driver.cuCtxSetCurrent(CUcontext::NULL) }.unwrap();
    let none = Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(copy(&driver, device, device, 8, CUstream::NULL), none);
}

#[test]
fn a_context_that_always_waits_makes_synchronous_functions_wait() {
    let driver = machine_in_context(&GIGABYTE);
    let [first, second] = [0; 2].map(|_| allocate(&driver, MIB));
    let once = MIB.div_ceil(10) as u64;
    let mut context = CUcontext::NULL;
    let (flag, device) = (CUctx_flags::CU_CTX_SYNC_MEMOPS.0, CUdevice(0));
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuCtxCreate_v2(&raw mut context, flag, device) }.unwrap();
    // The owner of the memory does not matter: the context of the call counts.
    // SAFETY: both are allocated, here and below.
    unsafe { driver.cuMemcpyDtoD_v2(first, second, MIB) }.unwrap();
    assert_eq!(query(&driver, CUstream::NULL), Ok(()));
    assert_eq!(now(), once);
    // SAFETY: as above.
    unsafe { driver.cuMemsetD8_v2(first, 1, MIB) }.unwrap();
    assert_eq!(now(), 2 * once);
    let [own, other] = [0; 2].map(|_| allocate(&driver, MIB));
    // SAFETY: the context on top of the other one's is taken off.
    unsafe { driver.cuCtxPopCurrent_v2(ptr::null_mut()) }.unwrap();
    // SAFETY: as above.
    unsafe { driver.cuMemcpyDtoD_v2(own, other, MIB) }.unwrap();
    assert_eq!(now(), 2 * once);
}

#[test]
fn bytes_are_counted_by_link() {
    let driver = machine_in_context(&GIGABYTE);
    let device = uploaded(&driver, &pattern(1, 100));
    let pinned = Host::pinned(&driver, &[0; 100]);
    copy(&driver, pinned.address(), device, 60, CUstream::NULL).unwrap();
    copy(&driver, pinned.address(), device, 3, CUstream::NULL).unwrap();
    copy(&driver, device, device + 50, 50, CUstream::NULL).unwrap();
    assert_eq!(counter("bytes pageable -> device 0"), 100);
    assert_eq!(counter("bytes device 0 -> pinned"), 63);
    assert_eq!(counter("bytes device 0 -> device 0"), 50);
    assert_eq!(counter("bytes pinned -> device 0"), 0);
}

/// One step of the model: a copy, or a fill of a device's memory.
#[derive(Clone, Debug)]
enum Step {
    Copy {
        from: usize,
        to: usize,
        src: usize,
        dst: usize,
        len: usize,
    },
    Fill {
        to: usize,
        dst: usize,
        len: usize,
        byte: u8,
    },
    /// The host writes one of its buffers, once the stream is done.
    Write { to: usize, seed: u64 },
}

/// Buffers 0 and 1 are pageable, 2 and 3 pinned, 4 and 5 of device 0, 6 and 7 of device 1.
const BUFFERS: usize = 8;
const LEN: usize = 3000;

fn step() -> impl Strategy<Value = Step> {
    let range = (0..LEN, 0..LEN, 0..=LEN);
    let copy = (0..BUFFERS, 0..BUFFERS, range.clone());
    let copy = copy.prop_map(|(from, to, (src, dst, len))| {
        let len = len.min(LEN - src.max(dst));
        // Ranges that overlap have no meaning.
        let to = if from == to { (to + 1) % BUFFERS } else { to };
        Step::Copy {
            from,
            to,
            src,
            dst,
            len,
        }
    });
    let fill = (4..BUFFERS, range, any::<u8>());
    let fill = fill.prop_map(|(to, (_, dst, len), byte)| {
        let len = len.min(LEN - dst);
        Step::Fill { to, dst, len, byte }
    });
    let write = (0..4usize, any::<u64>()).prop_map(|(to, seed)| Step::Write { to, seed });
    prop_oneof![6 => copy, 1 => fill, 1 => write]
}

struct Buffers {
    host: [Host; 4],
    device: [u64; 4],
}

impl Buffers {
    fn address(&self, buffer: usize) -> u64 {
        match buffer {
            0..4 => self.host[buffer].address(),
            _ => self.device[buffer - 4],
        }
    }

    fn read(&self, driver: &Driver, buffer: usize) -> Vec<u8> {
        match buffer {
            0..4 => self.host[buffer].read(),
            _ => download(driver, self.device[buffer - 4], LEN),
        }
    }
}

#[test]
fn what_a_stream_does_is_what_a_plain_model_does() {
    let driver = machine(&GIGABYTE);
    enter(&driver, 1);
    let far = [0; 2].map(|_| allocate(&driver, LEN));
    enter(&driver, 0);
    let near = [0; 2].map(|_| allocate(&driver, LEN));
    let pageable = [0; 2].map(|_| Host::pageable(&[0; LEN]));
    let pinned = [0; 2].map(|_| Host::pinned(&driver, &[0; LEN]));
    let buffers = Buffers {
        host: [pageable[0], pageable[1], pinned[0], pinned[1]],
        device: [near[0], near[1], far[0], far[1]],
    };
    let made = stream(&driver, 1);
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::with_cases(96)
    });
    let steps = proptest::collection::vec(step(), 1..24);
    let run = runner.run(&steps, |steps| {
        let mut model: Vec<Vec<u8>> = (0..BUFFERS as u64).map(|at| pattern(at, LEN)).collect();
        for (buffer, bytes) in model.iter().enumerate() {
            match buffer {
                0..4 => buffers.host[buffer].write(bytes),
                _ => upload(&driver, buffers.device[buffer - 4], bytes),
            }
        }
        for step in steps {
            match step {
                Step::Copy {
                    from,
                    to,
                    src,
                    dst,
                    len,
                } => {
                    let (from_at, to_at) = (buffers.address(from), buffers.address(to));
                    let ends = (to_at + dst as u64, from_at + src as u64);
                    copy(&driver, ends.0, ends.1, len, made).unwrap();
                    let bytes = model[from][src..src + len].to_vec();
                    model[to][dst..dst + len].copy_from_slice(&bytes);
                }
                Step::Fill { to, dst, len, byte } => {
                    let at = buffers.address(to) + dst as u64;
                    // SAFETY: the range is the buffer's.
                    unsafe { driver.cuMemsetD8Async(at, byte, len, made) }.unwrap();
                    model[to][dst..dst + len].fill(byte);
                }
                Step::Write { to, seed } => {
                    synchronize(&driver, made).unwrap();
                    model[to] = pattern(seed, LEN);
                    buffers.host[to].write(&model[to]);
                }
            }
        }
        synchronize(&driver, made).unwrap();
        for (buffer, bytes) in model.iter().enumerate() {
            prop_assert_eq!(&buffers.read(&driver, buffer), bytes, "buffer {}", buffer);
        }
        Ok(())
    });
    run.unwrap();
}
