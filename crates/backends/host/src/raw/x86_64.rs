//! Streaming (non-temporal) stores and string moves for x86-64.
//!
//! The streaming loops are inline assembly and not intrinsics: non-temporal stores are outside of the
//! language's memory model until a store fence, and with the fence inside the same assembly block the
//! block as a whole behaves like ordinary writes.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};

/// A destination cache line: streaming stores that fill whole lines need no read of memory.
const LINE: usize = 64;
/// Bytes that one turn of each loop moves.
const BLOCK: usize = 256;

/// Copies `len` bytes between disjoint ranges with streaming stores; any length, any alignment.
///
/// The head up to the destination's first cache line and the tail behind the last block go through the
/// caches.
///
/// # Safety
/// As for [`super::copy`].
pub(super) unsafe fn copy_streaming(dst: *mut u8, src: *const u8, len: usize) {
    let head = dst.align_offset(LINE).min(len);
    let body = (len - head) / BLOCK * BLOCK;
    let tail = len - head - body;
    if body == 0 {
        // SAFETY: the caller's contract covers the whole range.
        return unsafe { super::plain::copy_plain(dst, src, len) };
    }
    // SAFETY: `head <= len`, so the sub-range is inside the caller's range.
    unsafe { super::plain::copy_plain(dst, src, head) };
    let at = dst.wrapping_add(head);
    let from = src.wrapping_add(head);
    // SAFETY: `at` is line-aligned, `body` is a positive multiple of BLOCK, and `head + body <= len`.
    unsafe { copy_blocks(at, from, body) };
    let at = at.wrapping_add(body);
    let from = from.wrapping_add(body);
    // SAFETY: `head + body + tail == len`, so the sub-range is inside the caller's range.
    unsafe { super::plain::copy_plain(at, from, tail) };
}

/// Copies `len` bytes between disjoint ranges with `rep movsb`.
///
/// # Safety
/// As for [`super::copy`].
pub(super) unsafe fn copy_rep(dst: *mut u8, src: *const u8, len: usize) {
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

/// Runs the widest loop that this processor has.
///
/// # Safety
/// As for [`super::copy`]; besides, `dst` is aligned to [`LINE`] and `len` a positive multiple of
/// [`BLOCK`].
unsafe fn copy_blocks(dst: *mut u8, src: *const u8, len: usize) {
    // The detection macro caches its answer: one relaxed load.
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has AVX-512F; the rest is the caller's contract.
        unsafe { blocks_avx512(dst, src, len) }
    } else if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the processor has AVX; the rest is the caller's contract.
        unsafe { blocks_avx(dst, src, len) }
    } else {
        // SAFETY: SSE2 is part of x86-64; the rest is the caller's contract.
        unsafe { blocks_sse2(dst, src, len) }
    }
}

/// 64-byte stores, each a full line.
///
/// # Safety
/// As for [`copy_blocks`], on a processor with AVX-512F.
unsafe fn blocks_avx512(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: reads `src..src + len` and writes `dst..dst + len` only, which the caller made valid;
    // prefetches past the end never fault. `clobber_abi` declares every vector register, of which
    // `vzeroupper` clears the upper halves.
    unsafe {
        asm!(
            "2:",
            "prefetchnta [rsi + {ahead}]",
            "prefetchnta [rsi + {ahead} + 64]",
            "prefetchnta [rsi + {ahead} + 128]",
            "prefetchnta [rsi + {ahead} + 192]",
            "vmovdqu64 zmm0, [rsi]",
            "vmovdqu64 zmm1, [rsi + 64]",
            "vmovdqu64 zmm2, [rsi + 128]",
            "vmovdqu64 zmm3, [rsi + 192]",
            "vmovntdq [rdi], zmm0",
            "vmovntdq [rdi + 64], zmm1",
            "vmovntdq [rdi + 128], zmm2",
            "vmovntdq [rdi + 192], zmm3",
            "add rsi, {block}",
            "add rdi, {block}",
            "sub rcx, {block}",
            "jnz 2b",
            "sfence",
            "vzeroupper",
            block = const BLOCK,
            ahead = const AHEAD,
            inout("rdi") dst => _,
            inout("rsi") src => _,
            inout("rcx") len => _,
            clobber_abi("sysv64"),
            options(nostack),
        );
    }
}

/// 32-byte stores, two to a line.
///
/// # Safety
/// As for [`copy_blocks`], on a processor with AVX.
unsafe fn blocks_avx(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: as in `blocks_avx512`.
    unsafe {
        asm!(
            "2:",
            "prefetchnta [rsi + {ahead}]",
            "prefetchnta [rsi + {ahead} + 64]",
            "prefetchnta [rsi + {ahead} + 128]",
            "prefetchnta [rsi + {ahead} + 192]",
            "vmovdqu ymm0, [rsi]",
            "vmovdqu ymm1, [rsi + 32]",
            "vmovdqu ymm2, [rsi + 64]",
            "vmovdqu ymm3, [rsi + 96]",
            "vmovdqu ymm4, [rsi + 128]",
            "vmovdqu ymm5, [rsi + 160]",
            "vmovdqu ymm6, [rsi + 192]",
            "vmovdqu ymm7, [rsi + 224]",
            "vmovntdq [rdi], ymm0",
            "vmovntdq [rdi + 32], ymm1",
            "vmovntdq [rdi + 64], ymm2",
            "vmovntdq [rdi + 96], ymm3",
            "vmovntdq [rdi + 128], ymm4",
            "vmovntdq [rdi + 160], ymm5",
            "vmovntdq [rdi + 192], ymm6",
            "vmovntdq [rdi + 224], ymm7",
            "add rsi, {block}",
            "add rdi, {block}",
            "sub rcx, {block}",
            "jnz 2b",
            "sfence",
            "vzeroupper",
            block = const BLOCK,
            ahead = const AHEAD,
            inout("rdi") dst => _,
            inout("rsi") src => _,
            inout("rcx") len => _,
            clobber_abi("sysv64"),
            options(nostack),
        );
    }
}

/// 16-byte stores, four to a line.
///
/// # Safety
/// As for [`copy_blocks`].
unsafe fn blocks_sse2(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: as in `blocks_avx512`; no upper halves are touched.
    unsafe {
        asm!(
            "2:",
            "prefetchnta [rsi + {ahead}]",
            "prefetchnta [rsi + {ahead} + 64]",
            "prefetchnta [rsi + {ahead} + 128]",
            "prefetchnta [rsi + {ahead} + 192]",
            "mov {quarter:e}, 4",
            "3:",
            "movdqu xmm0, [rsi]",
            "movdqu xmm1, [rsi + 16]",
            "movdqu xmm2, [rsi + 32]",
            "movdqu xmm3, [rsi + 48]",
            "movntdq [rdi], xmm0",
            "movntdq [rdi + 16], xmm1",
            "movntdq [rdi + 32], xmm2",
            "movntdq [rdi + 48], xmm3",
            "add rsi, 64",
            "add rdi, 64",
            "dec {quarter:e}",
            "jnz 3b",
            "sub rcx, {block}",
            "jnz 2b",
            "sfence",
            block = const BLOCK,
            ahead = const AHEAD,
            quarter = out(reg) _,
            inout("rdi") dst => _,
            inout("rsi") src => _,
            inout("rcx") len => _,
            out("xmm0") _,
            out("xmm1") _,
            out("xmm2") _,
            out("xmm3") _,
            options(nostack),
        );
    }
}

/// How far ahead of the loads the prefetches run, in bytes.
///
/// Measured on an AMD EPYC (family 25, model 17), one core, 32 MiB to 512 MiB: 1 KiB and 2 KiB are alike
/// and 5 % to 13 % faster than none; 512 B lies between.
const AHEAD: usize = 1024;

/// A streaming loop: destination, source, length.
#[cfg(test)]
pub(super) type BlockLoop = unsafe fn(*mut u8, *const u8, usize);

/// Each loop that this processor can run, by name: tests exercise all of them.
#[cfg(test)]
pub(super) fn loops() -> Vec<(&'static str, BlockLoop)> {
    let mut loops: Vec<(&'static str, BlockLoop)> = vec![("sse2", blocks_sse2)];
    if std::arch::is_x86_feature_detected!("avx") {
        loops.push(("avx", blocks_avx));
    }
    if std::arch::is_x86_feature_detected!("avx512f") {
        loops.push(("avx512", blocks_avx512));
    }
    loops
}
