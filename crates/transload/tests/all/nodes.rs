//! Memory of other machines: here each machine is a manager of this process, and the network is the loopback.

#![cfg(all(feature = "remote", not(any(loom, transload_local))))]

use transload::hal::{ErrorClass, External, ExternalKind, IpcHandle};
use transload::model::Name;
use transload::remote::{PrivateKey, PublicKey};
use transload::{
    AllocSpec, Buffer, Cancelled, Error, Request, ServeError, ServeOptions, Server, TransferManager,
};

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use transload_remote::wire::{self, Message, ProtocolError};
use transload_remote::{Event, Handler, Options, Peer, Pipe, Session, SessionError, SessionHandle};

use crate::dice::Dice;

const NODE: Name = Name::constant("box2");

/// A machine that serves, and the keys of both sides.
struct Served {
    server: Server,
    manager: TransferManager,
    key: PublicKey,
    client: PrivateKey,
}

fn manager() -> TransferManager {
    TransferManager::builder().host().build().unwrap()
}

fn serve(limit_bytes: u64) -> Served {
    let (manager, client) = (manager(), PrivateKey::generate().unwrap());
    let key = PrivateKey::generate().unwrap();
    let public = key.public();
    let mut options = ServeOptions::new(key, limit_bytes);
    options.allow.push(client.public());
    options.offer.push("cpu:0".parse().unwrap());
    options.offer.push("cpu:0/shared".parse().unwrap());
    Served {
        server: manager.serve(options).unwrap(),
        manager,
        key: public,
        client,
    }
}

impl Served {
    fn connect(&self) -> TransferManager {
        let manager = manager();
        self.join(&manager).unwrap();
        manager
    }

    fn join(&self, manager: &TransferManager) -> Result<(), Error> {
        let address = self.server.address().to_string();
        manager.connect(NODE, &address, &self.client, self.key)
    }

    /// Turns until the other side's leases and sessions have gone.
    fn wait_until_empty(&self) {
        while self.server.used_bytes() > 0 || self.server.sessions() > 0 {
            std::thread::yield_now();
        }
        self.manager.wait_idle();
    }
}

fn bytes_of(dice: &mut Dice, len: usize) -> Vec<u8> {
    (0..len).map(|_| dice.below(256) as u8).collect()
}

fn there(manager: &TransferManager, bytes: u64) -> Buffer {
    let place = "box2/cpu:0".parse().unwrap();
    manager.allocate(place, AllocSpec::bytes(bytes)).unwrap()
}

#[test]
fn bytes_go_to_another_machine_and_come_back() {
    let served = serve(1 << 30);
    let manager = served.connect();
    let mut dice = Dice(19);
    for bytes in [0, 1, 7, 4096, 65_537, 3 << 20, 20_000_001] {
        let sent = bytes_of(&mut dice, bytes);
        let remote = there(&manager, bytes as u64);
        manager.copy_from_slice(&sent, &remote).unwrap();
        let copy = there(&manager, bytes as u64);
        let request = Request::new(&remote, &copy).verify();
        manager.submit(&request).wait().unwrap();
        assert!(manager.read_to_vec(&copy).unwrap() == sent, "{bytes} bytes");
    }
    drop(manager);
    served.wait_until_empty();
}

#[test]
fn slices_of_a_remote_buffer_are_where_they_say() {
    let served = serve(1 << 30);
    let manager = served.connect();
    let mut dice = Dice(20);
    let len = 1 << 20;
    let mut model = bytes_of(&mut dice, len);
    let remote = there(&manager, len as u64);
    manager.copy_from_slice(&model, &remote).unwrap();
    for _ in 0..50 {
        let start = dice.below(len as u64);
        let end = start + 1 + dice.below(len as u64 - start);
        let part = remote.slice(start..end).unwrap();
        let range = start as usize..end as usize;
        if dice.below(2) == 0 {
            let bytes = bytes_of(&mut dice, range.len());
            manager.copy_from_slice(&bytes, &part).unwrap();
            model[range].copy_from_slice(&bytes);
        } else {
            assert!(manager.read_to_vec(&part).unwrap() == model[range]);
        }
    }
    assert!(manager.read_to_vec(&remote).unwrap() == model);
}

#[test]
fn many_transfers_of_several_clients_keep_their_bytes_and_their_limit() {
    let served = serve(64 << 20);
    std::thread::scope(|scope| {
        for client in 0..4 {
            let served = &served;
            scope.spawn(move || {
                let manager = served.connect();
                let mut dice = Dice(client);
                for _ in 0..20 {
                    let len = 1 + dice.below(4 << 20) as usize;
                    let sent = bytes_of(&mut dice, len);
                    let remote = there(&manager, sent.len() as u64);
                    manager.copy_from_slice(&sent, &remote).unwrap();
                    assert!(manager.read_to_vec(&remote).unwrap() == sent);
                    assert!(served.server.used_bytes() <= 64 << 20);
                }
            });
        }
    });
    served.wait_until_empty();
}

#[test]
fn more_than_the_limit_is_refused_and_the_rest_stays_usable() {
    let served = serve(1 << 20);
    let manager = served.connect();
    let half = there(&manager, 512 << 10);
    let place = "box2/cpu:0".parse().unwrap();
    let refused = manager.allocate(place, AllocSpec::bytes((512 << 10) + 1));
    let Err(Error::Alloc(error)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(error.class(), ErrorClass::Exhausted);
    assert!(error.to_string().contains("1 MiB"), "{error}");
    let other = there(&manager, 512 << 10);
    drop(half);
    manager.copy_from_slice(&[7; 512 << 10], &other).unwrap();
    drop(other);
    drop(there(&manager, 1 << 20));
}

#[test]
fn a_cancelled_transfer_ends_on_both_sides() {
    let served = serve(1 << 30);
    let manager = served.connect();
    let bytes = 256 << 20;
    let local = manager.adopt(vec![3u8; bytes]).unwrap();
    let remote = there(&manager, bytes as u64);
    for (from, to) in [(&local, &remote), (&remote, &local)] {
        let cancelled = manager.copy(from, to).cancel();
        // It may have been over already.
        if let Cancelled::Stopped { leading_bytes } = cancelled {
            assert!(leading_bytes < bytes as u64);
        }
        manager.copy(from, to).wait().unwrap();
    }
    drop((local, remote, manager));
    served.wait_until_empty();
}

#[test]
fn a_server_that_goes_away_fails_transfers_by_name_and_frees_its_clients() {
    let served = serve(1 << 30);
    let manager = served.connect();
    let bytes = 256 << 20;
    let local = manager.adopt(vec![3u8; bytes]).unwrap();
    let remote = there(&manager, bytes as u64);
    let under_way = manager.copy(&local, &remote);
    drop(served);
    // It may have been over already.
    if let Err(error) = under_way.wait() {
        assert!(error.to_string().contains("box2"), "{error}");
    }
    let failure = manager
        .copy(&local, &remote)
        .wait()
        .unwrap_err()
        .to_string();
    assert!(
        failure.contains("box2") && failure.contains("ended"),
        "{failure}"
    );
    let place = "box2/cpu:0".parse().unwrap();
    let refused = manager.allocate(place, AllocSpec::bytes(1)).unwrap_err();
    assert!(refused.to_string().contains("box2"), "{refused}");
}

#[test]
fn a_client_without_the_right_key_is_refused_by_both_sides() {
    let served = serve(1 << 20);
    let stranger = PrivateKey::generate().unwrap();
    let address = served.server.address().to_string();
    for (key, peer) in [(&stranger, served.key), (&served.client, stranger.public())] {
        let manager = manager();
        let error = manager.connect(NODE, &address, key, peer).unwrap_err();
        let told = error.to_string();
        assert!(told.contains("box2") && told.contains("key"), "{told}");
        assert_eq!(error.class(), ErrorClass::Unsupported);
        assert_eq!(manager.backends().len(), 1);
    }
    let manager = served.connect();
    assert!(served.join(&manager).is_err(), "the name is taken");
}

#[test]
fn what_cannot_be_served_is_refused_by_name() {
    let manager = manager();
    let key = || PrivateKey::generate().unwrap();
    let refused = |allow: bool, offer: &[&str]| {
        let mut options = ServeOptions::new(key(), 1 << 20);
        options.allow.extend(allow.then(|| key().public()));
        for place in offer {
            options.offer.push(place.parse().unwrap());
        }
        manager.serve(options).unwrap_err()
    };
    assert!(matches!(refused(false, &["cpu:0"]), ServeError::NoKeys));
    assert!(matches!(refused(true, &[]), ServeError::NoOffer));
    let file = refused(true, &["cpu:0/file"]);
    assert!(file.to_string().contains("cpu:0/file"), "{file}");
    let absent = refused(true, &["cuda:0"]);
    assert!(absent.to_string().contains("cuda:0"), "{absent}");
    let served = serve(1 << 20);
    let mut options = ServeOptions::new(key(), 1 << 20);
    options.listen = served.server.address();
    options.allow.push(key().public());
    options.offer.push("cpu:0".parse().unwrap());
    let taken = manager.serve(options).unwrap_err();
    assert!(matches!(taken, ServeError::Listen { .. }), "{taken}");
}

/// Takes a buffer of one manager into another one, as two programs would.
fn opened(from: &TransferManager, buffer: &Buffer, by: &TransferManager) -> Buffer {
    let External::Ipc(handle) = from.export(buffer, ExternalKind::Remote).unwrap() else {
        panic!("memory of another machine is named for other programs");
    };
    let handle = IpcHandle::from_bytes(&handle.to_bytes()).unwrap();
    // SAFETY: the machine that has the memory keeps it while one of the two has a buffer, and orders their transfers.
    unsafe { by.import_ipc(&handle) }.unwrap()
}

#[test]
fn transfers_of_several_clients_that_touch_the_same_bytes_take_effect_one_after_the_other() {
    const LEN: u64 = 24 << 20;
    let served = serve(1 << 30);
    let first = served.connect();
    let shared = there(&first, LEN);
    first.copy_from_slice(&[0; LEN as usize], &shared).unwrap();
    std::thread::scope(|scope| {
        for client in 1..=3u8 {
            let (served, first, shared) = (&served, &first, &shared);
            scope.spawn(move || {
                let manager = served.connect();
                let shared = opened(first, shared, &manager);
                let mut dice = Dice(client.into());
                for round in 0..12 {
                    let start = dice.below(LEN / 2);
                    let len = LEN / 2 - dice.below(LEN / 4);
                    let part = shared.slice(start..start + len).unwrap();
                    if dice.below(3) == 0 {
                        // Each write is of one value, so bytes of a range that all writers wrote whole are alike.
                        let bytes = manager
                            .read_to_vec(&shared.slice(LEN / 2 - 1..LEN / 2 + (1 << 20)).unwrap())
                            .unwrap();
                        let changes = bytes.windows(2).filter(|pair| pair[0] != pair[1]).count();
                        assert!(changes <= 72, "{changes} borders of at most 36 writes");
                    } else {
                        let value = client * 80 + round;
                        let source = manager.adopt(vec![value; len as usize]).unwrap();
                        manager.copy(&source, &part).wait().unwrap();
                    }
                }
            });
        }
    });
    let whole = first.read_to_vec(&shared).unwrap();
    let changes = whole.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes <= 72, "{changes} borders of at most 36 writes");
    drop((shared, first));
    served.wait_until_empty();
}

#[test]
fn a_transfer_between_two_machines_has_its_turn_at_both() {
    let (one, two) = (serve(1 << 30), serve(1 << 30));
    let managers: Vec<_> = (0..2)
        .map(|_| {
            let manager = one.connect();
            let address = two.server.address().to_string();
            let name = Name::constant("box3");
            manager
                .connect(name, &address, &two.client, two.key)
                .unwrap();
            manager
        })
        .collect();
    let len = 4 << 20;
    let place = "box3/cpu:0".parse().unwrap();
    let at_two = managers[0].allocate(place, AllocSpec::bytes(len)).unwrap();
    let at_one = there(&managers[0], len);
    managers[0]
        .copy_from_slice(&vec![1; len as usize], &at_one)
        .unwrap();
    managers[0]
        .copy_from_slice(&vec![2; len as usize], &at_two)
        .unwrap();
    let others = [&at_one, &at_two].map(|of| opened(&managers[0], of, &managers[1]));
    std::thread::scope(|scope| {
        // They go opposite ways, so that each holds what the other one wants if they do not agree on the order.
        scope.spawn(|| {
            (0..20).for_each(|_| drop(managers[0].copy(&at_one, &at_two).wait().unwrap()))
        });
        scope.spawn(|| {
            (0..20).for_each(|_| drop(managers[1].copy(&others[1], &others[0]).wait().unwrap()))
        });
    });
    let [first, second] = [&at_one, &at_two].map(|of| managers[0].read_to_vec(of).unwrap());
    assert!(first == second && first.iter().all(|byte| *byte == first[0]));
    drop((others, at_one, at_two, managers));
    one.wait_until_empty();
    two.wait_until_empty();
}

/// A program that speaks the protocol as it likes.
struct Raw {
    handle: SessionHandle,
    events: mpsc::Receiver<Message>,
    orders: Arc<Mutex<Vec<Message>>>,
}

struct RawHandler {
    events: mpsc::Sender<Message>,
    orders: Arc<Mutex<Vec<Message>>>,
}

impl Handler for RawHandler {
    fn opened(&mut self, _: Peer, _: &mut Pipe) -> Result<(), ProtocolError> {
        Ok(())
    }

    fn handle(&mut self, event: Event, _: &mut Pipe) -> Result<(), ProtocolError> {
        if let Event::Message(message) = event {
            let _ = self.events.send(message);
        }
        Ok(())
    }

    fn woken(&mut self, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        let orders = std::mem::take(&mut *self.orders.lock().unwrap());
        orders.iter().try_for_each(|message| pipe.send(message))
    }

    fn closed(&mut self, _: SessionError) {}
}

impl Raw {
    fn connect(served: &Served) -> Raw {
        let (events, seen) = mpsc::channel();
        let orders = Arc::<Mutex<Vec<Message>>>::default();
        let handler = RawHandler {
            events,
            orders: Arc::clone(&orders),
        };
        let address = served.server.address().to_string();
        let options = Options::default();
        let handle = Session::connect(address, &served.client, served.key, handler, options);
        let raw = Raw {
            handle: handle.unwrap(),
            events: seen,
            orders,
        };
        assert!(matches!(raw.hear(), Some(Message::Inventory(_))));
        raw
    }

    fn say(&self, message: Message) {
        self.orders.lock().unwrap().push(message);
        self.handle.wake();
    }

    /// The next message; none once the session has ended.
    fn hear(&self) -> Option<Message> {
        self.events.recv_timeout(Duration::from_secs(20)).ok()
    }

    fn ask(&self, message: Message) -> Option<Message> {
        self.say(message);
        self.hear()
    }

    fn lease(&self, id: u64, len: u64) {
        let memory = "cpu:0/pageable".into();
        let answer = self.ask(Message::Allocate {
            id,
            memory,
            len,
            align: 1,
        });
        assert!(
            matches!(answer, Some(Message::Allocated { .. })),
            "{answer:?}"
        );
    }
}

fn use_of(lease: u64, len: u64) -> wire::Use {
    wire::Use {
        lease,
        offset: 0,
        len,
        writes: true,
    }
}

#[test]
fn a_place_in_the_order_goes_with_its_session() {
    let served = serve(1 << 30);
    let holder = Raw::connect(&served);
    holder.lease(1, 4096);
    let Some(Message::Shared { token, .. }) = holder.ask(Message::Share { id: 2, lease: 1 }) else {
        panic!("the lease is shared");
    };
    let uses = vec![use_of(1, 4096)];
    assert_eq!(
        holder.ask(Message::Enter { id: 3, uses }),
        Some(Message::Entered { id: 3 })
    );
    let other = Raw::connect(&served);
    let opened = other.ask(Message::Open { id: 1, token });
    assert!(
        matches!(opened, Some(Message::Opened { len: 4096, .. })),
        "{opened:?}"
    );
    // Without a place of its own it touches nothing.
    let write = Message::Write {
        id: 2,
        reservation: 3,
        lease: 1,
        offset: 0,
        len: 1,
    };
    let refused = other.ask(write);
    assert!(
        matches!(refused, Some(Message::Refused { id: 2, .. })),
        "{refused:?}"
    );
    other.say(Message::Enter {
        id: 4,
        uses: vec![use_of(1, 1)],
    });
    let available = Message::Available {
        id: 5,
        memory: "cpu:0/pageable".into(),
    };
    let answer = other.ask(available);
    assert!(
        matches!(answer, Some(Message::AvailableBytes { id: 5, .. })),
        "{answer:?}"
    );
    holder.handle.close();
    assert_eq!(other.hear(), Some(Message::Entered { id: 4 }));
    other.handle.close();
    served.wait_until_empty();
}

#[test]
fn what_makes_no_sense_is_refused_or_ends_the_session_and_harms_no_other() {
    let served = serve(1 << 20);
    let bystander = served.connect();
    let kept = there(&bystander, 4096);
    bystander.copy_from_slice(&[5; 4096], &kept).unwrap();
    let at = |lease, offset| wire::Place { lease, offset };
    let refused = [
        Message::Allocate {
            id: 9,
            memory: "cpu:0/file".into(),
            len: 1,
            align: 1,
        },
        Message::Allocate {
            id: 9,
            memory: "../cpu".into(),
            len: 1,
            align: 1,
        },
        Message::Allocate {
            id: 9,
            memory: "cpu:0/pageable".into(),
            len: u64::MAX,
            align: 1,
        },
        Message::Allocate {
            id: 9,
            memory: "cpu:0/pageable".into(),
            len: 1,
            align: 3,
        },
        Message::Allocate {
            id: 1,
            memory: "cpu:0/pageable".into(),
            len: 1,
            align: 1,
        },
        Message::Open {
            id: 9,
            token: [0; 16],
        },
        Message::Share { id: 9, lease: 2 },
        Message::Enter {
            id: 9,
            uses: vec![use_of(1, 4097)],
        },
        Message::Enter {
            id: 9,
            uses: vec![wire::Use {
                offset: u64::MAX,
                ..use_of(1, 2)
            }],
        },
        Message::Write {
            id: 9,
            reservation: 0,
            lease: 1,
            offset: 4096,
            len: 1,
        },
        Message::Write {
            id: 9,
            reservation: 0,
            lease: 1,
            offset: u64::MAX,
            len: 2,
        },
        Message::Write {
            id: 9,
            reservation: 0,
            lease: 2,
            offset: 0,
            len: 1,
        },
        Message::Read {
            id: 9,
            reservation: 0,
            lease: 1,
            offset: 1,
            len: u64::MAX,
        },
        Message::Copy {
            id: 9,
            reservation: 0,
            src: at(1, 0),
            dst: wire::Destination::Lease(at(2, 0)),
            len: 1,
        },
        Message::Copy {
            id: 9,
            reservation: 0,
            src: at(1, 0),
            dst: wire::Destination::Lease(at(1, 4000)),
            len: 97,
        },
    ];
    let raw = Raw::connect(&served);
    raw.lease(1, 4096);
    for message in refused {
        let answer = raw.ask(message.clone());
        assert!(
            matches!(answer, Some(Message::Refused { id: 9 | 1, .. })),
            "{message:?}: {answer:?}"
        );
    }
    raw.handle.close();
    let ends = [
        Message::Free { lease: 7 },
        Message::Entered { id: 1 },
        Message::Go {
            id: 1,
            offset: 0,
            len: 1,
        },
        Message::Inventory(wire::Inventory::default()),
        Message::Hello {
            version: 1,
            trusted_network: true,
        },
    ];
    for message in ends {
        let raw = Raw::connect(&served);
        raw.lease(1, 4096);
        assert_eq!(raw.ask(message), None);
    }
    assert!(bystander.read_to_vec(&kept).unwrap() == [5; 4096]);
    drop((kept, bystander));
    served.wait_until_empty();
}

#[test]
fn a_client_that_stops_anywhere_leaves_nothing_behind() {
    let served = serve(1 << 20);
    // What a whole exchange says, cut off after each message.
    let script = |token: [u8; 16]| {
        let at = |lease, offset| wire::Place { lease, offset };
        vec![
            Message::Allocate {
                id: 1,
                memory: "cpu:0/pageable".into(),
                len: 65_536,
                align: 64,
            },
            Message::Allocate {
                id: 2,
                memory: "cpu:0/shared".into(),
                len: 65_536,
                align: 64,
            },
            Message::Share { id: 3, lease: 1 },
            Message::Open { id: 4, token },
            Message::Enter {
                id: 5,
                uses: vec![use_of(1, 65_536), use_of(2, 65_536)],
            },
            Message::Enter {
                id: 6,
                uses: vec![use_of(2, 1)],
            },
            Message::Write {
                id: 7,
                reservation: 5,
                lease: 1,
                offset: 0,
                len: 65_536,
            },
            Message::Read {
                id: 8,
                reservation: 5,
                lease: 2,
                offset: 0,
                len: 65_536,
            },
            Message::Copy {
                id: 9,
                reservation: 5,
                src: at(2, 0),
                dst: wire::Destination::Lease(at(1, 0)),
                len: 4096,
            },
            Message::Stop { id: 7 },
            Message::Leave { reservation: 5 },
            Message::Free { lease: 1 },
        ]
    };
    let whole = script([0; 16]).len();
    for cut in 0..=whole {
        let raw = Raw::connect(&served);
        for message in script([cut as u8; 16]).into_iter().take(cut) {
            raw.say(message);
        }
        if cut % 2 == 0 {
            // So that the other side has seen some of it.
            let _ =
                raw.events
                    .recv_timeout(Duration::from_millis(if cut == 0 { 0 } else { 20_000 }));
        }
        raw.handle.close();
        raw.handle.join();
    }
    served.wait_until_empty();
}
