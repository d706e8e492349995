//! Copies for x86-64: a loop of our own, string moves, streaming stores.

mod loops;

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};

use super::plain::copy_plain;
use loops::{BLOCK, BlockLoop, LINE};

/// Copies `len` bytes between disjoint ranges through the caches.
///
/// From 2 KiB on by a loop of our own: there the C library on Linux turns to string moves, which on some
/// processors are fifteen times slower at unlucky distances between source and destination (see
/// [`copy_rep`]). The loop has none of these, and was a little faster at all other distances too: 117 to
/// 100 GB/s at 4 KiB.
///
/// # Safety
/// As for [`super::copy`].
#[inline]
pub(super) unsafe fn copy_cached(dst: *mut u8, src: *const u8, len: usize) {
    // The detection macro caches its answer: one relaxed load.
    if len < OWN_FROM_BYTES || !std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the caller's contract is the callee's contract.
        return unsafe { copy_plain(dst, src, len) };
    }
    // SAFETY: the caller's contract; the processor has AVX.
    unsafe { copy_in_blocks(dst, src, len, loops::cache_avx) }
}

/// Where our own loop takes over: at or below where C libraries start to use string moves (2112 bytes in
/// glibc 2.36 on the EPYC).
const OWN_FROM_BYTES: usize = 2048;

/// Copies `len` bytes between disjoint ranges with streaming stores; any length, any alignment.
///
/// The head up to the destination's first cache line and the tail behind the last block go through the
/// caches.
///
/// # Safety
/// As for [`super::copy`].
pub(super) unsafe fn copy_streaming(dst: *mut u8, src: *const u8, len: usize) {
    let blocks = if std::arch::is_x86_feature_detected!("avx512f") {
        loops::stream_avx512
    } else if std::arch::is_x86_feature_detected!("avx") {
        loops::stream_avx
    } else {
        loops::stream_sse2 as BlockLoop
    };
    // SAFETY: the caller's contract; the processor runs that loop.
    unsafe { copy_in_blocks(dst, src, len, blocks) }
}

/// Copies the whole blocks by a loop, what comes before the first line of the destination and behind the
/// last block by the platform.
///
/// # Safety
/// As for [`super::copy`], on a processor that runs the loop.
#[inline]
unsafe fn copy_in_blocks(dst: *mut u8, src: *const u8, len: usize, blocks: BlockLoop) {
    let head = dst.align_offset(LINE).min(len);
    let body = (len - head) / BLOCK * BLOCK;
    let tail = len - head - body;
    if body == 0 {
        // SAFETY: the caller's contract covers the whole range.
        return unsafe { copy_plain(dst, src, len) };
    }
    // SAFETY: `head <= len`, so the sub-range is inside the caller's range.
    unsafe { copy_plain(dst, src, head) };
    let at = dst.wrapping_add(head);
    let from = src.wrapping_add(head);
    // SAFETY: `at` is line-aligned, `body` is a positive multiple of BLOCK, and `head + body <= len`.
    unsafe { blocks(at, from, body) };
    let at = at.wrapping_add(body);
    let from = from.wrapping_add(body);
    // SAFETY: `head + body + tail == len`, so the sub-range is inside the caller's range.
    unsafe { copy_plain(at, from, tail) };
}

/// Copies `len` bytes between disjoint ranges with `rep movsb` where the two lie to each other so that it
/// is fast, and with [`copy_cached`] elsewhere.
///
/// Measured on an AMD EPYC (family 25, model 17): with the destination 1 to 15 bytes behind the source,
/// modulo a page, string moves fall from 50 to 3.5 GB/s; at other distances that are no multiple of 32
/// they lose up to half to a plain loop.
///
/// # Safety
/// As for [`super::copy`].
pub(super) unsafe fn copy_rep(dst: *mut u8, src: *const u8, len: usize) {
    if !(dst as usize)
        .wrapping_sub(src as usize)
        .is_multiple_of(REP_GRAIN)
    {
        // SAFETY: the caller's contract is the callee's contract.
        return unsafe { copy_cached(dst, src, len) };
    }
    // SAFETY: reads `src..src + len` and writes `dst..dst + len` only, which the caller made valid; the
    // ABI keeps the direction flag clear.
    unsafe {
        asm!(
            "rep movsb",
            inout("rdi") dst => _,
            inout("rsi") src => _,
            inout("rcx") len => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Distances between source and destination at which string moves are fast.
const REP_GRAIN: usize = 32;

/// Whether the processor advertises fast string moves (ERMS, CPUID leaf 7, EBX bit 9).
pub(super) fn has_fast_rep() -> bool {
    const ERMS: u32 = 1 << 9;
    #[allow(
        unused_unsafe,
        reason = "CPUID intrinsics became safe after this crate's minimum Rust version"
    )]
    // SAFETY: CPUID exists on every x86-64 processor.
    let highest = unsafe { __cpuid(0) }.eax;
    if highest < 7 {
        return false;
    }
    #[allow(
        unused_unsafe,
        reason = "CPUID intrinsics became safe after this crate's minimum Rust version"
    )]
    // SAFETY: leaf 7 exists, as checked above.
    let features = unsafe { __cpuid_count(7, 0) };
    features.ebx & ERMS != 0
}

/// Each loop that this processor can run, by name: tests exercise all of them.
#[cfg(test)]
pub(super) fn all_loops() -> Vec<(&'static str, BlockLoop)> {
    let mut all: Vec<(&'static str, BlockLoop)> = vec![("stream sse2", loops::stream_sse2)];
    if std::arch::is_x86_feature_detected!("avx") {
        all.push(("stream avx", loops::stream_avx));
        all.push(("cache avx", loops::cache_avx));
    }
    if std::arch::is_x86_feature_detected!("avx512f") {
        all.push(("stream avx512", loops::stream_avx512));
    }
    all
}
