//! What `explain` answers: the way that is taken, and why no other.

use std::sync::Arc;

use crate::fixture::{Outcome, place};
use transload::model::{Reason, Resource};
use transload::{AllocSpec, ByteSize, Choice, Error, Request, TransferManager};
use transload_testkit::sim::Sim;
use transload_testkit::topology;

const MIB: u64 = 1 << 20;

fn machine(name: &str) -> transload_core::schema::Machine {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../topologies");
    topology::from_file(format!("{folder}/{name}.toml")).unwrap()
}

#[test]
fn explanations_name_the_way_that_is_taken_and_why_no_other() -> Outcome {
    let sim = Sim::new(&machine("eight-gpu"))?;
    let manager = TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .backend(Arc::new(sim.clone()))
        .build()?;
    let allocate = |at| manager.allocate(place(at), AllocSpec::bytes(MIB));
    let (src, dst) = (allocate("sim:0")?, allocate("sim:5")?);
    let request = Request::new(&src, &dst);
    let explained = manager.explain(&request)?;
    let report = manager.submit(&request).wait()?;
    assert_eq!(explained.chosen.method, report.method());
    assert!(report.route().eq(explained.chosen.route.iter().copied()));
    assert_eq!((explained.bytes, explained.simulated), (MIB, true));
    assert!(explained.chosen.predicted_ns.is_some() && explained.chosen.reason.is_none());
    assert!(!explained.rejected.is_empty());
    for rejected in &explained.rejected {
        assert!(rejected.reason.is_some());
        assert!(rejected.predicted_ns >= explained.chosen.predicted_ns);
    }
    let text = explained.to_string();
    assert!(
        text.contains("simulated") && text.contains("rejected"),
        "{text}"
    );
    assert!(text.starts_with(&ByteSize(MIB).to_string()), "{text}");
    Ok(())
}

#[test]
fn the_machine_is_as_busy_as_was_predicted() -> Outcome {
    let sim = Sim::new(&machine("workstation"))?;
    let manager = TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .backend(Arc::new(sim.clone()))
        .build()?;
    let allocate = |at| manager.allocate(place(at), AllocSpec::bytes(16 * MIB + 1));
    let (src, dst) = (allocate("cpu:0")?, allocate("sim:0")?);
    let request = Request::new(&src, &dst);
    let chosen = manager.explain(&request)?.chosen;
    assert!(
        chosen
            .loads
            .is_sorted_by_key(|load| std::cmp::Reverse(load.ns))
    );
    assert!(chosen.loads[0].ns <= chosen.predicted_ns.unwrap());
    manager.submit(&request).wait()?;
    let used: Vec<_> = { sim.engine_use().into_iter() }
        .filter(|engine| engine.operations > 0)
        .map(|engine| (Resource::Engine(engine.engine), engine.busy_ns))
        .collect();
    assert!(used.len() > 1);
    for (of, busy_ns) in used {
        let load = chosen.loads.iter().find(|load| load.of == of);
        assert_eq!(load.map(|load| load.ns), Some(busy_ns), "{of}");
    }
    Ok(())
}

#[test]
fn the_sizes_of_ways_are_exact_to_the_byte() -> Outcome {
    let sim = Sim::new(&machine("eight-gpu"))?;
    let manager = TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .backend(Arc::new(sim.clone()))
        .build()?;
    let (src, dst) = (place("cpu:0"), place("sim:0"));
    let ways = manager.explain_sizes(src, dst)?;
    assert!(ways.len() > 1 && ways[0].0 == 0);
    let at = |bytes| manager.explain_places(src, dst, bytes).unwrap().chosen;
    let is_same = |one: &Choice, other: &Choice| {
        (one.method, &one.route, one.chunk_bytes) == (other.method, &other.route, other.chunk_bytes)
    };
    for (before, (from, way)) in ways.iter().zip(&ways[1..]) {
        assert!(is_same(&at(*from), way) && is_same(&at(from - 1), &before.1));
        assert!(!is_same(way, &before.1), "from {from} on");
    }
    Ok(())
}

#[test]
fn an_explanation_fits_100_columns_and_says_each_reason_once() -> Outcome {
    let sim = Sim::new(&machine("eight-gpu"))?;
    let manager = TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .backend(Arc::new(sim.clone()))
        .build()?;
    let text = |from, to, bytes| -> Result<String, Error> {
        Ok(manager
            .explain_places(place(from), place(to), bytes)?
            .to_string())
    };
    let wanted = "\
64 MiB, sim:0/device → sim:1/device (simulated)

chosen
  PeerToPeer   199 µs  sim:0/device → sim:1/device
                       in chunks of 32 MiB

rejected: used only from 1.76 GiB on, at the same time as another route
  HostStaged  1.40 ms  sim:0/device → cpu:0/pinned → sim:1/device

rejected: never faster than the chosen way
  HostStaged  2.15 ms  sim:0/device → cpu:1/pinned → sim:1/device
  HostStaged  8.44 ms  sim:0/device → cpu:0/pinned → cpu:1/pinned → sim:1/device
  HostStaged  8.44 ms  sim:0/device → cpu:1/pinned → cpu:0/pinned → sim:1/device

predicted from default costs";
    assert_eq!(text("sim:0", "sim:1", 64 << 20)?, wanted);
    // One piece is no chunk.
    assert!(!text("sim:0", "sim:1", MIB)?.contains("chunk"));
    let places = manager.memories();
    for (src, dst) in places
        .iter()
        .flat_map(|src| places.iter().map(move |dst| (src, dst)))
    {
        for bytes in [0, 4096, MIB, 4 << 30] {
            let Ok(explained) = manager.explain_places(src.id.into(), dst.id.into(), bytes) else {
                continue;
            };
            let text = explained.to_string();
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(100) && !text.ends_with('\n'), "{text}");
            let mut headings: Vec<&str> =
                text.lines().filter(|l| l.starts_with("rejected")).collect();
            let all = headings.len();
            headings.sort_unstable();
            headings.dedup();
            assert_eq!(headings.len(), all, "{text}");
        }
    }
    Ok(())
}

#[test]
fn an_explanation_lists_every_lane_of_a_plan_that_splits_the_payload() -> Outcome {
    let sim = Sim::new(&machine("eight-gpu"))?;
    let manager = TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .backend(Arc::new(sim.clone()))
        .build()?;
    let explain = |bytes| manager.explain_places(place("sim:0"), place("sim:1"), bytes);
    let split = explain(4 << 30)?;
    let lanes = &split.chosen.lanes;
    assert_eq!(lanes.len(), 2, "{split}");
    assert_eq!(lanes[0].route, split.chosen.route);
    assert_ne!(lanes[0].route, lanes[1].route);
    assert!((lanes.iter().map(|lane| lane.share).sum::<f64>() - 1.0).abs() < 1e-9);
    let text = split.to_string();
    for part in [
        "chosen: over 2 routes at once, ",
        "PeerToPeer  86.5 %  ",
        "HostStaged  13.5 %  ",
        "in chunks of 8 MiB",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Each way there is, is taken or says why not.
    let whole = explain(64 << 20)?;
    assert_eq!(whole.chosen.lanes.len(), 1);
    assert_eq!(whole.chosen.lanes[0].share, 1.0);
    let ways = |of: &transload::Explanation| of.chosen.lanes.len() + of.rejected.len();
    assert_eq!(ways(&whole), ways(&split));
    let joins = |choice: &transload::Choice| {
        choice.lanes.is_empty() && matches!(choice.reason, Some(Reason::JoinsFrom { .. }))
    };
    assert!(whole.rejected.iter().any(joins), "{whole}");
    assert!(whole.to_string().contains("in chunks of 32 MiB"), "{whole}");
    Ok(())
}
