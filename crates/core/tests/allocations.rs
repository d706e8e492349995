//! The code that runs for every transfer allocates nothing in a steady state.

use transload_core::stats::{Sample, Stats};
use transload_core::{DeviceId, Footprint, Hazards, MemoryKind, Method, Shape, StorageId};

#[test]
fn hazards_allocate_nothing_below_their_high_water_mark() {
    let mut hazards = Hazards::new();
    let mut live = Vec::with_capacity(64);
    let mut freed = Vec::with_capacity(64);
    let mut churn = |rounds: u64| {
        for round in 0..rounds {
            while live.len() < 64 {
                let i = live.len() as u64;
                // Half of them conflict, and the order of their starts changes with the round.
                let position = (i * 7919 + round * 104_729) % 64 * 4096;
                let src = footprint(position, false);
                let dst = footprint(position + 4096 * (i % 2), true);
                live.push(hazards.enter(&[src, dst]).ticket);
            }
            while let Some(ticket) = live.pop() {
                freed.clear();
                hazards.leave(ticket);
                let mut looks = usize::MAX;
                freed.extend(core::iter::from_fn(|| hazards.poll_freed(&mut looks)));
            }
        }
    };
    churn(2);
    let allocations = allocation_counter::measure(|| churn(100));
    assert_eq!(allocations.count_total, 0);
}

#[test]
fn statistics_allocate_for_the_first_sample_of_a_path_and_class_only() {
    let mut stats = Stats::new();
    let sample = |bytes, duration_ns| Sample {
        src: DeviceId::CPU0.memory(MemoryKind::Pageable),
        dst: DeviceId::CPU0.memory(MemoryKind::Shared),
        method: Method::DirectCopy,
        bytes,
        duration_ns,
        fallbacks: 0,
        failed: false,
    };
    stats.record(&sample(4096, 0));
    stats.record(&sample(8192, 0));
    let allocations = allocation_counter::measure(|| {
        for i in 0..10_000 {
            stats.record(&sample(4096 + i % 8192, i.pow(4)));
        }
    });
    assert_eq!(allocations.count_total, 0);
}

fn footprint(position: u64, writes: bool) -> Footprint {
    Footprint::new(StorageId::Host, position, Shape::contiguous(4096), writes).unwrap()
}
