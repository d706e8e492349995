//! All kinds of work at once: many threads, both devices, with few and with many slots.

use std::sync::Arc;

use transload::StagingBudget;

use crate::cuda::machine::{assert_clean, builder, described};
use crate::every_way as parties;

fn run(topology: &str, budget_bytes: u64, is_unaided: bool) {
    let budget = Arc::new(StagingBudget::new(budget_bytes));
    let manager = builder(&[("TOPOLOGY", &described(topology))])
        .staging(Arc::clone(&budget))
        .build()
        .unwrap();
    let places = ["cpu:0/pinned", "cpu:0", "cuda:0", "cuda:1"];
    parties::all(&manager, budget_bytes, &places, (4, 60), is_unaided);
    manager.clear_cache();
    assert_eq!(budget.used_bytes(), 0);
    drop(manager);
    assert_clean();
}

#[test]
fn threads_do_everything_at_once_with_few_slots() {
    run("no-peer", 512 << 10, false);
}

#[test]
fn threads_do_everything_at_once_with_many_slots() {
    run("pcie-peer", 32 << 20, true);
}
