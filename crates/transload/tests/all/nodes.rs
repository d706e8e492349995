//! Memory of other machines: here each machine is a manager of this process, and the network is the loopback.

#![cfg(all(feature = "remote", not(any(loom, transload_local))))]

use transload::hal::ErrorClass;
use transload::model::Name;
use transload::remote::{PrivateKey, PublicKey};
use transload::{
    AllocSpec, Buffer, Cancelled, Error, Request, ServeError, ServeOptions, Server, TransferManager,
};

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
