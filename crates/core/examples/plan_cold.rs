//! How long the planner takes without a cache, and a look-up with one.
//!
//! The machine: eight devices that all reach each other over a switch, on two nodes, each with an
//! engine for each direction of the bus and one for the switch. Run with
//! `cargo run --release -p transload-core --example plan_cold`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use transload_core::{
    Access, BackendId, Cost, DeviceId, DeviceInfo, DeviceKind, EngineId, Inventory, Limits, Link,
    LinkClass, LinkId, MemoryId, MemoryInfo, MemoryKind, Name, Passage, PlanCache, PlanKey,
    Topology, defaults, plan,
};

const SAMPLES: usize = 2001;

fn main() {
    for relays in [false, true] {
        let machine = eight_devices(relays);
        println!(
            "{} memories, {} links, devices {} as staging",
            machine.memories().len(),
            machine.links().len(),
            if relays { "serve" } else { "do not serve" },
        );
        let cpu = |n, kind| DeviceId::new(DeviceKind::CPU, n).memory(kind);
        let gpu = |n| DeviceId::new(DeviceKind::SIM, n).memory(MemoryKind::Device);
        for (src, dst) in [
            (gpu(0), gpu(5)),
            (cpu(0, MemoryKind::Pageable), gpu(0)),
            (cpu(0, MemoryKind::Pageable), gpu(7)),
            (gpu(0), cpu(1, MemoryKind::Pageable)),
        ] {
            cold(&machine, src, dst);
        }
    }
    warm(&eight_devices(false));
}

fn cold(machine: &Topology, src: MemoryId, dst: MemoryId) {
    let key = PlanKey::copy(src, dst);
    let limits = Limits::default();
    let mut times: Vec<u128> = (0..SAMPLES)
        .map(|_| {
            let start = Instant::now();
            let plans = plan(black_box(machine), &key, &limits, &|_| None);
            let took = start.elapsed().as_nanos();
            black_box(&plans)
                .as_ref()
                .expect("the machine is connected");
            took
        })
        .collect();
    times.sort_unstable();
    let plans = plan(machine, &key, &limits, &|_| None).expect("the machine is connected");
    println!(
        "  {src} → {dst}: {} routes, {} ranges; median {:.1} µs, 10 % {:.1}, 90 % {:.1}",
        plans.never_chosen().len(),
        plans.ranges().len(),
        times[SAMPLES / 2] as f64 / 1e3,
        times[SAMPLES / 10] as f64 / 1e3,
        times[SAMPLES * 9 / 10] as f64 / 1e3,
    );
    if std::env::args().any(|arg| arg == "--ranges") {
        println!("{plans:#?}");
    }
}

/// A look-up with its choice, in batches so that the clock counts for nothing.
fn warm(machine: &Topology) {
    const BATCH: u64 = 10_000;
    let mut cache = PlanCache::default();
    let keys: Vec<PlanKey> = machine
        .memories()
        .iter()
        .flat_map(|a| machine.memories().iter().map(|b| PlanKey::copy(a.id, b.id)))
        .take(PlanCache::DEFAULT_CAPACITY)
        .collect();
    for key in &keys {
        if let Ok(plans) = plan(machine, key, &Limits::default(), &|_| None) {
            cache.insert(*key, Arc::new(plans));
        }
    }
    let mut times: Vec<u128> = (0..101)
        .map(|_| {
            let start = Instant::now();
            for i in 0..BATCH {
                let key = &keys[i as usize % keys.len()];
                if let Some(plans) = cache.get(black_box(key)) {
                    black_box(plans.choose(i * 12_345));
                }
            }
            start.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    println!(
        "look-up and choice among {} keys: median {:.1} ns, 90 % {:.1} ns; {cache:?}",
        cache.len(),
        times[50] as f64 / BATCH as f64,
        times[90] as f64 / BATCH as f64,
    );
}

fn eight_devices(relays: bool) -> Topology {
    let backend = BackendId(Name::constant("sim"));
    let mut inventory = Inventory {
        backend,
        devices: Vec::new(),
        memories: Vec::new(),
        links: Vec::new(),
        lacks: Vec::new(),
        transform: None,
    };
    let cpu = |n| DeviceId::new(DeviceKind::CPU, n);
    let gpu = |n| DeviceId::new(DeviceKind::SIM, n);
    let mut memory = |id: MemoryId, host_addressable, staging| {
        inventory.memories.push(MemoryInfo {
            id,
            backend,
            total_bytes: None,
            max_alloc_bytes: 1 << 40,
            alignment: 256,
            host_addressable,
            staging,
            passage: Passage::default(),
        });
    };
    let host = [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Shared];
    for node in 0..2 {
        for kind in host {
            memory(cpu(node).memory(kind), true, kind == MemoryKind::Pinned);
        }
    }
    for n in 0..8 {
        memory(gpu(n).memory(MemoryKind::Device), false, relays);
    }
    inventory.devices = (0..2).map(|n| device(cpu(n), n)).collect();
    inventory
        .devices
        .extend((0..8).map(|n| device(gpu(n), n / 4)));
    let mut link = |src, dst, owner, index, access, class, cost: Cost| {
        inventory.links.push(Link {
            id: LinkId {
                src,
                dst,
                engine: EngineId {
                    device: owner,
                    index,
                },
                access,
            },
            backend,
            class,
            cost: cost.into(),
            pitched: true,
            depth: 2,
        });
    };
    for node in 0..2 {
        for a in host {
            for b in host {
                let (src, dst) = (cpu(node).memory(a), cpu(node).memory(b));
                let cost = defaults::link_cost(LinkClass::Local);
                link(
                    src,
                    dst,
                    cpu(node),
                    0,
                    Access::Native,
                    LinkClass::Local,
                    cost,
                );
                let far = cpu(1 - node).memory(b);
                let cost = Cost::from_rate(200, 8_000_000_000);
                link(
                    src,
                    far,
                    cpu(node),
                    0,
                    Access::Native,
                    LinkClass::Local,
                    cost,
                );
            }
        }
    }
    for n in 0..8u32 {
        let device = gpu(n).memory(MemoryKind::Device);
        for node in 0..2 {
            let pinned = cpu(node).memory(MemoryKind::Pinned);
            let rate = if n / 4 == node { 24 } else { 20 } * 1_000_000_000;
            let cost = Cost::from_rate(10_000, rate);
            link(
                pinned,
                device,
                gpu(n),
                0,
                Access::Native,
                LinkClass::Pcie,
                cost,
            );
            link(
                device,
                pinned,
                gpu(n),
                1,
                Access::Native,
                LinkClass::Pcie,
                cost,
            );
        }
        for other in 0..8 {
            let to = gpu(other).memory(MemoryKind::Device);
            let (access, cost) = match other == n {
                true => (Access::Native, Cost::from_rate(5_000, 1_500_000_000_000)),
                false => (Access::Peer, defaults::link_cost(LinkClass::Fabric)),
            };
            link(device, to, gpu(n), 2, access, LinkClass::Fabric, cost);
        }
    }
    let mut topology = Topology::new();
    topology.add(inventory).expect("names are unique");
    topology
}

fn device(id: DeviceId, numa_node: u32) -> DeviceInfo {
    DeviceInfo {
        id,
        backend: BackendId(Name::constant("sim")),
        name: id.to_string(),
        software: false,
        simulated: true,
        memory_bytes: None,
        driver: None,
        uuid: None,
        pci: None,
        numa_node: Some(numa_node),
    }
}
