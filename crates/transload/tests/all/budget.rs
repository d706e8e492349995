//! Staging within one budget: transfers that do not fit wait in the order of submission, and then go on.

use std::sync::Arc;
use std::time::Duration;

use crate::fixture::{Fixture, Outcome, bytes, modes, place, without_peers};
use transload::hal::ErrorClass;
use transload::{
    AllocSpec, Instant, Method, Request, StagingBudget, TransferError, TransferManager,
};
use transload_testkit::sim::{Completion, HostSide, Rule, Script, Sim};
use transload_testkit::topology;

const MIB: u64 = 1 << 20;

/// 64 transfers of 16 MiB between devices, all submitted before the test waits for any.
fn sixty_four_at_once(fixture: &Fixture) -> Outcome {
    let wanted = bytes(16 * MIB as usize, 1);
    let sources: Vec<_> = (0..3)
        .map(|gpu| fixture.filled(&format!("sim:{gpu}"), &wanted))
        .collect();
    let ends: Vec<_> = (0..64)
        .map(|i| {
            let to = format!("sim:{}", (i + 1 + i / 3 % 2) % 3);
            (&sources[i % 3], fixture.empty(&to, wanted.len()))
        })
        .collect();
    let transfers: Vec<_> = ends
        .iter()
        .map(|(src, dst)| fixture.manager.copy(*src, dst))
        .collect();
    for transfer in transfers {
        assert_eq!(transfer.wait()?.method(), Method::HostStaged);
    }
    for (_, dst) in &ends {
        assert!(fixture.bytes_of(dst) == wanted);
    }
    let staging = fixture.manager.staging();
    assert!(staging.peak_bytes() <= staging.limit_bytes());
    assert!(
        staging.peak_bytes() >= staging.limit_bytes() / 2,
        "hardly used"
    );
    assert!(fixture.sim.violations().is_empty());
    Ok(())
}

#[test]
fn sixty_four_staged_transfers_at_once_stay_within_the_budget_on_the_sim() -> Outcome {
    let fixture = Fixture::new(&without_peers(3), Completion::Timed, 64 * MIB);
    sixty_four_at_once(&fixture)?;
    let pinned = fixture.sim.use_of("cpu:0/pinned".parse()?);
    assert!(
        pinned.is_some_and(|pinned| pinned.peak_bytes <= 64 * MIB),
        "{pinned:?}"
    );
    Ok(())
}

#[test]
fn sixty_four_transfers_staged_in_real_memory_stay_within_the_budget() -> Outcome {
    let machine = topology::from_str(&without_peers(3))?;
    let sim = Sim::builder(&machine).host(HostSide::Real).build()?;
    let manager = TransferManager::builder()
        .backend(Arc::new(transload_host::Host::new()))
        .backend(Arc::new(sim.clone()))
        .staging(Arc::new(StagingBudget::new(64 * MIB)))
        .build()?;
    sixty_four_at_once(&Fixture { sim, manager })
}

#[test]
fn sixty_four_checksums_of_a_file_stay_within_the_budget() -> Outcome {
    let budget = Arc::new(StagingBudget::new(MIB));
    let manager = TransferManager::builder()
        .backend(Arc::new(transload_host::Host::new()))
        .staging(Arc::clone(&budget))
        .build()?;
    let wanted = bytes(MIB as usize + 13, 1);
    let src = manager.adopt(wanted.clone())?;
    let file = manager.allocate(place("cpu:0/file"), AllocSpec::bytes(src.len()))?;
    manager.copy(&src, &file).wait()?;
    let dst = manager.allocate(place("cpu:0/shared"), AllocSpec::bytes(src.len()))?;
    // The checksum of a file reads leased slots; that of memory reads the memory in place.
    let transfers: Vec<_> = (0..64)
        .map(|_| manager.submit(&Request::new(&file, &dst).verify()))
        .collect();
    for transfer in transfers {
        assert!(transfer.wait()?.checksum().is_some());
    }
    assert!(*dst.read()? == wanted[..]);
    assert!(budget.peak_bytes() > 0, "nothing was staged");
    assert!(budget.peak_bytes() <= budget.limit_bytes());
    Ok(())
}

#[test]
fn idle_slots_of_one_manager_make_room_for_another() -> Outcome {
    for completion in modes() {
        let budget = Arc::new(StagingBudget::new(MIB));
        let first = Fixture::sharing(&without_peers(2), completion, &budget);
        let second = Fixture::sharing(&without_peers(2), completion, &budget);
        for round in 0..3 {
            for fixture in [&first, &second] {
                let wanted = bytes(3 * MIB as usize + round, 7);
                let src = fixture.filled("sim:0", &wanted);
                let dst = fixture.empty("sim:1", wanted.len());
                fixture.manager.copy(&src, &dst).wait()?;
                assert!(fixture.bytes_of(&dst) == wanted);
                assert!(budget.used_bytes() >= MIB / 2, "slots are kept");
            }
        }
        assert!(budget.peak_bytes() <= MIB);
        drop((first, second));
        assert_eq!(budget.used_bytes(), 0, "{completion}");
    }
    Ok(())
}

#[cfg(not(transload_local))]
#[test]
fn a_manager_that_was_refused_goes_on_when_another_one_gives_its_slots_back() -> Outcome {
    let budget = Arc::new(StagingBudget::new(128 << 10));
    let first = Fixture::sharing(&without_peers(2), Completion::Timed, &budget);
    let second = Fixture::sharing(&without_peers(2), Completion::Timed, &budget);
    let wanted = bytes(MIB as usize, 3);
    let ends = |fixture: &Fixture| {
        (
            fixture.filled("sim:0", &wanted),
            fixture.empty("sim:1", wanted.len()),
        )
    };
    let (held, waiting) = (ends(&first), ends(&second));
    // This transfer is in flight with all of the budget until a thread turns its engine.
    let holder = first.manager.copy(&held.0, &held.1);
    assert_eq!(budget.used_bytes(), budget.limit_bytes());
    let waiter = second.manager.copy(&waiting.0, &waiting.1);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || waiter.wait());
        holder.wait()?;
        waiter.join().unwrap()
    })?;
    assert!(second.bytes_of(&waiting.1) == wanted);
    assert!(budget.peak_bytes() <= budget.limit_bytes());
    Ok(())
}

#[test]
fn one_slot_per_ring_is_enough() -> Outcome {
    for completion in modes() {
        // The budget has room for a single chunk of the smallest size.
        let fixture = Fixture::new(&without_peers(2), completion, 64 << 10);
        let wanted = bytes(500_001, 2);
        let src = fixture.filled("sim:0", &wanted);
        let dst = fixture.empty("sim:1", wanted.len());
        let report = fixture
            .manager
            .submit(&Request::new(&src, &dst).verify())
            .wait()?;
        assert_eq!(report.bytes(), wanted.len() as u64);
        assert!(fixture.bytes_of(&dst) == wanted);
        assert_eq!(fixture.manager.staging().peak_bytes(), 64 << 10);
    }
    Ok(())
}

#[test]
fn who_came_first_gets_the_slots_first() -> Outcome {
    let fixture = Fixture::new(&without_peers(2), Completion::Timed, 64 << 10);
    let ends: Vec<_> = (0..8)
        .map(|i| {
            (
                fixture.filled("sim:0", &bytes(300_000, i)),
                fixture.empty("sim:1", 300_000),
            )
        })
        .collect();
    let mut transfers: Vec<_> = ends
        .iter()
        .map(|(src, dst)| fixture.manager.copy(src, dst))
        .collect();
    while !transfers.is_empty() {
        transfers.remove(0).wait()?;
        // The one slot went to the next transfer in line, so no other transfer has moved a byte yet.
        for later in transfers.iter().skip(1) {
            assert_eq!(later.progress(), Some((0, 300_000)));
        }
    }
    Ok(())
}

#[test]
fn slots_that_cannot_be_allocated_are_not_charged() -> Outcome {
    let budget = Arc::new(StagingBudget::new(MIB));
    let pinned = "cpu:0/pinned".parse()?;
    let script = Script::new().with(Rule::out_of_memory().in_memory(pinned).times(2));
    let fixture = Fixture::scripted(&without_peers(2), Completion::Timed, &budget, script);
    let wanted = bytes(500_000, 2);
    let src = fixture.filled("sim:0", &wanted);
    let dst = fixture.empty("sim:1", wanted.len());
    for _ in 0..4 {
        // The copy may succeed or fail; in both cases the whole budget must be free again.
        let _ = fixture.manager.copy(&src, &dst).wait();
        assert!(budget.used_bytes() <= MIB);
    }
    fixture.manager.copy(&src, &dst).wait()?;
    assert!(fixture.bytes_of(&dst) == wanted);
    fixture.manager.clear_cache();
    assert_eq!(budget.used_bytes(), 0);
    Ok(())
}

#[test]
fn a_deadline_that_passes_under_way_ends_the_transfer_when_it_is_quiet() -> Outcome {
    for completion in [Completion::Timed, Completion::Pumped] {
        let fixture = Fixture::new(&without_peers(2), completion, MIB);
        let src = fixture.filled("sim:0", &bytes(4 * MIB as usize, 2));
        let dst = fixture.empty("sim:1", 4 * MIB as usize);
        let now = fixture.manager.now();
        // The deadline passes in the middle of an operation, which ends later.
        let request = Request::new(&src, &dst).deadline(Instant(now.0 + 1500));
        let error = fixture.manager.submit(&request).wait().unwrap_err();
        assert!(matches!(error, TransferError::Deadline { .. }), "{error}");
        fixture.manager.copy(&src, &dst).wait()?;
        assert!(fixture.bytes_of(&dst) == fixture.bytes_of(&src));
    }
    Ok(())
}

#[test]
fn a_wait_that_times_out_leaves_the_transfer_under_way() -> Outcome {
    let fixture = Fixture::new(&without_peers(2), Completion::Timed, MIB);
    let wanted = bytes(4 * MIB as usize, 2);
    let src = fixture.filled("sim:0", &wanted);
    let dst = fixture.empty("sim:1", wanted.len());
    let mut transfer = fixture.manager.copy(&src, &dst);
    assert!(transfer.wait_timeout(Duration::from_nanos(1500)).is_none());
    let held = fixture.manager.staging().used_bytes();
    assert!(transfer.wait_timeout(Duration::from_nanos(1)).is_none());
    assert_eq!(fixture.manager.staging().used_bytes(), held);
    transfer.wait()?;
    assert!(fixture.bytes_of(&dst) == wanted);
    Ok(())
}

#[test]
fn idle_slots_are_given_up_when_their_device_has_no_room() -> Outcome {
    let small = without_peers(2).replace(
        "\"pinned\", memory_bytes = 8_000_000_000",
        "\"pinned\", memory_bytes = 40_000_000",
    );
    let fixture = Fixture::new(&small, Completion::Timed, 64 * MIB);
    let wanted = bytes(16 * MIB as usize, 2);
    let (src, dst) = (
        fixture.filled("sim:0", &wanted),
        fixture.empty("sim:1", wanted.len()),
    );
    fixture.manager.copy(&src, &dst).wait()?;
    let staging = fixture.manager.staging();
    let idle = staging.used_bytes();
    assert!(idle > 0, "it was staged");
    // When another device lacks memory, the engine keeps the host's slots: to free them would not help.
    let class = |answer: Result<_, transload::Error>| answer.map(drop).map_err(|e| e.class());
    let full = Err(ErrorClass::Exhausted);
    let too_much = AllocSpec::bytes(8_000_000_000);
    assert_eq!(
        class(fixture.manager.allocate(place("sim:0"), too_much)),
        full
    );
    assert_eq!(staging.used_bytes(), idle);
    let all = AllocSpec::bytes(40_000_000);
    let whole = fixture.manager.allocate(place("cpu:0/pinned"), all)?;
    assert_eq!(staging.used_bytes(), 0);
    let one = AllocSpec::bytes(1);
    assert_eq!(
        class(fixture.manager.allocate(place("cpu:0/pinned"), one)),
        full
    );
    drop(whole);
    fixture.manager.copy(&src, &dst).wait()?;
    assert!(fixture.bytes_of(&dst) == wanted);
    assert!(fixture.sim.violations().is_empty());
    Ok(())
}
