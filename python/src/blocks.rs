//! Copies of blocks by their numbers, such as pages of a cache.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use transload_tensors::Tensor;
use transload_tensors::transload::{Region, Request};

use crate::exchange::{self, Stream, Use};
use crate::{buffers, dtype, manager, wait};

/// Copies blocks of one array to blocks of another, by their numbers: block `src_index[i]` of `src` becomes block `dst_index[i]` of
/// `dst`. A block is what one index of the first dimension selects. One transfer carries all, between any two memories: the pages of a
/// cache on a GPU and those on the host. Waits for the end, without the interpreter's lock.
///
/// Parameters
/// ----------
/// src : Tensor, or an object with the buffer protocol or `__dlpack__`
///     The elements of a block lie next to each other.
/// dst : the same
///     Of the dtype of `src`, and of its shape but for the first dimension.
/// src_index : array or sequence of int, or None
///     The numbers of blocks from 0 on; None: all in their order. A block may be named several times.
/// dst_index : the same
///     As many, each once.
/// verify : bool
///     As in `copy`.
/// stream : int, or a stream of torch or CuPy, optional
///     As in `copy`.
///
/// Returns
/// -------
/// `dst`.
///
/// Raises
/// ------
/// ValueError
///     When types, shapes or counts differ, a number is negative or past the last block, blocks are not dense, or the memory of `dst` is
///     read-only. Nothing is written then.
/// TransferError
///     When a block of `dst` is named twice, before anything is written, or the copy failed.
/// KeyboardInterrupt
///     As `copy`.
///
/// Examples
/// --------
/// >>> cache, pages = np.zeros((4, 2)), np.arange(6.0).reshape(3, 2)
/// >>> transload.copy_blocks(pages, cache, [0, 2], [3, 1])
/// array([[0., 0.],
///        [4., 5.],
///        [0., 0.],
///        [0., 1.]])
#[pyfunction]
#[pyo3(signature = (src, dst, src_index, dst_index, *, verify = false, stream = None))]
pub(crate) fn copy_blocks<'py>(
    src: &Bound<'py, PyAny>,
    dst: &Bound<'py, PyAny>,
    src_index: &Bound<'py, PyAny>,
    dst_index: &Bound<'py, PyAny>,
    verify: bool,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = src.py();
    let manager = manager(py)?;
    let stream = stream.map(Stream::of).transpose()?.unwrap_or_default();
    let from = exchange::take(manager, src, "src", Use::Read, stream)?;
    let to = match exchange::take(manager, dst, "dst", Use::Write, stream) {
        Ok(to) => to,
        Err(refused) => {
            from.release(py);
            return Err(refused);
        }
    };
    let left = std::cell::Cell::new(false);
    let copied = request((&from.tensor, src_index), (&to.tensor, dst_index)).and_then(|request| {
        let Some(request) = request else {
            return Ok(());
        };
        let request = if verify { request.verify() } else { request };
        let transfer = py.detach(|| manager.submit(&request));
        wait::transfer(py, transfer, Some(&left), |_, _| Ok(())).map(drop)
    });
    if !left.get() {
        from.release(py);
        to.release(py);
    }
    copied.map(|()| dst.clone())
}

/// A tensor, and the argument with the numbers of its blocks.
type Named<'a, 'py> = (&'a Tensor, &'a Bound<'py, PyAny>);

/// `None` where there is nothing to copy.
fn request(
    (src, src_index): Named<'_, '_>,
    (dst, dst_index): Named<'_, '_>,
) -> PyResult<Option<Request>> {
    let ([from, from_block @ ..], [to, to_block @ ..]) = (src.shape(), dst.shape()) else {
        return Err(PyValueError::new_err(
            "src, dst: an array without dimensions has no blocks",
        ));
    };
    if from_block != to_block || src.dtype() != dst.dtype() {
        let (from, to) = (dtype::name(src.dtype()), dtype::name(dst.dtype()));
        return Err(PyValueError::new_err(format!(
            "dst: its blocks are {to_block:?} of {to}, and those of src {from_block:?} of {from}"
        )));
    }
    let sources = numbers(src_index, "src_index", *from)?;
    let targets = numbers(dst_index, "dst_index", *to)?;
    if sources.len() != targets.len() {
        let (sources, targets) = (sources.len(), targets.len());
        return Err(PyValueError::new_err(format!(
            "dst_index: it names {targets} blocks, and src_index {sources}"
        )));
    }
    if sources.is_empty() || from_block.contains(&0) {
        return Ok(None);
    }
    let (src, dst) = (region(src, &sources, "src")?, region(dst, &targets, "dst")?);
    Ok(Some(Request::new(src, dst)))
}

fn region(of: &Tensor, numbers: &[u32], argument: &str) -> PyResult<Region> {
    let refused = |why: &str| PyValueError::new_err(format!("{argument}: {why}"));
    let (shape, strides) = (of.shape(), of.strides());
    let block = of.dtype().len_bytes(&shape[1..]);
    let block = block.ok_or_else(|| refused("its blocks are no whole bytes"))?;
    let mut dense = 1;
    for (size, stride) in shape.iter().zip(&strides).skip(1).rev() {
        if *size > 1 && *stride != dense {
            return Err(refused(
                "the elements of its blocks do not lie next to each other; pass a copy",
            ));
        }
        dense *= *size as i64;
    }
    let (elements, bytes) = of.dtype().block();
    if strides[0] % elements as i64 != 0 {
        return Err(refused("its blocks are no whole bytes apart"));
    }
    let step = strides[0] / elements as i64 * bytes as i64;
    let made = match u64::try_from(step) {
        Ok(step) if step == block || shape[0] == 1 => {
            let end = of.offset_bytes() + shape[0] * block;
            let blocks = of.buffer().slice(of.offset_bytes()..end);
            let blocks = blocks.map_err(|error| refused(&error.to_string()))?;
            Region::blocks(&blocks, block, numbers)
        }
        _ => {
            let spans = numbers.iter().map(|number| {
                let start = of
                    .offset_bytes()
                    .wrapping_add_signed(step * i64::from(*number));
                start..start + block
            });
            Region::spans(of.buffer(), &spans.collect::<Vec<_>>())
        }
    };
    made.map_err(|error| refused(&error.to_string()))
}

/// Reads the numbers of blocks, of which there are `count`.
fn numbers(argument: &Bound<'_, PyAny>, name: &str, count: u64) -> PyResult<Vec<u32>> {
    let number = |(at, number): (usize, i128)| match u32::try_from(number) {
        Ok(number) if u64::from(number) < count => Ok(number),
        _ if number < 0 => Err(PyValueError::new_err(format!(
            "{name}: {number} at position {at} is negative; blocks are counted from 0"
        ))),
        _ => Err(PyValueError::new_err(format!(
            "{name}: {number} at position {at} is past the last block: there are {count}, and at most 2^32 are counted"
        ))),
    };
    if argument.is_none() {
        return (0..count).map(i128::from).enumerate().map(number).collect();
    }
    if let Some(numbers) = buffers::integers(argument) {
        return numbers.into_iter().enumerate().map(number).collect();
    }
    // As torch and JAX have them. A mask is no list of numbers.
    let listed = argument.call_method0("tolist");
    let listed = listed
        .as_ref()
        .unwrap_or(argument)
        .extract::<Vec<Bound<'_, PyAny>>>();
    let number_of = |of: &Bound<'_, PyAny>| match of.is_instance_of::<PyBool>() {
        true => Err(PyTypeError::new_err(
            "a truth value is no number of a block",
        )),
        false => of.extract::<i128>(),
    };
    let numbers = listed.and_then(|all| all.iter().map(number_of).collect::<PyResult<Vec<_>>>());
    let numbers = numbers.map_err(|error| {
        let kind = argument.get_type();
        let refused = PyTypeError::new_err(format!(
            "{name}: {kind} is no array or sequence of whole numbers of one dimension"
        ));
        refused.set_cause(argument.py(), Some(error));
        refused
    })?;
    numbers.into_iter().enumerate().map(number).collect()
}
