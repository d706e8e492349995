//! Shared memory that is exported while transfers and guards use it.
#![cfg(all(any(target_os = "linux", target_os = "android"), not(transload_local)))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use transload::hal::{External, ExternalKind, HostSpan};
use transload::host::Host;
use transload::{
    AllocSpec, Buffer, Request, StagingBudget, Transfer, TransferError, TransferManager,
};
use transload_testkit::sim::{HostSide, Sim};

use crate::common::{SLOT, Sketch, marked, place};

/// Two pages, of which the second is used in part.
const LEN: u64 = 5000;

fn of_the_host() -> TransferManager {
    TransferManager::builder().host().build().unwrap()
}

fn shared(manager: &TransferManager) -> Buffer {
    let spec = AllocSpec::bytes(LEN);
    let buffer = manager.allocate(place("cpu:0/shared"), spec).unwrap();
    manager.copy_from_slice(marked(LEN), &buffer).unwrap();
    buffer
}

/// The buffer through its exported descriptor.
fn imported(manager: &TransferManager, buffer: &Buffer, at: &str) -> Buffer {
    let external = manager.export(buffer, ExternalKind::File).unwrap();
    // SAFETY: the descriptor was made for this import, and the test uses the bytes through the manager alone.
    unsafe { manager.import(place(at), external) }.unwrap()
}

#[test]
fn an_export_waits_for_the_transfer_that_writes_the_bytes() {
    let sketch = Sketch::new()
        .device("cpu:0", &["shared"])
        .device("sim:0", &["device"])
        .link("cpu:0/shared", "sim:0/device", "sim:0#0", "native")
        .link("sim:0/device", "cpu:0/shared", "sim:0#1", "native");
    let sim = Sim::builder(&sketch.machine())
        .host(HostSide::Real)
        .build()
        .unwrap();
    let manager = TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .staging(Arc::new(StagingBudget::new(3 * SLOT)))
        .backend(Arc::new(Host::new()))
        .backend(Arc::new(sim))
        .build()
        .unwrap();
    let device = manager
        .allocate(place("sim:0"), AllocSpec::bytes(LEN))
        .unwrap();
    manager.copy(shared(&manager), &device).wait().unwrap();
    let written = || {
        let spec = AllocSpec::bytes(2 * LEN);
        let buffer = manager.allocate(place("cpu:0/shared"), spec).unwrap();
        let writer: Transfer = manager.copy(&device, buffer.slice(LEN..).unwrap());
        assert!(!writer.is_over());
        (buffer, writer)
    };
    let (buffer, writer) = written();
    let view = imported(&manager, &buffer, "cpu:0/shared");
    assert!(writer.is_over(), "the export went before the writer");
    assert!(view.read().unwrap()[LEN as usize..] == *marked(LEN));
    // The export moves all pages of a buffer, even if the exported part lacks the written bytes.
    let (buffer, writer) = written();
    let first = buffer.slice(..LEN).unwrap();
    drop(manager.share(&first, place("cpu:0")).unwrap());
    assert!(writer.is_over(), "the export went before the writer");
}

#[test]
fn no_byte_is_lost_that_another_thread_writes_around_an_export() {
    const LEN: usize = 64 << 10;
    let manager = of_the_host();
    for _ in 0..10 {
        let spec = AllocSpec::bytes(LEN as u64);
        let buffer = manager.allocate(place("cpu:0/shared"), spec).unwrap();
        manager.copy_from_slice(&[0; LEN], &buffer).unwrap();
        let writes = AtomicU8::new(0);
        let view = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for _ in 0..100 {
                    let mut bytes = buffer.write().unwrap();
                    bytes.iter_mut().for_each(|byte| *byte += 1);
                    writes.fetch_add(1, Ordering::SeqCst);
                }
            });
            while writes.load(Ordering::SeqCst) < 10 {
                std::thread::yield_now();
            }
            let view = imported(&manager, &buffer, "cpu:0/shared");
            writer.join().unwrap();
            view
        });
        assert!(*view.read().unwrap() == [100; LEN]);
        assert!(*buffer.read().unwrap() == [100; LEN]);
    }
}

#[test]
fn a_guard_from_before_an_export_stays_and_keeps_the_imports_writers_away() {
    let manager = of_the_host();
    let buffer = shared(&manager);
    let other = manager.adopt(vec![9u8; LEN as usize]).unwrap();
    let guard = buffer.read().unwrap();
    let mapped = imported(&manager, &buffer, "cpu:0/shared");
    let file = imported(&manager, &buffer, "cpu:0/file");
    assert!(*guard == *marked(LEN) && *mapped.read().unwrap() == *marked(LEN));
    let writers = [&mapped, &file].map(|view| manager.copy(&other, view));
    // A copy of other bytes has nothing to wait for.
    let beside = shared(&manager);
    manager.copy(&other, &beside).wait().unwrap();
    assert!(writers.iter().all(|writer| !writer.is_over()));
    assert!(*guard == *marked(LEN), "it was written under the guard");
    drop(guard);
    writers
        .into_iter()
        .for_each(|writer| drop(writer.wait().unwrap()));
    assert_eq!(*buffer.read().unwrap(), [9; LEN as usize]);
}

#[test]
fn views_of_an_export_conflict_just_where_they_overlap() {
    let manager = of_the_host();
    let buffer = shared(&manager);
    let mapped = imported(&manager, &buffer.slice(1000..3000).unwrap(), "cpu:0/shared");
    let other = manager.adopt(vec![9u8; 100]).unwrap();
    let guard = buffer.slice(1500..1600).unwrap().write().unwrap();
    let apart = manager.copy(&other, mapped.slice(400..500).unwrap());
    apart.wait().unwrap();
    let over = manager.copy(&other, mapped.slice(499..599).unwrap());
    assert!(!over.is_over(), "it wrote under a guard");
    drop(guard);
    over.wait().unwrap();
    assert_eq!(buffer.read().unwrap()[1400..1599], [9; 199]);
}

/// Lends a buffer, and returns where it is with what keeps it there.
fn lent(buffer: &Buffer) -> (HostSpan, External) {
    let external = buffer.lend(ExternalKind::Host).unwrap();
    match &external {
        External::Host { span, .. } => (*span, external),
        _ => panic!("{external:?}"),
    }
}

#[test]
fn memory_that_comes_back_by_its_address_is_the_memory_that_was_lent() {
    let manager = of_the_host();
    // One that gets its pages when it is lent, and one that has them.
    for len in [LEN, 3 << 20] {
        let spec = AllocSpec::bytes(len);
        let buffer = manager.allocate(place("cpu:0/shared"), spec).unwrap();
        manager.copy_from_slice(marked(len), &buffer).unwrap();
        let (span, external) = lent(&buffer);
        let part = |from: u64, len: u64| span.slice(from, len).unwrap();

        // As one address space sees it, the ranges overlap.
        // SAFETY: the external keeps the bytes, and no other code uses them.
        unsafe { manager.copy_host(part(0, len - 5), part(5, len - 5), None) }.unwrap();
        let moved = [&marked(len)[..5], &marked(len)[..len as usize - 5]].concat();
        assert!(manager.read_to_vec(&buffer).unwrap() == moved);
        // One end by its address, and one by the buffer.
        let external = External::Host {
            span: part(5, len - 5),
            writable: true,
            owner: Box::new(external),
        };
        // SAFETY: as above; the owner is what keeps them.
        let again = unsafe { manager.import(place("cpu:0"), external) }.unwrap();
        let back = buffer.slice(..len - 5).unwrap();
        manager.copy(&again, &back).wait().unwrap();
        let moved = [&moved[5..], &moved[len as usize - 5..]].concat();
        assert!(manager.read_to_vec(&buffer).unwrap() == moved);
        let other = of_the_host();
        let external = External::Host {
            span,
            writable: true,
            owner: Box::new(again),
        };
        // SAFETY: as above; it is refused.
        assert!(unsafe { other.import(place("cpu:0"), external) }.is_err());

        // A copy by the address does not overtake an earlier one to the buffer.
        let go = manager.event();
        let new = manager.adopt(vec![0xaau8; len as usize]).unwrap();
        let earlier = manager.submit(&Request::new(&new, &buffer).after(&go));
        let mut seen = vec![0; len as usize];
        // SAFETY: as above.
        let mut read = || unsafe { manager.copy_host(span, HostSpan::of_mut(&mut seen), None) };
        assert_eq!(read(), Err(TransferError::WouldBlock));
        go.set();
        earlier.wait().unwrap();
        read().unwrap();
        let wrong = seen.iter().filter(|of| **of != 0xaa).count();
        assert_eq!(wrong, 0, "of {len} bytes");
    }
}

#[test]
fn an_address_that_was_lent_belongs_to_what_lies_there_next() {
    let manager = of_the_host();
    let buffer = shared(&manager);
    let (span, external) = lent(&buffer);
    drop((external, buffer));
    // The pages are given out again, and not lent.
    let next = shared(&manager);
    let (again, _external) = lent(&next);
    assert_eq!(span, again);
    let mut bytes = vec![0; LEN as usize];
    // SAFETY: the buffer keeps the bytes, and no other code uses them.
    unsafe { manager.copy_host(again, HostSpan::of_mut(&mut bytes), None) }.unwrap();
    assert_eq!(bytes, marked(LEN));
}
