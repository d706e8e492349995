//! Small transfers share staging slots; each has its own part of a slot and its own lifetime.

use std::collections::HashSet;
use std::sync::Arc;

use crate::dice::Dice;
use crate::fixture::{Fixture, Outcome, bytes, modes, without_peers};
use transload::hal::ErrorClass;
use transload::{Buffer, OnFailure, Region, Request, StagingBudget, Transfer};
use transload_testkit::sim::{Completion, Rule, Script};

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// A copy of each block to the place of the same number.
fn blocks(src: &Buffer, dst: &Buffer, len: u64) -> Vec<Request> {
    let block = |buffer: &Buffer, at: u64| Region::from(buffer.slice(at..at + len).unwrap());
    let places = (0..src.len()).step_by(len as usize);
    places
        .map(|at| Request::new(block(src, at), block(dst, at)))
        .collect()
}

#[test]
fn small_transfers_of_a_batch_hold_little_more_than_their_bytes() -> Outcome {
    const COUNT: u64 = 500;
    for completion in modes() {
        for len in [4 * KIB, 16 * KIB] {
            let fixture = Fixture::new(&without_peers(2), completion, 64 * MIB);
            let wanted = bytes((COUNT * len) as usize, 1);
            let src = fixture.filled("sim:0", &wanted);
            let dst = fixture.empty("sim:1", wanted.len());
            let requests = blocks(&src, &dst, len);
            let explained = fixture.manager.explain(&requests[0])?;
            let chunk = explained.chosen.chunk_bytes.unwrap();
            let to_a_slot = explained.chosen.lanes[0].to_a_slot;
            assert_eq!(to_a_slot, chunk / len);
            assert!(
                explained.to_string().contains("share a slot"),
                "{explained}"
            );
            for report in fixture
                .manager
                .copy_batch(&requests, OnFailure::GoOn)?
                .wait()
            {
                report?;
            }
            assert!(fixture.bytes_of(&dst) == wanted, "{completion}");
            let slots = COUNT.div_ceil(to_a_slot);
            let peak = fixture.manager.staging().peak_bytes();
            assert!(peak <= slots * chunk, "{completion}: {peak} bytes of slots");
            assert_eq!(fixture.sim.violations(), [], "{completion}");
        }
    }
    Ok(())
}

#[test]
fn one_slot_carries_many_small_transfers_at_a_time() -> Outcome {
    let fixture = Fixture::new(&without_peers(2), Completion::Timed, 64 * KIB);
    let wanted = bytes(64 << 10, 1);
    let src = fixture.filled("sim:0", &wanted);
    let dst = fixture.empty("sim:1", wanted.len());
    // This copy proves the links.
    fixture.manager.copy(&src, &dst).wait()?;
    let requests = blocks(&src, &dst, 4096);
    let before = fixture.manager.now();
    let batch = fixture.manager.copy_batch(&requests, OnFailure::GoOn)?;
    for report in batch.wait() {
        report?;
    }
    let all_ns = fixture.manager.now().since_ns(before);
    let before = fixture.manager.now();
    for request in &requests {
        fixture.manager.submit(request).wait()?;
    }
    let alone_ns = fixture.manager.now().since_ns(before);
    // Each device spends half of its time while the other is busy; more overlap than half is impossible.
    assert!(
        all_ns * 3 <= alone_ns * 2,
        "{all_ns} ns, one by one {alone_ns}"
    );
    Ok(())
}

#[test]
fn neither_large_nor_small_transfers_are_overtaken() -> Outcome {
    let fixture = Fixture::new(&without_peers(2), Completion::Timed, 64 * KIB);
    let wanted = bytes(300_000, 5);
    let ends: Vec<(Buffer, Buffer)> = (0..9)
        .map(|_| {
            (
                fixture.filled("sim:0", &wanted),
                fixture.empty("sim:1", wanted.len()),
            )
        })
        .collect();
    let small = |number: usize, at: u64| {
        let part = |buffer: &Buffer| buffer.slice(at..at + 1000).unwrap();
        Request::new(part(&ends[number].0), part(&ends[number].1))
    };
    let early: Vec<Transfer> = (0..40)
        .map(|at| fixture.manager.submit(&small(0, at * 1000)))
        .collect();
    let large = fixture.manager.copy(&ends[1].0, &ends[1].1);
    let late: Vec<Transfer> = (0..40)
        .map(|at| fixture.manager.submit(&small(2, at * 1000)))
        .collect();
    for transfer in early {
        transfer.wait()?;
    }
    // The early slots had room left, but these transfers may not take it before the large one.
    for transfer in &late {
        assert_eq!(transfer.progress(), Some((0, 1000)));
    }
    large.wait()?;
    for transfer in late {
        transfer.wait()?;
    }
    assert!(fixture.bytes_of(&ends[1].1) == wanted);
    assert!(fixture.bytes_of(&ends[2].1)[..40_000] == wanted[..40_000]);
    assert_eq!(fixture.manager.staging().peak_bytes(), 64 * KIB);
    assert_eq!(fixture.sim.violations(), []);
    Ok(())
}

/// Transfers of all sizes in both directions, some dropped or cancelled in flight, with faults in between.
fn mixed(completion: Completion, seed: u64) -> Outcome {
    const LARGEST: u64 = 200 * KIB;
    let pinned = "cpu:0/pinned".parse()?;
    let device = "sim:1/device".parse()?;
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let script = Script::new()
        .with(
            Rule::out_of_memory()
                .in_memory(pinned)
                .nth(dice.below(6))
                .times(2),
        )
        .with(
            Rule::fail_after(dice.below(5000))
                .over(pinned, device)
                .nth(dice.below(90)),
        )
        .with(Rule::fail_after(0).over(device, pinned).nth(dice.below(40)));
    let budget = Arc::new(StagingBudget::new(512 * KIB));
    let fixture = Fixture::scripted(&without_peers(2), completion, &budget, script);
    let mut running = Vec::new();
    for number in 0..150 {
        let len = match dice.below(8) {
            0 => 1 + dice.below(LARGEST),
            1 => 4096 * (1 + dice.below(8)),
            _ => 1 + dice.below(9000),
        };
        let wanted = bytes(len as usize, number);
        let (from, to) = match dice.below(2) {
            0 => ("sim:0", "sim:1"),
            _ => ("sim:1", "sim:0"),
        };
        let (src, dst) = (
            fixture.filled(from, &wanted),
            fixture.empty(to, wanted.len()),
        );
        let transfer = fixture.manager.copy(&src, &dst);
        running.push((transfer, dst, wanted));
        match dice.below(6) {
            0 => drop(
                running
                    .swap_remove(dice.below(running.len() as u64) as usize)
                    .0,
            ),
            1 => {
                let at = dice.below(running.len() as u64) as usize;
                let _ = running.swap_remove(at).0.cancel();
            }
            2 => {
                fixture.sim.step();
                fixture.manager.turn();
            }
            _ => {}
        }
        assert!(budget.used_bytes() <= budget.limit_bytes());
    }
    let mut classes = HashSet::new();
    for (transfer, dst, wanted) in running {
        match transfer.wait() {
            Ok(_) => assert!(fixture.bytes_of(&dst) == wanted, "{completion}, {seed}"),
            Err(error) => drop(classes.insert(error.class())),
        }
    }
    // Only the ordered faults may occur; a link that failed rests, and then no route may be left.
    let ordered = [
        ErrorClass::Failed,
        ErrorClass::Exhausted,
        ErrorClass::Unsupported,
    ];
    classes.retain(|class| !ordered.contains(class));
    assert!(classes.is_empty(), "{completion}, {seed}: {classes:?}");
    fixture.manager.wait_idle();
    fixture.manager.clear_cache();
    assert_eq!(budget.used_bytes(), 0, "{completion}, {seed}");
    assert!(budget.peak_bytes() <= budget.limit_bytes());
    assert_eq!(fixture.sim.violations(), [], "{completion}, {seed}");
    Ok(())
}

#[test]
fn whatever_happens_to_one_of_them_the_others_have_their_bytes() -> Outcome {
    for completion in modes() {
        for seed in 1..=12 {
            mixed(completion, seed)?;
        }
    }
    Ok(())
}
