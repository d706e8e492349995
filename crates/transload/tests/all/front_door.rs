//! The first calls that users make: managers, buffers, copies, and queries of a manager.

use crate::fixture;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::fixture::{Fixture, Outcome, bytes, place, without_peers};
use transload::hal::Inventory;
use transload::hal::{Backend, ErrorClass, Fence, Outcome as Settled};
#[cfg(target_os = "linux")]
use transload::hal::{External, ExternalKind};
use transload::host::Host;
#[cfg(target_os = "linux")]
use transload::host::seal;
use transload::{
    AllocSpec, Buffer, Error, Method, OnFailure, Request, ShareError, StagingBudget, Transfer,
    TransferError, TransferManager,
};
use transload_testkit::sim::{Call, Completion, HostSide, OpKind, Rule, Script, Sim};
use transload_testkit::topology;

const MIB: u64 = 1 << 20;

fn machine(name: &str) -> transload_core::schema::Machine {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../topologies");
    topology::from_file(format!("{folder}/{name}.toml")).unwrap()
}

/// A count that the manager's `Debug` shows.
fn count(manager: &TransferManager, name: &str) -> u64 {
    let shown = format!("{manager:?}");
    let (_, rest) = shown.split_once(&format!("{name}: ")).unwrap();
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    digits.parse().unwrap()
}

#[test]
fn managers_are_empty_built_discovered_or_shared() -> Outcome {
    for empty in [
        TransferManager::new(),
        TransferManager::default(),
        TransferManager::builder().build()?,
    ] {
        assert!(empty.backends().is_empty() && empty.memories().is_empty());
        assert!(empty.adopt(bytes(1, 1)).is_err(), "no host memory");
    }
    let devices = |manager: &TransferManager| -> Vec<String> {
        let devices = manager.devices().into_iter();
        devices.map(|device| device.id.to_string()).collect()
    };
    assert_eq!(
        devices(&TransferManager::builder().host().build()?),
        ["cpu:0"]
    );
    // The host comes first; adapters, if there are any, are numbered from 0.
    let found = TransferManager::discover()?;
    let mut adapters = devices(&found);
    adapters.retain(|device| device.starts_with("wgpu"));
    assert_eq!(devices(&found)[0], "cpu:0");
    for (index, adapter) in adapters.iter().enumerate() {
        assert_eq!(*adapter, format!("wgpu:{index}"));
    }
    // The process has one shared manager: all handles accept each other's buffers.
    let (one, same) = (TransferManager::shared()?, TransferManager::shared()?);
    let (src, dst) = (one.adopt(bytes(9, 1))?, same.adopt(vec![0u8; 9])?);
    one.copy(&src, &dst).wait()?;
    assert!(found.copy(&src, &dst).wait().is_err());
    Ok(())
}

#[test]
fn backends_are_listed_and_reached_by_their_type() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    assert!(manager.backend::<Host>().is_some() && manager.backend::<Sim>().is_none());
    let sim = Sim::builder(&machine("workstation")).host(HostSide::Real);
    let sim = sim.build()?;
    let Inventory { devices, .. } = sim.inventory();
    manager.register_backend(sim)?;
    let sim = manager.backend::<Sim>().expect("it was registered");
    assert!(sim.to_string().contains("workstation"));
    let listed: Vec<String> = manager
        .backends()
        .iter()
        .map(|backend| format!("{} {}", backend.id, backend.devices.len()))
        .collect();
    assert_eq!(listed, ["host 1".into(), format!("sim {}", devices.len())]);
    Ok(())
}

#[test]
fn debug_lists_backends_cache_and_statistics() -> Outcome {
    let fixture = Fixture::new(&without_peers(2), Completion::Timed, MIB);
    let (src, dst) = (
        fixture.filled("sim:0", &bytes(100, 1)),
        fixture.empty("sim:1", 100),
    );
    fixture.manager.copy(&src, &dst).wait()?;
    fixture.manager.copy(&src, &dst).wait()?;
    let shown = format!("{:?}", fixture.manager);
    for part in ["backends", "sim:1", "cache", "misses", "staging", "stats"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    assert_eq!(count(&fixture.manager, "misses"), 1);
    assert_eq!(count(&fixture.manager, "hits"), 1);
    assert_eq!(count(&fixture.manager, "transfers"), 2);
    Ok(())
}

/// A glob import of the library shadows no name of the language.
mod glob {
    use transload::*;

    pub(super) fn bytes_of_a_handle() -> usize {
        core::mem::size_of::<TransferManager>()
    }
}

#[test]
fn a_glob_of_the_library_leaves_core_what_it_is() {
    assert_eq!(glob::bytes_of_a_handle(), size_of::<usize>());
}

#[test]
fn every_error_turns_into_the_librarys_own() {
    type Any<T> = Result<T, transload::Error>;
    fn open(manager: &TransferManager) -> Any<Buffer> {
        Ok(manager.open_file("/nowhere/at/all")?)
    }
    fn host_file() -> Any<transload::host::HostFile> {
        Ok(transload::host::HostFile::open("/nowhere/at/all")?)
    }
    fn back(buffer: Buffer) -> Any<Box<[u8]>> {
        Ok(buffer.into_inner()?)
    }
    fn batch(manager: &TransferManager, requests: &[Request]) -> Any<usize> {
        Ok(manager.copy_batch(requests, OnFailure::GoOn)?.wait().len())
    }
    let manager = TransferManager::builder().host().build().unwrap();
    let error = open(&manager).unwrap_err();
    assert_eq!(error, host_file().unwrap_err());
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    let (long, short) = (
        manager.adopt(vec![7u8; 2]).unwrap(),
        manager.adopt(vec![7u8]).unwrap(),
    );
    let refused = batch(&manager, &[Request::new(&long, &short)]).unwrap_err();
    assert!(refused.to_string().contains("request 0"), "{refused}");
    let memory = short.memory();
    let kept = back(short).unwrap_err();
    assert!(matches!(kept, transload::Error::IntoInner { memory: of, .. } if of == memory));
    for error in [error, refused, kept] {
        assert_eq!(error.class(), transload::hal::ErrorClass::Caller, "{error}");
    }
}

#[test]
fn memory_is_allocated_where_it_was_asked_for() -> Outcome {
    let fixture = Fixture::new(&without_peers(2), Completion::Timed, MIB);
    for (asked, given) in [
        ("cpu:0", "cpu:0/pageable"),
        ("cpu:0/pinned", "cpu:0/pinned"),
        ("sim:1", "sim:1/device"),
    ] {
        let buffer = fixture
            .manager
            .allocate(place(asked), AllocSpec::bytes(77))?;
        assert_eq!(
            (buffer.memory().to_string(), buffer.len()),
            (given.into(), 77)
        );
        let used = fixture.sim.use_of(buffer.memory()).unwrap();
        assert_eq!((used.live_bytes, used.live_allocations), (77, 1));
        drop(buffer);
    }
    assert!(fixture.sim.leaks().is_empty());
    let error = fixture
        .manager
        .allocate(place("sim:7"), AllocSpec::bytes(1));
    assert!(matches!(error, Err(Error::Place(_))), "{error:?}");
    Ok(())
}

/// Adopts `owner`, reads and copies its bytes, and takes it back.
fn there_and_back<T: transload::Adopt>(manager: &TransferManager, owner: T, bytes: &[u8]) -> T {
    let buffer = manager.adopt(owner).unwrap();
    assert_eq!(*buffer.read().unwrap(), *bytes);
    let copy = manager.adopt(vec![0u8; bytes.len()]).unwrap();
    manager.copy(&buffer, &copy).wait().unwrap();
    assert_eq!(copy.into_inner::<Vec<u8>>().unwrap(), bytes);
    buffer.into_inner().unwrap()
}

#[test]
fn adopted_memory_is_used_where_it_is_and_comes_back() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let wanted = bytes(100_000, 3);
    let owner = wanted.clone();
    let at = owner.as_ptr();
    let buffer = manager.adopt(owner)?;
    assert_eq!(buffer.read()?.as_ptr(), at, "it was copied");
    let back: Vec<u8> = buffer.into_inner()?;
    assert_eq!((back.as_ptr(), &back), (at, &wanted));
    let boxed = there_and_back(&manager, wanted.clone().into_boxed_slice(), &wanted);
    assert_eq!(*boxed, *wanted);
    Ok(())
}

#[cfg(feature = "bytes")]
#[test]
fn adopted_bytes_are_used_where_they_are_and_come_back() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let wanted = bytes(100_000, 4);
    let owner = bytes::Bytes::from(wanted.clone()).slice(1000..);
    let at = owner.as_ptr();
    let buffer = manager.adopt(owner)?;
    assert_eq!(buffer.read()?.as_ptr(), at, "they were copied");
    let back: bytes::Bytes = there_and_back(&manager, buffer.into_inner()?, &wanted[1000..]);
    assert_eq!((back.as_ptr(), &back[..]), (at, &wanted[1000..]));
    Ok(())
}

#[cfg(feature = "mmap")]
#[test]
fn adopted_maps_are_used_where_they_are_and_come_back() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let wanted = bytes(100_000, 5);
    let mut map = memmap2::MmapMut::map_anon(wanted.len())?;
    map.copy_from_slice(&wanted);
    let at = map.as_ptr();
    let buffer = manager.adopt(map)?;
    assert_eq!(buffer.read()?.as_ptr(), at, "it was copied");
    // A copy through the manager writes the buffer in place.
    manager.copy_from_slice(&[9; 10], buffer.slice(..10)?)?;
    let back: memmap2::MmapMut = buffer.into_inner()?;
    assert_eq!(
        (back.as_ptr(), &back[..10], &back[10..]),
        (at, &[9; 10][..], &wanted[10..])
    );
    let fixed = back.make_read_only()?;
    let fixed: memmap2::Mmap = there_and_back(&manager, fixed, &[&[9; 10], &wanted[10..]].concat());
    assert_eq!(fixed.as_ptr(), at);
    Ok(())
}

#[test]
fn a_report_tells_method_route_bytes_time_and_fallbacks() -> Outcome {
    let budget = Arc::new(StagingBudget::new(MIB));
    let over = ("sim:0/device".parse()?, "cpu:0/pinned".parse()?);
    let script = Script::new().with(Rule::fail_after(1).over(over.0, over.1));
    let fixture = Fixture::scripted(&without_peers(2), Completion::Timed, &budget, script);
    let (src, dst) = (
        fixture.filled("sim:0", &bytes(300, 1)),
        fixture.empty("cpu:0", 300),
    );
    let before = fixture.sim.clock().now_ns();
    let direct = fixture.manager.copy(&src, &dst).wait()?;
    assert_eq!(direct.method(), Method::DirectCopy);
    assert_eq!((direct.bytes(), direct.fallbacks()), (300, &[][..]));
    let route: Vec<String> = direct.route().map(|memory| memory.to_string()).collect();
    assert_eq!(route, ["sim:0/device", "cpu:0/pageable"]);
    let passed = fixture.sim.clock().now_ns() - before;
    let told = direct.elapsed().as_nanos();
    assert_eq!(told, u128::from(passed));
    assert!(passed > 0 && direct.is_simulated());
    assert!(direct.to_string().contains("simulated"), "{direct}");

    let far = fixture.empty("sim:1", 300);
    let error = fixture.manager.copy(&src, &far).wait().unwrap_err();
    let TransferError::Failed(failure) = &error else {
        return Err(error.into());
    };
    assert_eq!((failure.routes_tried, failure.step), (1, Some(0)));
    assert!(failure.route.contains("cpu:0/pinned"), "{failure}");
    assert_eq!(failure.span, transload::Span::new(0, 300));
    Ok(())
}

#[cfg(target_os = "linux")]
fn sealed(manager: &TransferManager, bytes: &[u8]) -> Buffer {
    let spec = AllocSpec::bytes(bytes.len() as u64);
    let shared = manager.allocate(place("cpu:0/shared"), spec).unwrap();
    manager.copy_from_slice(bytes, &shared).unwrap();
    let raw = shared.raw().clone();
    drop(shared);
    let sealed = seal(raw).unwrap();
    // SAFETY: no other manager knows it.
    unsafe { manager.wrap(sealed) }
}

#[cfg(target_os = "linux")]
#[test]
fn sealed_memory_is_shared_and_not_copied() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let wanted = bytes(100_000, 6);
    let sealed = sealed(&manager, &wanted);
    let view = manager.share(&sealed, place("cpu:0"))?;
    assert_eq!(view.memory().to_string(), "cpu:0/pageable");
    assert!(*view.read()? == wanted[..] && !view.is_writable());
    assert_eq!(count(&manager, "transfers"), 1, "sharing copied");
    assert!(view.write().is_err());
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn a_copy_on_write_view_of_sealed_memory_is_its_owners_alone() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let wanted = bytes(100_000, 6);
    let sealed = sealed(&manager, &wanted);
    let External::Handle {
        kind,
        handle,
        span,
        id,
        ..
    } = manager.export(&sealed, ExternalKind::File)?
    else {
        panic!("shared memory is exported by its handle");
    };
    let private = External::Handle {
        kind,
        handle,
        span,
        writable: true,
        id,
    };
    // SAFETY: the handle was made for this import, and the seal keeps the bytes as they are.
    let view = unsafe { manager.import(place("cpu:0"), private) }?;
    assert!(*view.read()? == wanted[..]);
    assert_eq!(count(&manager, "transfers"), 1, "the view is a copy");
    manager.copy_from_slice(&[7; 10], view.slice(..10)?)?;
    assert!(*sealed.read()? == wanted[..], "it was written through");
    assert!(view.read()?[..10] == [7; 10] && view.read()?[10..] == wanted[10..]);
    Ok(())
}

#[test]
fn what_cannot_be_shared_says_why() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let heap = manager.adopt(bytes(100, 1))?;
    let error = manager.share(&heap, place("cpu:0/shared")).unwrap_err();
    let ShareError::Unsupported { src, dst, reason } = &error else {
        return Err(error.into());
    };
    assert_eq!(
        (src.to_string(), dst.to_string()),
        ("cpu:0/pageable".into(), "cpu:0/shared".into())
    );
    assert!(!reason.is_empty());
    assert!(cfg!(windows) || !reason.contains("Windows"), "{reason}");
    let error = manager.share(&heap, place("cuda:0")).unwrap_err();
    assert!(matches!(error, ShareError::Place(_)), "{error}");
    Ok(())
}

#[test]
fn placing_shares_where_it_can_and_copies_where_it_must() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let heap = manager.adopt(bytes(5000, 2))?;
    let here = manager.place(&heap, place("cpu:0"))?;
    assert!(here.report.is_none());
    assert_eq!(here.buffer.read()?.as_ptr(), heap.read()?.as_ptr());
    let there = manager.place(&heap, place("cpu:0/shared"))?;
    assert_eq!(there.buffer.memory().to_string(), "cpu:0/shared");
    assert_eq!(there.report.map(|report| report.bytes()), Some(5000));
    assert!(*there.buffer.read()? == *heap.read()?);
    assert!(manager.place(&heap, place("cuda:0")).is_err());
    Ok(())
}

/// Bytes of the mapping at `at` that are in memory.
#[cfg(target_os = "linux")]
fn resident_bytes(at: u64) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_it = false;
    for line in maps.lines() {
        let first = line.split(' ').next().unwrap_or_default();
        if let Some((from, to)) = first.split_once('-') {
            let hex = |text| u64::from_str_radix(text, 16).unwrap();
            is_it = (hex(from)..hex(to)).contains(&at);
        } else if is_it && first == "Rss:" {
            let digits: String = line.chars().filter(char::is_ascii_digit).collect();
            return digits.parse::<u64>().unwrap() << 10;
        }
    }
    panic!("nothing is mapped at {at:#x}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_prefetch_brings_fresh_memory_in_before_it_is_used() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let buffer = manager.allocate(place("cpu:0/shared"), AllocSpec::bytes(8 * MIB))?;
    let at = buffer.raw().host(0, 1).expect("the host reaches it").addr();
    assert!(resident_bytes(at) < MIB, "it was in memory already");
    manager.prefetch(buffer.slice(..6 * MIB)?, place("cpu:0"))?;
    assert!((6 * MIB..8 * MIB).contains(&resident_bytes(at)));
    Ok(())
}

#[test]
fn a_prefetch_that_is_refused_says_so_and_leaves_the_buffer_usable() -> Outcome {
    let fixture = Fixture::new(&without_peers(2), Completion::Timed, MIB);
    let src = fixture.filled("cpu:0", &bytes(500, 1));
    fixture.manager.prefetch(&src, place("sim:0"))?;
    let refuse = Rule::refuse(Call::Submit, ErrorClass::Exhausted);
    fixture.sim.add_rule(refuse.kind(OpKind::Hint));
    let error = fixture.manager.prefetch(&src, place("sim:0")).unwrap_err();
    let Error::Hint { memory, fault } = &error else {
        return Err(error.into());
    };
    assert_eq!(
        (*memory, fault.class),
        (src.memory(), ErrorClass::Exhausted)
    );
    let dst = fixture.empty("sim:1", 500);
    fixture.manager.copy(&src, &dst).wait()?;
    assert!(fixture.bytes_of(&dst) == bytes(500, 1));
    Ok(())
}

#[test]
fn statistics_count_this_managers_transfers_until_they_are_reset() -> Outcome {
    let fixture = Fixture::new(&without_peers(2), Completion::Timed, MIB);
    let other = TransferManager::new();
    let (src, dst) = (
        fixture.filled("sim:0", &bytes(300, 1)),
        fixture.empty("cpu:0", 300),
    );
    fixture.manager.copy(&src, &dst).wait()?;
    let slow = fixture.manager.copy(&src, &dst).wait()?;
    let far = fixture.empty("sim:1", 300);
    let over = ("sim:0/device".parse()?, "cpu:0/pinned".parse()?);
    fixture
        .sim
        .add_rule(Rule::fail_after(1).over(over.0, over.1));
    assert!(fixture.manager.copy(&src, &far).wait().is_err());
    let stats = fixture.manager.stats();
    let total = |method| {
        let mut paths = stats.paths.iter().filter(move |path| path.method == method);
        paths.next().expect("the path was used").total
    };
    let direct = total(Method::DirectCopy);
    assert_eq!(
        (direct.transfers, direct.bytes, direct.failures),
        (2, 600, 0)
    );
    let each = slow.elapsed().as_nanos();
    assert_eq!(u128::from(direct.busy_ns), 2 * each);
    assert_eq!(total(Method::HostStaged).failures, 1);
    assert!(other.stats().paths.is_empty());
    fixture.manager.reset_stats();
    assert!(fixture.manager.stats().paths.is_empty());
    Ok(())
}

#[test]
fn registration_quarantine_and_clear_cache_forget_every_plan() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let (src, dst) = (manager.adopt(bytes(64, 1))?, manager.adopt(vec![0u8; 64])?);
    let plans_anew = |manager: &TransferManager, src: &Buffer, dst: &Buffer| {
        let misses = count(manager, "misses");
        manager.copy(src, dst).wait().unwrap();
        manager.copy(src, dst).wait().unwrap();
        count(manager, "misses") - misses
    };
    assert_eq!(plans_anew(&manager, &src, &dst), 1);
    assert_eq!(plans_anew(&manager, &src, &dst), 0);
    let sim = Sim::builder(&machine("workstation")).host(HostSide::Real);
    manager.register_backend(sim.build()?)?;
    assert_eq!(plans_anew(&manager, &src, &dst), 1);
    manager.clear_cache();
    assert_eq!(plans_anew(&manager, &src, &dst), 1);

    let fixture = Fixture::new(&without_peers(2), Completion::Timed, MIB);
    let (src, dst) = (
        fixture.filled("sim:0", &bytes(64, 1)),
        fixture.empty("cpu:0", 64),
    );
    assert_eq!(plans_anew(&fixture.manager, &src, &dst), 1);
    assert_eq!(plans_anew(&fixture.manager, &src, &dst), 0);
    let over = (src.memory(), "cpu:0/pinned".parse()?);
    fixture
        .sim
        .add_rule(Rule::fail_after(1).over(over.0, over.1));
    let far = fixture.empty("sim:1", 64);
    assert!(fixture.manager.copy(&src, &far).wait().is_err());
    assert_eq!(plans_anew(&fixture.manager, &src, &dst), 1);
    Ok(())
}

#[test]
fn a_thread_that_waits_holds_no_lock_of_the_engine() -> Outcome {
    let fixture = Fixture::new(&without_peers(2), Completion::Reentrant, MIB);
    let wanted = bytes(300_000, 1);
    let (src, dst) = (
        fixture.filled("sim:0", &wanted),
        fixture.empty("sim:1", wanted.len()),
    );
    let side = [
        fixture.filled("cpu:0", &bytes(99, 2)),
        fixture.empty("cpu:0/pinned", 99),
    ];
    let (ends, manager) = (side.clone(), fixture.manager.clone());
    let begun: Arc<Mutex<Vec<Transfer>>> = Arc::default();
    let calls = Arc::new(AtomicU32::new(0));
    let (log, counted) = (Arc::clone(&begun), Arc::clone(&calls));
    // The hook runs on the waiting thread, within the wait: if the wait held a lock, the hook would block forever.
    fixture.sim.set_hook(move |_: Fence, _: &Settled| {
        if counted.fetch_add(1, Ordering::SeqCst) == 0 {
            log.lock().unwrap().push(manager.copy(&ends[0], &ends[1]));
        }
        assert!(manager.stats().paths.len() < 9);
        manager.turn();
    });
    fixture.manager.copy(&src, &dst).wait()?;
    assert!(calls.load(Ordering::SeqCst) > 1);
    let begun: Vec<Transfer> = begun.lock().unwrap().drain(..).collect();
    assert_eq!(begun.len(), 1);
    for transfer in begun {
        transfer.wait()?;
    }
    assert!(fixture.bytes_of(&dst) == wanted && fixture.bytes_of(&side[1]) == bytes(99, 2));
    // The hook holds a manager, which holds the machine; replacing the hook breaks the cycle.
    fixture.sim.set_hook(|_: Fence, _: &Settled| {});
    Ok(())
}

#[test]
fn an_idle_engine_asks_to_be_turned_at_no_time() -> Outcome {
    for completion in fixture::modes() {
        let fixture = Fixture::new(&without_peers(2), completion, MIB);
        assert_eq!(fixture.manager.turn(), None);
        let (src, dst) = (
            fixture.filled("sim:0", &bytes(300, 1)),
            fixture.empty("sim:1", 300),
        );
        let deadline = transload::Instant(1 << 40);
        let request = Request::new(&src, &dst).deadline(deadline);
        let held = fixture
            .manager
            .submit(&request.clone().after(&fixture.manager.event()));
        assert_eq!(fixture.manager.turn(), Some(deadline));
        held.cancel();
        assert_eq!(fixture.manager.turn(), None, "{completion}");
        fixture.manager.submit(&request).wait()?;
        assert_eq!(fixture.manager.turn(), None, "{completion}");
        assert_eq!(fixture.sim.next_event(), None);
    }
    Ok(())
}
