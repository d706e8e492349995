//! Memory that a device works on is made visible before others touch it.

use alloc::vec::Vec;

use super::machine::{Machine, link, memory, open};
use crate::{
    Cost, DeviceId, DeviceKind, Limits, Link, MemoryId, MemoryKind, Plan, PlanKey, Role, StepKind,
    plan,
};

const HUGE: u64 = 8 << 30;

/// Returns the memory of that kind at the device that `link` has its engines on.
fn of_device(kind: MemoryKind) -> MemoryId {
    DeviceId::new(DeviceKind::SIM, 0).memory(kind)
}

/// Returns a link from there to a memory of another device, by an engine of the former, or of the latter.
fn link_by(device: u32, kind: MemoryKind, index: u16) -> Link {
    let mut link = link(0, 1, index, Cost::new(10_000, 40_000));
    link.id.src = of_device(kind);
    link.id.engine.device = DeviceId::new(DeviceKind::SIM, device);
    link
}

fn chosen(kind: MemoryKind, links: &[Link]) -> alloc::sync::Arc<Plan> {
    let machine = Machine::new(2).with(0, |memory| memory.id = of_device(kind));
    let machine = links.iter().cloned().fold(machine, Machine::link).build();
    let key = PlanKey::copy(of_device(kind), memory(1));
    let plans = plan(&machine, &key, &Limits::default(), &open).unwrap();
    plans.choose(HUGE).clone()
}

fn asks(plan: &Plan) -> bool {
    let steps: Vec<_> = plan.lanes[0].steps.iter().map(|step| step.kind).collect();
    let copy = StepKind::Copy {
        from: Role::Src,
        to: Role::Dst,
    };
    let visible = StepKind::MakeVisible { at: Role::Src };
    assert!(steps == [copy] || steps == [visible, copy], "{steps:?}");
    steps.len() > 1
}

#[test]
fn a_device_is_asked_by_others_engines_about_memory_that_it_shares_with_them() {
    for kind in MemoryKind::ALL {
        let is_shared = [MemoryKind::Managed, MemoryKind::Mapped].contains(&kind);
        assert_eq!(
            asks(&chosen(kind, &[link_by(1, kind, 0)])),
            is_shared,
            "{kind}"
        );
        assert!(!asks(&chosen(kind, &[link_by(0, kind, 0)])), "{kind}");
    }
}

#[test]
fn who_waits_for_all_of_a_device_does_not_run_beside_its_engines() {
    for (kind, lanes) in [(MemoryKind::Device, 2), (MemoryKind::Managed, 1)] {
        // The numbers of the engines have nothing to do with it.
        let plan = chosen(kind, &[link_by(1, kind, 0), link_by(0, kind, 1)]);
        assert_eq!(plan.lanes.len(), lanes, "{plan}");
    }
}
