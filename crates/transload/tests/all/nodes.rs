//! Memory of other machines: here each machine is a manager of this process, and the network is the loopback.

#![cfg(all(feature = "remote", not(any(loom, transload_local))))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use transload::hal::{DeviceInfo, DeviceKind, ErrorClass, External, ExternalKind, IpcHandle};
use transload::model::Name;
use transload::remote::{Options, PrivateKey, PublicKey};
use transload::{
    AllocSpec, Buffer, Cancelled, Conversion, Element, Error, Region, Request, ServeError,
    ServeOptions, Server, TransferManager,
};

use transload_testkit::sim::{HostSide, Sim};
use transload_testkit::topology;

use crate::dice::Dice;
use crate::fixture::without_peers;

mod evil;
mod forward;
mod group;
mod mapped;
#[cfg(target_os = "linux")]
mod random;
mod raw;
#[cfg(all(feature = "ucx", target_os = "linux"))]
mod ucx;

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

/// The bytes go over the network, although both sides are here. In the process that `ucx` starts, the network is trusted.
fn session_options() -> Options {
    let mut options = Options::default();
    options.maps_memory = false;
    options.trusted_network = std::env::var_os("TRANSLOAD_TEST_TRUSTED").is_some();
    options
}

fn serve(limit_bytes: u64) -> Served {
    serve_as(PrivateKey::generate().unwrap(), limit_bytes, |_| {})
}

fn serve_as(key: PrivateKey, limit_bytes: u64, change: impl FnOnce(&mut ServeOptions)) -> Served {
    serve_from(manager(), key, limit_bytes, change)
}

fn serve_from(
    manager: TransferManager,
    key: PrivateKey,
    limit_bytes: u64,
    change: impl FnOnce(&mut ServeOptions),
) -> Served {
    let client = PrivateKey::generate().unwrap();
    let public = key.public();
    let mut options = ServeOptions::new(key, limit_bytes);
    options.allow.push(client.public());
    options.offer.push("cpu:0".parse().unwrap());
    options.offer.push("cpu:0/shared".parse().unwrap());
    options.session = session_options();
    change(&mut options);
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
        manager.connect_with(NODE, &address, &self.client, self.key, session_options())
    }

    /// The same with memory that both sides map.
    fn mapped(&self) -> TransferManager {
        let (manager, address) = (manager(), self.server.address().to_string());
        let connected = manager.connect(NODE, &address, &self.client, self.key);
        connected.unwrap();
        manager
    }

    /// Turns until the other side's leases and sessions have gone.
    fn wait_until_empty(&self) {
        self.wait_until_empty_but(0);
    }

    /// The same, but for some sessions.
    fn wait_until_empty_but(&self, sessions: usize) {
        while self.server.used_bytes() > 0 || self.server.sessions() > sessions {
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
fn elements_and_blocks_go_to_another_machine_and_come_back() {
    let served = serve(1 << 30);
    let manager = served.connect();
    for (from, to) in [
        ("cpu:0", "box2/cpu:0"),
        ("box2/cpu:0", "cpu:0"),
        ("box2/cpu:0", "box2/cpu:0"),
    ] {
        crate::strided::copy_views(&manager, from, to, 12, 9);
        crate::blocks::move_blocks(&manager, from, to, 37);
    }
    // More pieces than a session has under way at once.
    let pool = there(&manager, 40_000);
    let numbers: Vec<u32> = (0..5000).map(|number| number * 2 + 1).collect();
    let sent = bytes_of(&mut Dice(5), 20_000);
    let blocks = Region::blocks(&pool, 4, &numbers).unwrap();
    manager.copy_from_slice(&sent, blocks.clone()).unwrap();
    assert!(manager.read_to_vec(blocks).unwrap() == sent);
    drop((pool, manager));
    served.wait_until_empty();
}

#[test]
fn numbers_are_converted_before_they_go_to_another_machine() {
    let served = serve(1 << 30);
    let manager = served.connect();
    let numbers: Vec<u8> = (0..5000)
        .flat_map(|number| (number as f32).to_le_bytes())
        .collect();
    let src = manager.adopt(numbers).unwrap();
    let remote = there(&manager, 40_000);
    let wide = Conversion::new(Element::F32, Element::F64).unwrap();
    let request = Request::new(&src, &remote).convert(wide);
    manager.submit(&request).wait().unwrap();
    let wanted: Vec<u8> = (0..5000)
        .flat_map(|number| f64::from(number).to_le_bytes())
        .collect();
    assert!(manager.read_to_vec(&remote).unwrap() == wanted);
}

#[test]
fn an_explanation_names_the_memories_within_the_other_machine() {
    let machine = topology::from_str(&without_peers(1)).unwrap();
    let sim = Sim::builder(&machine).host(HostSide::Real).build().unwrap();
    let other = TransferManager::builder().host().backend(Arc::new(sim));
    let (other, key) = (other.build().unwrap(), PrivateKey::generate().unwrap());
    let served = serve_from(other, key, 1 << 30, |options| {
        options.offer.push("sim:0".parse().unwrap());
    });
    let manager = served.connect();
    let (here, there) = ("cpu:0/pageable", "box2/sim:0/device");
    let between = ["box2/net:0/device", "box2/cpu:0/pageable"];
    let route = |src: &str, dst: &str| -> Vec<String> {
        let explained =
            manager.explain_places(src.parse().unwrap(), dst.parse().unwrap(), 64 << 20);
        explained
            .unwrap()
            .chosen
            .route
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    assert_eq!(route(here, there), [here, between[0], between[1], there]);
    assert_eq!(route(there, here), [there, between[1], between[0], here]);
    let explained = manager.explain_places(here.parse().unwrap(), there.parse().unwrap(), 64 << 20);
    let explained = explained.unwrap();
    let told = "default costs, and what box2 told of itself";
    assert!(explained.to_string().contains(told), "{explained}");
    let predicted = explained.rejected.iter().map(|way| way.predicted_ns);
    assert!(predicted.is_sorted_by_key(|ns| ns.unwrap_or(u64::MAX)));
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
fn sixty_four_clients_share_the_limit() {
    let served = serve(16 << 20);
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for client in 0..64u8 {
            let (served, most) = (&served, &most);
            scope.spawn(move || {
                let manager = served.connect();
                let place = "box2/cpu:0".parse().unwrap();
                let sent = vec![client; 1 << 20];
                for _ in 0..4 {
                    let spec = AllocSpec::bytes(sent.len() as u64);
                    let remote = match manager.allocate(place, spec) {
                        Ok(remote) => remote,
                        Err(error) => {
                            assert_eq!(error.class(), ErrorClass::Exhausted, "{error}");
                            continue;
                        }
                    };
                    manager.copy_from_slice(&sent, &remote).unwrap();
                    most.fetch_max(served.server.used_bytes(), Ordering::Relaxed);
                    assert!(manager.read_to_vec(&remote).unwrap() == sent);
                }
            });
        }
    });
    assert!((1 << 20..=16 << 20).contains(&most.into_inner()));
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
                            .read_to_vec(shared.slice(LEN / 2 - 1..LEN / 2 + (1 << 20)).unwrap())
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
                .connect_with(name, &address, &two.client, two.key, session_options())
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

#[test]
fn networks_are_no_devices_and_no_places() {
    let served = serve(1 << 20);
    let manager = served.connect();
    for manager in [&manager, &served.manager] {
        let (devices, memories) = (manager.devices(), manager.memories());
        let of_memories = memories.iter().map(|memory| memory.id.device);
        let mut all = devices.iter().map(|device| device.id).chain(of_memories);
        assert!(all.all(|id| id.kind != DeviceKind::NETWORK), "{devices:?}");
        let refused = manager.resolve("sim:7".parse().unwrap()).unwrap_err();
        assert!(!refused.to_string().contains("net:"), "{refused}");
    }
    let is_there = |of: &DeviceInfo| of.id.to_string() == "box2/cpu:0";
    assert!(manager.devices().iter().any(is_there));
}

#[test]
fn an_address_without_a_port_is_the_caller_s_mistake() {
    let (key, manager) = (PrivateKey::generate().unwrap(), manager());
    let refused = manager.connect(NODE, "10.0.0.2", &key, key.public());
    let refused = refused.unwrap_err();
    assert_eq!(refused.class(), ErrorClass::Caller, "{refused}");
    let told = refused.to_string();
    let parts = ["box2", "\"10.0.0.2\"", "ADDRESS:PORT"];
    assert!(parts.iter().all(|part| told.contains(part)), "{told}");
}
