//! Past faults, each on the smallest machine that shows it.
// Most of these tests need two threads.
#![cfg(not(transload_local))]

mod gate;
mod slots;
mod wakers;

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use transload::hal::{ErrorClass, HostSpan};
use transload::host::Host;
use transload::model::Plan;
use transload::{
    Adopt, AllocSpec, Backend, Buffer, OnFailure, Place, RegisterError, Request, TransferError,
    TransferManager,
};
use transload_testkit::sim::{Call, Completion, Rule, Script, Sim};
use transload_testkit::topology;

type Outcome = Result<(), Box<dyn Error>>;

/// The limit after which a call counts as hanging.
const HANG: Duration = Duration::from_secs(600);

fn simulated(file: &str, completion: Completion, script: Script) -> Sim {
    let path = format!("{}/../../topologies/{file}", env!("CARGO_MANIFEST_DIR"));
    let machine = topology::from_file(path).unwrap();
    let sim = Sim::builder(&machine).completion(completion).script(script);
    sim.build().unwrap()
}

fn managed(sim: &Sim) -> TransferManager {
    TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .backend(Arc::new(sim.clone()))
        .build()
        .unwrap()
}

fn workstation(completion: Completion, script: Script) -> (Sim, TransferManager) {
    let sim = simulated("workstation.toml", completion, script);
    let manager = managed(&sim);
    (sim, manager)
}

fn empty(manager: &TransferManager, at: &str, len: u64) -> Buffer {
    let place: Place = at.parse().unwrap();
    manager.allocate(place, AllocSpec::bytes(len)).unwrap()
}

fn filled(sim: &Sim, manager: &TransferManager, at: &str, bytes: &[u8]) -> Buffer {
    let buffer = empty(manager, at, bytes.len() as u64);
    sim.write(buffer.raw(), 0, bytes).unwrap();
    buffer
}

fn bytes_of(sim: &Sim, buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len() as usize];
    sim.read(buffer.raw(), 0, &mut bytes).unwrap();
    bytes
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect()
}

/// Returns the result of `work`; panics where it does not end.
fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = mpsc::channel();
    let worker = thread::spawn(move || drop(done.send(work())));
    match outcome.recv_timeout(HANG) {
        Ok(outcome) => outcome,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match worker.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the worker sends before it ends"),
        },
    }
}

#[test]
fn an_event_of_another_manager_is_refused_and_lets_nothing_go() -> Outcome {
    let (_, ours) = workstation(Completion::Timed, Script::new());
    let (sim, theirs) = workstation(Completion::Timed, Script::new());
    let pair = |manager| (empty(manager, "cpu:0", 64), empty(manager, "cpu:0", 64));
    // The first transfer of either manager has the same number in it.
    let (src, dst) = pair(&ours);
    let mut held = ours.submit(&Request::new(&src, &dst).after(&ours.event()));

    let event = ours.event();
    let src = filled(&sim, &theirs, "cpu:0", &bytes(64));
    let dst = empty(&theirs, "cpu:0", 64);
    for request in [
        Request::new(&src, &dst).after(&event),
        Request::new(&src, &dst).then(&event),
    ] {
        let error = theirs.submit(&request).wait().unwrap_err();
        assert!(matches!(error, TransferError::ForeignEvent), "{error}");
        assert_eq!(error.class(), ErrorClass::Caller);
        let error = theirs.prepare(&request).err();
        assert!(matches!(error, Some(TransferError::ForeignEvent)));
        let good = Request::new(&src, &dst);
        let error = theirs.copy_batch(&[good, request], OnFailure::GoOn).err();
        let error = error.unwrap();
        assert_eq!(
            (error.index, error.source),
            (1, TransferError::ForeignEvent)
        );
    }
    assert!(!event.is_set());
    event.set();
    assert!(held.wait_timeout(Duration::ZERO).is_none());
    assert_ne!(bytes_of(&sim, &dst), bytes(64), "a refused batch copies");
    Ok(())
}

#[test]
fn an_adopted_object_is_not_shown_while_the_manager_has_its_bytes() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let buffer = manager.adopt(bytes(8))?;
    assert!(buffer.native::<Vec<u8>>().is_none());
    let mut guard = buffer.write()?;
    assert!(buffer.native::<Vec<u8>>().is_none());
    guard[0] = 7;
    drop(guard);
    let back = buffer.into_inner::<Vec<u8>>()?;
    assert_eq!((back[0], &back[1..]), (7, &bytes(8)[1..]));
    Ok(())
}

#[test]
fn a_copy_to_or_from_borrowed_bytes_under_a_guard_ends() {
    let copied = ends(|| {
        let manager = TransferManager::builder().host().build().unwrap();
        let src = manager.adopt(bytes(8)).unwrap();
        let between = manager.adopt(vec![0u8; 8]).unwrap();
        let dst = manager.adopt(vec![0u8; 8]).unwrap();
        let mut guard = between.write().unwrap();
        manager.copy_into_slice(&src, &mut guard).unwrap();
        manager.copy_from_slice(&guard, &dst).unwrap();
        drop(guard);
        dst.into_inner::<Vec<u8>>().unwrap()
    });
    assert_eq!(copied, bytes(8));
}

/// Host memory that sends its bytes when it is freed.
struct Told(Vec<u8>, Sender<Vec<u8>>);

// SAFETY: a vector's heap block stays in place when the vector is moved, and only its owner reaches it.
unsafe impl Adopt for Told {
    const WRITABLE: bool = true;

    fn span(&mut self) -> HostSpan {
        HostSpan::of_mut(&mut self.0)
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.1.send(std::mem::take(&mut self.0));
    }
}

#[test]
fn detached_transfers_complete_when_every_handle_has_gone() {
    let wanted = bytes(5000);
    let (tell, told) = mpsc::channel();
    // The thread that drives the transfers may or may not have started when the last handle is dropped.
    for _ in 0..50 {
        let (sim, manager) = workstation(Completion::Timed, Script::new());
        let src = filled(&sim, &manager, "sim:0", &wanted);
        let dst = Told(vec![0; wanted.len()], tell.clone());
        let dst = manager.adopt(dst).unwrap();
        let transfer = manager.copy(&src, &dst);
        drop((src, dst, manager));
        drop(transfer);
        let arrived = told.recv_timeout(HANG).expect("no thread drives it");
        assert!(arrived == wanted, "freed before the bytes had arrived");
        assert_eq!(sim.violations(), []);
    }
}

#[test]
fn detached_chains_complete_when_every_handle_has_gone() {
    let wanted = bytes(300_000);
    let (sim, manager) = workstation(Completion::Timed, Script::new());
    let (tell, told) = mpsc::channel();
    let src = filled(&sim, &manager, "sim:0", &wanted);
    let between = empty(&manager, "sim:1", src.len());
    let dst = manager.adopt(Told(vec![0; wanted.len()], tell)).unwrap();
    let transfers = [manager.copy(&src, &between), manager.copy(&between, &dst)];
    drop((src, between, dst, manager));
    drop(transfers);
    let arrived = told.recv_timeout(HANG).expect("no thread drives it");
    assert!(arrived == wanted, "freed before the bytes had arrived");
    assert_eq!(sim.violations(), []);
}

#[test]
fn a_difference_is_charged_to_the_route_that_copied() -> Outcome {
    // Two devices, and pinned memory at either processor for staging.
    let (pinned, device) = ("cpu:0/pinned".parse()?, "sim:1/device".parse()?);
    let script = Script::new()
        .with(Rule::refuse(Call::Connect, ErrorClass::Unsupported).always())
        .with(Rule::corrupt(5).over(pinned, device).always());
    let sim = simulated("eight-gpu.toml", Completion::Timed, script);
    let manager = managed(&sim);
    let wanted = bytes(300_000);
    let src = filled(&sim, &manager, "sim:0", &wanted);
    let dst = empty(&manager, "sim:1", src.len());
    let verified = Request::new(&src, &dst).verify();
    let lies = |plan: &Plan| {
        plan.links()
            .any(|link| (link.src, link.dst) == (pinned, device))
    };
    let report = manager.submit(&verified).wait()?;
    let blamed: Vec<bool> = report
        .fallbacks()
        .iter()
        .map(|fallback| lies(&fallback.plan))
        .collect();
    assert!(blamed.contains(&true), "{report}");
    assert!(!report.plan().is_some_and(lies), "{report}");
    assert!(bytes_of(&sim, &dst) == wanted);
    // The link that changed the bytes is in quarantine now, and the link that carried them is not.
    let next = manager.submit(&verified).wait()?;
    assert_eq!(next.fallbacks(), []);
    assert!(next.route().eq(report.route()), "{next}");
    Ok(())
}

#[test]
fn a_difference_without_another_route_names_the_one_that_copied() -> Outcome {
    let (pinned, device) = ("cpu:0/pinned".parse()?, "sim:1/device".parse()?);
    let script = Script::new().with(Rule::corrupt(5).over(pinned, device).always());
    let (sim, manager) = workstation(Completion::Timed, script);
    let src = filled(&sim, &manager, "sim:0", &bytes(300_000));
    let dst = empty(&manager, "sim:1", src.len());
    let verified = Request::new(&src, &dst).verify();
    let error = ends(move || manager.submit(&verified).wait()).unwrap_err();
    let TransferError::Differs { route, .. } = &error else {
        return Err(error.into());
    };
    assert!(
        route.ends_with("sim:0/device → cpu:0/pinned → sim:1/device"),
        "{route}"
    );
    Ok(())
}

#[test]
fn a_long_batch_that_stops_needs_no_deep_stack() -> Outcome {
    let stop = || {
        let script = Script::new().with(Rule::refuse(Call::Submit, ErrorClass::Caller).always());
        let (sim, manager) = workstation(Completion::Timed, script);
        let src = empty(&manager, "cpu:0", 8);
        let dst = filled(&sim, &manager, "cpu:0", &[7; 8]);
        let requests: Vec<Request> = (0..2000).map(|_| Request::new(&src, &dst)).collect();
        let results = manager
            .copy_batch(&requests, OnFailure::Stop)
            .unwrap()
            .wait();
        assert!(matches!(&results[0], Err(TransferError::Failed(_))));
        let is_stopped = |result| matches!(result, &Err(TransferError::BatchStopped));
        assert!(results[1..].iter().all(is_stopped));
        assert_eq!(bytes_of(&sim, &dst), [7; 8]);
    };
    // The drop may use less than a hundred bytes of stack for each transfer.
    let small = thread::Builder::new().stack_size(192 << 10).spawn(stop)?;
    small.join().expect("the batch stops as said");
    Ok(())
}

/// A file that the test deletes at its end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn sharing_never_maps_a_file_that_others_may_change() -> Outcome {
    let name = format!("transload-shared-{}", std::process::id());
    let file = Scratch(std::env::temp_dir().join(name));
    fs::write(&file.0, bytes(1 << 16))?;
    let manager = TransferManager::builder().host().build()?;
    let buffer = manager.open_file(&file.0)?;
    for place in ["cpu:0", "cpu:0/shared"] {
        let place: Place = place.parse()?;
        let error = manager.share(&buffer, place).expect_err("it was mapped");
        assert!(
            error
                .to_string()
                .contains("its caller promises that no program changes it"),
            "{error}"
        );
    }
    // A copy takes the file's bytes as they are now.
    rewrite(&file.0, 0xA5)?;
    let copy = manager.adopt(vec![0u8; 1 << 16])?;
    manager.copy(&buffer, &copy).wait()?;
    assert!(copy.into_inner::<Vec<u8>>()?.iter().all(|b| *b == 0xA5));
    Ok(())
}

fn rewrite(path: &PathBuf, byte: u8) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    file.write_all(&vec![byte; 1 << 16])
}

#[test]
fn a_backend_serves_one_manager() -> Outcome {
    let host: Arc<dyn Backend> = Arc::new(Host::new());
    let first = TransferManager::builder()
        .backend(Arc::clone(&host))
        .build()?;
    let second = TransferManager::new();
    let id = host.inventory().backend;
    let error = second.register_shared(host).unwrap_err();
    assert_eq!(error, RegisterError::Taken { backend: id });
    assert!(second.backends().is_empty() && second.devices().is_empty());

    let wanted = bytes(8 << 20);
    let (src, dst) = (
        first.adopt(wanted.clone())?,
        first.adopt(vec![0u8; 8 << 20])?,
    );
    let transfer = first.copy(&src, &dst);
    drop(second);
    let dst = ends(move || transfer.wait().map(|_| dst))?;
    assert!(dst.into_inner::<Vec<u8>>()? == wanted);
    Ok(())
}
