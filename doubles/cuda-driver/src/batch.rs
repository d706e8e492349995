//! Many copies in one call.
//!
//! Source: CUDA Driver API, Memory Management: cuMemcpyBatchAsync. The copies of a batch
//! start together. Hints about the place of managed memory and about overlap with kernels are not modelled and have no
//! effect.

use std::ptr;

use transload_cuda::raw::{
    CUdeviceptr, CUmemcpyAttributes, CUmemcpyFlags, CUmemcpySrcAccessOrder, CUresult, CUstream,
};

use crate::answer::put_if_wanted;
use crate::call::{Call, driver};
use crate::transfer::{Mode, Order, Shape, Taken, Transfer, carry_out};

/// The arrays of a batch.
struct Batch {
    dsts: *const CUdeviceptr,
    srcs: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
    attrs: *const CUmemcpyAttributes,
    attrs_idxs: *const usize,
    num_attrs: usize,
}

/// The index for a failure that no single copy caused.
const NO_COPY: usize = usize::MAX;

driver! {
    /// Reports which copy was wrong, if one was.
    fn cuMemcpyBatchAsync(
        dsts: *mut CUdeviceptr,
        srcs: *mut CUdeviceptr,
        sizes: *mut usize,
        count: usize,
        attrs: *mut CUmemcpyAttributes,
        attrs_idxs: *mut usize,
        num_attrs: usize,
        fail_idx: *mut usize,
        h_stream: CUstream,
    ), call => {
        let batch = Batch { dsts, srcs, sizes, count, attrs, attrs_idxs, num_attrs };
        // SAFETY: the caller's arrays.
        unsafe { carry_out_batch(call, &batch, h_stream) }.map_err(|(at, result)| {
            // SAFETY: the caller passes null or a valid out-pointer for a number.
            unsafe { put_if_wanted(fail_idx, at) };
            result
        })
    }

    /// The same without that report.
    fn cuMemcpyBatchAsync_v2(
        dsts: *mut CUdeviceptr,
        srcs: *mut CUdeviceptr,
        sizes: *mut usize,
        count: usize,
        attrs: *mut CUmemcpyAttributes,
        attrs_idxs: *mut usize,
        num_attrs: usize,
        h_stream: CUstream,
    ), call => {
        let batch = Batch { dsts, srcs, sizes, count, attrs, attrs_idxs, num_attrs };
        // SAFETY: the caller's arrays.
        unsafe { carry_out_batch(call, &batch, h_stream) }.map_err(|(_, result)| result)
    }
}

/// # Errors
/// With the index of the copy that caused the failure.
///
/// # Safety
/// The arrays are null, or as long as the batch says.
unsafe fn carry_out_batch(
    call: &Call,
    batch: &Batch,
    stream: CUstream,
) -> Result<(), (usize, CUresult)> {
    let wrong = (NO_COPY, CUresult::CUDA_ERROR_INVALID_VALUE);
    if matches!(stream, CUstream::NULL | CUstream::LEGACY) {
        return Err(wrong);
    }
    // SAFETY: the caller's promise, here and below.
    let dsts = unsafe { array(batch.dsts, batch.count) }.ok_or(wrong)?;
    // SAFETY: as above.
    let srcs = unsafe { array(batch.srcs, batch.count) }.ok_or(wrong)?;
    // SAFETY: as above.
    let sizes = unsafe { array(batch.sizes, batch.count) }.ok_or(wrong)?;
    // SAFETY: as above.
    let attrs = unsafe { array(batch.attrs, batch.num_attrs) }.ok_or(wrong)?;
    // SAFETY: as above.
    let firsts = unsafe { array(batch.attrs_idxs, batch.num_attrs) }.ok_or(wrong)?;
    let rise = firsts.windows(2).all(|pair| pair[0] < pair[1]);
    let within = firsts.last().is_some_and(|last| *last < batch.count);
    if firsts.first() != Some(&0) || !rise || !within {
        return Err(wrong);
    }
    let orders: Result<Vec<Order>, CUresult> = attrs.iter().map(order).collect();
    let orders = orders.map_err(|result| (NO_COPY, result))?;
    let copies: Vec<_> = (0..batch.count)
        .map(|at| {
            let entry = firsts.partition_point(|first| *first <= at) - 1;
            (dsts[at], srcs[at], sizes[at], orders[entry])
        })
        .collect();
    carry_out_all(call, stream, &copies)
}

fn carry_out_all(
    call: &Call,
    stream: CUstream,
    copies: &[(CUdeviceptr, CUdeviceptr, usize, Order)],
) -> Result<(), (usize, CUresult)> {
    let general = |result| (NO_COPY, result);
    let mut state = call.state();
    call.current(&state).map_err(general)?;
    let number = state.stream_number(stream).map_err(general)?;
    state.unfinished(number).map_err(general)?;
    let mut transfers = Vec::with_capacity(copies.len());
    for (at, &(dst, src, len, order)) in copies.iter().enumerate() {
        if len == 0 {
            continue;
        }
        let blame = |result| (at, result);
        transfers.push(Transfer {
            src: state.end(src, len, Taken::Unified).map_err(blame)?,
            dst: state.end(dst, len, Taken::Unified).map_err(blame)?,
            shape: Shape::line(len),
            order,
        });
    }
    if transfers.is_empty() {
        return Ok(());
    }
    carry_out(call, state, stream, Mode::Asynchronous, transfers).map_err(general)
}

fn order(attributes: &CUmemcpyAttributes) -> Result<Order, CUresult> {
    use CUmemcpySrcAccessOrder as O;
    if attributes.flags & !CUmemcpyFlags::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE.0 != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    match attributes.srcAccessOrder {
        O::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM => Ok(Order::Stream),
        O::CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL => Ok(Order::DuringCall),
        O::CU_MEMCPY_SRC_ACCESS_ORDER_ANY => Ok(Order::Any),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// The elements of a caller's array; none for a null pointer.
///
/// # Safety
/// The pointer is null, or to so many elements.
unsafe fn array<T: Copy>(start: *const T, len: usize) -> Option<Vec<T>> {
    if start.is_null() {
        return None;
    }
    let mut elements = Vec::new();
    for index in 0..len {
        // SAFETY: the element is one of the array's.
        let element = unsafe { start.add(index) };
        // SAFETY: as above. Clients may hand in arrays of any alignment.
        elements.push(unsafe { ptr::read_unaligned(element) });
    }
    Some(elements)
}
