//! Tensors of buffers: strides against a naive walk, and what is refused.

use proptest::prelude::*;
use transload_tensors::transload::{ErrorClass, TransferManager};
use transload_tensors::{DType, Tensor, TensorError};

fn manager() -> TransferManager {
    TransferManager::builder().host().build().unwrap()
}

const LEN: u64 = 4096;

/// Returns where each element begins, those of the last dimension first.
pub(crate) fn walk(offset: i128, width: i128, dimensions: &[(u64, i64)]) -> Vec<i128> {
    match dimensions {
        [] => vec![offset],
        [(size, stride), rest @ ..] => (0..i128::from(*size))
            .flat_map(|at| walk(offset + at * i128::from(*stride) * width, width, rest))
            .collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_region_has_the_elements_in_their_order(
        dimensions in prop::collection::vec((0u64..6, -40i64..40), 0..6),
        offset in 0..LEN,
        dtype in prop::sample::select(vec![DType::U8, DType::F16, DType::F32, DType::C64]),
    ) {
        let manager = manager();
        let bytes: Vec<u8> = (0..LEN).map(|at| ((at * 31) >> 3) as u8).collect();
        let buffer = manager.adopt(bytes.clone()).unwrap();
        let (shape, strides): (Vec<u64>, Vec<i64>) = dimensions.iter().copied().unzip();
        let width = i128::from(dtype.block().1);
        let starts = walk(offset.into(), width, &dimensions);
        let fits = starts.iter().all(|at| *at >= 0 && at + width <= LEN.into());
        let tensor = match Tensor::strided(&buffer, offset, dtype, &shape, &strides) {
            Err(error) => {
                prop_assert!(!fits && matches!(error, TensorError::OutOfBounds { .. }), "{}", error);
                return Ok(());
            }
            Ok(tensor) => tensor,
        };
        prop_assert!(fits);
        let elements = starts.iter().flat_map(|at| &bytes[*at as usize..(*at + width) as usize]);
        let elements: Vec<u8> = elements.copied().collect();
        prop_assert_eq!(tensor.len_bytes(), elements.len() as u64);
        let region = tensor.region().unwrap();
        prop_assert_eq!(&manager.read_to_vec(region.clone()).unwrap(), &elements);
        // Written back, elements that overlap are refused, and others are what they were.
        let mut sorted = starts.clone();
        sorted.sort_unstable();
        let is_apart = sorted.windows(2).all(|two| two[0] + width <= two[1]);
        let written = manager.copy_from_slice(&elements, region);
        prop_assert_eq!(written.is_ok(), is_apart);
        prop_assert!(*buffer.read().unwrap() == bytes[..]);
    }
}

#[test]
fn dense_elements_need_no_strides() {
    let manager = manager();
    let buffer = manager.adopt(vec![0u8; 48]).unwrap();
    let tensor = Tensor::new(&buffer, DType::F32, &[3, 1, 4]).unwrap();
    assert_eq!((tensor.strides(), tensor.is_dense()), (vec![4, 4, 1], true));
    let same = Tensor::strided(&buffer, 0, DType::F32, &[3, 1, 4], &[4, -77, 1]).unwrap();
    assert!(same.is_dense() && same.strides() == [4, 4, 1]);
    let part = Tensor::strided(&buffer, 16, DType::F32, &[4], &[1]).unwrap();
    assert!(part.is_dense() && part.buffer().len() == 16);
    let blocks = Tensor::strided(&buffer, 1, DType::F4, &[2, 6], &[6, 1]).unwrap();
    assert_eq!((blocks.len_bytes(), blocks.strides()), (6, vec![6, 1]));
    for shape in [&[0, u64::MAX][..], &[u64::MAX, u64::MAX, 0]] {
        let none = Tensor::new(&buffer.slice(..0).unwrap(), DType::F32, shape).unwrap();
        assert_eq!(none.region().unwrap().shape().payload_bytes(), 0);
        let same = Tensor::strided(&buffer, 48, DType::F32, shape, &none.strides()).unwrap();
        assert_eq!(same.len_bytes(), 0);
    }
    let backwards = Tensor::strided(&buffer, 44, DType::F32, &[12], &[-1]).unwrap();
    assert_eq!(
        (backwards.offset_bytes(), backwards.buffer().len()),
        (44, 48)
    );
}

/// A tensor of blocks is one of the blocks' bytes, of which the last dimension has whole ones.
#[test]
fn a_view_of_elements_that_share_bytes_has_whole_blocks() {
    let manager = manager();
    let buffer = manager.adopt((0..=255u8).collect::<Vec<_>>()).unwrap();
    let read = |tensor: Tensor| manager.read_to_vec(tensor.region().unwrap()).unwrap();
    for dtype in [DType::F4, DType::F6_E2M3, DType::Q4_0] {
        let (of_block, width) = dtype.block();
        let (elements, bytes) = (of_block as i64, width as i64);
        // Two rows of two blocks each, of a matrix with rows of three blocks: from behind, one again and again, and apart.
        for (offset, stride) in [(3, -3), (1, 0), (0, 6)] {
            let shape = [2, 2 * of_block];
            let strides = [stride * elements, 1];
            let tensor = Tensor::strided(&buffer, offset * width, dtype, &shape, &strides).unwrap();
            assert!(!tensor.is_dense());
            assert_eq!(tensor.len_bytes(), 4 * width);
            let same = [stride * bytes, 1];
            let same = Tensor::strided(&buffer, offset * width, DType::U8, &[2, 2 * width], &same);
            assert_eq!(read(tensor), read(same.unwrap()), "{dtype}, {stride}");
        }
        for (shape, strides) in [
            ([2, of_block], [elements + 1, 1]),
            ([2, of_block], [1, elements]),
            ([2, of_block], [3 * elements, -1]),
            ([of_block, 1], [3 * elements, 1]),
            ([2 * of_block, of_block + 1], [3 * elements, 1]),
            ([1, 1], [elements, 1]),
        ] {
            let error = Tensor::strided(&buffer, 0, dtype, &shape, &strides).unwrap_err();
            assert_eq!(
                error,
                TensorError::Blocks { dtype },
                "{shape:?} {strides:?}"
            );
        }
    }
}

#[test]
fn a_buffer_that_does_not_hold_the_tensor_is_refused() {
    let manager = manager();
    let buffer = manager.adopt(vec![0u8; 4]).unwrap();
    let dense = |dtype, shape: &[u64]| Tensor::new(&buffer, dtype, shape).unwrap_err();
    let strided = |offset, dtype, shape: &[u64], strides: &[i64]| {
        Tensor::strided(&buffer, offset, dtype, shape, strides).unwrap_err()
    };
    for (error, told) in [
        (
            dense(DType::F16, &[3]),
            "a tensor of F16 [3] has 6 bytes, and its buffer 4",
        ),
        (
            dense(DType::F4, &[7]),
            "a tensor of F4 [7] has no whole number of bytes, and its buffer 4",
        ),
        (
            strided(0, DType::U8, &[2], &[1, 1]),
            "[1, 1] are no strides of a tensor of shape [2]: it takes one for each dimension",
        ),
        (
            strided(1, DType::U8, &[2], &[3]),
            "a tensor of shape [2] and strides [3] whose first element begins at byte 1 does not lie within the 4 \
             bytes of its buffer",
        ),
        (
            strided(0, DType::F4, &[2], &[2]),
            "elements of F4 lie in blocks of 2, and a view takes whole blocks of the last dimension, next to each other: choose \
             other bounds, or copy the tensor to dense memory",
        ),
        (
            strided(0, DType::U8, &[u64::MAX, 2], &[0, 0]),
            "a tensor of U8 [18446744073709551615, 2] and strides [0, 0] takes 2^64 bytes or more",
        ),
    ] {
        assert_eq!(error.to_string(), told);
        assert_eq!(error.class(), ErrorClass::Caller);
    }
    for (offset, size, stride, is_too_large) in [
        (0, 2, i64::MAX, true),
        (3, 2, i64::MIN, true),
        (0, 1 << 60, i64::MIN, true),
        (0, 2, i64::MAX >> 4, false),
        (3, 2, i64::MIN >> 4, false),
        (0, u64::MAX / 8, 1, false),
        (u64::MAX, 1, 1, false),
        (5, 0, 1, false),
    ] {
        let error = strided(offset, DType::F64, &[size], &[stride]);
        let is_told = match is_too_large {
            true => matches!(error, TensorError::TooLarge { .. }),
            false => matches!(error, TensorError::OutOfBounds { limit: 4, .. }),
        };
        assert!(is_told, "{error}");
    }
}
