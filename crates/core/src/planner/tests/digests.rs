//! Plans that show their bytes to a transform.

use alloc::vec;
use alloc::vec::Vec;

use super::machine::{MIB, Machine, memory, open};
use crate::{
    Cost, Limits, Method, NoPlan, Plan, PlanKey, PlanSet, Reason, Role, StepKind, Topology, plan,
};

const CPU: u16 = 9;

fn plans(machine: &Topology, key: PlanKey) -> PlanSet {
    plan(machine, &key, &Limits::default(), &open).unwrap()
}

fn kinds(plan: &Plan) -> Vec<StepKind> {
    plan.lanes[0].steps.iter().map(|step| step.kind).collect()
}

const fn copy(from: Role, to: Role) -> StepKind {
    StepKind::Copy { from, to }
}

#[test]
fn what_the_host_can_address_is_read_in_place() {
    let machine = Machine::new(2)
        .host(0)
        .transform(CPU, Cost::new(100, 50_000))
        .build();
    let plans = plans(&machine, PlanKey::digest(memory(0)));
    let chosen = plans.choose(5 * MIB);
    assert_eq!(kinds(chosen), [StepKind::Transform { at: Role::Src }]);
    assert_eq!(chosen.lanes[0].route, None);
    assert!(chosen.is_one_pass() && chosen.links().next().is_none());
    assert_eq!(chosen.method, Method::DirectCopy);
    // 64 MiB in one go: 100 ns and 50 ps a byte.
    assert_eq!(chosen.estimate_ns(64 * MIB), 100 + 64 * MIB / 20 + 1);
}

#[test]
fn what_it_cannot_is_brought_into_slots_that_it_can() {
    let machine = Machine::new(4)
        .host(1)
        .wire(0, 1, 0, 1000, 40_000)
        // The host cannot read there, but bytes can go on to where it can.
        .wire(0, 2, 1, 1000, 10)
        .wire(2, 1, 1, 1000, 10)
        .transform(CPU, Cost::new(100, 50_000))
        .build();
    let plans = plans(&machine, PlanKey::digest(memory(0)));
    let chosen = plans.choose(0);
    assert_eq!(
        kinds(chosen),
        [
            copy(Role::Src, Role::Slot(0)),
            StepKind::Transform { at: Role::Slot(0) },
        ]
    );
    assert_eq!(chosen.lanes[0].rings[0].memory, memory(1));
    assert_eq!(chosen.method, Method::HostStaged);
    let far = plans.alternatives(0).nth(1).unwrap();
    assert_eq!(
        kinds(&far),
        [
            copy(Role::Src, Role::Slot(0)),
            copy(Role::Slot(0), Role::Slot(1)),
            StepKind::Transform { at: Role::Slot(1) },
        ]
    );
    assert_eq!(far.lanes[0].rings.len(), 2);
}

#[test]
fn a_digest_ignores_its_destination() {
    let machine = Machine::new(2).host(0).transform(CPU, Cost::ZERO).build();
    let key = PlanKey {
        dst: memory(77),
        ..PlanKey::digest(memory(0))
    };
    assert_eq!(kinds(plans(&machine, key).choose(1)).len(), 1);
}

#[test]
fn a_copy_is_digested_in_a_slot_where_it_has_one_the_host_can_read() {
    let machine = Machine::new(3)
        .host(0)
        .host(1)
        .host(2)
        .wire(0, 1, 0, 10, 1000)
        .wire(1, 2, 1, 10, 1000)
        .transform(CPU, Cost::new(1, 1))
        .build();
    let plans = plans(&machine, PlanKey::copy_with_digest(memory(0), memory(2)));
    assert_eq!(
        kinds(plans.choose(MIB)),
        [
            copy(Role::Src, Role::Slot(0)),
            StepKind::Transform { at: Role::Slot(0) },
            copy(Role::Slot(0), Role::Dst),
        ]
    );
}

#[test]
fn a_copy_in_one_pass_is_digested_at_whichever_end_the_host_can_read() {
    let wire = |machine: Machine| {
        machine
            .wire(0, 1, 0, 10, 1000)
            .transform(CPU, Cost::new(1, 1))
            .build()
    };
    let key = PlanKey::copy_with_digest(memory(0), memory(1));
    let at = |role| StepKind::Transform { at: role };
    let pass = copy(Role::Src, Role::Dst);
    let source = wire(Machine::new(2).host(0).host(1));
    assert_eq!(
        kinds(plans(&source, key).choose(MIB)),
        [at(Role::Src), pass]
    );
    let destination = wire(Machine::new(2).host(1));
    assert_eq!(
        kinds(plans(&destination, key).choose(MIB)),
        [pass, at(Role::Dst)]
    );
    let chosen = plans(&source, key);
    // Both engines work at once, on different chunks.
    assert!(chosen.choose(1 << 34).lanes[0].depth >= 2);
}

#[test]
fn bytes_that_no_transform_can_reach_are_refused_with_that_reason() {
    let key = PlanKey::copy_with_digest(memory(0), memory(1));
    let blind = Machine::new(2)
        .wire(0, 1, 0, 10, 1000)
        .transform(CPU, Cost::ZERO)
        .build();
    let idle = Machine::new(2).host(0).wire(0, 1, 0, 10, 1000).build();
    for machine in [blind, idle] {
        let Err(NoPlan::NoRoute { rejected, .. }) = plan(&machine, &key, &Limits::default(), &open)
        else {
            panic!("a plan without a transform");
        };
        let reasons: Vec<_> = rejected.into_iter().map(|r| r.reason).collect();
        assert_eq!(reasons, vec![Reason::NoTransform]);
    }
}
