//! Mistakes of users, and limits of devices.

use crate::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::engine::{allocate, manager, odd, read};
use common::hal::Bench;
use common::{FIRST, User, assert_clean, metal, paged, pattern};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLDevice as _, MTLResourceOptions};
use transload::hal::{
    AllocError, AllocSpec, Backend as _, ErrorClass, External, HostSpan, ImportError, MemoryKind,
    Outcome, SubmitError,
};
use transload::{Method, TransferManager};
use transload_metal::{Metal, MetalBuffer};
use transload_metal_double::Device;

const LEN: usize = 100_001;

fn private(user: &User) -> Retained<ProtocolObject<dyn MTLBuffer>> {
    let options = MTLResourceOptions::StorageModePrivate;
    user.device
        .newBufferWithLength_options(64, options)
        .unwrap()
}

fn import(metal: &Metal, kind: MemoryKind, external: External) -> ImportError {
    // SAFETY: nothing else uses what is handed over.
    let imported = unsafe { metal.import(FIRST.memory(kind), external) };
    imported.unwrap_err()
}

#[test]
fn the_host_gets_no_pointer_to_private_memory() {
    let manager = manager(vec![Device::unified()]);
    let device = allocate(&manager, "metal:0/device", LEN);
    assert_eq!(device.raw().host(0, 1), None);
    for error in [device.read().err(), device.write().err()] {
        let error = error.unwrap();
        assert_eq!(error.class(), ErrorClass::Unsupported);
        assert!(error.to_string().contains("metal:0/device"), "{error}");
    }
    let mapped = allocate(&manager, "metal:0/mapped", LEN);
    assert_eq!(
        mapped.write().err().unwrap().class(),
        ErrorClass::Unsupported
    );
    drop((device, mapped, manager));
    assert_clean();
}

#[test]
fn a_buffer_is_taken_into_the_memory_that_it_is_of_alone() {
    let metal = metal(vec![Device::unified(), Device::discrete()]);
    let second = metal.inventory().devices[1].id;
    let (own, other) = (User::new(&metal, FIRST), User::new(&metal, second));
    autoreleasepool(|_| {
        let object = |buffer| External::Object(Box::new(MetalBuffer::new(buffer)));
        let error = import(&metal, MemoryKind::Mapped, object(private(&own)));
        assert_eq!(error.class(), ErrorClass::Caller);
        let told = "its storage mode is Private, and that of metal:0/mapped is Shared";
        assert!(error.to_string().contains(told), "{error}");
        let error = import(&metal, MemoryKind::Device, object(private(&other)));
        assert_eq!(error.class(), ErrorClass::Caller);
        assert!(
            error.to_string().contains("no buffer of metal:0"),
            "{error}"
        );
        let error = import(&metal, MemoryKind::Managed, object(private(&own)));
        assert!(
            matches!(error, ImportError::UnknownMemory { .. }),
            "{error}"
        );
        let error = import(&metal, MemoryKind::Device, External::Object(Box::new(7)));
        assert_eq!(error.class(), ErrorClass::Unsupported);
    });
    assert_eq!(metal.id_of(&own.device), Some(FIRST));
    assert_eq!(metal.id_of(&other.device), Some(second));
    assert_eq!(metal.has_unified_memory(FIRST), Some(true));
    assert_eq!(metal.has_unified_memory(second), Some(false));
    assert_eq!(metal.registry_id(second), Some(other.device.registryID()));
    drop((own, other, metal));
    assert_clean();
}

#[test]
fn host_memory_that_is_no_whole_pages_is_not_shared() {
    let metal = metal(vec![Device::unified()]);
    let page = rustix::param::page_size();
    for (start, len) in [(1, page), (0, page - 1), (0, 0)] {
        let mut memory = memmap2::MmapMut::map_anon(2 * page).unwrap();
        let span = HostSpan::of_mut(&mut memory[start..start + len]);
        let host = External::Host {
            span,
            writable: true,
            owner: Box::new(memory),
        };
        let error = import(&metal, MemoryKind::Mapped, host);
        assert_eq!(error.class(), ErrorClass::Caller);
        assert!(error.to_string().contains("are not whole pages"), "{error}");
    }
    drop(metal);
    assert_clean();
}

/// Pages that record when they are freed.
struct Told(memmap2::MmapMut, Arc<AtomicBool>);

impl Drop for Told {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

#[test]
fn shared_memory_stays_as_long_as_somebody_has_its_buffer() {
    let metal = metal(vec![Device::unified()]);
    let share = |has_gone: &Arc<AtomicBool>| {
        let mut owner = Told(
            memmap2::MmapMut::map_anon(rustix::param::page_size()).unwrap(),
            Arc::clone(has_gone),
        );
        let host = External::Host {
            span: HostSpan::of_mut(&mut owner.0),
            writable: true,
            owner: Box::new(owner),
        };
        // SAFETY: nothing else uses the pages.
        unsafe { metal.import(FIRST.memory(MemoryKind::Mapped), host) }.unwrap()
    };
    let has_gone = Arc::new(AtomicBool::new(false));
    let shared = share(&has_gone);
    // SAFETY: no command uses it.
    let (own, at) = unsafe { metal.native(&shared) }.unwrap();
    assert_eq!((own.length() as u64, at), (shared.len(), 0));
    drop(shared);
    assert!(
        !has_gone.load(Ordering::SeqCst),
        "the buffer is there still"
    );
    autoreleasepool(|_| drop(own));
    assert!(has_gone.load(Ordering::SeqCst));
    // Taken out, it is the program's own again.
    let has_gone = Arc::new(AtomicBool::new(false));
    let owner = share(&has_gone).into_owner::<Told>().unwrap();
    assert!(!has_gone.load(Ordering::SeqCst));
    drop((owner, metal));
    assert_clean();
}

#[test]
fn a_submission_names_one_device_and_pages_that_begin_its_memory() {
    let bench = Bench::new(metal(vec![Device::unified(), Device::discrete()]));
    let [a, b] = ["metal:0/device", "metal:1/device"].map(|place| bench.buffer(place, 64));
    let refused = |error: SubmitError, what: &str| match error {
        SubmitError::Unsupported { index: 0, reason } => assert!(reason.contains(what), "{reason}"),
        other => panic!("{other}"),
    };
    refused(
        bench.copy(&a, &b, &[]).unwrap_err(),
        "buffers of two devices",
    );
    let host = paged(transload::DeviceId::CPU0.memory(MemoryKind::Pageable), 128);
    let whole = bench.copy(&host.slice(0, 64).unwrap(), &a, &[]).unwrap();
    assert_eq!(bench.outcome(whole), Outcome::Done);
    drop((a, b, bench));
    assert_clean();
}

#[test]
fn memory_of_two_devices_is_staged_between() {
    let manager = manager(vec![Device::unified(), Device::discrete()]);
    let bytes = pattern(LEN);
    let (one, other) = (
        allocate(&manager, "metal:0/device", LEN),
        allocate(&manager, "metal:1/device", LEN),
    );
    manager.copy_from_slice(&bytes, &one).unwrap();
    let report = manager.copy(&one, &other).wait().unwrap();
    assert_eq!(report.method(), Method::HostStaged);
    assert_eq!(read(&manager, &other), bytes);
    drop((one, other, manager));
    assert_clean();
}

#[test]
fn allocations_past_what_a_device_has_are_refused_by_name() {
    let device = Device {
        memory_bytes: 1 << 20,
        max_buffer_bytes: 1 << 30,
        ..Device::unified()
    };
    let metal = metal(vec![device]);
    let memory = FIRST.memory(MemoryKind::Device);
    let refusal = |spec: AllocSpec| metal.allocate(memory, &spec).unwrap_err();
    let limit = (1 << 30) + 1;
    let too_large = refusal(AllocSpec::bytes(limit));
    assert!(
        matches!(too_large, AllocError::TooLarge { .. }),
        "{too_large}"
    );
    let full = refusal(AllocSpec::bytes(2 << 20));
    assert!(matches!(full, AllocError::OutOfMemory { .. }), "{full}");
    assert_eq!(full.class(), ErrorClass::Exhausted);
    for alignment in [0, 3, 512] {
        let odd = refusal(AllocSpec::bytes(1).aligned(alignment));
        assert!(matches!(odd, AllocError::Alignment { .. }), "{odd}");
    }
    let managed = metal.allocate(FIRST.memory(MemoryKind::Managed), &AllocSpec::bytes(1));
    assert!(matches!(managed, Err(AllocError::UnknownMemory { .. })));
    drop(metal);
    assert_clean();
}

#[test]
fn a_buffer_of_the_programs_takes_part_in_transfers() {
    let metal = metal(vec![Device::discrete()]);
    let user = User::new(&metal, FIRST);
    let manager = TransferManager::builder().host().build().unwrap();
    manager.register_backend(metal).unwrap();
    let bytes = pattern(LEN);
    autoreleasepool(|_| {
        let options = MTLResourceOptions::StorageModeManaged;
        let made = user.device.newBufferWithLength_options(LEN, options);
        let object = External::Object(Box::new(MetalBuffer::new(made.unwrap())));
        let place = "metal:0/managed".parse().unwrap();
        // SAFETY: nothing else uses it.
        let taken = unsafe { manager.import(place, object) }.unwrap();
        let host = odd(&manager, &bytes);
        manager.copy(&host, &taken).wait().unwrap();
        let device = allocate(&manager, "metal:0/device", LEN);
        manager.copy(&taken, &device).wait().unwrap();
        assert_eq!(read(&manager, &device), bytes);
        // Others have it, so it is synchronized whenever the host looks.
        let looked = common::engine::during(|| assert_eq!(taken.read().unwrap()[..], bytes[..]));
        assert_eq!(looked.synchronizes, 1);
    });
    drop((user, manager));
    assert_clean();
}
