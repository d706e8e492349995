//! Managed memory: which engines access it, how reports name the method, and how copies wait for work of the device.

use transload::{Advice, Buffer, GuardError, Method, TransferManager};
use transload_cuda::Cuda;
use transload_cuda::raw::{CUcontext, CUdevice, CUdeviceptr, CUstream, Driver};

use crate::cuda::machine::{
    assert_clean, at, control, counter, made_up, pattern, round, with_settings,
};

const MIB: u64 = 1 << 20;
const LEN: u64 = MIB + 13;

fn manager(clock: &str, machine: &str) -> TransferManager {
    let machine = made_up(machine);
    with_settings(&[("CLOCK", clock), ("TOPOLOGY", &machine)])
}

fn methods(manager: &TransferManager, len: u64, places: &[&str]) -> Vec<Method> {
    let reports = round(manager, len, places);
    reports.iter().map(|report| report.method()).collect()
}

/// Starts a copy to managed memory outside Transload, in the device's primary context and in a stream of its own. The
/// copy is in flight when this returns.
fn write_outside(driver: &Driver, bytes: &[u8], to: &Buffer) {
    let (mut context, mut stream) = (CUcontext::NULL, CUstream::NULL);
    let mut from: CUdeviceptr = 0;
    // SAFETY: the out-pointers here and below are local variables.
    unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, CUdevice(0)) }.unwrap();
    // SAFETY: the context was retained and is not released before the end.
    unsafe { driver.cuCtxPushCurrent_v2(context) }.unwrap();
    // SAFETY: as above. 1 is CU_STREAM_NON_BLOCKING.
    unsafe { driver.cuStreamCreate(&raw mut stream, 1) }.unwrap();
    // SAFETY: as above.
    unsafe { driver.cuMemAlloc_v2(&raw mut from, bytes.len()) }.unwrap();
    // SAFETY: both have that length.
    unsafe { driver.cuMemcpyHtoD_v2(from, bytes.as_ptr().cast(), bytes.len()) }.unwrap();
    // A copy from pageable memory returns before the bytes have arrived.
    // SAFETY: the call takes no arguments.
    unsafe { driver.cuCtxSynchronize() }.unwrap();
    let target = to.raw().position();
    // SAFETY: both stay allocated until the test has waited.
    unsafe { driver.cuMemcpyDtoDAsync_v2(target, from, bytes.len(), stream) }.unwrap();
    let mut popped = CUcontext::NULL;
    // SAFETY: it was pushed above.
    unsafe { driver.cuCtxPopCurrent_v2(&raw mut popped) }.unwrap();
}

fn now() -> u64 {
    control("now").unwrap().parse().unwrap()
}

#[test]
fn one_pass_over_managed_memory_is_called_unified() {
    let manager = manager("real", "gigabyte");
    let unified = Method::UnifiedMemory;
    for len in [1, 4097, 3 * MIB + 5] {
        // Host threads copy in and out; the device's engine does the other copies.
        let found = methods(
            &manager,
            len,
            &["cuda:0/managed", "cuda:0", "cuda:0/managed"],
        );
        assert_eq!(found, [unified; 4], "{len}");
        let found = methods(&manager, len, &["cpu:0/shared", "cuda:0/managed"]);
        assert_eq!(found[1..], [unified; 2], "{len}");
        let found = methods(
            &manager,
            len,
            &["cpu:0/pinned", "cuda:0/managed", "cpu:0/pinned"],
        );
        assert_eq!(found[1..3], [unified; 2], "{len}");
        let found = methods(&manager, len, &["cuda:0/managed", "cuda:1"]);
        assert_eq!(found[1], Method::HostStaged, "{len}");
    }
    assert_eq!(counter("pageable-copies-staged"), 0);
    drop(manager);
    assert_clean();
}

/// Waits by a copy, and by a look at the bytes. Returns the modelled time of both together.
fn waits_for_what_others_do(clock: &str) -> u64 {
    let manager = manager(clock, "gigabyte");
    let cuda = manager.backend::<Cuda>().unwrap();
    let buffer = at(&manager, "cuda:0/managed", LEN);
    let begun = now();
    let first = pattern(LEN, 1);
    write_outside(cuda.driver(), &first, &buffer);
    let mut seen = vec![0; LEN as usize];
    manager.copy_into_slice(&buffer, &mut seen).unwrap();
    assert!(seen == first);
    let second = pattern(LEN, 2);
    write_outside(cuda.driver(), &second, &buffer);
    assert!(*buffer.read().unwrap() == *second);
    let third = pattern(LEN, 3);
    write_outside(cuda.driver(), &third, &buffer);
    let mut guard = buffer.write().unwrap();
    assert!(*guard == *third);
    guard.fill(7);
    drop(guard);
    assert!(buffer.read().unwrap().iter().all(|byte| *byte == 7));
    // A copy to the memory does not race with the outside copy that still writes it.
    write_outside(cuda.driver(), &first, &buffer);
    manager.copy_from_slice(&second, &buffer).unwrap();
    assert!(*buffer.read().unwrap() == *second);
    assert_eq!(control("notes").unwrap(), "");
    now() - begun
}

#[test]
fn the_host_waits_for_what_a_users_stream_writes() {
    waits_for_what_others_do("real");
}

#[test]
fn it_waits_no_longer_than_that() {
    // Four times: from pageable memory the outside copy takes two nanoseconds a byte, and to managed memory one.
    assert_eq!(waits_for_what_others_do("virtual"), 4 * 3 * LEN);
}

#[test]
fn a_prefetch_brings_the_bytes_to_a_device_and_back() {
    let manager = manager("virtual", "gigabyte");
    let place = |name: &str| name.parse::<transload::Place>().unwrap();
    let len = 2 * MIB;
    let buffer = at(&manager, "cuda:0/managed", len);
    let bytes = pattern(len, 5);
    let source = manager.adopt(bytes.clone()).unwrap();
    let copied = manager.copy(source, &buffer);
    let begun = now();
    // The prefetch follows the copy that was submitted before it.
    manager.prefetch(&buffer, place("cuda:1")).unwrap();
    assert!(copied.is_over());
    assert_eq!(counter("bytes pinned -> device 1"), len);
    assert_eq!(now() - begun, len, "it blocks until that is done");
    let half = buffer.slice(..MIB).unwrap();
    manager.prefetch(&half, place("cpu:0")).unwrap();
    assert_eq!(counter("bytes device 1 -> pinned"), MIB);
    assert!(*buffer.read().unwrap() == *bytes);
    // A prefetch of memory that cannot migrate does nothing.
    for memory in ["cuda:0", "cpu:0/pinned", "cpu:0"] {
        let other = at(&manager, memory, MIB);
        manager.prefetch(&other, place("cuda:0")).unwrap();
    }
    drop((buffer, half));
    drop(copied);
    drop(manager);
    assert_clean();
}

#[test]
fn advice_reaches_the_driver_and_no_answer_of_it_is_an_error() {
    let manager = manager("real", "gigabyte");
    let buffer = at(&manager, "cuda:0/managed", MIB);
    let [one, other, host] = ["cuda:0", "cuda:1", "cpu:0"].map(|id| id.parse().unwrap());
    let advised = || {
        let calls = control("calls").unwrap();
        let mut lines = calls.lines();
        let line = lines.find_map(|line| line.strip_prefix("cuMemAdvise_v2 "));
        line.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    for (count, advice) in (1..).zip([
        Advice::MostlyRead,
        Advice::NotMostlyRead,
        Advice::KeptAt(one),
        Advice::KeptAt(host),
        Advice::KeptAnywhere,
        Advice::UsedBy(other),
        Advice::NotUsedBy(other),
    ]) {
        manager.advise(&buffer, advice).unwrap();
        assert_eq!(advised(), count, "{advice:?}");
    }
    control("fault call=cuMemAdvise_v2:801").unwrap();
    manager.advise(&buffer, Advice::MostlyRead).unwrap();
    // The advice does nothing for other memories.
    for memory in ["cuda:0", "cpu:0/pinned", "cpu:0"] {
        let other = at(&manager, memory, MIB);
        manager.advise(&other, Advice::KeptAt(one)).unwrap();
    }
    assert_eq!(advised(), 8);
    drop(buffer);
    drop(manager);
    assert_clean();
}

/// Without concurrent access the host never touches the memory: the device's engines move the bytes through pinned
/// memory.
#[test]
fn where_host_and_device_take_turns_bytes_go_over_pinned_memory() {
    let manager = manager("real", "page-tables");
    for len in [1, 4097, 3 * MIB + 5] {
        let found = methods(&manager, len, &["cuda:1/managed", "cuda:1"]);
        let (staged, unified) = (Method::HostStaged, Method::UnifiedMemory);
        assert_eq!(found, [staged, unified, staged], "{len}");
    }
    let buffer = at(&manager, "cuda:1/managed", MIB);
    let error = buffer.read().unwrap_err();
    assert!(
        matches!(error, GuardError::NotHostAddressable { .. }),
        "{error}"
    );
    let device: transload::DeviceId = "cuda:1".parse().unwrap();
    manager.prefetch(&buffer, device.into()).unwrap();
    manager.advise(&buffer, Advice::KeptAt(device)).unwrap();
    assert_eq!(counter("pageable-copies-staged"), 0);
    drop(buffer);
    drop(manager);
    assert_clean();
}
