//! Structures whose numbers lie: a typed error, or the import of what they say.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use transload_tensors::Tensor;
use transload_tensors::dlpack::{
    DLDataType, DLDevice, DLManagedTensorVersioned, DLPackVersion, DLTensor,
};
use transload_tensors::transload::ErrorClass;

use super::{manager, until};
use crate::tensor::walk;

const LEN: usize = 4096;

/// Types with their bits.
const KNOWN: [(u8, u8); 6] = [(0, 8), (1, 16), (2, 32), (4, 16), (5, 64), (17, 4)];

/// Counts the calls in the structure's own context.
unsafe extern "C" fn count(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: the test's structure lives, and its context is the counter.
    let counter = unsafe { (*managed).manager_ctx };
    // SAFETY: as above.
    unsafe { &*counter.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
}

/// Small numbers, and the largest: those between would claim memory of other tests.
fn number() -> impl Strategy<Value = i64> {
    prop_oneof![12 => -3i64..6, 1 => prop::sample::select(vec![i64::MIN, i64::MAX])]
}

/// Mostly `usual`.
fn mostly<T: Clone + std::fmt::Debug + 'static>(
    usual: T,
    others: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = T> {
    prop_oneof![6 => Just(usual), 1 => others]
}

fn data_type() -> impl Strategy<Value = DLDataType> {
    let known = prop::sample::select(&KNOWN[..]);
    let others = (any::<u8>(), any::<u8>());
    (
        prop_oneof![5 => known, 1 => others],
        prop_oneof![6 => Just(1u16), 2 => Just(2), 1 => any::<u16>()],
    )
        .prop_map(|((code, bits), lanes)| DLDataType { code, bits, lanes })
}

/// Returns how many elements there are, the bytes before the first one, and those from it on; `None` where `i128` is too small.
fn naive(shape: &[i64], strides: &[i64], bits: i128) -> Option<(i128, i128, i128)> {
    if shape.contains(&0) {
        return Some((0, 0, 0));
    }
    let mut sizes = shape.iter().map(|size| i128::from(*size));
    let elements = sizes.try_fold(1i128, i128::checked_mul)?;
    let (mut before, mut after) = (0, bits);
    for (size, stride) in shape.iter().zip(strides) {
        let far = (i128::from(*size) - 1).checked_mul((*stride).into())?;
        let far = far.checked_mul(bits)?;
        before -= far.min(0);
        after += far.max(0);
    }
    Some((elements, before / 8, after / 8))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn a_structure_is_imported_as_it_says_or_refused(
        head in (mostly(1u32, any::<u32>()), any::<u32>(), prop_oneof![0u64..8, any::<u64>()]),
        device in (mostly(1u32, any::<u32>()), mostly(0i32, any::<i32>())),
        ndim in prop_oneof![12 => 0i32..5, 1 => any::<i32>(), 1 => 60i32..70],
        (mut shape, mut strides) in (
            prop::collection::vec(number(), 64), prop::collection::vec(number(), 64)),
        nulls in (mostly(false, any::<bool>()), mostly(false, any::<bool>()), mostly(false, any::<bool>())),
        dtype in data_type(),
        byte_offset in mostly(1000u64, any::<u64>()),
    ) {
        // Two lanes of 4 bits are two elements here, and of other types none.
        let lanes = if (dtype.code, dtype.bits, dtype.lanes) == (17, 4, 2) { 2 } else { 1 };
        let bits = i128::from(dtype.bits) * i128::from(lanes);
        let dimensions = usize::try_from(ndim).unwrap_or(0).min(64);
        if nulls.1 {
            // What null stands for; the strides are not read.
            let mut stride = 1i64;
            for at in (0..dimensions).rev() {
                strides[at] = stride;
                stride = stride.saturating_mul(shape[at]);
            }
        }
        let (shape, strides) = (&mut shape[..], &mut strides[..]);
        let model = naive(&shape[..dimensions], &strides[..dimensions], bits);
        // Such a span lies in the address space, and has memory of other tests.
        if model.is_some_and(|(_, before, after)| (LEN as i128..=isize::MAX as i128).contains(&(before + after))) {
            return Ok(());
        }
        let start = i128::from(byte_offset);
        // Elements that repeat may have more bytes than a number says.
        let is_within = |(elements, before, after)| {
            start >= before && start + after <= LEN as i128 && elements <= i128::from(u64::MAX) / 8
        };
        let is_right = head.0 == 1 && matches!(device.0, 1 | 3) && matches!(ndim, 0..=64) && !nulls.0 && !nulls.2
            && KNOWN.contains(&(dtype.code, dtype.bits)) && dtype.lanes == 1 && bits >= 8
            && shape[..dimensions].iter().all(|size| *size >= 0) && model.is_some_and(is_within);
        let manager = manager();
        let mut bytes: Vec<u8> = (0..LEN).map(|at| ((at * 31) >> 3) as u8).collect();
        let expected = bytes.clone();
        let calls = AtomicUsize::new(0);
        let or_null = |is_null: bool, start: *mut i64| if is_null { ptr::null_mut() } else { start };
        let data: *mut c_void = bytes.as_mut_ptr().cast();
        let mut managed = DLManagedTensorVersioned {
            version: DLPackVersion { major: head.0, minor: head.1 },
            manager_ctx: ptr::from_ref(&calls).cast_mut().cast(),
            deleter: Some(count),
            flags: head.2,
            dl_tensor: DLTensor {
                data: if nulls.2 { ptr::null_mut() } else { data },
                device: DLDevice { device_type: device.0, device_id: device.1 },
                ndim,
                dtype,
                shape: or_null(nulls.0, shape.as_mut_ptr()),
                strides: or_null(nulls.1, strides.as_mut_ptr()),
                byte_offset,
            },
        };
        // SAFETY: shape and strides have as many numbers as an import reads at most. Elements that do not lie in the bytes are
        // not touched below.
        let imported = unsafe { Tensor::from_dlpack(&manager, NonNull::from(&mut managed)) };
        let tensor = match imported {
            Err(error) => {
                let class = error.class();
                prop_assert!(!is_right && matches!(class, ErrorClass::Caller | ErrorClass::Unsupported), "{}", error);
                prop_assert_eq!(calls.load(Ordering::SeqCst), 0, "{}", error);
                return Ok(());
            }
            Ok(tensor) => tensor,
        };
        let (shape, strides) = (&shape[..dimensions], &strides[..dimensions]);
        prop_assert!(head.0 == 1 && (!nulls.0 || ndim == 0));
        let said = shape.iter().map(|size| *size as u64);
        let mut said: Vec<u64> = if lanes > 1 && ndim == 0 { vec![1] } else { said.collect() };
        if let Some(last) = said.last_mut() {
            *last = last.saturating_mul(lanes);
        }
        prop_assert_eq!(tensor.shape(), said);
        prop_assert_eq!(tensor.buffer().is_writable(), head.2 & 1 == 0 || tensor.len_bytes() == 0);
        let (elements, before, after) = model.unwrap();
        prop_assert_eq!(i128::from(tensor.len_bytes()) * 8, elements * bits);
        prop_assert_eq!(i128::from(tensor.offset_bytes()), before);
        prop_assert_eq!(i128::from(tensor.buffer().len()), before + after);
        // Elements that repeat may be too many to list.
        if let (true, Ok(region)) = (bits >= 8 && elements > 0 && is_within((elements, before, after)), tensor.region()) {
            let dimensions: Vec<(u64, i64)> = shape.iter().map(|size| *size as u64).zip(strides.iter().copied()).collect();
            let starts = walk(start, bits / 8, &dimensions);
            let said = starts.iter().flat_map(|at| &expected[*at as usize..(at + bits / 8) as usize]);
            prop_assert!(manager.read_to_vec(region).unwrap().iter().eq(said));
        }
        let at_once = usize::from(elements == 0);
        prop_assert_eq!(calls.load(Ordering::SeqCst), at_once);
        drop(tensor);
        until(|| calls.load(Ordering::SeqCst) == 1);
    }
}
