//! Where plans change places.

use alloc::vec::Vec;

use super::machine::{BACKEND, MIB, Machine, engine, link, memory, open};
use crate::{Access, Cost, Curve, Limits, Link, LinkClass, LinkId, Piece, PlanKey, PlanSet, plan};

fn plans(machine: Machine, dst: u32) -> PlanSet {
    let limits = Limits {
        lanes: 1,
        ..Limits::default()
    };
    plan(
        &machine.build(),
        &PlanKey::copy(memory(0), memory(dst)),
        &limits,
        &open,
    )
    .unwrap()
}

fn engines(plans: &PlanSet) -> Vec<(u64, u16)> {
    let ranges = plans.ranges().iter();
    ranges
        .map(|(from, plan)| (*from, plan.lanes[0].steps[0].engine.index))
        .collect()
}

#[test]
fn two_links_change_places_at_the_computed_byte() {
    // 100 ns + 1 ns/B against 1100 ns + 0.5 ns/B: equal at 2000 bytes, where the earlier one stays.
    let slow_first = Machine::new(2)
        .wire(0, 1, 0, 100, 1_000_000)
        .wire(0, 1, 1, 1100, 500_000);
    assert_eq!(engines(&plans(slow_first, 1)), [(0, 0), (2001, 1)]);
    // Listed the other way round, the tie goes to the other.
    let fast_first = Machine::new(2)
        .wire(0, 1, 1, 1100, 500_000)
        .wire(0, 1, 0, 100, 1_000_000);
    assert_eq!(engines(&plans(fast_first, 1)), [(0, 0), (2000, 1)]);
}

#[test]
fn a_crossing_between_bytes_counts_from_the_next_one() {
    // 1000 fs/B against 1 ns + 997 fs/B: equal at 333 333⅓ bytes.
    let machine = Machine::new(2).wire(0, 1, 0, 0, 1000).wire(0, 1, 1, 1, 997);
    assert_eq!(engines(&plans(machine, 1)), [(0, 0), (333_334, 1)]);
}

#[test]
fn equal_links_leave_the_choice_to_the_earlier_one() {
    let machine = Machine::new(2).wire(0, 1, 3, 5, 7).wire(0, 1, 2, 5, 7);
    assert_eq!(engines(&plans(machine, 1)), [(0, 3)]);
}

#[test]
fn equal_costs_leave_the_choice_to_the_fewer_passes() {
    let machine = Machine::new(3)
        .wire(0, 1, 0, 0, 0)
        .wire(1, 2, 1, 0, 0)
        .wire(0, 2, 2, 0, 0);
    assert_eq!(engines(&plans(machine, 2)), [(0, 2)]);
}

#[test]
fn a_bend_in_one_cost_starts_and_ends_ranges() {
    let bent = Curve::new(alloc::vec![
        Piece {
            from_bytes: 0,
            cost: Cost::new(10, 1000)
        },
        Piece {
            from_bytes: 4096,
            cost: Cost::new(5000, 1000)
        },
        Piece {
            from_bytes: 65_536,
            cost: Cost::new(20, 10)
        },
    ])
    .unwrap();
    let machine = Machine::new(2)
        .link(link(0, 1, 0, bent))
        .wire(0, 1, 1, 1000, 1000);
    assert_eq!(
        engines(&plans(machine, 1)),
        [(0, 0), (4096, 1), (65_536, 0)]
    );
}

#[test]
fn larger_payloads_of_one_route_take_larger_chunks() {
    let machine = Machine::new(3)
        .wire(0, 1, 0, 10_000, 40_000)
        .wire(1, 2, 1, 10_000, 40_000);
    let plans = plans(machine, 2);
    let chunk = |bytes| plans.choose(bytes).chunk_bytes();
    assert!(chunk(MIB) < chunk(1 << 32));
    assert_eq!(chunk(u64::MAX), 16 * MIB);
    // Two slots of the largest chunk fit half of the default budget, and all four of a smaller one.
    assert_eq!(plans.choose(u64::MAX).lanes[0].rings[0].slots, 2);
    assert_eq!(plans.choose(1 << 28).lanes[0].rings[0].slots, 4);
}

#[test]
fn a_payload_of_one_chunk_costs_the_sum_of_its_steps_and_more_chunks_the_longest_each() {
    let machine = Machine::new(3)
        .wire(0, 1, 0, 10_000, 1_000_000)
        .wire(1, 2, 1, 20_000, 2_000_000);
    let plans = plans(machine, 2);
    for (from, plan) in plans.ranges() {
        let chunk = plan.chunk_bytes();
        let (first, second) = (10_000 + chunk, 20_000 + 2 * chunk);
        for n in 1..5 {
            assert_eq!(
                plan.estimate_ns(n * chunk),
                first + n * second,
                "from {from}"
            );
        }
        assert_eq!(plan.estimate_ns(1), 30_003);
    }
}

#[test]
fn steps_that_share_an_engine_do_not_overlap() {
    let machine = Machine::new(3)
        .wire(0, 1, 4, 1000, 1_000_000)
        .wire(1, 2, 4, 1000, 1_000_000);
    let plans = plans(machine, 2);
    let plan = plans.choose(1 << 30);
    let chunk = plan.chunk_bytes();
    assert_eq!(plan.estimate_ns(8 * chunk), 8 * 2 * (1000 + chunk));
}

#[test]
fn a_tight_budget_leaves_fewer_slots_and_is_counted() {
    let machine = Machine::new(3)
        .wire(0, 1, 0, 1000, 1_000_000)
        .wire(1, 2, 1, 1000, 1_000_000)
        .build();
    let key = PlanKey::copy(memory(0), memory(2));
    let limits = Limits {
        staging_bytes: 100 << 10,
        lanes: 1,
    };
    let plans = plan(&machine, &key, &limits, &open).unwrap();
    let plan = plans.choose(1 << 30);
    assert_eq!(
        (plan.chunk_bytes(), plan.lanes[0].rings[0].slots),
        (64 << 10, 1)
    );
    // One slot cannot fill while it drains.
    assert_eq!(plan.estimate_ns(10 << 16), 10 * 2 * (1000 + (64 << 10)));
}

#[test]
fn one_set_serves_every_size_with_its_own_plan() {
    let machine = Machine::new(3)
        .wire(0, 2, 2, 50_000, 500_000)
        .wire(0, 1, 0, 10_000, 40_000)
        .wire(1, 2, 1, 10_000, 30_000);
    let plans = plans(machine, 2);
    let ranges = plans.ranges();
    assert!(ranges.len() > 3 && ranges[0].0 == 0);
    for (i, (from, plan)) in ranges.iter().enumerate() {
        let last = ranges.get(i + 1).map_or(u64::MAX, |(next, _)| next - 1);
        for bytes in [*from, from + (last - from) / 2, last] {
            assert!(
                alloc::sync::Arc::ptr_eq(plans.choose(bytes), plan),
                "{bytes}"
            );
        }
    }
}

#[test]
fn absurd_costs_are_compared_without_wrapping() {
    let worst = Cost::new(u64::MAX, u64::MAX);
    let machine = Machine::new(3)
        .link(link(0, 1, 0, worst))
        .link(link(1, 2, 1, worst))
        .link(link(0, 2, 2, worst));
    let plans = plans(machine, 2);
    for bytes in [0, 1, MIB, u64::MAX] {
        let chosen = plans.choose(bytes);
        assert_eq!(chosen.estimate_ns(bytes), u64::MAX);
        assert_eq!(plans.alternatives(bytes).count(), 2);
    }
}

#[test]
fn a_link_to_a_memory_that_nobody_brought_is_passed_over() {
    let machine = Machine::new(2)
        .wire(0, 7, 0, 0, 0)
        .wire(7, 1, 1, 0, 0)
        .wire(0, 1, 2, 10, 10);
    let plans = plans(machine, 1);
    assert_eq!(engines(&plans), [(0, 2)]);
    assert!(plans.never_chosen().is_empty());
}

#[test]
fn a_memory_serves_its_own_copies() {
    let machine = Machine::new(3)
        .wire(0, 0, 0, 10, 10)
        .wire(0, 1, 1, 1, 1)
        .wire(1, 0, 2, 1, 1);
    let plans = plans(machine, 0);
    let methods: Vec<_> = plans
        .alternatives(100)
        .map(|plan| plan.lanes[0].steps.len())
        .collect();
    assert_eq!(methods.len(), 2);
    // Through staging there is a way as well: 2 ns against 11.
    assert_eq!(methods[0], 2);
}

#[test]
fn links_that_differ_in_access_only_are_told_apart() {
    let import = Link {
        id: LinkId {
            src: memory(0),
            dst: memory(1),
            engine: engine(0),
            access: Access::Import,
        },
        backend: BACKEND,
        class: LinkClass::Pcie,
        cost: Cost::new(5, 5).into(),
        pitched: false,
        depth: 2,
    };
    let plans = plans(Machine::new(2).wire(0, 1, 0, 10, 10).link(import), 1);
    assert_eq!(plans.choose(1).method, crate::Method::ZeroCopy);
    assert_eq!(plans.never_chosen().len(), 1);
}

#[test]
fn a_machine_with_thousands_of_ways_keeps_the_shortest_ones() {
    // A network that joins every memory with every other one.
    const MEMORIES: u32 = 70;
    let mut machine = Machine::new(MEMORIES);
    for src in 0..MEMORIES {
        for dst in (0..MEMORIES).rev().filter(|dst| *dst != src) {
            machine = machine.wire(src, dst, src as u16, 1000, 100);
        }
    }
    let plans = plans(machine, MEMORIES - 1);
    let direct = plans.choose(MIB);
    assert_eq!(direct.links().count(), 1);
    let others = plans.never_chosen();
    let passes = |ways: usize| {
        let mut all = others.iter().filter_map(|way| way.route.as_ref());
        all.by_ref()
            .filter(|route| route.links().len() == ways)
            .count()
    };
    assert_eq!(passes(2), MEMORIES as usize - 2);
    assert!(passes(3) > 1000 && others.len() < 4096);
}

#[test]
fn a_way_behind_thousands_of_staging_memories_is_found() {
    const MEMORIES: u32 = 4500;
    let mut machine = Machine::new(MEMORIES + 2);
    for memory in 1..=MEMORIES {
        machine = machine.wire(0, memory, 0, 10, 1000);
    }
    let machine = machine.wire(MEMORIES, MEMORIES + 1, 1, 10, 1000);
    let plans = plans(machine, MEMORIES + 1);
    assert_eq!(plans.choose(MIB).links().count(), 2);
}
