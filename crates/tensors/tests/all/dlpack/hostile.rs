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

const LEN: usize = 4096;

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
    let known = prop::sample::select(vec![
        (0u8, 8u8),
        (1, 16),
        (2, 32),
        (4, 16),
        (5, 64),
        (17, 4),
    ]);
    let others = (any::<u8>(), any::<u8>());
    (
        prop_oneof![5 => known, 1 => others],
        mostly(1u16, any::<u16>()),
    )
        .prop_map(|((code, bits), lanes)| DLDataType { code, bits, lanes })
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
        let manager = manager();
        let mut bytes = vec![1u8; LEN];
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
                prop_assert!(matches!(class, ErrorClass::Caller | ErrorClass::Unsupported), "{}", error);
                prop_assert_eq!(calls.load(Ordering::SeqCst), 0, "{}", error);
                return Ok(());
            }
            Ok(tensor) => tensor,
        };
        let (shape, strides) = (&shape[..ndim as usize], &strides[..ndim as usize]);
        prop_assert!(head.0 == 1 && !nulls.0 || ndim == 0);
        prop_assert!(tensor.shape().iter().zip(shape).all(|(own, said)| *own as i64 == *said));
        prop_assert_eq!(tensor.buffer().is_writable(), head.2 & 1 == 0 || tensor.len_bytes() == 0);
        let bits = i128::from(dtype.bits);
        let elements: i128 = shape.iter().map(|size| i128::from(*size)).product();
        prop_assert_eq!(i128::from(tensor.len_bytes()) * 8, elements * bits);
        if elements > 0 && !nulls.1 {
            let said = |wanted: bool| shape.iter().zip(strides).filter(move |of| (*of.1 < 0) == wanted)
                .map(|(size, stride)| i128::from(size - 1) * i128::from(*stride) * bits / 8).sum::<i128>();
            prop_assert_eq!(i128::from(tensor.offset_bytes()), -said(false).min(0) - said(true));
            let [lowest, end] = [i128::from(byte_offset) + said(true), i128::from(byte_offset) + said(false) + bits / 8];
            let is_within = lowest >= 0 && end <= LEN as i128;
            // Elements that repeat may be too many to list.
            if let (true, Ok(region)) = (is_within, tensor.region()) {
                let read = manager.read_to_vec(region).unwrap();
                prop_assert!(read.iter().all(|byte| *byte == 1));
            }
        }
        let at_once = usize::from(elements == 0);
        prop_assert_eq!(calls.load(Ordering::SeqCst), at_once);
        drop(tensor);
        until(|| calls.load(Ordering::SeqCst) == 1);
    }
}
