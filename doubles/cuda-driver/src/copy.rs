//! Copies of a number of bytes from one address to another.
//!
//! Source: CUDA Driver API, Memory Management: cuMemcpy and its variants. A device address of a function may be any
//! address that devices reach. Copying 0 bytes is no error, for any addresses.

use std::ffi::c_void;

use Mode::{Asynchronous, Synchronous};
use Taken::{Device, Host, Unified};
use transload_cuda::raw::{CUdeviceptr, CUstream};

use crate::answer::Answer;
use crate::call::{Call, driver};
use crate::transfer::{Mode, Order, Shape, Taken, Transfer, carry_out};

driver! {
    /// Copies between any two memories, which the addresses determine.
    fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize), call => {
        line(call, CUstream::LEGACY, Synchronous, (dst, Unified), (src, Unified), byte_count)
    }

    /// Returns when pageable memory has been staged, or pinned memory has arrived.
    fn cuMemcpyHtoD_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize), call => {
        let src = (src_host.addr() as u64, Host);
        line(call, CUstream::LEGACY, Synchronous, (dst_device, Device), src, byte_count)
    }

    /// Returns when the bytes have arrived.
    fn cuMemcpyDtoH_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize), call => {
        let dst = (dst_host.addr() as u64, Host);
        line(call, CUstream::LEGACY, Synchronous, dst, (src_device, Device), byte_count)
    }

    /// Returns at once between memories of devices.
    fn cuMemcpyDtoD_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize), call => {
        line(call, CUstream::LEGACY, Synchronous, (dst_device, Device), (src_device, Device), byte_count)
    }

    /// Returns when pageable memory has been staged, for which it waits for the stream.
    fn cuMemcpyHtoDAsync_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, h_stream: CUstream), call => {
        let src = (src_host.addr() as u64, Host);
        line(call, h_stream, Asynchronous, (dst_device, Device), src, byte_count)
    }

    /// Returns when the bytes have arrived, if the memory is pageable.
    fn cuMemcpyDtoHAsync_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream), call => {
        let dst = (dst_host.addr() as u64, Host);
        line(call, h_stream, Asynchronous, dst, (src_device, Device), byte_count)
    }

    /// Between memories of one device or of two.
    fn cuMemcpyDtoDAsync_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream), call => {
        line(call, h_stream, Asynchronous, (dst_device, Device), (src_device, Device), byte_count)
    }
}

fn line(
    call: &Call,
    stream: CUstream,
    mode: Mode,
    (dst, dst_taken): (u64, Taken),
    (src, src_taken): (u64, Taken),
    len: usize,
) -> Answer {
    let mut state = call.state();
    call.current(&state)?;
    if len == 0 {
        let number = state.stream_number(stream)?;
        return state.unfinished(number).map(|_| ());
    }
    let transfer = Transfer {
        src: state.end(src, len, src_taken)?,
        dst: state.end(dst, len, dst_taken)?,
        shape: Shape::line(len),
        order: Order::Stream,
    };
    carry_out(call, state, stream, mode, vec![transfer])
}
