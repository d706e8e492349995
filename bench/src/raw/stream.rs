//! Copies that bypass the caches.

/// Whether this processor has stores that bypass the caches and this build supports them.
pub(crate) fn is_available() -> bool {
    cfg!(target_arch = "x86_64")
}

/// Copies `src` to `dst` with streaming stores. Copies through the caches where the processor has no such stores, and
/// for the bytes before the first whole cache line and after the last one.
///
/// # Panics
/// Panics when the lengths differ.
pub(crate) fn copy(dst: &mut [u8], src: &[u8]) {
    assert_eq!(dst.len(), src.len());
    let head = dst.as_ptr().align_offset(LINE).min(dst.len());
    let lines = (dst.len() - head) / LINE * LINE;
    let (dst_head, dst) = dst.split_at_mut(head);
    let (src_head, src) = src.split_at(head);
    let (dst_lines, dst_tail) = dst.split_at_mut(lines);
    let (src_lines, src_tail) = src.split_at(lines);
    dst_head.copy_from_slice(src_head);
    copy_lines(dst_lines, src_lines);
    dst_tail.copy_from_slice(src_tail);
}

const LINE: usize = 64;

#[cfg(target_arch = "x86_64")]
fn copy_lines(dst: &mut [u8], src: &[u8]) {
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has AVX-512F.
        unsafe { x86_64::copy_lines_avx512(dst, src) }
    } else {
        x86_64::copy_lines_sse2(dst, src);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn copy_lines(dst: &mut [u8], src: &[u8]) {
    dst.copy_from_slice(src);
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::x86_64::{
        __m128i, __m512i, _MM_HINT_NTA, _mm_loadu_si128, _mm_prefetch, _mm_sfence,
        _mm_stream_si128, _mm512_loadu_si512, _mm512_stream_si512,
    };

    use super::LINE;

    /// The distance of prefetches ahead of the loads, in bytes: the bytes that arrive at 10 GB/s within the 100 ns that
    /// memory takes to answer.
    const AHEAD: usize = 1024;

    /// One store for each line.
    #[target_feature(enable = "avx512f")]
    pub(super) fn copy_lines_avx512(dst: &mut [u8], src: &[u8]) {
        for (dst, src) in dst.chunks_exact_mut(LINE).zip(src.chunks_exact(LINE)) {
            prefetch(src);
            // SAFETY: the chunk has 64 bytes.
            let line = unsafe { _mm512_loadu_si512(src.as_ptr().cast::<__m512i>()) };
            // SAFETY: the chunk has 64 bytes and starts at a line, as the caller ensures.
            unsafe { _mm512_stream_si512(dst.as_mut_ptr().cast::<__m512i>(), line) };
        }
        fence();
    }

    /// Four stores for each line.
    pub(super) fn copy_lines_sse2(dst: &mut [u8], src: &[u8]) {
        for (dst, src) in dst.chunks_exact_mut(LINE).zip(src.chunks_exact(LINE)) {
            prefetch(src);
            for at in (0..LINE).step_by(size_of::<__m128i>()) {
                // SAFETY: 16 bytes of the chunk's 64.
                let part = unsafe { _mm_loadu_si128(src[at..].as_ptr().cast::<__m128i>()) };
                // SAFETY: the chunk has that many bytes and starts at a line.
                unsafe { _mm_stream_si128(dst[at..].as_mut_ptr().cast::<__m128i>(), part) };
            }
        }
        fence();
    }

    fn prefetch(line: &[u8]) {
        let ahead = line.as_ptr().wrapping_add(AHEAD).cast::<i8>();
        // SAFETY: a prefetch touches no memory that the program can see, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_NTA>(ahead) };
    }

    /// Streaming stores have no order before a fence; no reference to the destination is used again until this function
    /// has returned.
    fn fence() {
        // SAFETY: part of every x86-64.
        unsafe { _mm_sfence() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::{POISON, Random};

    #[test]
    fn every_length_and_alignment_arrives_and_nothing_beside_it_changes() {
        let mut src = vec![0u8; 700];
        Random(7).fill(&mut src);
        for len in [0, 1, 63, 64, 65, 127, 128, 400, 600] {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (13, 47), (64, 3)] {
                let mut dst = vec![POISON; 700];
                copy(&mut dst[to..to + len], &src[from..from + len]);
                assert_eq!(dst[to..to + len], src[from..from + len]);
                let beside = dst[..to].iter().chain(&dst[to + len..]);
                assert!(beside.into_iter().all(|byte| *byte == POISON));
            }
        }
    }
}
