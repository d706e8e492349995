//! Why routes lose, in types and in words.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::machine::{MIB, Machine, link, memory, open};
use crate::{
    Bar, Barred, Cost, Instant, Limits, LinkId, Method, NoPlan, PlanKey, Reason, Topology, plan,
};

fn key(dst: u32) -> PlanKey {
    PlanKey::copy(memory(0), memory(dst))
}

fn narrow(staging_bytes: u64) -> Limits {
    Limits {
        staging_bytes,
        lanes: 1,
    }
}

fn diamond() -> Topology {
    Machine::new(3)
        .wire(0, 2, 0, 100, 1_000_000)
        .wire(0, 2, 1, 1100, 500_000)
        .wire(0, 1, 2, 60_000, 1000)
        .wire(1, 2, 3, 60_000, 500_000)
        .build()
}

#[test]
fn losers_say_from_where_on_or_up_to_where_they_are_slower() {
    let plans = plan(&diamond(), &key(2), &narrow(64 * MIB), &open).unwrap();
    let reason_of = |bytes, engine| {
        let rejected = plans.rejected(bytes).into_iter();
        let mut of =
            rejected.filter(|r| r.route.as_ref().unwrap().links()[0].id.engine.index == engine);
        of.next().map(|r| (r.reason, r.estimate_ns))
    };
    assert_eq!(reason_of(1000, 0), None);
    assert_eq!(
        reason_of(1000, 1),
        Some((Reason::SlowerBelow { bytes: 2001 }, Some(1600)))
    );
    assert_eq!(
        reason_of(4000, 0),
        Some((Reason::SlowerAbove { bytes: 2001 }, Some(4100)))
    );
    assert_eq!(reason_of(4000, 1), None);
    let (staged, _) = reason_of(4000, 2).unwrap();
    let Reason::Dominated { by: Some(by) } = staged else {
        panic!("{staged}");
    };
    assert_eq!(
        (by.method(), by.links()[0].id.engine.index),
        (Method::DirectCopy, 1)
    );
}

#[test]
fn a_route_that_wins_twice_is_slower_in_between() {
    let bent = crate::Curve::new(alloc::vec![
        crate::Piece {
            from_bytes: 0,
            cost: Cost::new(1, 1000)
        },
        crate::Piece {
            from_bytes: 100,
            cost: Cost::new(9, 1000)
        },
        crate::Piece {
            from_bytes: 200,
            cost: Cost::new(1, 1000)
        },
    ])
    .unwrap();
    let machine = Machine::new(2)
        .link(link(0, 1, 0, bent))
        .wire(0, 1, 1, 5, 1000)
        .build();
    let plans = plan(&machine, &key(1), &narrow(MIB), &open).unwrap();
    let reasons: Vec<String> = [50, 150, 250]
        .iter()
        .flat_map(|bytes| plans.rejected(*bytes))
        .map(|rejected| rejected.reason.to_string())
        .collect();
    assert_eq!(
        reasons,
        [
            "slower below 100 B",
            "slower between 100 B and 200 B",
            "slower from 200 B on"
        ]
    );
}

#[test]
fn a_route_beaten_by_one_here_and_another_there_is_never_the_cheapest() {
    let machine = Machine::new(2)
        .wire(0, 1, 0, 0, 1_000_000)
        .wire(0, 1, 1, 1000, 0)
        .wire(0, 1, 2, 900, 500_000)
        .build();
    let plans = plan(&machine, &key(1), &narrow(MIB), &open).unwrap();
    let lost = plans.never_chosen();
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].reason, Reason::NeverCheapest);
}

#[test]
fn a_barred_link_bars_its_routes_and_says_why() {
    let slow: LinkId = diamond().links()[0].id;
    let barred = |id: LinkId| {
        (id == slow).then(|| {
            Barred::from(Bar {
                until: Some(Instant(30_000_000_000)),
                reason: "device fell off the bus".into(),
                failures: 1,
            })
        })
    };
    let plans = plan(&diamond(), &key(2), &narrow(MIB), &barred).unwrap();
    assert_eq!(plans.choose(1).links().next().unwrap().engine.index, 1);
    let lost = plans.never_chosen();
    let text = lost[0].to_string();
    assert!(
        text.contains("link sim:0/device → sim:2/device over sim:0#0"),
        "{text}"
    );
    assert!(
        text.contains("in quarantine (device fell off the bus)"),
        "{text}"
    );
}

#[test]
fn links_are_asked_about_once_and_only_where_they_could_serve() {
    let machine = Machine::new(3)
        .wire(0, 2, 0, 1, 1)
        .wire(0, 1, 1, 1, 1)
        .wire(1, 2, 2, 1, 1)
        .wire(2, 0, 3, 1, 1)
        .wire(1, 0, 4, 1, 1)
        .build();
    let asked = core::cell::RefCell::new(Vec::new());
    let barred = |id: LinkId| {
        asked.borrow_mut().push(id.engine.index);
        None
    };
    plan(&machine, &key(2), &Limits::default(), &barred).unwrap();
    assert_eq!(asked.into_inner(), [0, 1, 2]);
}

#[test]
fn no_way_at_all_names_both_memories_and_what_is_wrong_with_each_route() {
    let barred = |id: LinkId| (id.engine.index < 2).then_some(Barred::Lost);
    let error = plan(&diamond(), &key(2), &narrow(1 << 10), &barred)
        .err()
        .unwrap();
    assert_eq!(
        error.to_string(),
        "no way from sim:0/device to sim:2/device: \
         DirectCopy sim:0/device → sim:2/device: \
         link sim:0/device → sim:2/device over sim:0#0: a device on it is lost; \
         DirectCopy sim:0/device → sim:2/device: \
         link sim:0/device → sim:2/device over sim:0#1: a device on it is lost; \
         HostStaged sim:0/device → sim:1/device → sim:2/device: \
         no room: 1 × 65536 bytes of slots exceed the staging budget of 1024 bytes; raise the staging budget"
    );
}

#[test]
fn memories_that_nothing_joins_are_said_to_be_so() {
    let error = plan(&Machine::new(2).build(), &key(1), &Limits::default(), &open)
        .err()
        .unwrap();
    assert_eq!(
        error.to_string(),
        "no way from sim:0/device to sim:1/device: \
         no link joins them, directly or through staging memory"
    );
}

#[test]
fn an_unknown_memory_is_named() {
    for key in [
        PlanKey::copy(memory(0), memory(9)),
        PlanKey::copy(memory(9), memory(0)),
    ] {
        let error = plan(&diamond(), &key, &Limits::default(), &open)
            .err()
            .unwrap();
        assert_eq!(error, NoPlan::UnknownMemory { memory: memory(9) });
        assert_eq!(error.to_string(), "there is no memory sim:9/device");
    }
}

#[test]
fn a_slot_must_fit_its_memorys_largest_allocation() {
    let machine = |max_alloc_bytes| {
        Machine::new(3)
            .with(1, |memory| memory.max_alloc_bytes = max_alloc_bytes)
            .wire(0, 1, 0, 1000, 10_000)
            .wire(1, 2, 1, 1000, 10_000)
            .build()
    };
    let plans = plan(&machine(3 << 20), &key(2), &Limits::default(), &open).unwrap();
    assert_eq!(plans.choose(u64::MAX).chunk_bytes(), 2 << 20);
    let error = plan(&machine(1000), &key(2), &Limits::default(), &open)
        .err()
        .unwrap();
    let text = error.to_string();
    assert!(
        text.contains("sim:1/device allocates at most 1000 bytes, a slot takes 65536 bytes"),
        "{text}"
    );
}

#[test]
fn gaps_concern_the_links_that_touch_a_region_and_no_others() {
    let machine = |plain: usize| {
        let mut machine = Machine::new(4);
        for (at, (src, dst)) in [(0, 1), (1, 2), (2, 3)].into_iter().enumerate() {
            let mut link = link(src, dst, at as u16, Cost::new(10, 10));
            link.pitched = at != plain;
            machine = machine.link(link);
        }
        machine.build()
    };
    let pitched = key(3).pitched([true; 2]);
    assert!(plan(&machine(1), &pitched, &Limits::default(), &open).is_ok());
    for (plain, own, other) in [
        (0, [true, false], [false, true]),
        (2, [false, true], [true, false]),
    ] {
        let plan = |key: PlanKey| plan(&machine(plain), &key, &Limits::default(), &open);
        assert!(plan(key(3)).is_ok() && plan(key(3).pitched(other)).is_ok());
        assert!(plan(pitched).is_err());
        let error = plan(key(3).pitched(own)).err().unwrap();
        let told = error.to_string();
        assert_eq!(told.matches("in one piece first").count(), 1, "{told}");
        let NoPlan::NoRoute { rejected, .. } = error else {
            panic!("{error}");
        };
        let at_fault = machine(plain).links()[plain].id;
        assert_eq!(rejected[0].reason, Reason::NotPitched { link: at_fault });
    }
}
