//! Random machines, and everything that must hold on each of them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::machine::{BACKEND, Machine, engine, memory, open};
use super::oracle;
use crate::defaults::RING_SLOTS;
use crate::flight::{Prediction, Resource, predict, predict_ns};
use crate::planner::{Barred, plan};
use crate::{
    Access, Cost, Curve, EngineId, Form, Lane, Limits, Link, LinkClass, LinkId, NoPlan, Piece,
    Plan, PlanKey, PlanSet, Purpose, Reason, Route, StepKind, Topology,
};

fn curves() -> impl Strategy<Value = Curve> {
    let cost = || (0..60_000u64, 0..400_000u64).prop_map(|(fixed, fs)| Cost::new(fixed, fs));
    let further = proptest::collection::btree_map(1..(40u64 << 20), cost(), 0..3);
    (cost(), further).prop_map(|(first, further)| {
        let further = further
            .into_iter()
            .map(|(from_bytes, cost)| Piece { from_bytes, cost });
        let first = Piece {
            from_bytes: 0,
            cost: first,
        };
        Curve::new(core::iter::once(first).chain(further).collect()).unwrap()
    })
}

fn links(memories: u32) -> impl Strategy<Value = Link> {
    let class = proptest::sample::select(LinkClass::ALL.to_vec());
    let access = proptest::sample::select(alloc::vec![Access::Native, Access::Import]);
    // One more than there are: links whose memory is absent.
    let end = || 0..=memories;
    (
        end(),
        end(),
        0..6u16,
        access,
        class,
        any::<bool>(),
        curves(),
    )
        .prop_map(|(src, dst, on, access, class, pitched, cost)| Link {
            id: LinkId {
                src: memory(src),
                dst: memory(dst),
                engine: engine(on),
                access,
            },
            backend: BACKEND,
            class,
            cost,
            pitched,
            depth: 2,
        })
}

fn machines() -> impl Strategy<Value = Topology> {
    (2..=5u32).prop_flat_map(|memories| {
        let flags =
            proptest::collection::vec((any::<bool>(), any::<bool>(), 14..30u32), memories as usize);
        let links = proptest::collection::vec(links(memories), 2..28);
        let transform = (0..8u16, 0..5000u64, 0..200_000u64);
        (flags, links, transform).prop_map(move |(flags, links, (on, fixed, fs))| {
            let mut machine = Machine::new(memories).transform(on, Cost::new(fixed, fs));
            for (n, (staging, host, log2)) in flags.into_iter().enumerate() {
                machine = machine.with(n, |memory| {
                    memory.staging = staging || n == 1;
                    memory.host_addressable = host;
                    memory.max_alloc_bytes = 1 << log2;
                });
            }
            let mut taken = BTreeSet::new();
            for link in links {
                if taken.insert(link.id) {
                    machine = machine.link(link);
                }
            }
            machine.build()
        })
    })
}

#[derive(Clone, Debug)]
struct Case {
    topology: Topology,
    key: PlanKey,
    limits: Limits,
    barred: BTreeSet<LinkId>,
    sizes: Vec<u64>,
}

impl Case {
    fn bar(&self, link: LinkId) -> Option<Barred> {
        self.barred.contains(&link).then_some(Barred::Refused)
    }

    fn plan(&self, lanes: u8) -> Result<PlanSet, NoPlan> {
        let limits = Limits {
            lanes,
            ..self.limits
        };
        plan(&self.topology, &self.key, &limits, &|link| self.bar(link))
    }

    fn best(&self, bytes: u64) -> Option<oracle::Units> {
        let usable = |link| !self.barred.contains(&link);
        oracle::best(&self.topology, &self.key, &self.limits, &usable, bytes)
    }

    /// Returns the random sizes, and each start of a range with its neighbours.
    fn sizes(&self, plans: &PlanSet) -> Vec<u64> {
        let starts = plans.ranges().iter().map(|(from, _)| *from);
        let around = starts.flat_map(|at| [at.saturating_sub(1), at, at.saturating_add(1)]);
        // The oracle multiplies without care for overflow.
        around
            .chain(self.sizes.iter().copied())
            .filter(|bytes| *bytes < 1 << 50)
            .collect()
    }
}

fn forms() -> impl Strategy<Value = Form> {
    prop_oneof![
        8 => Just(Form::Contiguous),
        1 => Just(Form::Rows),
        1 => Just(Form::Elements),
    ]
}

fn cases() -> impl Strategy<Value = Case> {
    let size = (0..42u32, any::<u64>()).prop_map(|(log2, any)| any & ((1 << log2) - 1));
    (
        machines(),
        proptest::bool::weighted(0.25),
        [(); 2].map(|()| forms()),
        14..28u32,
        proptest::collection::vec(0..12u8, 28),
        proptest::collection::vec(size, 12),
    )
        .prop_map(|(topology, same, forms, budget, bars, sizes)| {
            let dst = if same { 0 } else { 1 };
            let links = topology.links().iter().zip(bars);
            let barred = links.filter(|(_, bar)| *bar == 0).map(|(link, _)| link.id);
            Case {
                barred: barred.collect(),
                key: PlanKey {
                    forms,
                    ..PlanKey::copy(memory(0), memory(dst))
                },
                limits: Limits {
                    staging_bytes: (1 << budget) + (1 << (budget - 1)),
                    lanes: 1,
                },
                sizes,
                topology,
            }
        })
}

fn ids(route: &Route) -> Vec<LinkId> {
    route.links().iter().map(|link| link.id).collect()
}

fn routes_of(plans: &PlanSet) -> BTreeSet<Vec<LinkId>> {
    let plans = plans.ranges().iter();
    plans
        .flat_map(|(_, plan)| plan.lanes.iter())
        .filter_map(|lane| lane.route.as_ref().map(ids))
        .collect()
}

/// The pipelines that the rule is exact for: each step has an engine to itself, or all share one, and
/// no ring is short of slots.
fn is_plain(plan: &Plan) -> bool {
    let lane = &plan.lanes[0];
    let engines: BTreeSet<_> = lane.steps.iter().map(|step| step.engine).collect();
    let apart = engines.len() == lane.steps.len() || engines.len() == 1;
    apart && lane.rings.iter().all(|ring| ring.slots == RING_SLOTS)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_route_and_no_chunk_is_cheaper_than_the_chosen_one(case in cases()) {
        match case.plan(1) {
            Err(_) => prop_assert_eq!(case.best(1), None),
            Ok(plans) => for bytes in case.sizes(&plans) {
                let chosen = plans.choose(bytes);
                let cost = oracle::cost_of(chosen, bytes);
                prop_assert_eq!(Some(cost), case.best(bytes), "{} bytes over {}", bytes, chosen);
                prop_assert_eq!(chosen.estimate_ns(bytes), oracle::ns(cost));
            }
        }
    }

    #[test]
    fn no_place_for_a_transform_in_reach_is_missed(case in cases(), copies in any::<bool>()) {
        let purpose = if copies { Purpose::CopyWithDigest } else { Purpose::Digest };
        let dst = if copies { case.key.dst } else { case.key.src };
        let case = Case { key: PlanKey { purpose, dst, ..case.key }, ..case };
        match case.plan(4) {
            Err(_) => prop_assert_eq!(case.best(1), None),
            Ok(plans) => for bytes in case.sizes(&plans) {
                let chosen = plans.choose(bytes);
                let cost = oracle::cost_of(chosen, bytes);
                prop_assert_eq!(Some(cost), case.best(bytes), "{} bytes over {}", bytes, chosen);
                let steps = &chosen.lanes[0].steps;
                let transforms = steps.iter().filter(|step| matches!(step.kind, StepKind::Transform { .. }));
                prop_assert_eq!((chosen.lanes.len(), transforms.count()), (1, 1));
            }
        }
    }

    #[test]
    fn several_lanes_are_taken_only_where_they_are_estimated_to_be_cheaper(case in cases()) {
        let Ok(plans) = case.plan(4) else { return Ok(()) };
        for bytes in case.sizes(&plans) {
            let chosen = plans.choose(bytes);
            let alone = oracle::ns(case.best(bytes).unwrap());
            prop_assert!(chosen.estimate_ns(bytes) <= alone);
            let engines = chosen.lanes.iter().map(|lane| {
                lane.steps.iter().map(|step| step.engine).collect::<BTreeSet<_>>()
            });
            let engines: Vec<_> = engines.collect();
            for (i, own) in engines.iter().enumerate() {
                prop_assert!(engines[..i].iter().all(|other| own.is_disjoint(other)));
            }
        }
    }

    #[test]
    fn every_route_is_chosen_or_rejected_with_a_reason(case in cases()) {
        let all: Vec<Vec<LinkId>> = oracle::routes(&case.topology, &case.key)
            .into_iter()
            .map(|route| route.into_iter().map(|link| link.id).collect())
            .collect();
        let (chosen, rejected) = match case.plan(4) {
            Ok(plans) => (routes_of(&plans), plans.never_chosen()),
            Err(NoPlan::NoRoute { rejected, .. }) => (BTreeSet::new(), rejected),
            Err(other) => return Err(TestCaseError::fail(alloc::format!("{other}"))),
        };
        prop_assert_eq!(all.len(), chosen.len() + rejected.len());
        for route in all {
            let lost = rejected.iter().any(|r| r.route.as_ref().map(ids).as_ref() == Some(&route));
            prop_assert!(lost != chosen.contains(&route), "{:?}", route);
        }
        for loser in rejected {
            let links = ids(loser.route.as_ref().unwrap());
            let has_barred = links.iter().any(|link| case.barred.contains(link));
            prop_assert_eq!(has_barred, matches!(loser.reason, Reason::Barred { .. }));
        }
    }

    #[test]
    fn at_each_size_all_routes_but_the_chosen_are_rejected_and_none_is_faster(case in cases()) {
        let Ok(plans) = case.plan(1) else { return Ok(()) };
        let all = oracle::routes(&case.topology, &case.key).len();
        for bytes in case.sizes(&plans) {
            let best = plans.choose(bytes).estimate_ns(bytes);
            let rejected = plans.rejected(bytes);
            prop_assert_eq!(rejected.len(), all - 1);
            for loser in rejected {
                prop_assert!(loser.estimate_ns.is_none_or(|ns| ns >= best));
                match loser.reason {
                    Reason::SlowerBelow { bytes: end } | Reason::JoinsFrom { bytes: end } => {
                        prop_assert!(bytes < end);
                    }
                    Reason::SlowerAbove { bytes: start } => prop_assert!(bytes >= start),
                    Reason::SlowerBetween { from_bytes, to_bytes } => {
                        prop_assert!((from_bytes..to_bytes).contains(&bytes));
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn plans_keep_within_their_limits_and_off_barred_links(case in cases()) {
        let Ok(plans) = case.plan(4) else { return Ok(()) };
        let sizes = case.sizes(&plans);
        let offered = plans.ranges().iter().map(|(_, plan)| Arc::clone(plan));
        let offered = offered.chain(sizes.iter().flat_map(|bytes| plans.alternatives(*bytes)));
        for plan in offered {
            prop_assert!(plan.links().all(|link| !case.barred.contains(&link)));
            prop_assert!(plan.staging_bytes() <= case.limits.staging_bytes);
            prop_assert!(plan.lanes.len() <= 4);
            for lane in &plan.lanes {
                for ring in &lane.rings {
                    let info = case.topology.memory(ring.memory).unwrap();
                    prop_assert!(info.staging && lane.chunk_bytes <= info.max_alloc_bytes);
                    prop_assert!(ring.slots >= 1);
                    let ends = [case.key.src, case.key.dst];
                    let packs = |end: usize| ends[end] != ring.memory || oracle::packs(&case.key, end);
                    prop_assert!(packs(0) && packs(1));
                }
                let links = lane.route.as_ref().unwrap().links();
                prop_assert!(oracle::takes(&case.key, &links[0], 0));
                prop_assert!(oracle::takes(&case.key, &links[links.len() - 1], 1));
            }
        }
    }

    #[test]
    fn alternatives_start_with_the_chosen_one_and_get_no_cheaper(case in cases()) {
        let Ok(plans) = case.plan(1) else { return Ok(()) };
        for bytes in case.sizes(&plans) {
            let offered: Vec<_> = plans.alternatives(bytes).collect();
            prop_assert!(Arc::ptr_eq(&offered[0], plans.choose(bytes)));
            let costs: Vec<_> = offered.iter().map(|plan| oracle::cost_of(plan, bytes)).collect();
            prop_assert!(costs.is_sorted());
            let routes: BTreeSet<_> = offered.iter().map(|plan| plan.links().collect::<Vec<_>>()).collect();
            prop_assert_eq!(routes.len(), offered.len());
            let viable = plans.rejected(bytes).iter().filter(|r| r.estimate_ns.is_some()).count();
            prop_assert_eq!(viable + 1, offered.len());
        }
    }

    #[test]
    fn equal_questions_get_equal_answers(case in cases()) {
        let ranges = |plans: PlanSet| plans.ranges().to_vec();
        prop_assert_eq!(case.plan(4).map(ranges), case.plan(4).map(ranges));
    }

    #[test]
    fn the_estimate_of_whole_chunks_is_the_time_of_the_flight(case in cases(), chunks in 1..6u64) {
        let Ok(plans) = case.plan(1) else { return Ok(()) };
        let bytes = case.sizes(&plans);
        let plans = bytes.iter().flat_map(|bytes| plans.alternatives(*bytes).take(3));
        for plan in plans.filter(|plan| is_plain(plan)) {
            let bytes = chunks * plan.chunk_bytes();
            prop_assert_eq!(Ok(plan.estimate_ns(bytes)), predict_ns(&plan, bytes), "{}", plan);
        }
    }

    #[test]
    fn no_resource_is_busy_for_longer_than_the_flight_takes(case in cases()) {
        let Ok(plans) = case.plan(4) else { return Ok(()) };
        let sizes = case.sizes(&plans);
        let plans = sizes.iter().flat_map(|bytes| plans.alternatives(*bytes).take(3).map(|plan| (plan, *bytes)));
        for (plan, bytes) in plans {
            let bytes = bytes.min(20 * plan.chunk_bytes());
            let predicted = predict(&plan, bytes).unwrap();
            for load in &predicted.loads {
                prop_assert!(load.ns <= predicted.ns, "{plan}: {load:?} of {}", predicted.ns);
            }
            prop_assert!(predicted.loads.is_sorted_by_key(|load| core::cmp::Reverse(load.ns)));
            if let [lane] = &plan.lanes[..] {
                prop_assert_eq!(engines(&predicted), summed(lane, bytes), "{}", plan);
            }
        }
    }
}

/// How long each engine is busy.
fn engines(predicted: &Prediction) -> BTreeMap<EngineId, u64> {
    let loads = predicted.loads.iter();
    let engines = loads.filter_map(|load| match load.of {
        Resource::Engine(engine) => Some((engine, load.ns)),
        _ => None,
    });
    engines.collect()
}

/// The same from the costs of the steps.
fn summed(lane: &Lane, bytes: u64) -> BTreeMap<EngineId, u64> {
    let (chunks, rest) = (bytes / lane.chunk_bytes, bytes % lane.chunk_bytes);
    let mut sums = BTreeMap::new();
    for step in &lane.steps {
        let ns = |part| step.cost.part_of(part, bytes);
        let last = if rest > 0 { ns(rest) } else { 0 };
        *sums.entry(step.engine).or_default() += chunks * ns(lane.chunk_bytes) + last;
    }
    sums.retain(|_, ns| *ns > 0);
    sums
}

#[test]
fn random_machines_are_not_all_trivial() {
    // Guards the properties above against a strategy that stops making anything worth planning.
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut planned, mut staged, mut crossings, mut wide) = (0, 0, 0, 0);
    for _ in 0..300 {
        let case = cases().new_tree(&mut runner).unwrap().current();
        let Ok(plans) = plan(&case.topology, &case.key, &Limits::default(), &open) else {
            continue;
        };
        planned += 1;
        let all = || plans.ranges().iter().map(|(_, plan)| plan);
        staged += usize::from(all().any(|plan| !plan.is_one_pass()));
        crossings += usize::from(routes_of(&plans).len() > 1);
        wide += usize::from(all().any(|plan| plan.lanes.len() > 1));
    }
    assert!(
        planned > 100 && staged > 30 && crossings > 30 && wide > 20,
        "{planned} planned, {staged} staged, {crossings} with crossings, {wide} with several lanes"
    );
}
