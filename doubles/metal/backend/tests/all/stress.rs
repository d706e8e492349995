//! Ten thousand transfers, many of them dropped or cancelled: right bytes, and nothing left.

use crate::common;

use common::dice::Dice;
use common::engine::{allocate, manager, odd, paged, read};
use common::{assert_clean, pattern};
use transload::{Buffer, Transfer};
use transload_metal_double::Device;

const TRANSFERS: u64 = 10_000;
const LEN: usize = 40_000;

#[test]
fn ten_thousand_transfers_with_drops_and_cancels_leave_nothing() {
    let manager = manager(vec![Device::unified(), Device::discrete()]);
    let bytes = pattern(LEN);
    let places = [
        "metal:0/mapped",
        "metal:0/device",
        "metal:1/device",
        "metal:1/managed",
        "metal:1/mapped",
    ];
    let mut buffers: Vec<Buffer> = Vec::new();
    for place in places {
        for _ in 0..2 {
            let buffer = allocate(&manager, place, LEN);
            manager.copy_from_slice(&bytes, &buffer).unwrap();
            buffers.push(buffer);
        }
    }
    buffers.extend([odd(&manager, &bytes), paged(&manager, &bytes)]);
    let mut dice = Dice(0x5EED);
    let mut waiting: Vec<Transfer> = Vec::new();
    let (mut dropped, mut cancelled, mut awaited) = (0, 0, 0);
    for _ in 0..TRANSFERS {
        let from = dice.below(buffers.len() as u64) as usize;
        let to = dice.below(buffers.len() as u64) as usize;
        // The same bytes of another buffer, so that they are right whatever was done of all this.
        let at = dice.below(LEN as u64 - 1);
        let len = 1 + dice.below(LEN as u64 - at);
        let part = |number: usize| buffers[number].slice(at..at + len).unwrap();
        if from == to {
            continue;
        }
        let transfer = manager.copy(part(from), part(to));
        match dice.below(4) {
            0 => {
                drop(transfer);
                dropped += 1;
            }
            1 => {
                let _ = transfer.cancel();
                cancelled += 1;
            }
            _ => waiting.push(transfer),
        }
        if waiting.len() >= 32 {
            for transfer in waiting.drain(..) {
                transfer.wait().unwrap();
                awaited += 1;
            }
        }
    }
    for transfer in waiting.drain(..) {
        transfer.wait().unwrap();
        awaited += 1;
    }
    manager.wait_idle();
    assert!(dropped > 1000 && cancelled > 1000 && awaited > 3000);
    for buffer in &buffers {
        let place = buffer.memory();
        assert!(read(&manager, buffer) == bytes, "{place}");
    }
    drop(buffers);
    drop(manager);
    assert_clean();
}
