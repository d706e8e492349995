//! Memory and streams that belong to the user, and not to the manager.

use transload::hal::{ErrorClass, External, ExternalKind, ImportError, IpcHandle};
use transload::{AllocSpec, Buffer, Error, Place, PlaceError, Request, TransferManager};
use transload_cuda::Cuda;
use transload_cuda::raw::{CUcontext, CUdevice, CUstream, CUstream_flags, Driver};

use super::machine::{assert_clean, at, manager, pattern};
use super::process::{self, Other, hex, is_other, unhex};

fn place(text: &str) -> Place {
    text.parse().unwrap()
}

fn driver(manager: &TransferManager) -> Driver {
    manager.backend::<Cuda>().unwrap().driver().clone()
}

fn bytes_of(manager: &TransferManager, buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len() as usize];
    manager.copy_into_slice(buffer, &mut bytes).unwrap();
    bytes
}

/// Runs `act` in the primary context of the first device.
fn beside<T>(driver: &Driver, act: impl FnOnce() -> T) -> T {
    let mut context = CUcontext::NULL;
    // SAFETY: the out-pointers here and below are local variables; the driver made the contexts.
    unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, CUdevice(0)) }.unwrap();
    // SAFETY: as above.
    unsafe { driver.cuCtxPushCurrent_v2(context) }.unwrap();
    let answer = act();
    // SAFETY: as above.
    unsafe { driver.cuCtxPopCurrent_v2(&raw mut context) }.unwrap();
    // SAFETY: as above.
    unsafe { driver.cuDevicePrimaryCtxRelease_v2(CUdevice(0)) }.unwrap();
    answer
}

#[test]
fn two_processes_with_a_manager_each_share_a_buffer() {
    let (mine, yours) = (pattern(300_000, 1), pattern(300_000, 2));
    let manager = manager("pcie-peer");
    if is_other() {
        let handle = IpcHandle::from_bytes(&unhex::<{ IpcHandle::BYTES }>(&process::hear()));
        // SAFETY: the other process keeps the buffer, and does not touch it before this one reports.
        let buffer = unsafe { manager.import_ipc(&handle.unwrap()) }.unwrap();
        assert_eq!(buffer.memory().to_string(), "cuda:1/device");
        assert!(bytes_of(&manager, &buffer) == mine);
        // The bytes go by way of the other device, so that the imported buffer is the end of a link.
        let relay = at(&manager, "cuda:0", 300_000);
        manager.copy_from_slice(&yours, &relay).unwrap();
        manager
            .submit(&Request::new(&relay, &buffer).verify())
            .wait()
            .unwrap();
        drop((buffer, relay, manager));
        assert_clean();
        return;
    }
    let spec = AllocSpec::bytes(400_000).for_sharing();
    let whole = manager.allocate(place("cuda:1"), spec).unwrap();
    let part = whole.slice(50_000..350_000).unwrap();
    manager.copy_from_slice(&mine, &part).unwrap();
    let External::Ipc(handle) = manager.export(&part, ExternalKind::CudaIpc).unwrap() else {
        panic!("it is a handle");
    };
    let mut other =
        Other::start("cuda::exchange::two_processes_with_a_manager_each_share_a_buffer");
    other.tell(&hex(&handle.to_bytes()));
    other.end();
    assert!(bytes_of(&manager, &part) == yours);
    // SAFETY: the memory is this manager's own.
    let own = unsafe { manager.import_ipc(&handle) }.unwrap();
    assert!(own.raw().same_storage(whole.raw()));
    let nowhere = IpcHandle::new(
        handle.kind(),
        *handle.token(),
        transload::Uuid([3; 16]),
        handle.allocation_bytes(),
        handle.span(),
        true,
    );
    // SAFETY: no process opens the handle.
    let error = unsafe { manager.import_ipc(&nowhere.unwrap()) }.unwrap_err();
    assert!(
        matches!(error, Error::Place(PlaceError::UnknownDevice { .. })),
        "{error}"
    );
}

#[test]
fn memory_from_pools_is_not_given_to_other_processes_unless_asked_for() {
    let manager = manager("pcie-peer");
    let buffer = at(&manager, "cuda:0", 4096);
    let error = manager.export(&buffer, ExternalKind::CudaIpc).unwrap_err();
    assert!(
        matches!(error, Error::Import(ImportError::Unsupported { .. })),
        "{error}"
    );
    assert_eq!(error.class(), ErrorClass::Unsupported);
}

/// Memory that the user allocated.
#[derive(Debug)]
struct Own {
    driver: Driver,
    address: u64,
}

impl Drop for Own {
    fn drop(&mut self) {
        beside(&self.driver, || {
            // SAFETY: the memory was allocated below, and no operation uses it.
            unsafe { self.driver.cuMemFree_v2(self.address) }.unwrap();
        });
    }
}

#[test]
fn a_device_pointer_takes_part_in_transfers_and_comes_back() {
    let manager = manager("pcie-peer");
    let driver = driver(&manager);
    // Opening the device keeps its context alive.
    let other = at(&manager, "cuda:0", 100_000);
    let mut address = 0;
    beside(&driver, || {
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuMemAlloc_v2(&raw mut address, 200_000) }.unwrap();
    });
    let owner = Own { driver, address };
    let external = External::Device {
        address: address + 77,
        len_bytes: 100_000,
        writable: true,
        owner: Box::new(owner),
    };
    // SAFETY: the owner keeps the memory alive, and no other code uses it.
    let buffer = unsafe { manager.import(place("cuda:0"), external) }.unwrap();
    manager
        .copy_from_slice(&pattern(100_000, 5), &buffer)
        .unwrap();
    // Two views of one memory are allowed.
    let external = manager
        .export(&buffer, ExternalKind::DevicePointer)
        .unwrap();
    // SAFETY: as above; the manager orders the accesses.
    let view = unsafe { manager.import(place("cuda:0"), external) }.unwrap();
    let first = manager.copy(&buffer, &other);
    let second = manager.copy_from_slice(&[9; 100_000], &view);
    first.wait().unwrap();
    second.unwrap();
    assert!(bytes_of(&manager, &other) == pattern(100_000, 5));
    assert!(bytes_of(&manager, &buffer) == [9; 100_000]);
    let held = buffer.into_inner::<Own>().unwrap_err();
    drop(view);
    let own = held.buffer.into_inner::<Own>();
    assert_eq!(own.map(|own| own.address).ok(), Some(address));
    drop((other, manager));
    assert_clean();
}

#[test]
fn pinned_memory_is_host_memory_to_others_without_a_copy() {
    let manager = manager("pcie-peer");
    let pinned = at(&manager, "cpu:0/pinned", 50_000);
    manager
        .copy_from_slice(&pattern(50_000, 6), &pinned)
        .unwrap();
    let view = manager.share(&pinned, place("cpu:0/pageable")).unwrap();
    assert_eq!(view.raw().position(), pinned.raw().position());
    assert!(*view.read().unwrap() == pattern(50_000, 6)[..]);
    // In the other direction the same bytes are not registered a second time.
    let again = manager.share(&view, place("cpu:0/pinned")).unwrap();
    assert_eq!(again.memory().to_string(), "cpu:0/pinned");
    let device = at(&manager, "cuda:0", 50_000);
    manager.copy(&again, &device).wait().unwrap();
    assert!(bytes_of(&manager, &device) == pattern(50_000, 6));
}

#[test]
fn a_transfer_begins_after_a_stream_and_the_stream_goes_on_after_it() {
    let manager = manager("pcie-peer");
    let cuda = manager.backend::<Cuda>().unwrap();
    let driver = cuda.driver().clone();
    let [src, dst] = [0; 2].map(|_| at(&manager, "cuda:0", 1 << 20));
    manager.copy_from_slice(&pattern(1 << 20, 1), &dst).unwrap();
    beside(&driver, || {
        let mut stream = CUstream::NULL;
        let apart = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: the out-pointers here and below are local variables; the streams and addresses belong to the test.
        unsafe { driver.cuStreamCreate(&raw mut stream, apart) }.unwrap();
        let address = src.raw().position();
        // SAFETY: as above.
        unsafe { driver.cuMemsetD8Async(address, 7, 1 << 20, stream) }.unwrap();
        let (ready, over) = (manager.event(), manager.event());
        // SAFETY: as above.
        unsafe { cuda.when_done(stream, ready.setter()) }.unwrap();
        let request = Request::new(&src, &dst).after(&ready).then(&over);
        let transfer = manager.submit(&request);
        let fences = loop {
            match transfer.fences() {
                Some(fences) => break fences,
                None => drop(manager.turn()),
            }
        };
        // SAFETY: as above.
        unsafe { cuda.follow(stream, &fences) }.unwrap();
        // After the copy the stream may use the source again, and the copy already has the bytes.
        // SAFETY: as above.
        unsafe { driver.cuMemsetD8Async(address, 8, 1 << 20, stream) }.unwrap();
        // SAFETY: as above.
        unsafe { driver.cuStreamSynchronize(stream) }.unwrap();
        transfer.wait().unwrap();
        assert!(over.is_set());
        assert!(bytes_of(&manager, &dst) == [7; 1 << 20]);
        assert!(bytes_of(&manager, &src) == [8; 1 << 20]);
        // SAFETY: as above.
        unsafe { driver.cuStreamDestroy_v2(stream) }.unwrap();
    });
    drop((src, dst, cuda, manager));
    assert_clean();
}

#[test]
fn what_is_offered_and_refused_leaves_no_descriptor() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let manager = manager("pcie-peer");
    let shared = at(&manager, "cpu:0/shared", 2 << 20);
    // The manager offers a file first. Pinned memory takes the address instead, and the device takes neither.
    let round = || {
        drop(manager.share(&shared, place("cpu:0/pinned")).unwrap());
        assert!(manager.share(&shared, place("cuda:0")).is_err());
        drop(manager.place(&shared, place("cuda:0")).unwrap());
    };
    round();
    let before = descriptors();
    (0..100).for_each(|_| round());
    assert_eq!(descriptors(), before);
}

#[test]
fn memory_of_one_manager_is_not_taken_in_by_another() {
    let one = manager("pcie-peer");
    let devices = Cuda::with_driver(driver(&one)).unwrap();
    let other = TransferManager::builder()
        .host()
        .backend(std::sync::Arc::new(devices))
        .build()
        .unwrap();
    for (at_one, at_other) in [("cuda:0", "cuda:0"), ("cpu:0/pinned", "cpu:0/pinned")] {
        let buffer = at(&one, at_one, 100_000);
        let kind = match buffer.memory().device.to_string().as_str() {
            "cpu:0" => ExternalKind::Host,
            _ => ExternalKind::DevicePointer,
        };
        let given = one.export(&buffer, kind).unwrap();
        // SAFETY: the buffer is alive, and no transfer uses it.
        let error = unsafe { other.import(place(at_other), given) }.unwrap_err();
        let claimed = matches!(error, Error::Import(ImportError::Claimed { .. }));
        assert!(claimed, "{at_one}: {error}");
    }
}
