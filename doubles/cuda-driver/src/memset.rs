//! Filling memory.
//!
//! Source: CUDA Driver API, Memory Management: cuMemsetD8; and API synchronization behavior: a synchronous
//! call waits only for host memory, and where the context or the memory requires it. Filling takes the time of a copy
//! of that many bytes: within the device, or over the link from the current device to the host.

use transload_cuda::raw::{CUdevice, CUdeviceptr, CUresult, CUstream};

use crate::answer::Answer;
use crate::bytes::{Memory, Place};
use crate::call::{Call, driver};
use crate::engine::Action;
use crate::machine;
use crate::stream::wait;
use crate::transfer::{End, Mode, Taken, always_waits, work};

driver! {
    /// Fills `n` bytes.
    fn cuMemsetD8_v2(dst_device: CUdeviceptr, uc: u8, n: usize), call => {
        fill(call, CUstream::LEGACY, Mode::Synchronous, dst_device, uc, n)
    }

    /// Fills `n` bytes.
    fn cuMemsetD8Async(dst_device: CUdeviceptr, uc: u8, n: usize, h_stream: CUstream), call => {
        fill(call, h_stream, Mode::Asynchronous, dst_device, uc, n)
    }
}

fn fill(call: &Call, stream: CUstream, mode: Mode, address: u64, byte: u8, len: usize) -> Answer {
    let mut state = call.state();
    let (_, device) = call.current(&state)?;
    let number = state.stream_number(stream)?;
    let (_, ruin) = state.unfinished(number)?;
    if len == 0 {
        return Ok(());
    }
    let End { place, .. } = state.end(address, len, Taken::Device)?;
    let waits = always_waits(call, &state)?;
    if !place.access.is_written() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let on_host = !matches!(place.memory, Memory::Device(_));
    let mut work = work(call, pass(&place, device), len as u64);
    work.action = Action::Move(Box::new(move || repeat(&place, byte)));
    let ticket = state.enqueue(call.world, stream, vec![vec![work]])?;
    drop(state);
    if mode == Mode::Synchronous && (on_host || waits) {
        wait(call, &[ticket], &ruin)
    } else {
        Ok(())
    }
}

fn pass(place: &Place, device: CUdevice) -> (machine::Memory, machine::Memory) {
    match place.memory {
        Memory::Device(ordinal) => {
            let own = machine::Memory::Device(ordinal);
            (own, own)
        }
        _ => {
            let current = machine::Memory::Device(device.0 as usize);
            (current, machine::Memory::Pinned)
        }
    }
}

fn repeat(place: &Place, byte: u8) {
    let pattern = vec![byte; place.len().min(1 << 16)];
    for at in (0..place.len()).step_by(pattern.len()) {
        let left = pattern.len().min(place.len() - at);
        // SAFETY: the bytes lie within the place; what else happens to them meanwhile is the client's to order.
        unsafe { place.write(at, &pattern[..left]) };
    }
}
