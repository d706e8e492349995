//! Blocks that SSE2 transposes, which every x86-64 processor has.

use core::arch::x86_64::{
    __m128i, _mm_loadu_si128, _mm_storeu_si128, _mm_unpackhi_epi8, _mm_unpackhi_epi16,
    _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi8, _mm_unpacklo_epi16,
    _mm_unpacklo_epi32, _mm_unpacklo_epi64,
};

use super::{Element, at, at_mut};

/// Interleaves the lower and the upper halves of pairs of registers, which lie half of all registers apart.
macro_rules! interleaved {
    ($registers:ident, $lower:ident, $upper:ident) => {{
        let half = $registers.len() / 2;
        let mut mixed = $registers;
        for pair in 0..half {
            // SAFETY: every x86-64 processor has SSE2.
            mixed[2 * pair] = unsafe { $lower($registers[pair], $registers[pair + half]) };
            // SAFETY: as above.
            mixed[2 * pair + 1] = unsafe { $upper($registers[pair], $registers[pair + half]) };
        }
        mixed
    }};
}

/// Transposes a block of as many rows and columns as a register of 16 bytes has elements: of n registers, interleaving by halves
/// log2 n times brings each element to its place.
macro_rules! transposed {
    ($($element:ty: $block:literal by $lower:ident, $upper:ident, $times:literal;)*) => {$(
        impl Element for $element {
            const BLOCK: usize = $block;

            #[inline]
            unsafe fn transpose(dst: *mut u8, dst_pitch: isize, src: *const u8, src_pitch: isize) {
                let mut registers: [__m128i; $block] = core::array::from_fn(|column| {
                    // SAFETY: the caller's contract: 16 bytes of the source, at any address.
                    unsafe { _mm_loadu_si128(at(src, column, src_pitch).cast()) }
                });
                for _ in 0..$times {
                    registers = interleaved!(registers, $lower, $upper);
                }
                for (row, register) in registers.into_iter().enumerate() {
                    // SAFETY: the caller's contract: 16 bytes of the destination, at any address.
                    unsafe { _mm_storeu_si128(at_mut(dst, row, dst_pitch).cast(), register) };
                }
            }
        }
    )*};
}

transposed! {
    u8: 16 by _mm_unpacklo_epi8, _mm_unpackhi_epi8, 4;
    u16: 8 by _mm_unpacklo_epi16, _mm_unpackhi_epi16, 3;
    u32: 4 by _mm_unpacklo_epi32, _mm_unpackhi_epi32, 2;
    u64: 2 by _mm_unpacklo_epi64, _mm_unpackhi_epi64, 1;
}
