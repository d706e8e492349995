//! Many small blocks in one batch.

use transload::{Buffer, Method, OnFailure, Region, Request, TransferManager};

use crate::blocks::move_blocks;
use crate::cuda::machine::{assert_clean, at, calls, manager, pattern, round};

const COUNT: u64 = 2000;
const BLOCK: u64 = 4096;

/// Copies every second block of one buffer to consecutive places in the other.
fn blocks(from: &Buffer, to: &Buffer) -> Vec<Request> {
    let region = |buffer: &Buffer, at: u64| Region::from(buffer.slice(at..at + BLOCK).unwrap());
    (0..COUNT)
        .map(|number| Request::new(region(from, number * 2 * BLOCK), region(to, number * BLOCK)))
        .collect()
}

fn gathered(bytes: &[u8]) -> Vec<u8> {
    let chunks = bytes.chunks(BLOCK as usize).step_by(2);
    chunks.flatten().copied().collect()
}

/// Sends all blocks in one batch and checks the bytes. Returns the numbers of recorded events, of batches and of single
/// copies.
fn send(manager: &TransferManager, from: &str, method: Method) -> [u64; 3] {
    let bytes = pattern(2 * COUNT * BLOCK, 1);
    let source = at(manager, from, 2 * COUNT * BLOCK);
    manager.copy_from_slice(&bytes, &source).unwrap();
    let far = at(manager, "cuda:0", COUNT * BLOCK);
    let count = || {
        [
            "cuEventRecord",
            "cuMemcpyBatchAsync_v2",
            "cuMemcpyHtoDAsync_v2",
        ]
        .map(calls)
    };
    let before = count();
    let batch = manager
        .copy_batch(&blocks(&source, &far), OnFailure::GoOn)
        .unwrap();
    for report in batch.wait() {
        assert_eq!(report.unwrap().method(), method);
    }
    let after = count();
    let mut back = vec![0; (COUNT * BLOCK) as usize];
    manager.copy_into_slice(&far, &mut back).unwrap();
    assert!(back == gathered(&bytes));
    [0, 1, 2].map(|of| after[of] - before[of])
}

#[test]
fn small_blocks_of_pinned_memory_are_ordered_many_at_a_time() {
    let manager = manager("no-peer");
    // This round proves the links.
    round(&manager, 10, &["cpu:0/pinned", "cuda:0", "cpu:0/pinned"]);
    let [events, batches, single] = send(&manager, "cpu:0/pinned", Method::ZeroCopy);
    assert!(events <= COUNT / 16, "{events} events for {COUNT} blocks");
    assert!((1..=events).contains(&batches), "{batches}");
    assert!(single < COUNT / 16, "{single}");
    drop(manager);
    assert_clean();
}

#[test]
fn small_blocks_of_pageable_memory_arrive_by_way_of_slots() {
    let manager = manager("no-peer");
    round(&manager, 10, &["cpu:0/pinned", "cuda:0", "cpu:0/pinned"]);
    let [events, ..] = send(&manager, "cpu:0/pageable", Method::HostStaged);
    println!("{events} events for {COUNT} blocks");
    assert!(events < COUNT, "none were ordered together");
    drop(manager);
    assert_clean();
}

#[test]
fn a_list_of_blocks_is_ordered_in_few_calls() {
    let manager = manager("no-peer");
    round(&manager, 10, &["cpu:0/pinned", "cuda:0", "cpu:0/pinned"]);
    for (from, to) in [
        ("cpu:0/pinned", "cuda:0"),
        ("cuda:0", "cpu:0"),
        ("cuda:0", "cuda:0"),
    ] {
        move_blocks(&manager, from, to, 4096);
    }
    let pool = at(&manager, "cpu:0/pinned", 2 * COUNT * BLOCK);
    let far = at(&manager, "cuda:0", COUNT * BLOCK);
    let numbers: Vec<u32> = (0..COUNT as u32).map(|number| 2 * number).collect();
    let every_second = Region::blocks(&pool, BLOCK, &numbers).unwrap();
    let before = calls("cuEventRecord");
    manager.copy(every_second, &far).wait().unwrap();
    let events = calls("cuEventRecord") - before;
    assert!(events <= 2, "{events} events for {COUNT} blocks");
    drop((pool, far, manager));
    assert_clean();
}
