//! Memory use after ten thousand transfers.

use transload::Buffer;

use crate::adapters::machine::{Adapter, Adapters, alone, pattern};

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Sizes and offsets of all kinds: whole words, parts of them, a few slots.
const TURNS: [(u64, u64); 4] = [(4096, 0), (4093, 1), (64, 2), (70_000, 0)];

/// Copies up and down again, both into fresh buffers.
fn turn(adapters: &Adapters, on: &Adapter, sent: &Buffer, number: usize) {
    let (len, at) = TURNS[number % TURNS.len()];
    let there = adapters.buffer(on, len);
    let src = sent.slice(at..at + len).unwrap();
    adapters.manager.copy(&src, &there).wait().unwrap();
    let back = adapters.manager.adopt(vec![0u8; len as usize]).unwrap();
    adapters.manager.copy(&there, &back).wait().unwrap();
    // The test compares one turn in a hundred: a comparison takes longer than the copy.
    if number.is_multiple_of(100) {
        assert!(*back.read().unwrap() == *src.read().unwrap());
    }
}

#[test]
fn ten_thousand_transfers_leave_nothing_behind() {
    if !alone(
        "adapters::leaks::ten_thousand_transfers_leave_nothing_behind",
        "",
    ) {
        return;
    }
    let Some(adapters) = Adapters::open(1) else {
        return;
    };
    let sent = adapters.manager.adopt(pattern(1 << 17, 6)).unwrap();
    for adapter in &adapters.all {
        let turns = 5000 / adapters.all.len();
        for number in 0..turns / 5 {
            turn(&adapters, adapter, &sent, number);
        }
        let given = adapter.allocated_bytes();
        let before = resident();
        for number in 0..turns {
            turn(&adapters, adapter, &sent, number);
        }
        let after = resident();
        println!(
            "{adapter:?}: resident {before} then {after} bytes after {} transfers",
            2 * turns
        );
        assert!(
            after < before + MOST,
            "{adapter:?}: {before} to {after} bytes"
        );
        assert_eq!(adapter.allocated_bytes(), given, "{adapter:?}");
    }
}

/// One hundredth of the bytes that were copied.
const MOST: u64 = 2 << 20;
