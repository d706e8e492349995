//! Conversion of numbers: one pass over the source, in blocks that stay in the first-level cache.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use transload_hal::{Conversion, Element};

use super::Store;

/// Numbers at a time: in two forms they take half of the first-level cache.
const BLOCK: usize = 1024;

/// Numbers at a time where there are few, as a block is cleared before its use.
const SMALL_BLOCK: usize = 64;

/// Converts `count` numbers, and stores them as [`copy`](super::copy) does.
///
/// # Safety
/// `src` is valid for reads of `count` numbers of the one form, `dst` for writes of `count` numbers of the other, at any
/// addresses; the ranges do not overlap, and nothing else writes either (or reads `dst`) until the call returns.
pub unsafe fn convert(
    dst: *mut u8,
    src: *const u8,
    count: usize,
    conversion: Conversion,
    store: Store,
) {
    // Numbers that are almost 0 count, whatever this thread's program has asked of its processor.
    let _own = Environment::default_until_drop();
    let is_native = cfg!(target_endian = "little") && store == Store::Plain;
    match (conversion.from(), conversion.to()) {
        // Processors do these in one step, so that a block on the way would cost more than the conversion.
        (Element::F64, Element::F32) if is_native => {
            // SAFETY: the caller's contract.
            return unsafe { at_once(dst, src, count, |number: f64| number as f32) };
        }
        (Element::F32, Element::F64) if is_native => {
            // SAFETY: as above.
            return unsafe { at_once(dst, src, count, |number: f32| f64::from(number)) };
        }
        _ => {}
    }
    match count {
        // SAFETY: the caller's contract.
        ..BLOCK => unsafe { convert_all::<SMALL_BLOCK>(dst, src, count, conversion, store) },
        // SAFETY: as above.
        _ => unsafe { convert_all::<BLOCK>(dst, src, count, conversion, store) },
    }
}

/// # Safety
/// As [`convert`].
unsafe fn at_once<F, T>(dst: *mut u8, src: *const u8, count: usize, converted: impl Fn(F) -> T) {
    let (dst, src) = (dst.cast::<T>(), src.cast::<F>());
    for number in 0..count {
        // SAFETY: the caller's contract.
        let read = unsafe { src.wrapping_add(number).read_unaligned() };
        // SAFETY: as above.
        unsafe { dst.wrapping_add(number).write_unaligned(converted(read)) };
    }
}

/// # Safety
/// As [`convert`].
#[inline(never)]
unsafe fn convert_all<const N: usize>(
    dst: *mut u8,
    src: *const u8,
    count: usize,
    conversion: Conversion,
    store: Store,
) {
    let (from, to) = (conversion.from(), conversion.to());
    let sizes = [from, to].map(|of| of.len_bytes() as usize);
    let convert_block = Block::<N>::fastest();
    let mut block = Block::<N>::EMPTY;
    let mut at = 0;
    while at < count {
        let many = N.min(count - at);
        let (read, written) = (
            src.wrapping_add(at * sizes[0]),
            dst.wrapping_add(at * sizes[1]),
        );
        // SAFETY: within the source; the block has room for its numbers of each form.
        unsafe { read.copy_to_nonoverlapping(block.place(from), many * sizes[0]) };
        block.swap(from);
        // SAFETY: the processor was asked for what it has.
        unsafe { convert_block(&mut block, many, from, to) };
        block.swap(to);
        // SAFETY: within the destination.
        unsafe { super::copy(written, block.place(to), many * sizes[1], store) };
        at += many;
    }
}

/// How this thread's processor rounds, and whether it takes numbers that are almost 0 for 0, as `torch.set_flush_denormal` and
/// start-up code of `-ffast-math` have it do.
struct Environment(u64);

impl Environment {
    /// Sets what IEEE 754 has by default, until it is dropped.
    fn default_until_drop() -> Environment {
        let own = Environment(Environment::get());
        // All exceptions masked, to the nearest, subnormal numbers as they are.
        Environment::set(if cfg!(target_arch = "x86_64") {
            0x1f80
        } else {
            0
        });
        own
    }

    #[cfg(target_arch = "x86_64")]
    fn get() -> u64 {
        let mut word = 0u32;
        // SAFETY: stores MXCSR to the word.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags));
        }
        word.into()
    }

    #[cfg(target_arch = "x86_64")]
    fn set(word: u64) {
        let word = word as u32;
        // SAFETY: loads MXCSR with what it held, or with its default.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags));
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn get() -> u64 {
        let word;
        // SAFETY: reads FPCR.
        unsafe {
            std::arch::asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags))
        };
        word
    }

    #[cfg(target_arch = "aarch64")]
    fn set(word: u64) {
        // SAFETY: writes to FPCR what it held, or its default.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) };
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn get() -> u64 {
        0
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn set(_: u64) {}
}

impl Drop for Environment {
    fn drop(&mut self) {
        Environment::set(self.0);
    }
}

/// Numbers on their way, in each of their forms.
#[repr(align(64))]
struct Block<const N: usize> {
    doubles: [u64; N],
    singles: [f32; N],
    halves: [u16; N],
    bytes: [u8; N],
}

impl<const N: usize> Block<N> {
    const EMPTY: Block<N> = Block {
        doubles: [0; N],
        singles: [0.0; N],
        halves: [0; N],
        bytes: [0; N],
    };

    /// Where numbers of a form are, as memory has them.
    fn place(&mut self, form: Element) -> *mut u8 {
        match form.len_bytes() {
            8 => self.doubles.as_mut_ptr().cast(),
            4 => self.singles.as_mut_ptr().cast(),
            2 => self.halves.as_mut_ptr().cast(),
            _ => self.bytes.as_mut_ptr(),
        }
    }

    /// Turns numbers of a form from little-endian ones to the processor's, or back.
    fn swap(&mut self, form: Element) {
        if cfg!(target_endian = "little") {
            return;
        }
        match form.len_bytes() {
            8 => each(&mut self.doubles, |of| of.swap_bytes()),
            4 => each(&mut self.singles, |of| {
                f32::from_bits(of.to_bits().swap_bytes())
            }),
            2 => each(&mut self.halves, |of| of.swap_bytes()),
            _ => {}
        }
    }

    /// What converts the first numbers of a block fastest on this processor.
    fn fastest() -> unsafe fn(&mut Block<N>, usize, Element, Element) {
        #[cfg(target_arch = "x86_64")]
        if wide::is_here() {
            return Block::convert_wide;
        }
        Block::convert_plain
    }

    fn convert_plain(&mut self, count: usize, from: Element, to: Element) {
        self.convert(count, (from, to), widen, narrow);
    }

    /// For processors with [`wide`] instructions, which all of it is compiled to.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,f16c")]
    fn convert_wide(&mut self, count: usize, from: Element, to: Element) {
        self.convert(
            count,
            (from, to),
            |halves, singles| wide::widen(halves, singles),
            |singles, halves| wide::narrow(singles, halves),
        );
    }

    /// Converts the first numbers, over singles: all forms but doubles have fewer digits, so that numbers are rounded once.
    #[inline(always)]
    fn convert(
        &mut self,
        count: usize,
        (from, to): (Element, Element),
        widen: impl Fn(&[u16], &mut [f32]),
        narrow: impl Fn(&[f32], &mut [u16]),
    ) {
        let (doubles, singles) = (&mut self.doubles[..count], &mut self.singles[..count]);
        let (halves, bytes) = (&mut self.halves[..count], &self.bytes[..count]);
        match (from, to) {
            (from, to) if from == to => return,
            (Element::F64, Element::F32) => put(singles, doubles, |of| f64::from_bits(of) as f32),
            (Element::F64, _) => put(singles, doubles, |of| shortened(f64::from_bits(of))),
            (Element::F16, _) => widen(halves, singles),
            // The upper half of a half.
            (Element::F8E5M2, _) => {
                put(halves, bytes, |of| u16::from(of) << 8);
                widen(halves, singles);
            }
            (Element::BF16, _) => put(singles, halves, |of| f32::from_bits(u32::from(of) << 16)),
            (Element::F8E4M3, _) => put(singles, bytes, e4m3),
            _ => {}
        }
        match to {
            Element::F64 => put(doubles, singles, |of| f64::from(of).to_bits()),
            Element::F16 => narrow(singles, halves),
            Element::BF16 => put(halves, singles, bf16),
            _ => {}
        }
    }
}

fn widen(halves: &[u16], singles: &mut [f32]) {
    halves
        .reinterpret_cast::<f16>()
        .convert_to_f32_slice(singles);
}

fn narrow(singles: &[f32], halves: &mut [u16]) {
    halves
        .reinterpret_cast_mut::<f16>()
        .convert_from_f32_slice(singles);
}

/// Halves by F16C, eight at a time. The crate half asks the processor for it at each eight: F16 to F32 in one thread took half
/// as long again (EPYC).
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::is_x86_feature_detected;
    use std::arch::x86_64::{
        _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps,
        _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_storeu_ps,
    };

    pub(super) fn is_here() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
    }

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    pub(super) fn widen(halves: &[u16], singles: &mut [f32]) {
        let (from, rest) = halves.as_chunks::<8>();
        let (to, others) = singles.as_chunks_mut::<8>();
        for (from, to) in from.iter().zip(to) {
            // SAFETY: reads eight halves.
            let eight = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
            let eight = _mm256_cvtph_ps(eight);
            // SAFETY: writes eight singles.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), eight) };
        }
        super::widen(rest, others);
    }

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    pub(super) fn narrow(singles: &[f32], halves: &mut [u16]) {
        let (from, rest) = singles.as_chunks::<8>();
        let (to, others) = halves.as_chunks_mut::<8>();
        for (from, to) in from.iter().zip(to) {
            // SAFETY: reads eight singles.
            let eight = unsafe { _mm256_loadu_ps(from.as_ptr()) };
            let eight = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(eight);
            // SAFETY: writes eight halves.
            unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), eight) };
        }
        super::narrow(rest, others);
    }
}

fn each<T: Copy>(numbers: &mut [T], of: impl Fn(T) -> T) {
    numbers.iter_mut().for_each(|number| *number = of(*number));
}

/// Inlined, so that it has the instructions of where it is called.
#[inline(always)]
fn put<T, U: Copy>(numbers: &mut [T], others: &[U], of: impl Fn(U) -> T) {
    for (number, other) in numbers.iter_mut().zip(others) {
        *number = of(*other);
    }
}

/// A single that is rounded to any shorter form as the double would be: towards zero, with the last digit set where others are
/// left out ("rounding to odd", Boldo and Melquiond, Emulation of a FMA and Correctly Rounded Sums, 2008).
fn shortened(double: f64) -> f32 {
    let nearest = double as f32;
    if f64::from(nearest) == double || double.is_nan() {
        return nearest;
    }
    let is_larger = f64::from(nearest).abs() > double.abs();
    f32::from_bits((nearest.to_bits() - u32::from(is_larger)) | 1)
}

/// The upper half of a single, rounded, without a branch: 1.5 GB of F16 were loaded in 283 ms, and in 335 with the one of the
/// crate half (EPYC, 2 threads).
fn bf16(single: f32) -> u16 {
    let bits = single.to_bits();
    let is_even = bits >> 16 & 1 == 0;
    let rounded = bits.wrapping_add(0x8000 - u32::from(is_even));
    let quiet = bits | 1 << 22;
    (if single.is_nan() { quiet } else { rounded } >> 16) as u16
}

/// A sign, 4 bits of exponent with a bias of 7, 3 of mantissa; all ones are no number (OCP 8-bit Floating Point
/// Specification, table 1).
fn e4m3(bits: u8) -> f32 {
    let sign = u32::from(bits & 0x80) << 24;
    let magnitude = u32::from(bits & 0x7f);
    let absolute = match magnitude {
        0x7f => f32::NAN,
        // Exponent and mantissa moved to their places, and the difference of the biases, 127 - 7, added by a product, which
        // is exact for subnormal numbers, too.
        _ => f32::from_bits(magnitude << 20) * f32::from_bits((127 + 120) << 23),
    };
    f32::from_bits(absolute.to_bits() | sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_almost_nothing_count_on_any_thread() {
        let smallest = [1u8, 0x81];
        let expected = [f64::exp2(-9.0), -f64::exp2(-9.0)];
        let double = f64::from(f32::from_bits(1)).to_le_bytes();
        let own = Environment(Environment::get());
        // Flush to zero, denormals are zero; on aarch64, flush to zero.
        Environment::set(if cfg!(target_arch = "x86_64") {
            0x9fc0
        } else {
            1 << 24
        });
        let found = converted(&smallest, Element::F8E4M3, Element::F64);
        let single = converted(&double, Element::F64, Element::F32);
        let set = Environment::get();
        drop(own);
        assert_eq!(doubles(&found), expected);
        assert_eq!(single, 1u32.to_le_bytes());
        // It is as it was, too.
        assert!(set & 0x8040 == 0x8040 || !cfg!(target_arch = "x86_64"));
    }

    const FORMS: [Element; 6] = [
        Element::F64,
        Element::F32,
        Element::F16,
        Element::BF16,
        Element::F8E4M3,
        Element::F8E5M2,
    ];

    /// The value of a number in a form, by its definition: sign, exponent, mantissa.
    fn value(bits: u64, (exponent_bits, mantissa_bits): (u32, u32), has_infinity: bool) -> f64 {
        let mantissa =
            (bits & ((1 << mantissa_bits) - 1)) as f64 / f64::from(1u32 << mantissa_bits);
        let exponent = (bits >> mantissa_bits & ((1 << exponent_bits) - 1)) as i32;
        let sign = [1.0, -1.0][(bits >> (exponent_bits + mantissa_bits)) as usize];
        let (bias, top) = ((1 << (exponent_bits - 1)) - 1, (1 << exponent_bits) - 1);
        match exponent {
            0 => sign * mantissa * f64::from(1 - bias).exp2(),
            _ if exponent == top && has_infinity && mantissa == 0.0 => sign * f64::INFINITY,
            _ if exponent == top && (has_infinity || mantissa == 0.875) => f64::NAN,
            _ => sign * (1.0 + mantissa) * f64::from(exponent - bias).exp2(),
        }
    }

    fn converted(bytes: &[u8], from: Element, to: Element) -> Vec<u8> {
        let conversion = Conversion::new(from, to).unwrap();
        let mut out = vec![0; conversion.converted_bytes(bytes.len() as u64).unwrap() as usize + 1];
        let count = bytes.len() / from.len_bytes() as usize;
        // SAFETY: the lengths; the destination at an odd address.
        unsafe {
            convert(
                out[1..].as_mut_ptr(),
                bytes.as_ptr(),
                count,
                conversion,
                Store::Streaming,
            )
        };
        out.split_off(1)
    }

    fn doubles(bytes: &[u8]) -> Vec<f64> {
        let (chunks, rest) = bytes.as_chunks();
        assert!(rest.is_empty());
        chunks
            .iter()
            .map(|bytes| f64::from_le_bytes(*bytes))
            .collect()
    }

    fn same(a: f64, b: f64) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    #[test]
    fn every_small_number_has_its_value() {
        for (form, fields, has_infinity) in [
            (Element::F16, (5, 10), true),
            (Element::BF16, (8, 7), true),
            (Element::F8E4M3, (4, 3), false),
            (Element::F8E5M2, (5, 2), true),
        ] {
            let len = form.len_bytes() as usize;
            let all = 0..1u64 << (8 * len);
            let bytes: Vec<u8> = { all.clone() }
                .flat_map(|bits| bits.to_le_bytes()[..len].to_vec())
                .collect();
            let found = doubles(&converted(&bytes, form, Element::F64));
            for (bits, found) in all.zip(found) {
                let expected = value(bits, fields, has_infinity);
                assert!(
                    same(found, expected),
                    "{form} {bits:#x}: {found}, {expected}"
                );
            }
        }
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_and_to_even_between_two() {
        // Each finite half, the middle to the next one, and what is just below and above the middle.
        let all = (0..0x7bffu16).flat_map(|bits| {
            let (low, high) = (
                f16::from_bits(bits).to_f64(),
                f16::from_bits(bits + 1).to_f64(),
            );
            let middle = (low + high) / 2.0;
            let even = if bits % 2 == 0 { low } else { high };
            [
                (low, low),
                (middle, even),
                (middle.next_down(), low),
                (middle.next_up(), high),
            ]
        });
        let rounds: Vec<(f64, f64)> = all
            .chain([(65520.0, f64::INFINITY), (-1e300, f64::NEG_INFINITY)])
            .collect();
        let bytes =
            |of: &dyn Fn(&(f64, f64)) -> Vec<u8>| rounds.iter().flat_map(of).collect::<Vec<u8>>();
        let direct = converted(
            &bytes(&|of| of.0.to_le_bytes().to_vec()),
            Element::F64,
            Element::F16,
        );
        for ((number, expected), found) in
            rounds
                .iter()
                .zip(doubles(&converted(&direct, Element::F16, Element::F64)))
        {
            assert!(same(found, *expected), "{number} {found} {expected}");
        }
        // Those that singles can tell.
        let singles: Vec<(f32, f64)> = rounds
            .iter()
            .filter(|of| f64::from(of.0 as f32) == of.0)
            .map(|of| (of.0 as f32, of.1))
            .collect();
        assert!(singles.len() > rounds.len() / 3);
        let bytes: Vec<u8> = singles.iter().flat_map(|of| of.0.to_le_bytes()).collect();
        let found = converted(
            &converted(&bytes, Element::F32, Element::F16),
            Element::F16,
            Element::F64,
        );
        for ((number, expected), found) in singles.iter().zip(doubles(&found)) {
            assert!(same(found, *expected), "{number} {found} {expected}");
        }
        // bfloat16: singles whose lower half decides.
        for (bits, expected) in [
            (0x3f80_8000u32, 0x3f80u16),
            (0x3f81_8000, 0x3f82),
            (0x3f80_8001, 0x3f81),
            (0x3f80_7fff, 0x3f80),
            (0x7f7f_ffff, 0x7f80),
            (0x8000_0001, 0x8000),
            (0xff80_0000, 0xff80),
        ] {
            assert_eq!(
                converted(&bits.to_le_bytes(), Element::F32, Element::BF16),
                expected.to_le_bytes()
            );
        }
        // A double between two singles of which one is a tie of halves is rounded once.
        let twice = (1.0 + f64::exp2(-11.0)).next_up();
        assert_eq!(
            doubles(&converted(
                &converted(&twice.to_le_bytes(), Element::F64, Element::F16),
                Element::F16,
                Element::F64
            )),
            [1.0 + f64::exp2(-10.0)]
        );
    }

    /// Every half and the upper half of every single, by the instructions of this processor and without them.
    #[test]
    fn every_processor_converts_alike() {
        const ALL: usize = 1 << 16;
        type All = Box<Block<ALL>>;
        let block = || -> All {
            // SAFETY: zeros are numbers of each form. Too large for the stack.
            let mut block = unsafe { Box::<Block<ALL>>::new_zeroed().assume_init() };
            for at in 0..ALL {
                block.bytes[at] = at as u8;
                block.halves[at] = at as u16;
                block.singles[at] = f32::from_bits((at as u32) << 16 | at as u32);
                block.doubles[at] = (at as u64) << 48 | at as u64;
            }
            block
        };
        for (from, to) in FORMS.iter().flat_map(|from| FORMS.map(|to| (*from, to))) {
            if Conversion::new(from, to).is_err() {
                continue;
            }
            let [own, plain] = [true, false].map(|is_own| {
                let mut block = block();
                match is_own {
                    // SAFETY: the processor was asked for what it has.
                    true => unsafe { Block::<ALL>::fastest()(&mut block, ALL - 3, from, to) },
                    false => block.convert_plain(ALL - 3, from, to),
                }
                let len = to.len_bytes() as usize * ALL;
                // SAFETY: the numbers of that form.
                unsafe { std::slice::from_raw_parts(block.place(to), len) }.to_vec()
            });
            assert!(own == plain, "{from} to {to}");
        }
    }

    #[test]
    fn any_count_is_converted_and_not_a_byte_more() {
        for from in FORMS {
            for to in FORMS {
                let Ok(conversion) = Conversion::new(from, to) else {
                    assert!(to.len_bytes() == 1);
                    continue;
                };
                for count in [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 3] {
                    let len = conversion.to().len_bytes() as usize * count;
                    let bytes = vec![0x11; from.len_bytes() as usize * count];
                    let mut out = vec![0xee; len + 2];
                    // SAFETY: the lengths.
                    unsafe {
                        convert(
                            out[1..].as_mut_ptr(),
                            bytes.as_ptr(),
                            count,
                            conversion,
                            Store::Streaming,
                        )
                    };
                    assert_eq!((out[0], out[len + 1]), (0xee, 0xee));
                    let one = converted(
                        &bytes[..bytes.len().min(from.len_bytes() as usize)],
                        from,
                        to,
                    );
                    assert!(count == 0 || out[1..=len].chunks(one.len()).all(|of| of == one));
                }
            }
        }
    }
}
