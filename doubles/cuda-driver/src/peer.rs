//! Copies from one device to another: peer access, and the route of the bytes.
//!
//! Source: CUDA Driver API, Peer Context Memory Access, and Memory Management (cuMemcpyPeerAsync). A copy is direct if
//! there is a link in that direction and one of the two devices reaches both ends: by access that was enabled between
//! the contexts of the memory, or that was set for memory that `cuMemMap` mapped. Otherwise it still succeeds, through
//! the host: first over the source device's link, then over the other's.

use std::ffi::{c_int, c_uint};

use transload_core::LinkClass;
use transload_cuda::raw::{
    CUDA_MEMCPY3D_PEER, CUcontext, CUdevice, CUdevice_P2PAttribute, CUdeviceptr, CUresult, CUstream,
};

use crate::answer::{Answer, put};
use crate::bytes::Memory;
use crate::call::{Call, driver};
use crate::machine::{self, Machine};
use crate::pitched::{Box3, described};
use crate::state::State;
use crate::transfer::{End, Mode, Order, Shape, Taken, Transfer, carry_out};

impl State {
    /// An end of a copy between contexts: memory of a device has to be of its context's device.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is not, and as [`State::end`]; `INVALID_CONTEXT` for what is no context.
    pub(crate) fn end_in(
        &self,
        context: CUcontext,
        address: u64,
        len: usize,
    ) -> Result<End, CUresult> {
        let of_context = self.context(context)?;
        of_context.ruin.check()?;
        let mut end = self.end(address, len, Taken::Device)?;
        match end.place.memory {
            Memory::Device(ordinal) if ordinal as i32 != of_context.device.0 => {
                Err(CUresult::CUDA_ERROR_INVALID_VALUE)
            }
            _ => {
                end.context = context;
                Ok(end)
            }
        }
    }
}

driver! {
    /// A device has no peer access to itself.
    fn cuDeviceCanAccessPeer(can_access_peer: *mut c_int, dev: CUdevice, peer_dev: CUdevice), call => {
        let can = can_access(call, dev, peer_dev)?;
        // SAFETY: the caller passes a valid out-pointer for a number.
        unsafe { put(can_access_peer, c_int::from(can)) }
    }

    /// The attributes of the link from one device's memory to the other's. A fabric reports all atomics, as NVLink does
    /// (CUDA C++ Programming Guide, Peer-to-Peer Memory Access), though no code here performs any; a bus has none. No
    /// link has arrays.
    fn cuDeviceGetP2PAttribute(value: *mut c_int, attrib: CUdevice_P2PAttribute, src_device: CUdevice, dst_device: CUdevice), call => {
        use CUdevice_P2PAttribute as A;
        let can = can_access(call, src_device, dst_device)?;
        if src_device == dst_device {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        let answer = match attrib {
            A::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK => {
                rank(&call.world.machine, src_device.0 as usize, dst_device.0 as usize)
            }
            A::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED => c_int::from(can),
            A::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED => {
                let (src, dst) = (src_device.0 as usize, dst_device.0 as usize);
                let way = call.world.machine.way(
                    machine::Memory::Device(src),
                    machine::Memory::Device(dst),
                );
                c_int::from(way.is_some_and(|way| way.class == LinkClass::Fabric))
            }
            A::CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED
            | A::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED => 0,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        // SAFETY: the caller passes a valid out-pointer for a number.
        unsafe { put(value, answer) }
    }

    /// From now on the current context reaches the memory of the other one, but not in reverse.
    fn cuCtxEnablePeerAccess(peer_context: CUcontext, flags: c_uint), call => {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut state = call.state();
        let (current, device) = call.current(&state)?;
        let peer = state.context(peer_context);
        let peer = peer.map_err(|_| CUresult::CUDA_ERROR_INVALID_CONTEXT)?.device;
        if peer_context == current {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        if !call.world.machine.can_access(device.0 as usize, peer.0 as usize) {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        if !state.context_mut(current)?.peers.insert(peer_context) {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        }
        Ok(())
    }

    /// Disables the access that the current context enabled. Copies in flight go on as they began.
    fn cuCtxDisablePeerAccess(peer_context: CUcontext), call => {
        let mut state = call.state();
        let (current, _) = call.current(&state)?;
        let peer = state.context(peer_context);
        peer.map_err(|_| CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        if !state.context_mut(current)?.peers.remove(&peer_context) {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
        }
        Ok(())
    }

    /// The stream may be of either context, or of a third.
    fn cuMemcpyPeerAsync(dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext, byte_count: usize, h_stream: CUstream), call => {
        let (dst, src) = ((dst_device, dst_context), (src_device, src_context));
        line(call, h_stream, dst, src, byte_count)
    }

    /// The contexts have no meaning for an end in host memory.
    fn cuMemcpy3DPeerAsync(p_copy: *const CUDA_MEMCPY3D_PEER, h_stream: CUstream), call => {
        // SAFETY: the caller passes a valid description.
        unsafe { planes(call, h_stream, p_copy) }
    }
}

fn can_access(call: &Call, device: CUdevice, peer: CUdevice) -> Result<bool, CUresult> {
    let state = call.state();
    state.device(device)?;
    state.device(peer)?;
    let (device, peer) = (device.0 as usize, peer.0 as usize);
    Ok(call.world.machine.can_access(device, peer))
}

/// The number of different link speeds between devices that are faster; pairs without a link come after all others.
/// Less is better (CUDA Runtime API, cudaDeviceGetP2PAttribute: 0 is the most performant link).
fn rank(machine: &Machine, src: usize, dst: usize) -> c_int {
    let cost = |src, dst| {
        let way = machine.way(machine::Memory::Device(src), machine::Memory::Device(dst));
        way.map(|way| way.duration_ns(1 << 20))
    };
    let own = cost(src, dst).unwrap_or(u64::MAX);
    let devices = 0..machine.devices().len();
    let pairs = devices
        .clone()
        .flat_map(|src| devices.clone().map(move |dst| (src, dst)));
    let costs = pairs
        .filter(|(src, dst)| src != dst)
        .filter_map(|(src, dst)| cost(src, dst));
    let mut faster: Vec<u64> = costs.filter(|cost| *cost < own).collect();
    faster.sort_unstable();
    faster.dedup();
    faster.len() as c_int
}

fn line(
    call: &Call,
    stream: CUstream,
    (dst, dst_context): (u64, CUcontext),
    (src, src_context): (u64, CUcontext),
    len: usize,
) -> Answer {
    let mut state = call.state();
    call.current(&state)?;
    if len == 0 {
        state.context(dst_context)?;
        state.context(src_context)?;
        let number = state.stream_number(stream)?;
        return state.unfinished(number).map(|_| ());
    }
    let transfer = Transfer {
        src: state.end_in(src_context, src, len)?,
        dst: state.end_in(dst_context, dst, len)?,
        shape: Shape::line(len),
        order: Order::Stream,
    };
    carry_out(call, state, stream, Mode::Asynchronous, vec![transfer])
}

/// # Safety
/// The description is null, or one.
unsafe fn planes(call: &Call, stream: CUstream, description: *const CUDA_MEMCPY3D_PEER) -> Answer {
    // SAFETY: the caller keeps the same promise.
    let copy = unsafe { described(description) }?;
    Box3::between_contexts(&copy).carry_out(call, stream)
}
