//! The storages behind the buffers of this backend.
//!
//! All devices of a process share one range of addresses with the host (CUDA C++ Programming Guide, Unified Virtual
//! Address Space), so the identity of a device's memory is that range, and positions are addresses: two views of one
//! allocation are known to be one, independent of how they were made.

mod adopt;
mod block;
mod device;
mod exchange;
mod hosted;
mod ipc;
mod managed;
mod pinned;
mod pointer;
mod registered;
mod uses;

pub(crate) use block::page_bytes;
pub(crate) use exchange::{Exchange, export, import};

use transload_hal::MemoryKind;
use transload_hal::{
    AllocError, AllocSpec, Buffer, DeviceId, ErrorClass, Fault, MemoryId, StorageId, StorageInfo,
};

use crate::device::BACKEND;
use crate::gpu::Gpu;
use crate::raw::CUdeviceptr;

/// "Any address of a variable residing in global memory or returned by one of the memory allocation routines from the
/// driver or runtime API is always aligned to at least 256 bytes" (CUDA C++ Programming Guide, Device Memory Accesses).
pub(crate) const ALIGNMENT: u64 = 256;

/// The strictest alignment that a caller can ask for: the largest page of a device.
const MAX_ALIGNMENT: u64 = 2 << 20;

/// The host memory that all devices reach.
pub(crate) const PINNED: MemoryId = DeviceId::CPU0.memory(MemoryKind::Pinned);

/// The storage of all addresses of the process, as its devices see them.
const DEVICES: StorageId = StorageId::Native {
    backend: BACKEND.0,
    handle: 0,
};

/// The address of the first byte of a view of device memory.
pub(crate) fn address(buffer: &Buffer) -> CUdeviceptr {
    buffer.position()
}

/// Whether the devices' engines reach a host buffer in place.
pub(crate) fn is_reached(gpus: &[Gpu], buffer: &Buffer) -> bool {
    let memory = buffer.memory();
    match memory.kind {
        MemoryKind::Pinned => memory == PINNED && buffer.backend() == BACKEND,
        MemoryKind::Pageable | MemoryKind::Shared => {
            gpus.iter().any(|gpu| gpu.facts.reaches_pageable)
        }
        _ => false,
    }
}

/// Allocates in a device's memory, or in the pinned memory that all devices reach.
pub(crate) fn allocate(
    gpus: &[Gpu],
    memory: MemoryId,
    spec: &AllocSpec,
) -> Result<Buffer, AllocError> {
    if memory == PINNED {
        return pinned::allocate(gpus, spec);
    }
    let gpu = gpus.iter().find(|gpu| gpu.id == memory.device);
    let gpu = gpu.ok_or(AllocError::UnknownMemory { memory })?;
    match memory.kind {
        MemoryKind::Device => {
            check(memory, spec, gpu.facts.memory_bytes)?;
            device::allocate(gpu, memory, spec)
        }
        MemoryKind::Managed if gpu.facts.has_managed => {
            check(memory, spec, managed::LARGEST)?;
            managed::allocate(gpu, memory, spec)
        }
        _ => Err(AllocError::UnknownMemory { memory }),
    }
}

/// The largest allocation of host memory, in bytes.
pub(crate) fn largest_pinned() -> u64 {
    pinned::largest()
}

/// The largest allocation of managed memory, in bytes.
pub(crate) const LARGEST_MANAGED: u64 = managed::LARGEST;

fn check(memory: MemoryId, spec: &AllocSpec, limit_bytes: u64) -> Result<(), AllocError> {
    if spec.len_bytes > limit_bytes {
        return Err(AllocError::TooLarge {
            memory,
            len_bytes: spec.len_bytes,
            limit_bytes,
        });
    }
    if !spec.alignment.is_power_of_two() || spec.alignment > MAX_ALIGNMENT {
        return Err(AllocError::Alignment {
            memory,
            alignment: spec.alignment,
            limit: MAX_ALIGNMENT,
        });
    }
    Ok(())
}

/// The number of bytes to ask the driver for, so that an aligned range of the length lies in them. It is never 0,
/// because the driver refuses empty allocations.
fn with_room(spec: &AllocSpec) -> usize {
    let lead = match spec.alignment {
        0..=ALIGNMENT => 0,
        strict => strict - ALIGNMENT,
    };
    (spec.len_bytes.max(1) + lead) as usize
}

fn refused(memory: MemoryId, len_bytes: u64, fault: Fault) -> AllocError {
    match fault.class {
        ErrorClass::Exhausted => AllocError::OutOfMemory {
            memory,
            len_bytes,
            fault,
        },
        // The fault of a lost device names the device itself, which may be another one than the memory's.
        _ => AllocError::Failed { memory, fault },
    }
}

fn info(memory: MemoryId, id: StorageId, base: u64, len_bytes: u64) -> StorageInfo {
    StorageInfo {
        id,
        base,
        len_bytes,
        memory,
        backend: BACKEND,
        writable: true,
        host: None,
    }
}
