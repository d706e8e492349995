//! Two clients, three machines, the buffers of all of them, and what plain memory says of these.

use std::collections::BTreeMap;
use std::thread::park_timeout;
use std::time::Duration;

use transload::model::Name;
use transload::remote::PrivateKey;
use transload::{AllocSpec, Buffer, Error, TransferManager};

use super::bytes::Bytes;
use super::machine::{self, Machine};
use super::watchdog::Watchdog;
use crate::dice::Dice;
use crate::nodes::{bytes_of, opened};

/// Large enough that some transfers are under way when there is trouble.
pub(super) const LEN: usize = 3 << 20;
const NODES: [Name; 3] = [
    Name::constant("box2"),
    Name::constant("box3"),
    Name::constant("box4"),
];
/// New buffers repeat so many random bytes: no transfer is off by a multiple of it.
const PERIOD: usize = 65_537;
/// Of each machine. The first one of another machine is shared by the two clients.
const BUFFERS: usize = 3;

/// From this number of transfers on, growth can be told from what a process takes at first.
const MANY: usize = 2000;
const LEFT_BYTES: u64 = 96 << 20;

pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) seed: u64,
    pub(super) manager: TransferManager,
    pub(super) other: TransferManager,
    pub(super) machines: Vec<Machine>,
    pub(super) spots: Vec<Spot>,
    pub(super) watchdog: Watchdog,
    pub(super) rounds: usize,
    pub(super) counts: BTreeMap<String, usize>,
    /// What the process had when it had done enough to know.
    resident_bytes: Option<u64>,
}

/// A buffer.
pub(super) struct Spot {
    /// The number of its machine, or none for this one.
    pub(super) node: Option<usize>,
    pub(super) buffer: Buffer,
    /// The same one, as the other client has it.
    pub(super) others: Option<Buffer>,
    pub(super) bytes: Bytes,
}

impl World {
    pub(super) fn new(dice: Dice, seed: u64) -> World {
        let clients = [(); 2].map(|()| PrivateKey::generate().unwrap());
        let keys = NODES.map(|_| PrivateKey::generate().unwrap());
        let all = clients.iter().chain(&keys).map(PrivateKey::public);
        let all: Vec<_> = all.collect();
        let machines: Vec<Machine> = { NODES.into_iter().zip(keys) }
            .map(|(name, key)| Machine::start(name, key, &all))
            .collect();
        let [manager, other] = clients.map(|client| {
            let manager = crate::nodes::manager();
            for machine in &machines {
                let address = machine.way.address().to_string();
                let key = machine.key.public();
                let options = crate::nodes::session_options();
                manager
                    .connect_with(machine.name, &address, &client, key, options)
                    .unwrap();
            }
            manager
        });
        let mut world = World {
            dice,
            seed,
            manager,
            other,
            machines,
            spots: Vec::new(),
            watchdog: Watchdog::new(),
            rounds: 0,
            counts: BTreeMap::new(),
            resident_bytes: None,
        };
        for node in [None, Some(0), Some(1), Some(2)] {
            for number in 0..BUFFERS {
                let spot = world.spot(node, number == 0);
                world.spots.push(spot);
            }
        }
        world
    }

    fn spot(&mut self, node: Option<usize>, is_shared: bool) -> Spot {
        let mut bytes = bytes_of(&mut self.dice, PERIOD);
        bytes = bytes.into_iter().cycle().take(LEN).collect();
        let known = Bytes::known(bytes.clone());
        let Some(number) = node else {
            let buffer = self.manager.adopt(bytes).unwrap();
            return Spot {
                node,
                buffer,
                others: None,
                bytes: known,
            };
        };
        self.step("an allocation");
        let place = format!("{}/cpu:0", self.machines[number].name);
        let spec = AllocSpec::bytes(LEN as u64);
        let place = place.parse().unwrap();
        let buffer = loop {
            match self.manager.allocate(place, spec) {
                // A machine that fell silent is not asked for as long as it was silent.
                Err(error) if error.to_string().contains("nothing came from") => {
                    park_timeout(Duration::from_millis(10));
                }
                answer => break answer,
            }
        };
        let buffer = buffer.unwrap_or_else(|error| panic!("{}: {error}", self.now()));
        let written = self.manager.copy_from_slice(&bytes, &buffer);
        written.unwrap_or_else(|error| panic!("{}: {error}", self.now()));
        let others = is_shared.then(|| opened(&self.manager, &buffer, &self.other));
        Spot {
            node,
            buffer,
            others,
            bytes: known,
        }
    }

    /// Compares all buffers with the model. Those of a machine in `lost` may be gone, and are made anew then.
    pub(super) fn check(&mut self, lost: Option<usize>) {
        let mut gone = Vec::new();
        for at in 0..self.spots.len() {
            self.step("a comparison");
            let spot = &self.spots[at];
            let of_both = [
                Some((&self.manager, &spot.buffer)),
                spot.others.as_ref().map(|buffer| (&self.other, buffer)),
            ];
            let read: Result<Vec<Vec<u8>>, Error> = { of_both.into_iter().flatten() }
                .map(|(manager, buffer)| manager.read_to_vec(buffer))
                .collect();
            match read {
                Ok(mut found) => {
                    for found in &found {
                        if let Some((first, count)) = spot.bytes.difference(found) {
                            let memory = spot.buffer.memory();
                            let now = self.now();
                            panic!("{now}: {count} bytes of {memory} differ, from {first} on");
                        }
                    }
                    self.spots[at].bytes = Bytes::known(found.swap_remove(0));
                }
                Err(error) => {
                    let now = self.now();
                    let number = spot.node.expect("this machine's memory is there");
                    assert_eq!(lost, Some(number), "{now}: {error}");
                    let told = error.to_string();
                    assert!(self.machines[number].is_named(&told), "{now}: {told}");
                    gone.push(at);
                }
            }
        }
        for at in gone {
            let (node, is_shared) = (self.spots[at].node, self.spots[at].others.is_some());
            self.spots[at] = self.spot(node, is_shared);
            self.count("buffers lost");
        }
    }

    pub(super) fn submitted(&self) -> usize {
        self.counts.get("submitted").copied().unwrap_or_default()
    }

    pub(super) fn count(&mut self, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += 1;
    }

    pub(super) fn now(&self) -> String {
        format!("seed {}, round {}", self.seed, self.rounds)
    }

    /// Tells the watchdog what is done next.
    pub(super) fn step(&self, what: &str) {
        self.watchdog.step(format!("{}: {what}", self.now()));
    }

    /// Remembers how much memory the process has, once.
    pub(super) fn measure(&mut self) {
        if self.resident_bytes.is_none() && self.submitted() >= MANY / 2 {
            self.resident_bytes = Some(machine::resident_bytes("self"));
        }
    }

    pub(super) fn end(mut self, transfers: usize) {
        let resident = machine::resident_bytes("self");
        println!("{:?}", self.counts);
        println!(
            "resident: {:?} bytes after {} transfers, {resident} at the end; machines {:?}",
            self.resident_bytes,
            MANY / 2,
            { self.machines.iter() }
                .map(Machine::resident_bytes)
                .collect::<Vec<_>>()
        );
        if let Some(before) = self.resident_bytes.filter(|_| transfers >= MANY) {
            assert!(resident < before + LEFT_BYTES, "{before}, then {resident}");
        }
        self.step("the end");
        self.spots.clear();
        drop((self.manager, self.other));
        for machine in &mut self.machines {
            while machine.used_bytes() > 0 {
                std::thread::yield_now();
            }
        }
    }
}
