//! Copies between two machines, which go straight from one to the other.

use std::net::TcpListener;

use transload::model::Name;
use transload::remote::PrivateKey;
use transload::{AllocSpec, Buffer, Cancelled, Report, Request, ServeOptions, TransferManager};
use transload_remote::wire::{self, Message, Network, Outcome};

use super::raw::{Raw, use_of};
use super::{Served, bytes_of, opened, serve, serve_as};
use crate::dice::Dice;

/// Two machines, of which each allows the other one's key.
fn pair(change: impl Fn(&mut ServeOptions)) -> [Served; 2] {
    let keys = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let publics = [keys[1].public(), keys[0].public()];
    let [one, two] = keys;
    let serve = |key, other| {
        serve_as(key, 1 << 30, |options| {
            options.allow.push(other);
            change(options);
        })
    };
    [serve(one, publics[0]), serve(two, publics[1])]
}

/// A manager that calls them `box2` and `box3`. It tries no other routes than the fastest by default costs.
fn connect([one, two]: &[Served; 2]) -> TransferManager {
    let builder = TransferManager::builder().host().learning(false);
    let manager = builder.build().unwrap();
    one.join(&manager).unwrap();
    join(&manager, two);
    manager
}

fn join(manager: &TransferManager, two: &Served) {
    let address = two.server.address().to_string();
    let name = Name::constant("box3");
    manager
        .connect_with(
            name,
            &address,
            &two.client,
            two.key,
            super::session_options(),
        )
        .unwrap();
}

fn at(manager: &TransferManager, place: &str, bytes: u64) -> Buffer {
    let place = place.parse().unwrap();
    manager.allocate(place, AllocSpec::bytes(bytes)).unwrap()
}

fn memories(report: &Report) -> usize {
    report.route().count()
}

/// Whether the next copy between the two arrives, whichever way it takes.
fn check(manager: &TransferManager, from: &Buffer, to: &Buffer, seed: u64) -> Report {
    let sent = bytes_of(&mut Dice(seed), from.len() as usize);
    manager.copy_from_slice(&sent, from).unwrap();
    let request = Request::new(from, to).verify();
    let report = manager.submit(&request).wait().unwrap();
    assert!(manager.read_to_vec(to).unwrap() == sent);
    report
}

#[test]
fn bytes_go_straight_from_one_machine_to_another() {
    let pair = pair(|_| {});
    let manager = connect(&pair);
    for bytes in [1, 7, 4096, 65_537, 3 << 20, 20_000_001] {
        let one = at(&manager, "box2/cpu:0", bytes);
        let two = at(&manager, "box3/cpu:0", bytes);
        for (from, to) in [(&one, &two), (&two, &one)] {
            let report = check(&manager, from, to, bytes);
            assert_eq!(report.fallbacks(), []);
            assert_eq!(memories(&report), 2, "{report:?}");
        }
    }
    for served in &pair {
        assert_eq!(served.server.sessions(), 2);
    }
    let empty = at(&manager, "box2/cpu:0", 0);
    manager
        .copy(&empty, at(&manager, "box3/cpu:0", 0))
        .wait()
        .unwrap();
    // Slices, and more of them than a session has operations at once.
    let (one, two) = (
        at(&manager, "box2/cpu:0", 1 << 20),
        at(&manager, "box3/cpu:0", 1 << 20),
    );
    let sent = bytes_of(&mut Dice(5), 1 << 20);
    manager.copy_from_slice(&sent, &one).unwrap();
    let copies: Vec<_> = (0..256u64)
        .map(|part| {
            let [from, to] = [part, 255 - part].map(|at| at * 4096..(at + 1) * 4096);
            manager.copy(one.slice(from).unwrap(), two.slice(to).unwrap())
        })
        .collect();
    for copy in copies {
        assert_eq!(memories(&copy.wait().unwrap()), 2);
    }
    let turned: Vec<u8> = sent.chunks(4096).rev().flatten().copied().collect();
    assert!(manager.read_to_vec(&two).unwrap() == turned);
}

#[test]
fn machines_that_do_not_reach_each_other_copy_through_the_client() {
    let strangers = [serve(1 << 30), serve(1 << 30)];
    let manager = connect(&strangers);
    let (one, two) = (
        at(&manager, "box2/cpu:0", 3 << 20),
        at(&manager, "box3/cpu:0", 3 << 20),
    );
    let report = check(&manager, &one, &two, 1);
    assert_eq!(memories(&report), 3);
    let [fallback] = report.fallbacks() else {
        panic!("{report:?}");
    };
    let told = fallback.fault.to_string();
    let address = strangers[1].server.address().to_string();
    assert!(
        told.contains("box2") && told.contains(&address) && told.contains("key"),
        "{told}"
    );
    assert_eq!(
        check(&manager, &one, &two, 2).fallbacks(),
        [],
        "the link is barred"
    );

    let silent = pair(|options| options.forward = false);
    let manager = connect(&silent);
    let (one, two) = (
        at(&manager, "box2/cpu:0", 3 << 20),
        at(&manager, "box3/cpu:0", 3 << 20),
    );
    let report = check(&manager, &one, &two, 3);
    assert_eq!((memories(&report), report.fallbacks().len()), (3, 0));
    let raw = Raw::connect(&silent[0]);
    raw.lease(1, 4096);
    let copy = copy_to(&address, silent[1].key.0);
    let refused = raw.ask(copy);
    assert!(
        matches!(refused, Some(Message::Refused { id: 2, .. })),
        "{refused:?}"
    );
}

/// A copy of 4096 bytes of lease 1, as operation 2.
fn copy_to(address: &str, key: [u8; 32]) -> Message {
    Message::Copy {
        id: 2,
        reservation: 0,
        src: wire::Place {
            lease: 1,
            offset: 0,
        },
        dst: wire::Destination::Node {
            address: address.into(),
            key,
            token: [0; 16],
        },
        len: 4096,
    }
}

#[test]
fn a_machine_that_connects_to_another_one_still_answers_and_can_be_stopped() {
    let served = serve(1 << 30);
    // Connections to it open, and nothing comes over them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let raw = Raw::connect(&served);
    raw.lease(1, 4096);
    raw.say(copy_to(&address, served.key.0));
    let (connection, _) = silent.accept().unwrap();
    let answer = raw.ask(Message::Available {
        id: 3,
        memory: "cpu:0/pageable".into(),
    });
    assert!(
        matches!(answer, Some(Message::AvailableBytes { .. })),
        "{answer:?}"
    );
    assert_eq!(raw.ask(Message::Stop { id: 2 }), ended(2, STOPPED));

    raw.say(copy_to(&address, served.key.0));
    drop((connection, silent));
    let Some(Message::Ended {
        id: 2,
        outcome: Outcome::Failed(fault),
    }) = raw.hear()
    else {
        panic!("there is no machine");
    };
    assert_eq!(fault.class, wire::Class::Failed);
    assert!(fault.message.contains(&address), "{fault:?}");
    raw.handle.close();
    served.wait_until_empty();
}

#[test]
fn conflicting_copies_between_machines_take_effect_one_after_the_other() {
    const LEN: u64 = 6 << 20;
    let pair = pair(|_| {});
    let managers = [(); 3].map(|()| connect(&pair));
    let target = at(&managers[0], "box3/cpu:0", LEN);
    let targets = [
        target.clone(),
        opened(&managers[0], &target, &managers[1]),
        opened(&managers[0], &target, &managers[2]),
    ];
    std::thread::scope(|scope| {
        for (value, (manager, target)) in managers.iter().zip(&targets).enumerate() {
            scope.spawn(move || {
                let source = at(manager, "box2/cpu:0", LEN);
                manager
                    .copy_from_slice(&vec![value as u8; LEN as usize], &source)
                    .unwrap();
                for _ in 0..8 {
                    assert_eq!(memories(&manager.copy(&source, target).wait().unwrap()), 2);
                    let whole = manager.read_to_vec(target).unwrap();
                    assert!(
                        whole.iter().all(|byte| *byte == whole[0]),
                        "parts of two copies"
                    );
                }
            });
        }
    });
    drop((targets, target, managers));
    let [one, two] = pair;
    one.wait_until_empty_but(1);
    two.wait_until_empty_but(1);
}

#[test]
fn a_cancelled_copy_between_machines_is_quiet() {
    let pair = pair(|_| {});
    let manager = connect(&pair);
    let bytes = 24 << 20;
    let (one, two) = (
        at(&manager, "box2/cpu:0", bytes),
        at(&manager, "box3/cpu:0", bytes),
    );
    for round in 0..8u8 {
        let cancelled = manager.copy(&one, &two).cancel();
        if let Cancelled::Stopped { leading_bytes } = cancelled {
            assert!(leading_bytes < bytes);
        }
        // What still came in would change it.
        let value = vec![round + 1; bytes as usize];
        manager.copy_from_slice(&value, &two).unwrap();
        assert!(manager.read_to_vec(&two).unwrap() == value);
    }
    let report = check(&manager, &one, &two, 1);
    assert_eq!(memories(&report), 2, "{report:?}");
}

#[test]
fn a_machine_that_goes_away_fails_copies_by_name_and_leaves_the_other_one_usable() {
    for gone in 0..2 {
        let pair = pair(|_| {});
        let manager = connect(&pair);
        let bytes = 64 << 20;
        let (one, two) = (
            at(&manager, "box2/cpu:0", bytes),
            at(&manager, "box3/cpu:0", bytes),
        );
        let under_way = manager.copy(&one, &two);
        let mut pair = pair.into_iter();
        let left = match gone {
            0 => {
                drop(pair.next());
                pair.next()
            }
            _ => {
                let left = pair.next();
                drop(pair.next());
                left
            }
        };
        let (gone, kept) = [("box2", &two), ("box3", &one)][gone];
        // It may have been over already.
        if let Err(error) = under_way.wait() {
            assert!(error.to_string().contains(gone), "{error}");
        }
        let failure = manager.copy(&one, &two).wait().unwrap_err().to_string();
        assert!(failure.contains(gone), "{failure}");
        manager
            .copy_from_slice(&vec![7; bytes as usize], kept)
            .unwrap();
        assert!(
            manager
                .read_to_vec(kept)
                .unwrap()
                .iter()
                .all(|byte| *byte == 7)
        );
        drop(left);
    }
}

#[test]
fn a_machine_that_comes_back_is_used_again() {
    let keys = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let (one, client) = (keys[0].clone(), PrivateKey::generate().unwrap());
    let allow = [keys[0].public(), client.public()];
    let two = |listen| {
        serve_as(keys[1].clone(), 1 << 30, |options| {
            options.allow.extend(allow);
            options.listen = listen;
        })
    };
    let one = serve_as(one, 1 << 30, |_| {});
    let mut first = two(([127, 0, 0, 1], 0).into());
    first.client = client;
    let address = first.server.address();
    let pair = [one, first];
    let manager = connect(&pair);
    let from = at(&manager, "box2/cpu:0", 3 << 20);
    let lost = at(&manager, "box3/cpu:0", 3 << 20);
    assert_eq!(memories(&check(&manager, &from, &lost, 1)), 2);
    let [_one, first] = pair;
    drop(first);
    let second = two(address);
    let to = at(&manager, "box3/cpu:0", 3 << 20);
    check(&manager, &from, &to, 2);
    drop((from, lost, to));
    drop(manager);
    second.wait_until_empty_but(1);
}

fn grant(raw: &Raw, id: u64) -> [u8; 16] {
    let grant = Message::Grant {
        id,
        reservation: 0,
        lease: 1,
        offset: 4096,
        len: 4096,
    };
    let answer = raw.ask(grant);
    let Some(Message::Granted { id: of, token }) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(of, id);
    token
}

fn write(id: u64, token: [u8; 16], offset: u64, len: u64) -> Message {
    Message::WriteGranted {
        id,
        token,
        offset,
        len,
        network: Network::Tls,
    }
}

fn assert_refused(raw: &Raw, write: Message) {
    let answer = raw.ask(write);
    assert!(
        matches!(answer, Some(Message::Refused { .. })),
        "{answer:?}"
    );
}

fn ended(id: u64, outcome: Outcome) -> Option<Message> {
    Some(Message::Ended { id, outcome })
}

const STOPPED: Outcome = Outcome::Stopped { leading_bytes: 0 };

/// Begins a write of which no byte comes.
fn begin(raw: &Raw, id: u64, token: [u8; 16]) {
    raw.sends(false);
    let go = raw.ask(write(id, token, 0, 1024));
    assert!(matches!(go, Some(Message::Go { .. })), "{go:?}");
}

#[test]
fn a_grant_serves_each_of_its_bytes_once() {
    let served = serve(1 << 30);
    let (granter, writer) = (Raw::connect(&served), Raw::connect(&served));
    granter.lease(1, 8192);
    let token = grant(&granter, 2);
    let mut wrong = token;
    wrong[15] ^= 1;
    assert_refused(&writer, write(3, wrong, 0, 1));
    for (offset, len) in [(0, 4097), (4096, 1), (u64::MAX, 1), (1, u64::MAX)] {
        assert_refused(&writer, write(3, token, offset, len));
    }
    writer.sends(true);
    for (id, offset) in [(4, 2048), (5, 0)] {
        let go = writer.ask(write(id, token, offset, 2048));
        assert!(matches!(go, Some(Message::Go { len: 2048, .. })), "{go:?}");
        assert_eq!(writer.hear(), ended(id, Outcome::Done));
        if offset > 0 {
            // What is left is less.
            assert_refused(&writer, write(6, token, 0, 2049));
        }
    }
    assert_eq!(granter.hear(), ended(2, Outcome::Done));
    assert_refused(&writer, write(6, token, 0, 1));
    for range in [(4097, 4096), (u64::MAX, 4096), (0, u64::MAX)] {
        let (offset, len) = range;
        let outside = Message::Grant {
            id: 7,
            reservation: 0,
            lease: 1,
            offset,
            len,
        };
        assert_refused(&granter, outside);
    }
    granter.handle.close();
    writer.handle.close();
    served.wait_until_empty();
}

/// The session that granted has stopped the write, which is no fault of the way there.
fn assert_cut_off(raw: &Raw, id: u64) {
    let answer = raw.hear();
    let Some(Message::Ended {
        id: of,
        outcome: Outcome::Failed(fault),
    }) = answer
    else {
        panic!("{answer:?}");
    };
    assert_eq!((of, fault.class), (id, wire::Class::Caller));
}

#[test]
fn a_grant_ends_with_its_sessions_and_when_it_is_stopped() {
    let served = serve(1 << 30);
    let (granter, writer) = (Raw::connect(&served), Raw::connect(&served));
    granter.lease(1, 8192);
    let unused = grant(&granter, 2);
    assert_eq!(granter.ask(Message::Stop { id: 2 }), ended(2, STOPPED));
    assert_refused(&writer, write(3, unused, 0, 1));

    let used = grant(&granter, 4);
    begin(&writer, 5, used);
    granter.say(Message::Stop { id: 4 });
    assert_cut_off(&writer, 5);
    assert_eq!(granter.hear(), ended(4, STOPPED));

    let written = grant(&granter, 6);
    let passing = Raw::connect(&served);
    begin(&passing, 7, written);
    passing.handle.close();
    let Some(Message::Ended {
        id: 6,
        outcome: Outcome::Failed(_),
    }) = granter.hear()
    else {
        panic!("the write failed");
    };

    let [unused, used] = [8, 9].map(|id| grant(&granter, id));
    begin(&writer, 10, used);
    granter.handle.close();
    granter.handle.join();
    assert_cut_off(&writer, 10);
    for token in [unused, used] {
        assert_refused(&writer, write(11, token, 0, 1));
    }
    writer.handle.close();
    served.wait_until_empty();
}

#[test]
fn a_write_by_a_grant_holds_the_place_of_the_transfer_that_granted() {
    let served = serve(1 << 30);
    let [granter, writer, other] = [(); 3].map(|()| Raw::connect(&served));
    granter.lease(1, 8192);
    let Some(Message::Shared { token, .. }) = granter.ask(Message::Share { id: 2, lease: 1 })
    else {
        panic!("the lease is shared");
    };
    let grant = |id| Message::Grant {
        id,
        reservation: 3,
        lease: 1,
        offset: 0,
        len: 4096,
    };
    assert_refused(&granter, grant(4));
    let uses = vec![use_of(1, 8192)];
    let entered = granter.ask(Message::Enter { id: 3, uses });
    assert_eq!(entered, Some(Message::Entered { id: 3 }));
    let tokens = [5, 6].map(|id| match granter.ask(grant(id)) {
        Some(Message::Granted { token, .. }) => token,
        other => panic!("{other:?}"),
    });
    begin(&writer, 7, tokens[0]);
    other.ask(Message::Open { id: 1, token });
    other.say(Message::Enter {
        id: 8,
        uses: vec![use_of(1, 1)],
    });
    let question = |id| Message::Available {
        id,
        memory: "cpu:0/pageable".into(),
    };
    let is_answer = |answer| matches!(answer, Some(Message::AvailableBytes { .. }));
    granter.say(Message::Leave { reservation: 3 });
    assert!(is_answer(granter.ask(question(9))));
    assert!(
        is_answer(other.ask(question(9))),
        "the other one has no turn yet"
    );
    writer.handle.close();
    assert_eq!(other.hear(), Some(Message::Entered { id: 8 }));
    let ended = granter.hear();
    assert!(
        matches!(ended, Some(Message::Ended { id: 5, .. })),
        "{ended:?}"
    );
    assert_refused(&other, write(10, tokens[1], 0, 1));
    granter.handle.close();
    other.handle.close();
    served.wait_until_empty();
}
