//! What measurements add to the costs of links: doubt, corrections, and engines that share the host.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::machine::{BACKEND, MIB, Machine, link, memory, open};
use crate::flight::predict_ns;
use crate::{
    Compared, Correction, Cost, Curve, DeviceId, DeviceInfo, Inventory, Limits, LinkId, Piece,
    Plan, PlanKey, PlanSet, Reason, Topology, plan,
};

/// From the first memory to the last one in one pass, and over the one between.
fn machine(direct: Cost, half: Cost) -> Topology {
    let machine = Machine::new(3).link(link(0, 2, 0, direct));
    let machine = machine.link(link(0, 1, 1, half)).link(link(1, 2, 2, half));
    machine.build()
}

fn plans(topology: &Topology, dst: u32) -> PlanSet {
    let key = PlanKey::copy(memory(0), memory(dst));
    let limits = Limits {
        lanes: 1,
        ..Limits::default()
    };
    plan(topology, &key, &limits, &open).unwrap()
}

fn passes(plan: &Arc<Plan>) -> usize {
    plan.lanes[0].steps.len()
}

fn ids(plan: &Plan) -> Vec<LinkId> {
    plan.links().collect()
}

/// Staged at 1.25 of the direct link's rate.
fn close() -> Topology {
    machine(Cost::new(1000, 1_250_000), Cost::new(1000, 1_000_000))
}

#[test]
fn what_measurements_do_not_decide_goes_to_the_simpler_way() {
    let mut topology = close();
    let chosen = |topology: &Topology| passes(plans(topology, 2).choose(64 * MIB));
    assert_eq!(chosen(&topology), 2);
    let costs: Vec<_> = { topology.links().iter() }
        .map(|link| (link.id, link.cost.clone()))
        .collect();
    for (doubt, passes) in [(0, 2), (200, 2), (300, 1)] {
        for (id, cost) in &costs {
            assert!(topology.set_cost(*id, cost.clone(), doubt));
        }
        assert_eq!(chosen(&topology), passes, "{doubt} parts of 1024");
    }
    let rejected = plans(&topology, 2).rejected(64 * MIB);
    assert!(rejected.iter().any(|way| way.reason == Reason::Undecided));
}

#[test]
fn a_measured_route_is_corrected_around_the_sizes_that_were_measured() {
    let mut topology = close();
    let set = plans(&topology, 2);
    let staged = Arc::clone(set.choose(64 * MIB));
    let predicted = |bytes| predict_ns(&staged, bytes).unwrap();
    // Staging takes twice the time at 64 MiB, and what was predicted at 256 MiB.
    let measured = [
        Compared::new(64 * MIB, predicted(64 * MIB), 2 * predicted(64 * MIB)),
        Compared::new(256 * MIB, predicted(256 * MIB), predicted(256 * MIB)),
    ];
    topology.set_correction(ids(&staged), Correction::new(&measured));
    let corrected = plans(&topology, 2);
    let at = |mib: u64| passes(corrected.choose(mib * MIB));
    assert_eq!([1, 64, 127, 128, 512].map(at), [1, 1, 1, 2, 2]);
    let ways = corrected.candidates(64 * MIB);
    let way = ways.iter().find(|way| ids(way) == ids(&staged)).unwrap();
    assert_eq!(
        predict_ns(way, 64 * MIB),
        Ok(2 * predict_ns(&staged, 64 * MIB).unwrap())
    );
    topology.clear_corrections();
    assert_eq!(plans(&topology, 2).ranges(), set.ranges());
}

#[test]
fn a_detour_is_no_way_around_what_was_measured() {
    // Engine 0 copies from 0 to 1 and on to 2, and from 0 to 2 at once. Engine 1 goes on to 3.
    let cost = |fs| Cost::new(1000, fs);
    let machine = Machine::new(4).link(link(0, 2, 0, cost(100_000)));
    let machine = machine.link(link(0, 1, 0, cost(50_000)));
    let machine = machine.link(link(1, 2, 0, cost(60_000)));
    let mut topology = machine.link(link(2, 3, 1, cost(10_000))).build();
    let chosen = |topology: &Topology| ids(plans(topology, 3).choose(64 * MIB));
    let straight = chosen(&topology);
    assert_eq!(straight.len(), 2);
    // The straight route takes twice the time that was predicted.
    let measured = [Compared::new(64 * MIB, 1000, 2000)];
    topology.set_correction(straight.clone(), Correction::new(&measured));
    assert_eq!(chosen(&topology), straight);
}

#[test]
fn a_chunk_costs_no_less_than_its_part_of_a_stream() {
    // Copies below 1 MiB find their bytes in a cache and move at four times the rate.
    let cached = Curve::new(vec![
        Piece {
            from_bytes: 0,
            cost: Cost::new(100, 25_000),
        },
        Piece {
            from_bytes: MIB,
            cost: Cost::new(0, 100_000),
        },
    ])
    .unwrap();
    assert_eq!(cached.part_of(MIB / 2, 8 * MIB), cached.at(MIB / 2));
    let cached = cached.with_caches();
    assert_eq!(cached.at(MIB / 2), 100 + 13_108);
    assert_eq!(cached.part_of(MIB / 2, MIB - 1), cached.at(MIB / 2));
    assert_eq!(cached.part_of(MIB / 2, MIB), 100 + 52_429);
    assert_eq!(cached.part_of(8 * MIB, 8 * MIB), cached.at(8 * MIB));
    let machine = Machine::new(3).link(link(0, 2, 0, cached.clone()));
    let machine = machine
        .link(link(0, 1, 0, cached.clone()))
        .link(link(1, 2, 0, cached));
    let topology = machine.build();
    assert_eq!(passes(plans(&topology, 2).choose(64 * MIB)), 1);
}

#[test]
fn engines_that_keep_the_host_busy_take_its_time_from_each_other() {
    let device = |index| DeviceId::new(memory(0).device.kind, index);
    // The first link by `first`, the second one by the second device.
    let time = |first: DeviceId, software| {
        let mut links = [0, 1].map(|at| link(at, at + 1, 0, Cost::new(0, 100_000)));
        links[0].id.engine.device = first;
        links[1].id.engine.device = device(1);
        let devices = (0..2).map(|index| DeviceInfo {
            id: device(index),
            backend: BACKEND,
            name: "adapter".into(),
            software,
            simulated: false,
            memory_bytes: None,
            driver: None,
            uuid: None,
            pci: None,
            numa_node: None,
        });
        let mut topology = Topology::new();
        let inventory = Inventory {
            backend: BACKEND,
            devices: devices.collect(),
            memories: Machine::new(3).build().memories().to_vec(),
            links: links.to_vec(),
            lacks: Vec::new(),
            transform: None,
        };
        topology.add(inventory).unwrap();
        let set = plans(&topology, 2);
        let plan = set.choose(1 << 40);
        let estimate = plan.estimate_ns(1 << 32) as f64;
        // How the steps of engines that share the host interleave costs a part of a chunk's time more.
        let flown = predict_ns(plan, 1 << 32).unwrap() as f64;
        assert!(
            (0.8..=1.0).contains(&(estimate / flown)),
            "{estimate} {flown}"
        );
        estimate
    };
    let alone = time(device(0), false);
    assert_eq!(time(DeviceId::CPU0, false), alone);
    // Each keeps half of the host busy, so two take as long as one.
    assert_eq!(time(device(0), true), alone);
    // Host threads want all of it, and the adapter half.
    let ratio = time(DeviceId::CPU0, true) / alone;
    assert!((ratio - 1.5).abs() < 0.01, "{ratio}");
}
