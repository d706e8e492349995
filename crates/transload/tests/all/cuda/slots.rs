//! Small blocks between pageable memory and a device: many blocks share a slot and a submission, and neighbouring
//! blocks share a copy.

use std::sync::Arc;

use transload::{
    Buffer, Method, OnFailure, Region, Request, StagingBudget, Transfer, TransferManager,
};

use crate::cuda::machine::{
    assert_clean, at, builder, calls, control, described, manager, pattern, round,
};
use crate::dice::Dice;

const COUNT: u64 = 2000;
const KIB: u64 = 1 << 10;
const BATCH: &str = "cuMemcpyBatchAsync_v2";
const SINGLE: [&str; 2] = ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"];

/// Copies of blocks: the block at each place goes to the place that `target` returns.
fn blocks(from: &Buffer, to: &Buffer, len: u64, target: impl Fn(u64) -> u64) -> Vec<Request> {
    let region = |buffer: &Buffer, place: u64| {
        Region::from(buffer.slice(place * len..(place + 1) * len).unwrap())
    };
    (0..COUNT)
        .map(|place| Request::new(region(from, place), region(to, target(place))))
        .collect()
}

/// The driver calls since the count began.
struct Count {
    events: u64,
    batches: u64,
    singles: u64,
    registered: u64,
}

fn count() -> Count {
    Count {
        events: calls("cuEventRecord"),
        batches: calls(BATCH),
        singles: SINGLE.map(calls).iter().sum(),
        registered: calls("cuMemHostRegister_v2"),
    }
}

impl Count {
    fn since(&self) -> Count {
        let now = count();
        Count {
            events: now.events - self.events,
            batches: now.batches - self.batches,
            singles: now.singles - self.singles,
            registered: now.registered - self.registered,
        }
    }
}

/// The most rounds in which the engine orders all operations: 32 in a round, two for each block. A round is shorter
/// where a slot is allocated, where another thread has already ordered the ready operations, and at both ends. The
/// device's operations of a round share an event.
fn rounds(allocated: u64) -> u64 {
    4 * COUNT / 32 + 2 * allocated + 8
}

fn run(manager: &TransferManager, requests: &[Request]) -> Count {
    let before = count();
    let batch = manager.copy_batch(requests, OnFailure::GoOn).unwrap();
    for report in batch.wait() {
        assert_eq!(report.unwrap().method(), Method::HostStaged);
    }
    before.since()
}

/// Frees all slots, also one whose allocation for a transfer that is over has not ended yet.
fn free_slots(manager: &TransferManager) {
    manager.clear_cache();
    while manager.staging().used_bytes() > 0 {
        std::thread::yield_now();
        manager.clear_cache();
    }
}

/// Copies blocks from `from` to places in `to` of which no two are neighbours. Does so twice; the second run finds its
/// slots allocated.
fn scattered(from: &str, to: &str, len: u64) {
    let manager = manager("no-peer");
    // This round proves the links.
    round(&manager, 10, &["cpu:0/pinned", "cuda:0", "cpu:0/pinned"]);
    let bytes = pattern(COUNT * len, len);
    let source = at(&manager, from, COUNT * len);
    // Over pinned memory, so that no slot is held for it.
    let pinned = at(&manager, "cpu:0/pinned", COUNT * len);
    manager.copy_from_slice(&bytes, &pinned).unwrap();
    manager.copy(&pinned, &source).wait().unwrap();
    drop(pinned);
    let target = at(&manager, to, COUNT * len);
    free_slots(&manager);
    let requests = blocks(&source, &target, len, |place| place * 7 % COUNT);
    let chosen = manager.explain(&requests[0]).unwrap().chosen;
    let (chunk, to_a_slot) = (chosen.chunk_bytes.unwrap(), chosen.lanes[0].to_a_slot);
    assert_eq!(to_a_slot, chunk / len);
    let slots = COUNT.div_ceil(to_a_slot);
    let cold = run(&manager, &requests);
    let warm = run(&manager, &requests);
    let peak = manager.staging().peak_bytes();
    assert!(
        peak <= slots * chunk,
        "{peak} bytes held in slots of {chunk}"
    );
    // All slots exist if the first run needed the most slots that it could.
    let registered = cold.registered + warm.registered;
    assert!(
        registered <= slots,
        "{registered} slots, {slots} would do for all"
    );
    for run in [&cold, &warm] {
        let rounds = rounds(run.registered);
        assert!(
            run.events <= rounds,
            "{} events in {rounds} rounds",
            run.events
        );
    }
    let mut back = vec![0; bytes.len()];
    manager.copy_into_slice(&target, &mut back).unwrap();
    for place in 0..COUNT {
        let of =
            |bytes: &[u8], place: u64| bytes[(place * len) as usize..][..len as usize].to_vec();
        assert!(of(&back, place * 7 % COUNT) == of(&bytes, place), "{place}");
    }
    free_slots(&manager);
    drop((source, target, requests, manager));
    assert_clean();
}

#[test]
fn blocks_of_4_kib_share_slots_on_their_way_to_a_device() {
    scattered("cpu:0/pageable", "cuda:0", 4 * KIB);
}

#[test]
fn blocks_of_4_kib_share_slots_on_their_way_from_a_device() {
    scattered("cuda:0", "cpu:0/pageable", 4 * KIB);
}

#[test]
fn blocks_of_16_kib_share_slots_on_their_way_to_a_device() {
    scattered("cpu:0/pageable", "cuda:0", 16 * KIB);
}

#[test]
fn blocks_of_16_kib_share_slots_on_their_way_from_a_device() {
    scattered("cuda:0", "cpu:0/pageable", 16 * KIB);
}

#[test]
fn blocks_that_stay_side_by_side_are_few_copies() {
    let manager = manager("no-peer");
    round(&manager, 10, &["cpu:0/pinned", "cuda:0", "cpu:0/pinned"]);
    let len = 4 * KIB;
    for (from, to) in [("cpu:0/pageable", "cuda:0"), ("cuda:0", "cpu:0/pageable")] {
        let bytes = pattern(COUNT * len, 3);
        let source = at(&manager, from, COUNT * len);
        manager.copy_from_slice(&bytes, &source).unwrap();
        let target = at(&manager, to, COUNT * len);
        let requests = blocks(&source, &target, len, |place| place);
        run(&manager, &requests);
        let to_a_slot = manager.explain(&requests[0]).unwrap().chosen.lanes[0].to_a_slot;
        let done = run(&manager, &requests);
        // Only blocks of two slots in one round are two copies, which go together.
        assert!(
            done.batches < COUNT.div_ceil(to_a_slot),
            "{from}: {} batches",
            done.batches
        );
        assert!(done.singles <= COUNT / 4, "{from}: {} copies", done.singles);
        let mut back = vec![0; bytes.len()];
        manager.copy_into_slice(&target, &mut back).unwrap();
        assert!(back == bytes);
    }
    drop(manager);
    assert_clean();
}

/// Runs transfers of mixed sizes, ways and ends under a small budget, with `fault` in the middle. Returns the numbers
/// of transfers that arrived, that failed, and that were over before the fault.
fn mixed(seed: u64, fault: &str) -> [usize; 3] {
    let budget = Arc::new(StagingBudget::new(1 << 20));
    let settings = [("TOPOLOGY", &*described("no-peer"))];
    let manager = builder(&settings)
        .staging(Arc::clone(&budget))
        .build()
        .unwrap();
    round(&manager, 10, &["cpu:0/pinned", "cuda:0", "cpu:0/pinned"]);
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut ends = Vec::new();
    for number in 0..300 {
        let len = match dice.below(10) {
            0 => 1 + dice.below(600 * KIB),
            1 => 4096 * (1 + dice.below(16)),
            _ => 1 + dice.below(10_000),
        };
        let sent = pattern(len, number + 1);
        let near = manager.adopt(sent.clone()).unwrap();
        let far = at(&manager, "cuda:0", len);
        let back = manager.adopt(vec![0u8; len as usize]).unwrap();
        ends.push((near, far, back, sent));
    }
    let mut first = 0;
    let mut running: Vec<(Transfer, Transfer, Buffer, Vec<u8>)> = Vec::new();
    for (number, (near, far, back, sent)) in ends.into_iter().enumerate() {
        if number == 100 {
            // The first transfers have had their slots.
            first = running.len();
            for (_, home, ..) in &running {
                while !home.is_over() {
                    std::thread::yield_now();
                }
            }
            control(fault).unwrap();
        }
        let out = manager.copy(&near, &far);
        let home = manager.copy(&far, &back);
        match dice.below(6) {
            0 => drop(out),
            1 => drop(out.cancel()),
            2 => drop(home),
            _ => running.push((out, home, back, sent)),
        }
        assert!(budget.used_bytes() <= budget.limit_bytes());
    }
    let mut ended = [0, 0];
    for (out, home, back, sent) in running {
        let is_there = match (out.wait(), home.wait()) {
            (Ok(_), Ok(_)) => {
                assert!(
                    *back.read().unwrap() == *sent,
                    "{seed}: {} bytes",
                    sent.len()
                );
                true
            }
            _ => false,
        };
        ended[usize::from(!is_there)] += 1;
    }
    manager.wait_idle();
    manager.clear_cache();
    assert_eq!(budget.used_bytes(), 0, "{seed}");
    assert!(budget.peak_bytes() <= budget.limit_bytes());
    [ended[0], ended[1], first]
}

#[test]
fn transfers_that_are_let_go_take_nothing_of_their_neighbours_with_them() {
    let [arrived, failed, _] = mixed(1, "fault none");
    assert!(arrived > 100, "{arrived}");
    assert_eq!(failed, 0);
    assert_clean();
}

#[test]
fn slots_that_cannot_be_locked_leave_the_others_as_they_are() {
    let [arrived, _, first] = mixed(2, "fault call=cuMemHostRegister_v2:2@1+");
    assert!(first > 30 && arrived >= first, "{arrived} of {first}");
    assert_clean();
}

#[test]
fn a_ruined_context_ends_them_all_and_no_slot_stays_leased() {
    // The driver frees nothing in such a context.
    let [_, failed, _] = mixed(3, "fault ecc@40");
    assert!(failed > 0, "nothing noticed");
}
