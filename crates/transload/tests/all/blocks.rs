//! Blocks that a list names: gathered, scattered and moved about, against a model.

use std::ops::Range;
use std::sync::Arc;

use transload::{
    AllocSpec, Buffer, Region, RegionError, Request, Shape, StagingBudget, TransferError,
    TransferManager,
};
use transload_testkit::sim::{Completion, Rule};

use super::dice::Dice;
use super::fixture::{Fixture, bytes, without_peers};

fn at(manager: &TransferManager, place: &str, len: usize) -> Buffer {
    let spec = AllocSpec::bytes(len as u64);
    manager.allocate(place.parse().unwrap(), spec).unwrap()
}

fn filled(manager: &TransferManager, place: &str, bytes: &[u8]) -> Buffer {
    let buffer = at(manager, place, bytes.len());
    manager.copy_from_slice(bytes, &buffer).unwrap();
    buffer
}

/// The first `count` numbers below `end`, in a scrambled order.
fn scrambled(dice: &mut Dice, end: u32, count: usize) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..end).collect();
    for at in (1..numbers.len()).rev() {
        numbers.swap(at, dice.below(at as u64 + 1) as usize);
    }
    numbers.truncate(count);
    numbers
}

/// The bytes of a block.
fn of(bytes: &[u8], block: usize, number: u32) -> &[u8] {
    &bytes[number as usize * block..][..block]
}

fn gathered(from: &[u8], block: usize, numbers: &[u32]) -> Vec<u8> {
    let blocks = numbers.iter().map(|number| of(from, block, *number));
    blocks.flatten().copied().collect()
}

fn scatter(payload: &[u8], to: &mut [u8], block: usize, numbers: &[u32]) {
    for (payload, number) in payload.chunks(block).zip(numbers) {
        to[*number as usize * block..][..block].copy_from_slice(payload);
    }
}

/// Moves blocks between two places in each way, and checks all bytes of the destination.
pub(crate) fn move_blocks(manager: &TransferManager, from: &str, to: &str, block: usize) {
    const POOL: u32 = 400;
    let mut dice = Dice(block as u64 * 77 + 1);
    let pool = POOL as usize * block;
    let (first, second) = (bytes(pool, 1), bytes(pool, 2));
    let src = filled(manager, from, &first);
    let mut numbers = scrambled(&mut dice, POOL, 300);
    let region =
        |buffer: &Buffer, numbers: &[u32]| Region::blocks(buffer, block as u64, numbers).unwrap();
    let check = |dst: &Buffer, wanted: &[u8], what: &str| {
        let found = manager.read_to_vec(dst).unwrap();
        assert!(found == wanted, "{what} of {block} bytes, {from} to {to}");
    };

    // A scatter over a pool whose other blocks stay, prepared and repeated.
    let mut wanted = second.clone();
    let dst = filled(manager, to, &second);
    scatter(&first[..300 * block], &mut wanted, block, &numbers);
    let payload = src.slice(..300 * block as u64).unwrap();
    let request = Request::new(&payload, region(&dst, &numbers));
    let prepared = manager.prepare(&request).unwrap();
    for _ in 0..3 {
        manager.copy_from_slice(&second, &dst).unwrap();
        let report = prepared.post().wait().unwrap();
        assert_eq!(report.bytes(), 300 * block as u64);
        check(&dst, &wanted, "scatter");
    }

    // From blocks to other blocks.
    let others = scrambled(&mut dice, POOL, 300);
    let mut wanted = second.clone();
    scatter(
        &gathered(&first, block, &numbers),
        &mut wanted,
        block,
        &others,
    );
    manager.copy_from_slice(&second, &dst).unwrap();
    let copied = manager.copy(region(&src, &numbers), region(&dst, &others));
    copied.wait().unwrap();
    check(&dst, &wanted, "blocks to blocks");

    // A gather, which may name a block twice.
    numbers.extend_from_within(..50);
    let dst = at(manager, to, 350 * block);
    manager.copy(region(&src, &numbers), &dst).wait().unwrap();
    check(&dst, &gathered(&first, block, &numbers), "gather");

    // A gather into rows with gaps.
    let rows = Shape::pitched(70 * block as u64, 5, 77 * block as u64).unwrap();
    let before = bytes(rows.extent_bytes() as usize, 3);
    let dst = filled(manager, to, &before);
    let mut wanted = before;
    let payload = gathered(&first, block, &numbers);
    for (row, payload) in payload.chunks(70 * block).enumerate() {
        wanted[row * 77 * block..][..payload.len()].copy_from_slice(payload);
    }
    let into = Region::new(&dst, 0, rows).unwrap();
    manager.copy(region(&src, &numbers), into).wait().unwrap();
    check(&dst, &wanted, "gather into rows");

    // Within one pool, to blocks that are in no list of the source.
    let dst = filled(manager, to, &first);
    let (from_numbers, to_numbers) = (&numbers[..100], &numbers[100..200]);
    let mut wanted = first.clone();
    scatter(
        &gathered(&first, block, from_numbers),
        &mut wanted,
        block,
        to_numbers,
    );
    let moved = manager.copy(region(&dst, from_numbers), region(&dst, to_numbers));
    moved.wait().unwrap();
    check(&dst, &wanted, "blocks within a pool");
    move_spans(manager, from, to, block);
}

/// Moves pieces of unequal size, none of them, and some that adjoin, between two places.
fn move_spans(manager: &TransferManager, from: &str, to: &str, most: usize) {
    let mut dice = Dice(most as u64 * 31 + 5);
    let mut spans = |count: usize| -> (Vec<Range<u64>>, u64) {
        let mut at = 0;
        let apart = (0..count).map(|_| {
            let begin = at + dice.below(3) * 5;
            at = begin + dice.below(most as u64 + 1);
            begin..at
        });
        (apart.collect(), at)
    };
    let (mut taken, src_len) = spans(300);
    // In any order, and one of them twice.
    taken.reverse();
    taken.push(taken[7].clone());
    let payload_len: u64 = taken.iter().map(|span| span.end - span.start).sum();
    let first = bytes(src_len as usize, 4);
    let src = filled(manager, from, &first);
    let payload: Vec<u8> = { taken.iter() }
        .flat_map(|span| &first[span.start as usize..span.end as usize])
        .copied()
        .collect();
    let dst = at(manager, to, payload_len as usize);
    let gather = Region::spans(&src, &taken).unwrap();
    manager.copy(gather.clone(), &dst).wait().unwrap();
    assert!(
        manager.read_to_vec(&dst).unwrap() == payload,
        "gather, {from} to {to}"
    );

    let (mut given, _) = spans(300);
    let given_len: u64 = given.iter().map(|span| span.end - span.start).sum();
    let end = given.last().unwrap().end;
    match payload_len.checked_sub(given_len) {
        Some(missing) => given.push(end..end + missing),
        None => {
            let mut over = given_len - payload_len;
            for span in given.iter_mut().rev() {
                let less = over.min(span.end - span.start);
                span.end -= less;
                over -= less;
            }
        }
    }
    let dst_len = given.last().unwrap().end.max(end);
    let mut wanted = bytes(dst_len as usize, 5);
    let dst = filled(manager, to, &wanted);
    let mut left = &payload[..];
    for span in &given {
        let (piece, rest) = left.split_at((span.end - span.start) as usize);
        wanted[span.start as usize..span.end as usize].copy_from_slice(piece);
        left = rest;
    }
    let scatter = Region::spans(&dst, &given).unwrap();
    manager.copy(gather, scatter).wait().unwrap();
    assert!(
        manager.read_to_vec(&dst).unwrap() == wanted,
        "spans to spans, {from} to {to}"
    );
}

#[test]
fn the_hosts_memories_exchange_blocks() {
    let manager = TransferManager::builder().host().build().unwrap();
    let places = ["cpu:0", "cpu:0/shared"];
    for (from, to) in places.iter().flat_map(|from| places.map(|to| (from, to))) {
        for block in [1, 37, 4096, 20_000] {
            move_blocks(&manager, from, to, block);
        }
    }
}

#[test]
fn blocks_pass_direct_links_and_slots_in_each_completion_mode() {
    for completion in Completion::all() {
        if let Completion::Never = completion {
            continue;
        }
        let fixture = Fixture::new(&without_peers(2), completion, 64 << 20);
        for (from, to) in [
            ("cpu:0/pageable", "sim:0"),
            ("sim:0", "sim:1"),
            ("sim:1", "cpu:0/pinned"),
        ] {
            move_blocks(&fixture.manager, from, to, 10_007);
        }
    }
}

#[cfg(not(any(loom, transload_local)))]
#[test]
fn adapters_exchange_blocks_with_the_host() {
    let adapters = transload_wgpu::Wgpu::discover();
    if adapters.is_empty() {
        return super::adapter::skip();
    }
    let manager = TransferManager::builder()
        .host()
        .backend(Arc::new(adapters));
    let manager = manager.build().unwrap();
    for (from, to) in [
        ("cpu:0", "wgpu:0"),
        ("wgpu:0", "cpu:0/shared"),
        ("wgpu:0", "wgpu:0"),
    ] {
        for block in [4096, 1027] {
            move_blocks(&manager, from, to, block);
        }
    }
}

#[test]
fn files_give_and_take_blocks() {
    let manager = TransferManager::builder().host().build().unwrap();
    let folder = std::env::temp_dir().join(format!("transload-blocks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let pool = bytes(64 * 5000, 1);
    let path = folder.join("pool");
    std::fs::write(&path, &pool).unwrap();
    let file = manager.open_file(&path).unwrap();
    let numbers = scrambled(&mut Dice(5), 64, 40);
    let region = Region::blocks(&file, 5000, &numbers).unwrap();
    assert!(manager.read_to_vec(region).unwrap() == gathered(&pool, 5000, &numbers));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_list_of_blocks_is_one_operation_where_no_slot_is_between() {
    let manager = TransferManager::builder()
        .host()
        .trace(true)
        .build()
        .unwrap();
    let src = at(&manager, "cpu:0", 20_000 * 4096);
    let dst = at(&manager, "cpu:0", 15_000 * 4096);
    let numbers = scrambled(&mut Dice(9), 20_000, 15_000);
    let region = Region::blocks(&src, 4096, &numbers).unwrap();
    manager.copy(region, &dst).wait().unwrap();
    let trace = manager.take_trace().to_string();
    assert_eq!(trace.matches("\"submit: host\"").count(), 1, "{trace}");
    assert!(trace.contains("\"bytes\":61440000"), "{trace}");
}

#[test]
fn a_way_that_fails_leaves_the_blocks_to_another_one() {
    let fixture = Fixture::new(&without_peers(1), Completion::Timed, 64 << 20);
    let manager = &fixture.manager;
    let pool = bytes(4000 * 4096, 1);
    let src = filled(manager, "cpu:0/pageable", &pool);
    let dst = at(manager, "sim:0", 3000 * 4096);
    let numbers = scrambled(&mut Dice(3), 4000, 3000);
    let memory = |name: &str| name.parse().unwrap();
    let slots = (memory("cpu:0/pinned"), memory("sim:0/device"));
    fixture
        .sim
        .add_rule(Rule::fail_after(100).over(slots.0, slots.1).nth(4));
    let region = Region::blocks(&src, 4096, &numbers).unwrap();
    let report = manager.copy(region, &dst).wait().unwrap();
    assert_eq!(report.fallbacks().len(), 1);
    assert!(fixture.bytes_of(&dst) == gathered(&pool, 4096, &numbers));
}

#[test]
fn lists_that_name_what_is_not_there_or_twice_are_refused() {
    let manager = TransferManager::builder()
        .host()
        .staging(Arc::new(StagingBudget::new(1 << 20)))
        .build()
        .unwrap();
    let pool = manager.adopt(vec![0u8; 10_000]).unwrap();
    let blocks = |block_bytes, numbers: &[u32]| Region::blocks(&pool, block_bytes, numbers);
    let refused = |result: Result<Region, RegionError>| result.unwrap_err().to_string();
    assert_eq!(
        refused(blocks(1000, &[3, 10, 4])),
        "there is no block 10: a buffer in cpu:0/pageable has 10 blocks of 1000 bytes, from block 0 on"
    );
    assert_eq!(
        refused(blocks(0, &[0])),
        "blocks of 0 bytes in cpu:0/pageable"
    );
    assert!(blocks(10_001, &[0]).is_err() && blocks(1000, &[u32::MAX]).is_err());

    let dst = manager.adopt(vec![0u8; 3000]).unwrap();
    let copy = |src: Region, dst: Region| manager.copy(src, dst).wait();
    let twice = copy((&dst).into(), blocks(1000, &[3, 7, 3]).unwrap()).unwrap_err();
    assert_eq!(
        twice.to_string(),
        "the destination has 1000 bytes from byte 3000 on of a buffer in cpu:0/pageable twice"
    );
    let spans = |spans: &[Range<u64>]| Region::spans(&pool, spans);
    let twice = copy(
        dst.slice(..40).unwrap().into(),
        spans(&[50..60, 0..20, 15..25]).unwrap(),
    );
    assert_eq!(
        twice.unwrap_err().to_string(),
        "the destination has 5 bytes from byte 15 on of a buffer in cpu:0/pageable twice"
    );
    assert_eq!(
        refused(spans(&[0..1, 9_999..10_001])),
        "2 bytes from offset 9999 on end past the buffer's 10000 bytes in cpu:0/pageable"
    );
    let (end, start) = (3, 5);
    assert!(refused(spans(&[0..1, start..end])).contains('3'));
    let far = spans(&[0..u64::MAX, 0..u64::MAX]);
    assert!(matches!(far, Err(RegionError::OutOfBounds { .. })));
    let meets = copy(
        blocks(1000, &[0, 1]).unwrap(),
        blocks(500, &[5, 7, 3, 9]).unwrap(),
    );
    assert!(
        matches!(meets, Err(TransferError::Overlap { .. })),
        "{meets:?}"
    );
    copy(
        blocks(1000, &[0, 1]).unwrap(),
        blocks(500, &[5, 7, 4, 9]).unwrap(),
    )
    .unwrap();
    let short = copy(blocks(1000, &[0, 1]).unwrap(), (&dst).into());
    assert!(
        matches!(short, Err(TransferError::LengthMismatch { .. })),
        "{short:?}"
    );
    let request = Request::new(blocks(1000, &[0, 1, 2]).unwrap(), &dst).verify();
    assert_eq!(manager.submit(&request).wait().unwrap().bytes(), 3000);
    let none = copy(blocks(1000, &[]).unwrap(), dst.slice(..0).unwrap().into());
    assert_eq!(none.unwrap().bytes(), 0);
}
