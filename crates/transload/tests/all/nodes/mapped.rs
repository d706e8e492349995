//! Servers on this machine whose shared memory the client maps: one pass by the processors, and no bytes over TLS.

#![cfg(target_os = "linux")]

use std::env;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use transload::remote::{PrivateKey, PublicKey};
use transload::{AllocSpec, Buffer, DeviceId, GuardError, MemoryId, Request, TransferManager};
use transload_remote::wire::Message;

use super::raw::Raw;
use super::{NODE, Served, bytes_of, manager, opened, serve, serve_as, there};
use crate::dice::Dice;

const CHILD: &str = "TRANSLOAD_TEST_MAPPED_CHILD";

fn mapped(manager: &TransferManager, bytes: u64) -> Buffer {
    let place = "box2/cpu:0/shared".parse().unwrap();
    manager.allocate(place, AllocSpec::bytes(bytes)).unwrap()
}

/// A server in a process of its own, and a manager that is connected to it.
fn process() -> (Child, TransferManager) {
    let client = PrivateKey::generate().unwrap();
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "nodes::mapped::child", "--nocapture"]);
    child.env(CHILD, client.public().to_string());
    let child = child.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let told = lines.map_while(Result::ok).find_map(|line| {
        let (address, key) = line.strip_prefix("serving ")?.split_once(' ')?;
        Some((address.to_owned(), key.parse::<PublicKey>().unwrap()))
    });
    let (address, key) = told.unwrap();
    let manager = manager();
    manager.connect(NODE, &address, &client, key).unwrap();
    (child, manager)
}

/// The server of [`process`], until its standard input ends.
#[test]
fn child() {
    let Ok(client) = env::var(CHILD) else { return };
    let served = serve_as(PrivateKey::generate().unwrap(), 1 << 30, |options| {
        options.allow.push(client.parse().unwrap());
    });
    println!("\nserving {} {}", served.server.address(), served.key);
    let _ = std::io::stdin().read(&mut [0]);
    drop(served);
    // The harness would write to a pipe that is not read any more.
    std::process::exit(0);
}

/// Returns the engine of the only link of a copy.
fn engine(manager: &TransferManager, src: MemoryId, dst: MemoryId, bytes: u64) -> DeviceId {
    let explained = manager.explain_places(src.into(), dst.into(), bytes);
    assert_eq!(explained.unwrap().chosen.route, [src, dst]);
    let (from, to) = [src, dst]
        .map(|of| manager.allocate(of.into(), AllocSpec::bytes(bytes)))
        .into();
    let report = manager.copy(from.unwrap(), to.unwrap()).wait().unwrap();
    assert!(report.fallbacks().is_empty(), "{report:?}");
    let links: Vec<_> = report.plan().unwrap().links().collect();
    assert_eq!(links.len(), 1);
    links[0].engine.device
}

#[test]
fn bytes_go_to_another_process_and_back_by_the_processors_in_one_pass() {
    let (mut child, manager) = process();
    let mut dice = Dice(31);
    for bytes in [0, 1, 7, 4096, 65_537, 3 << 20, 20_000_001] {
        let sent = bytes_of(&mut dice, bytes);
        let first = mapped(&manager, bytes as u64);
        manager.copy_from_slice(&sent, &first).unwrap();
        // By way of memory that is not mapped, so the server sees the bytes, too.
        let copies = [
            there(&manager, bytes as u64),
            mapped(&manager, bytes as u64),
        ];
        manager.copy(&first, &copies[0]).wait().unwrap();
        let request = Request::new(&copies[0], &copies[1]).verify();
        manager.submit(&request).wait().unwrap();
        let back = [&first, &copies[0], &copies[1]].map(|of| manager.read_to_vec(of).unwrap());
        assert!(back.iter().all(|back| *back == sent), "{bytes} bytes");
    }
    let [here, there]: [MemoryId; 2] =
        ["cpu:0/pageable", "box2/cpu:0/shared"].map(|name| name.parse().unwrap());
    for (src, dst) in [(here, there), (there, here)] {
        assert_eq!(engine(&manager, src, dst, 8 << 20), DeviceId::CPU0);
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_guard_is_a_slice_of_the_other_process_s_memory() {
    let (mut child, manager) = process();
    let buffer = mapped(&manager, 1 << 20);
    buffer.write().unwrap().fill(7);
    let copy = there(&manager, 1 << 20);
    manager.copy(&buffer, &copy).wait().unwrap();
    assert!(manager.read_to_vec(&copy).unwrap() == [7; 1 << 20]);
    let other = bytes_of(&mut Dice(32), 1 << 20);
    manager.copy_from_slice(&other, &copy).unwrap();
    manager.copy(&copy, &buffer).wait().unwrap();
    assert!(*buffer.read().unwrap() == other[..]);
    let part = buffer.slice(5..100).unwrap();
    assert_eq!(part.read().unwrap()[..], other[5..100]);
    // Of other memory of that process there is no address.
    let refused = copy.read().unwrap_err();
    assert!(
        matches!(refused, GuardError::NotHostAddressable { .. }),
        "{refused}"
    );
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn memory_stays_mapped_when_its_process_is_gone() {
    let (mut child, manager) = process();
    let buffer = mapped(&manager, 3 << 20);
    manager.copy_from_slice(&[5; 3 << 20], &buffer).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // The other side has no such bytes any more, so no transfer is done there once the session has ended.
    let failure = loop {
        match manager.copy_from_slice(&[5; 3 << 20], &buffer) {
            Ok(_) => std::thread::yield_now(),
            Err(error) => break error.to_string(),
        }
    };
    assert!(failure.contains("box2"), "{failure}");
    assert!(*buffer.read().unwrap() == [5; 3 << 20]);
    buffer.write().unwrap()[3 << 19] = 6;
    assert_eq!(buffer.read().unwrap()[3 << 19], 6);
    // What the server would have to do fails by its name.
    let place = "box2/cpu:0/shared".parse().unwrap();
    let refused = manager.allocate(place, AllocSpec::bytes(1)).unwrap_err();
    assert!(refused.to_string().contains("box2"), "{refused}");
}

#[test]
fn a_process_that_stands_still_fails_transfers_with_the_reason() {
    let (mut child, manager) = process();
    let source = manager.adopt(vec![1u8; 64 << 20]).unwrap();
    let copy = there(&manager, 64 << 20);
    manager.copy(&source, &copy).wait().unwrap();
    // SAFETY: the call takes numbers alone, and the process is this one's child.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGSTOP) }, 0);
    let failure = manager.copy(&source, &copy).wait();
    child.kill().unwrap();
    child.wait().unwrap();
    // The other ways there have the same reason, and do not find it out anew.
    let failure = failure.unwrap_err().to_string();
    assert!(failure.contains("box2: nothing came from"), "{failure}");
}

#[test]
fn other_memory_of_the_process_is_reached_over_slots_that_are_mapped_also_after_a_restart() {
    const LEN: u64 = 8 << 20;
    let key = PrivateKey::generate().unwrap();
    let served = serve_as(key.clone(), 1 << 30, |_| {});
    let manager = served.mapped();
    let sent = bytes_of(&mut Dice(34), LEN as usize);
    let source = manager.adopt(sent.clone()).unwrap();
    let names = |report: &transload::Report| report.route().map(|of| of.to_string()).collect();
    let way = ["cpu:0/pageable", "box2/cpu:0/shared", "box2/cpu:0/pageable"].map(String::from);
    let buffer = there(&manager, LEN);
    let report = manager.copy(&source, &buffer).wait().unwrap();
    let route: Vec<String> = names(&report);
    assert_eq!((route, report.fallbacks().len()), (way.to_vec(), 0));
    assert!(manager.read_to_vec(&buffer).unwrap() == sent);
    let (address, client) = (served.server.address(), served.client.public());
    drop((served, buffer));
    let _served = serve_as(key, 1 << 30, |options| {
        options.listen = address;
        options.allow.push(client);
    });
    let buffer = there(&manager, LEN);
    // The slots of the session that has ended are tried once.
    for most in [1, 0] {
        let report = manager.copy(&source, &buffer).wait().unwrap();
        assert!(report.fallbacks().len() <= most, "{report:?}");
        assert!(manager.read_to_vec(&buffer).unwrap() == sent);
    }
    let report = manager.copy(&source, &buffer).wait().unwrap();
    assert_eq!(names(&report), way.to_vec());
}

#[test]
fn a_server_keeps_half_of_its_descriptors_for_itself() {
    let (mut child, manager) = process();
    let mut buffers: Vec<Buffer> = (0..600).map(|_| mapped(&manager, 100)).collect();
    let count = buffers.iter().filter(|of| of.read().is_ok()).count();
    assert_eq!(count, 512);
    for buffer in &buffers[510..514] {
        manager.copy_from_slice(&[9; 100], buffer).unwrap();
        assert_eq!(manager.read_to_vec(buffer).unwrap(), [9; 100]);
    }
    buffers.drain(..100);
    assert!(mapped(&manager, 100).read().is_ok());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn alignments_past_the_page_size_are_kept() {
    let served = serve(1 << 30);
    let manager = served.mapped();
    for align in [1, 4096, 1 << 16, 2 << 20] {
        let place = "box2/cpu:0/shared".parse().unwrap();
        let spec = AllocSpec::bytes(100_000).aligned(align);
        let buffer = manager.allocate(place, spec).unwrap();
        let guard = buffer.read().unwrap();
        assert_eq!(guard.as_ptr().align_offset(align as usize), 0, "{align}");
        assert!(guard.iter().all(|byte| *byte == 0));
    }
    drop(manager);
    served.wait_until_empty();
}

#[test]
fn a_guard_of_memory_that_other_programs_use_is_refused() {
    let served = serve(1 << 20);
    let [first, second] = [(); 2].map(|()| served.mapped());
    let buffer = mapped(&first, 4096);
    drop(buffer.write().unwrap());
    let other = opened(&first, &buffer, &second);
    for buffer in [&buffer, &other] {
        let refused = buffer.read().unwrap_err();
        assert!(
            matches!(refused, GuardError::NotVisible { .. }),
            "{refused}"
        );
        assert!(refused.to_string().contains("other programs"), "{refused}");
    }
    second.copy_from_slice(&[3; 4096], &other).unwrap();
    assert_eq!(first.read_to_vec(&buffer).unwrap(), [3; 4096]);
}

#[test]
fn copies_of_the_processors_of_several_clients_take_effect_one_after_the_other() {
    const LEN: u64 = 16 << 20;
    let served = serve(1 << 30);
    let first = served.mapped();
    let shared = mapped(&first, LEN);
    first.copy_from_slice(&[0; LEN as usize], &shared).unwrap();
    std::thread::scope(|scope| {
        for client in 1..=3u8 {
            let (served, first, shared) = (&served, &first, &shared);
            scope.spawn(move || {
                let manager = served.mapped();
                let shared = opened(first, shared, &manager);
                for round in 0..12 {
                    let source = manager
                        .adopt(vec![client * 80 + round; LEN as usize])
                        .unwrap();
                    let report = manager.copy(&source, &shared).wait().unwrap();
                    let mut links = report.plan().unwrap().links();
                    assert!(links.all(|link| link.engine.device == DeviceId::CPU0));
                    // Each write is of one value and of all bytes.
                    let bytes = manager.read_to_vec(&shared).unwrap();
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                }
            });
        }
    });
    drop((shared, first));
    served.wait_until_empty();
}

/// A lease that was allocated without one: its owner is on another machine, say.
#[test]
fn memory_without_a_descriptor_is_copied_over_the_session() {
    let served = serve(1 << 30);
    let owner = Raw::connect(&served);
    let answer = owner.ask(Message::Allocate {
        id: 1,
        memory: "cpu:0/shared".into(),
        len: 1 << 20,
        align: 1,
        mapped: false,
    });
    let Some(Message::Allocated {
        descriptor: None, ..
    }) = answer
    else {
        panic!("{answer:?}");
    };
    let Some(Message::Shared { token, .. }) = owner.ask(Message::Share { id: 2, lease: 1 }) else {
        panic!("the lease is shared");
    };
    let manager = served.mapped();
    let buffer = token_opened(&served, token, &manager);
    let sent = bytes_of(&mut Dice(33), 1 << 20);
    manager.copy_from_slice(&sent, &buffer).unwrap();
    assert!(manager.read_to_vec(&buffer).unwrap() == sent);
    assert!(matches!(
        buffer.read(),
        Err(GuardError::NotHostAddressable { .. })
    ));
}

/// Opens a lease by its token, as `import_ipc` does.
fn token_opened(served: &Served, token: [u8; 16], manager: &TransferManager) -> Buffer {
    use transload::hal::{ExternalKind, IpcHandle};
    use transload::{Span, Uuid};

    let mut bytes = [0; IpcHandle::TOKEN_BYTES];
    bytes[..16].copy_from_slice(&token);
    let owner = Uuid(served.key.0[..16].try_into().unwrap());
    let (kind, span) = (ExternalKind::Remote, Span::new(0, 1 << 20));
    let handle = IpcHandle::new(kind, bytes, owner, 1 << 20, span, true).unwrap();
    // SAFETY: the server keeps the memory while one of the two has a buffer, and orders their transfers.
    unsafe { manager.import_ipc(&handle) }.unwrap()
}
