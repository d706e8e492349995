//! What runs for every transfer allocates nothing once it is warm.

use transload_core::{Footprint, Hazards, Shape, StorageId};

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
                hazards.leave(ticket, &mut |ticket| freed.push(ticket));
            }
        }
    };
    churn(2);
    let allocations = allocation_counter::measure(|| churn(100));
    assert_eq!(allocations.count_total, 0);
}

fn footprint(position: u64, writes: bool) -> Footprint {
    Footprint::new(StorageId::Host, position, Shape::contiguous(4096), writes).unwrap()
}
