//! User memory that the backend adopts by its address: the accepted kinds, the refused kinds, and its return to the
//! owner.

use crate::common;
use crate::common::own;

use std::sync::Arc;

use common::work::{Works, device, pattern, pinned, read};
use common::{assert_clean, calls, control, machine};
use own::Own;
use transload_cuda::raw::{CUcontext, CUdevice, CUmemAccess_flags, Driver};
use transload_hal::{
    Backend, BackendId, Buffer, ErrorClass, External, ExternalKind, HostSpan, ImportError,
    MemoryId, MemoryKind, Name, StorageId, StorageInfo,
};

const READ: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;
const BOTH: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
const NONE: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
const LEN: usize = 10_007;

fn managed() -> MemoryId {
    device(0).device.memory(MemoryKind::Managed)
}

/// Adopts `len_bytes` bytes from an address on.
fn adopt_at(
    works: &Works,
    memory: MemoryId,
    (address, len_bytes): (u64, u64),
    writable: bool,
    owner: Own,
) -> Result<Buffer, ImportError> {
    let external = External::Device {
        address,
        len_bytes,
        writable,
        owner: Box::new(owner),
    };
    // SAFETY: the owner keeps the memory, which no other code touches while an operation uses it.
    unsafe { works.cuda.import(memory, external) }
}

fn adopt(works: &Works, memory: MemoryId, owner: Own) -> Buffer {
    let range = (owner.address, owner.len);
    adopt_at(works, memory, range, true, owner).unwrap()
}

/// The reason of a refusal, whose class must be the caller's mistake.
fn reason(refused: Result<Buffer, ImportError>) -> String {
    match refused {
        Err(error @ ImportError::Invalid { .. }) => {
            assert_eq!(error.class(), ErrorClass::Caller);
            error.to_string()
        }
        other => panic!("{other:?}"),
    }
}

/// The bytes at an address, read by the driver's own copies.
fn read_address(driver: &Driver, address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    own::beside(driver, 0, || {
        // SAFETY: the memory is the test's and has that length.
        unsafe { driver.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, len) }.unwrap();
    });
    bytes
}

/// Memory of each sort, with the memory id under which the backend adopts it.
fn every_sort(driver: &Driver) -> Vec<(&'static str, MemoryId, Own)> {
    vec![
        ("cuMemAlloc", device(0), own::of_device(driver, 0, LEN)),
        ("a pool", device(0), own::of_pool(driver, 0, LEN)),
        ("mapped", device(0), own::mapped(driver, &[Some(BOTH); 2])),
        ("managed", managed(), own::managed(driver, 0, LEN)),
        ("pinned", pinned(), own::pinned(driver, LEN)),
        ("registered", pinned(), own::registered(driver, LEN)),
    ]
}

#[test]
fn memory_of_every_sort_is_used_where_it_is_and_comes_back() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    for (what, memory, own) in every_sort(&driver) {
        let (start, len) = (own.address, own.len);
        let before = calls("cuMemHostRegister_v2");
        let buffer = adopt_at(&works, memory, (start + 96, len - 100), true, own).unwrap();
        assert_eq!(calls("cuMemHostRegister_v2"), before, "{what}");
        assert_eq!(
            (buffer.memory(), buffer.len()),
            (memory, len - 100),
            "{what}"
        );
        assert_eq!(buffer.position(), start + 96, "{what}");
        let (there, back) = (pattern(1, 5000), pattern(2, 5000));
        let part = buffer.slice(7, 5000).unwrap();
        let relay = works.allocate(device(0), 5000);
        works.upload(&relay, &there);
        works.run(&[common::work::copy(&relay, &part)]);
        assert!(read_address(&driver, start + 103, 5000) == there, "{what}");
        works.upload(&relay, &back);
        works.run(&[common::work::copy(&part, &relay)]);
        assert!(works.download(&relay) == there, "{what}");
        let seen = part.host(0, 5000).map(|_| read(&part));
        let is_device = memory == device(0);
        assert_eq!(seen, (!is_device).then_some(there), "{what}");
        drop(part);
        let own = buffer.into_owner::<Own>().unwrap();
        assert_eq!((own.address, own.len), (start, len), "{what}");
        // The user can still use the memory.
        assert_eq!(read_address(&driver, start + 103, 1).len(), 1);
    }
    drop(works);
    assert_clean();
}

#[test]
fn two_views_of_one_memory_are_known_to_be_one() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    for (what, memory, own) in every_sort(&driver) {
        let range = (own.address, own.len);
        let first = adopt_at(&works, memory, range, true, own).unwrap();
        let inner = (range.0 + 100, 200);
        let second = adopt_at(&works, memory, inner, false, Own::none()).unwrap();
        assert_eq!(first.storage_id(), second.storage_id(), "{what}");
        assert_eq!(second.position(), first.position() + 100, "{what}");
        assert!(first.is_writable() && !second.is_writable());
        let id = match memory == device(0) {
            true => works.allocate(device(0), 1).storage_id(),
            false => StorageId::Host,
        };
        assert_eq!(first.storage_id(), id, "{what}");
    }
}

#[test]
fn a_pointer_that_is_not_what_it_is_said_to_be_is_named() {
    let works = Works::in_use(&[("TOPOLOGY", &machine("no-peer"))]);
    let driver = works.cuda.driver().clone();
    let refused =
        |memory, range: (u64, u64)| reason(adopt_at(&works, memory, range, true, Own::none()));

    let freed = own::of_device(&driver, 0, LEN).address;
    let heap = vec![0u8; LEN];
    for address in [freed, heap.as_ptr() as u64, 0, u64::MAX] {
        let text = refused(device(0), (address, 16));
        let wanted = format!("the driver knows no memory at {address:#x}");
        assert!(text.contains(&wanted), "{text}");
    }

    let other = own::of_device(&driver, 1, LEN);
    let shared = own::managed(&driver, 1, LEN);
    let host = own::pinned(&driver, LEN);
    for (named, of, home) in [
        (device(0), &other, "cuda:1/device"),
        (managed(), &other, "cuda:1/device"),
        (pinned(), &other, "cuda:1/device"),
        (device(1), &shared, "cuda:1/managed"),
        (managed(), &shared, "cuda:1/managed"),
        (device(0), &host, "cpu:0/pinned"),
    ] {
        let text = refused(named, (of.address, 16));
        let wanted = format!("{:#x} is an address in {home}", of.address);
        assert!(text.contains(&wanted), "{text}");
        assert!(text.contains(&named.to_string()), "{text}");
    }

    for (memory, own) in [
        (device(1), &other),
        (shared_memory(), &shared),
        (pinned(), &host),
    ] {
        let (start, len) = (own.address, own.len);
        for (at, asked, left) in [
            (start, len + 1, len),
            (start + len - 1, 2, 1),
            (start, u64::MAX, len),
            (start + 1, u64::MAX - start, len - 1),
        ] {
            let text = refused(memory, (at, asked));
            let wanted =
                format!("{left} bytes are left at {at:#x} of the {len} that begin at {start:#x}");
            assert!(
                text.contains(&wanted) && text.contains(&asked.to_string()),
                "{text}"
            );
        }
        assert!(adopt_at(&works, memory, (start + len - 1, 1), true, Own::none()).is_ok());
        assert!(adopt_at(&works, memory, (start, 0), true, Own::none()).is_ok());
    }
    drop((other, shared, host, works));
    assert_clean();
}

fn shared_memory() -> MemoryId {
    device(1).device.memory(MemoryKind::Managed)
}

#[test]
fn memory_put_together_of_pieces_has_no_holes_and_may_be_reached() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    const PIECE: u64 = 2 << 20;
    let own = own::mapped(
        &driver,
        &[Some(BOTH), Some(BOTH), None, Some(READ), Some(NONE)],
    );
    let start = own.address;
    let ask = |at: u64, len, writable| {
        let range = (start + at, len);
        adopt_at(&works, device(0), range, writable, Own::none())
    };
    assert_eq!(
        ask(100, 2 * PIECE - 100, true).unwrap().len(),
        2 * PIECE - 100
    );
    let text = reason(ask(100, 2 * PIECE, true));
    let left = 2 * PIECE - 100;
    assert!(text.contains(&format!("{left} bytes are left")), "{text}");
    assert!(reason(ask(2 * PIECE, 1, true)).contains("knows no memory"));
    assert!(reason(ask(3 * PIECE, 1, true)).contains("may only read"));
    assert!(ask(3 * PIECE, 1, false).is_ok());
    assert!(reason(ask(4 * PIECE, 1, false)).contains("has no access"));
    drop((own, works));
    assert_clean();
}

#[test]
fn memory_of_a_context_of_the_programs_own_is_refused() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver();
    let mut context = CUcontext::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuCtxCreate_v2(&raw mut context, 0, CUdevice(0)) }.unwrap();
    let address = own::plain(driver, LEN);
    let error = adopt_at(&works, device(0), (address, 16), true, Own::none()).unwrap_err();
    assert!(matches!(error, ImportError::Unsupported { .. }), "{error}");
    assert!(
        error.to_string().contains(&format!("{address:#x}")),
        "{error}"
    );
    // Memory without a context, or of every context, is accepted wherever it was made.
    let mut pinned_start = std::ptr::null_mut();
    // SAFETY: as above.
    unsafe { driver.cuMemHostAlloc(&raw mut pinned_start, LEN, 0) }.unwrap();
    let range = (pinned_start.expose_provenance() as u64, LEN as u64);
    let host = adopt_at(&works, pinned(), range, true, Own::none()).unwrap();
    works.run(&[common::work::copy(&host, &works.allocate(device(0), LEN))]);
    drop(host);
    // SAFETY: no operation uses it.
    unsafe { driver.cuMemFreeHost(pinned_start) }.unwrap();
    own::free(driver, address);
    // SAFETY: the context is the test's.
    unsafe { driver.cuCtxDestroy_v2(context) }.unwrap();
    drop(works);
    assert_clean();
}

fn host(span: HostSpan, owner: impl transload_hal::Owner) -> External {
    External::Host {
        span,
        writable: true,
        owner: Box::new(owner),
    }
}

fn span_of(own: &Own) -> HostSpan {
    let start = std::ptr::with_exposed_provenance_mut(own.address as usize);
    HostSpan::new(std::ptr::NonNull::new(start).unwrap(), own.len as usize)
}

#[test]
fn host_memory_that_the_user_registered_is_taken_as_it_is() {
    let works = Works::in_use(&[]);
    let driver = works.cuda.driver().clone();
    for own in [own::registered(&driver, LEN), own::pinned(&driver, LEN)] {
        let span = span_of(&own);
        let before = (calls("cuMemHostRegister_v2"), calls("cuMemHostUnregister"));
        // SAFETY: the owner keeps the bytes.
        let buffer = unsafe { works.cuda.import(pinned(), host(span, own)) }.unwrap();
        let relay = works
            .cuda
            .allocate(device(0), &transload_hal::AllocSpec::bytes(LEN as u64));
        works.run(&[common::work::copy(&buffer, &relay.unwrap())]);
        let own = buffer.into_owner::<Own>().unwrap();
        let after = (calls("cuMemHostRegister_v2"), calls("cuMemHostUnregister"));
        assert_eq!(before, after);
        // The range is longer than the registered one.
        let longer = HostSpan::new(std::ptr::NonNull::new(span.as_ptr()).unwrap(), LEN + 4096);
        // SAFETY: the backend refuses the range before it touches it.
        let text = reason(unsafe { works.cuda.import(pinned(), host(longer, ())) });
        let wanted = format!("only the first {LEN} of its {} bytes", LEN + 4096);
        assert!(text.contains(&wanted), "{text}");
        drop(own);
    }
    let shared = own::managed(&driver, 0, LEN);
    // SAFETY: as above.
    let text = reason(unsafe { works.cuda.import(pinned(), host(span_of(&shared), ())) });
    assert!(text.contains("an address in cuda:0/managed"), "{text}");
    drop((shared, works));
    assert_clean();
}

#[test]
fn buffers_of_one_range_share_its_registration() {
    let works = Works::in_use(&[]);
    let bytes = Arc::new(pattern(4, LEN));
    let span = |from: usize, to: usize| HostSpan::of(&bytes[from..to]);
    let take = |from, to| {
        // SAFETY: the vector keeps the bytes, which are only read.
        unsafe {
            works
                .cuda
                .import(pinned(), host(span(from, to), Arc::clone(&bytes)))
        }
    };
    let begun = (calls("cuMemHostRegister_v2"), calls("cuMemHostUnregister"));
    let so_far = || {
        let now = (calls("cuMemHostRegister_v2"), calls("cuMemHostUnregister"));
        (now.0 - begun.0, now.1 - begun.1)
    };
    let whole = take(1000, 9000).unwrap();
    let part = take(2000, 3000).unwrap();
    assert_eq!(so_far(), (1, 0));
    for (from, to, registered) in [
        (0, 2000, (1000, 2000)),
        (8000, 9500, (0, 1000)),
        (0, LEN, (1000, 9000)),
    ] {
        let text = reason(take(from, to));
        let wanted = format!(
            "its bytes {} to {} are registered",
            registered.0, registered.1
        );
        assert!(text.contains(&wanted), "{text}");
    }
    // Other ranges next to it are allowed.
    drop((take(0, 1000).unwrap(), take(9000, LEN).unwrap()));
    assert_eq!(so_far(), (3, 2));
    drop(whole);
    assert_eq!(so_far(), (3, 2), "the part needs it");
    let relay = works
        .cuda
        .allocate(device(0), &transload_hal::AllocSpec::bytes(1000));
    works.run(&[common::work::copy(&part, relay.as_ref().unwrap())]);
    drop(part);
    assert_eq!(so_far(), (3, 3));
    // The range can be adopted again.
    drop(take(0, LEN).unwrap());
    assert_eq!(so_far(), (4, 4));
    drop((relay, works));
    assert_clean();
}

#[test]
fn what_another_buffer_keeps_stays_known_as_its_memory() {
    let works = Works::in_use(&[]);
    let mut bytes = vec![0u8; LEN];
    let span = HostSpan::of_mut(&mut bytes);
    let (id, backend) = (
        StorageId::File {
            device: 1,
            inode: 2,
        },
        BackendId(Name::constant("files")),
    );
    let info = StorageInfo {
        id,
        base: 4096,
        len_bytes: LEN as u64,
        memory: transload_hal::DeviceId::CPU0.memory(MemoryKind::Shared),
        backend,
        writable: true,
        host: Some(span),
    };
    // SAFETY: the vector is the buffer's.
    let original = unsafe { Buffer::new(info, Box::new(bytes)) };
    let part = original.slice(100, 5000).unwrap();
    let span = part.host(0, 5000).unwrap();
    // SAFETY: the buffer keeps the bytes.
    let view = unsafe { works.cuda.import(pinned(), host(span, part)) }.unwrap();
    assert_eq!((view.storage_id(), view.position()), (id, 4196));
    assert_eq!(view.host(0, 5000), Some(span));
}

#[test]
fn what_is_given_out_is_what_is_there() {
    let works = Works::in_use(&[]);
    let own = works.allocate(device(0), LEN);
    let part = own.slice(100, 200).unwrap();
    let External::Device {
        address,
        len_bytes,
        writable,
        owner,
        // SAFETY: nothing writes the bytes meanwhile, here and below.
    } = unsafe { works.cuda.export(&part, ExternalKind::DevicePointer) }.unwrap()
    else {
        panic!("it is a device's");
    };
    assert_eq!(
        (address, len_bytes, writable),
        (own.position() + 100, 200, true)
    );
    let position = own.position();
    drop((own, part));
    let driver = works.cuda.driver();
    // The pointer keeps the memory alive.
    assert_eq!(read_address(driver, position, LEN).len(), LEN);
    drop(owner);
    let own = works.allocate(pinned(), 1);
    // SAFETY: as above.
    let error = unsafe { works.cuda.export(&own, ExternalKind::DevicePointer) };
    assert_eq!(error.unwrap_err().class(), ErrorClass::Unsupported);
}

#[test]
fn a_device_that_is_lost_takes_nothing_in_and_the_owner_is_dropped() {
    let works = Works::in_use(&[]);
    let own = own::of_device(works.cuda.driver(), 0, LEN);
    let range = (own.address, own.len);
    let buffer = adopt(&works, device(0), own);
    control("fault ecc").unwrap();
    let source = works.pinned(&pattern(1, LEN));
    if let Ok(fence) = works.submit(&[common::work::copy(&source, &buffer)]) {
        let _ = works.outcome(fence);
    }
    let witness = Arc::new(());
    let external = External::Device {
        address: range.0,
        len_bytes: range.1,
        writable: true,
        owner: Box::new(Arc::clone(&witness)),
    };
    // SAFETY: as in `adopt_at`.
    let error = unsafe { works.cuda.import(device(0), external) }.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Lost, "{error}");
    assert_eq!(Arc::strong_count(&witness), 1);
    // The user can still take the memory back.
    let own = buffer.into_owner::<Own>().unwrap();
    // A driver frees nothing in a ruined context.
    std::mem::forget(own);
}
