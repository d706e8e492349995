use proptest::prelude::*;

use super::{Store, copy, copy_overlapping, overlaps};

pub(super) const GUARD: u8 = 0xA5;

/// Bytes that differ from their neighbours and from the guard's pattern often enough to notice shifts:
/// a linear congruential sequence (Knuth's multiplier), eight bytes a step, since debug builds are slow.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut word = 1u64;
    for chunk in bytes.chunks_mut(8) {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        chunk.copy_from_slice(&word.to_be_bytes()[..chunk.len()]);
    }
    bytes
}

/// Copies `len` bytes at the given offsets by `store` and compares all of the destination, guards
/// included, with what slices do.
fn check(store: Store, src_at: usize, dst_at: usize, len: usize) {
    let src = pattern(src_at + len);
    let mut dst = vec![GUARD; dst_at + len + 64];
    let mut model = dst.clone();
    model[dst_at..dst_at + len].copy_from_slice(&src[src_at..]);
    let (to, from) = (
        dst.as_mut_ptr().wrapping_add(dst_at),
        src.as_ptr().wrapping_add(src_at),
    );
    // SAFETY: both vectors were sized for the offsets and the length.
    unsafe { copy(to, from, len, store) };
    assert!(dst == model, "{store:?}: {src_at} -> {dst_at}, {len} bytes");
}

#[test]
fn every_store_kind_copies_every_small_length_at_every_offset() {
    for &store in Store::available() {
        for len in 0..300 {
            for at in 0..64 {
                check(store, at, (at * 7 + len) % 64, len);
                check(store, (at * 11 + len) % 64, at, len);
            }
        }
    }
}

#[test]
fn every_store_kind_copies_at_every_distance_modulo_a_page() {
    for &store in Store::available() {
        for distance in (0..100).chain(4000..4100) {
            check(store, 0, distance, 5000);
            check(store, distance, 0, 5000);
        }
    }
}

#[test]
fn every_store_kind_copies_around_block_and_page_edges() {
    for &store in Store::available() {
        for base in [256, 512, 1024, 4096, 8192, 65_536] {
            for len in base - 65..=base + 65 {
                check(store, len % 64, (len * 3) % 64, len);
                check(store, 0, 0, len);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn every_block_loop_of_this_processor_copies_its_blocks() {
    #[repr(align(64))]
    struct Lines([u8; 4096]);
    for (name, blocks) in super::x86_64::all_loops() {
        for len in (256..=3072).step_by(256) {
            for src_at in [0, 1, 31, 64] {
                let src = pattern(4096);
                let mut dst = Box::new(Lines([GUARD; 4096]));
                let mut model = [GUARD; 4096];
                model[512..512 + len].copy_from_slice(&src[src_at..src_at + len]);
                let to = dst.0.as_mut_ptr().wrapping_add(512);
                // SAFETY: the destination is line-aligned, the length a multiple of 256, both in bounds.
                unsafe { blocks(to, src.as_ptr().wrapping_add(src_at), len) };
                assert!(dst.0 == model, "{name}: {len} bytes from {src_at}");
            }
        }
    }
}

#[test]
fn an_overlapping_copy_equals_one_through_a_temporary_in_both_directions() {
    for len in [0usize, 1, 2, 63, 64, 65, 255, 4097] {
        for shift in [0usize, 1, 7, 64, 300] {
            for (src_at, dst_at) in [(0, shift), (shift, 0)] {
                let mut bytes = pattern(len + 400);
                let mut model = bytes.clone();
                model.copy_within(src_at..src_at + len, dst_at);
                let base = bytes.as_mut_ptr();
                // SAFETY: offset and length lie inside the vector.
                unsafe {
                    copy_overlapping(base.wrapping_add(dst_at), base.wrapping_add(src_at), len)
                };
                assert!(bytes == model, "{src_at} -> {dst_at}, {len} bytes");
            }
        }
    }
}

#[test]
fn overlap_is_seen_only_where_a_byte_is_shared() {
    let bytes = [0u8; 64];
    let at = |offset| bytes.as_ptr().wrapping_add(offset);
    assert!(overlaps(at(0), 8, at(7), 8));
    assert!(!overlaps(at(0), 8, at(8), 8));
    assert!(!overlaps(at(4), 0, at(0), 8));
    assert!(overlaps(at(2), 1, at(0), 8));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn large_copies_equal_the_model(
        len in 0usize..1 << 20, src_at in 0usize..64, dst_at in 0usize..64, kind in 0usize..3,
    ) {
        let kinds = Store::available();
        check(kinds[kind % kinds.len()], src_at, dst_at, len);
    }
}
