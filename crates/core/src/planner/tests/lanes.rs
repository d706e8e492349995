//! Several links at once.

use alloc::format;
use alloc::string::ToString;

use super::machine::{MIB, Machine, memory, open};
use crate::flight::predict_ns;
use crate::{ByteSize, Limits, Plan, PlanKey, Reason, plan};

const HUGE: u64 = 8 << 30;

fn two_wires(fs: [u64; 2]) -> Machine {
    Machine::new(2)
        .wire(0, 1, 0, 10_000, fs[0])
        .wire(0, 1, 1, 10_000, fs[1])
}

fn chosen(machine: Machine, lanes: u8, bytes: u64) -> alloc::sync::Arc<Plan> {
    let limits = Limits {
        lanes,
        ..Limits::default()
    };
    let key = PlanKey::copy(memory(0), memory(1));
    plan(&machine.build(), &key, &limits, &open)
        .unwrap()
        .choose(bytes)
        .clone()
}

#[test]
fn two_equal_links_carry_half_each() {
    let plan = chosen(two_wires([40_000, 40_000]), 4, HUGE);
    let shares: alloc::vec::Vec<_> = plan.lanes.iter().map(|lane| lane.share).collect();
    assert_eq!(shares, [512, 512]);
    let alone = chosen(two_wires([40_000, 40_000]), 1, HUGE);
    assert!(plan.estimate_ns(HUGE) * 100 < alone.estimate_ns(HUGE) * 51);
}

#[test]
fn shares_follow_the_rates() {
    let plan = chosen(two_wires([10_000, 30_000]), 4, HUGE);
    let shares: alloc::vec::Vec<_> = plan.lanes.iter().map(|lane| lane.share).collect();
    assert_eq!(shares.iter().sum::<u32>(), 1024);
    assert!(shares[0].abs_diff(768) < 8, "{shares:?}");
}

#[test]
fn small_payloads_take_one_link() {
    let plan = chosen(two_wires([40_000, 40_000]), 4, 64 << 10);
    assert_eq!(plan.lanes.len(), 1);
}

#[test]
fn a_link_that_joins_others_from_some_size_on_does_not_pass_for_one_that_wins_there_alone() {
    let machine = two_wires([10_000, 30_000]).build();
    let key = PlanKey::copy(memory(0), memory(1));
    let plans = plan(&machine, &key, &Limits::default(), &open).unwrap();
    let rejected = plans.rejected(64 << 10).remove(0);
    let Reason::JoinsFrom { bytes } = rejected.reason else {
        panic!("{rejected}");
    };
    assert_eq!(plans.choose(bytes - 1).lanes.len(), 1);
    assert_eq!(plans.choose(bytes).lanes.len(), 2);
    let said = rejected.reason.to_string();
    let size = ByteSize(bytes);
    assert_eq!(
        said,
        format!("used only from {size} on, at the same time as another route")
    );
}

#[test]
fn links_of_one_engine_are_never_taken_together() {
    let machine = Machine::new(3)
        .wire(0, 2, 0, 10_000, 40_000)
        .wire(0, 1, 0, 10_000, 20_000)
        .wire(1, 2, 1, 10_000, 20_000);
    let key = PlanKey::copy(memory(0), memory(2));
    let plans = plan(&machine.build(), &key, &Limits::default(), &open).unwrap();
    assert!(plans.ranges().iter().all(|(_, plan)| plan.lanes.len() == 1));
}

#[test]
fn at_most_four_run_at_once_and_no_more_than_allowed() {
    let six = || {
        (0..6).fold(Machine::new(2), |machine, on| {
            machine.wire(0, 1, on, 10_000, 40_000)
        })
    };
    for lanes in 0..=6 {
        let plan = chosen(six(), lanes, 64 * HUGE);
        assert_eq!(plan.lanes.len(), usize::from(lanes.clamp(1, 4)));
    }
}

#[test]
fn staged_lanes_share_the_budget() {
    let machine = Machine::new(4)
        .wire(0, 1, 0, 1000, 40_000)
        .wire(1, 3, 1, 1000, 40_000)
        .wire(0, 2, 2, 1000, 40_000)
        .wire(2, 3, 3, 1000, 40_000)
        .build();
    let key = PlanKey::copy(memory(0), memory(3));
    for staging_bytes in [MIB / 4, MIB, 7 * MIB, 64 * MIB] {
        let limits = Limits {
            staging_bytes,
            ..Limits::default()
        };
        let plans = plan(&machine, &key, &limits, &open).unwrap();
        let plan = plans.choose(HUGE);
        assert_eq!(plan.lanes.len(), 2);
        assert!(plan.staging_bytes() <= staging_bytes);
    }
}

#[test]
fn the_flight_is_no_slower_than_estimated_at_whole_chunks() {
    let machine = Machine::new(3)
        .wire(0, 2, 0, 10_000, 30_000)
        .wire(0, 1, 1, 10_000, 80_000)
        .wire(1, 2, 2, 10_000, 70_000)
        .build();
    let key = PlanKey::copy(memory(0), memory(2));
    let plans = plan(&machine, &key, &Limits::default(), &open).unwrap();
    let mut wide = 0;
    for (from, plan) in plans.ranges() {
        let chunk = plan
            .lanes
            .iter()
            .map(|lane| lane.chunk_bytes)
            .max()
            .unwrap();
        for chunks in [0, 1, 2, 7, 100] {
            let bytes = from.next_multiple_of(chunk) + chunks * chunk;
            if plans.choose(bytes) == plan && plan.lanes.len() > 1 {
                let (said, took) = (plan.estimate_ns(bytes), predict_ns(plan, bytes).unwrap());
                assert!(took <= said, "{bytes} bytes over {plan}: {took} > {said}");
                assert!(
                    took * 10 >= said * 8,
                    "{bytes} bytes over {plan}: {took} « {said}"
                );
                wide += 1;
            }
        }
    }
    assert!(wide > 0);
}
