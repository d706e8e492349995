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
mod storage;
mod uses;

pub(crate) use block::page_bytes;
pub(crate) use exchange::{Exchange, export, import};
pub(crate) use storage::{ALIGNMENT, address};

use transload_hal::{AllocError, AllocSpec, Buffer, MemoryId, MemoryKind};

use storage::check;

use crate::gpu::Gpu;
use crate::ids::{BACKEND, PINNED};

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

/// How many bytes of a device's memory are free, with those that its pool keeps.
pub(crate) fn free_bytes(gpu: &Gpu) -> Option<u64> {
    let context = &gpu.open().ok()?.context;
    context.trim();
    let _current = context.enter().ok()?;
    let (mut free, mut total) = (0, 0);
    let driver = &context.driver;
    // SAFETY: both are written.
    unsafe { driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) }.ok()?;
    Some(free as u64)
}

/// The largest allocation of host memory, in bytes.
pub(crate) fn largest_pinned() -> u64 {
    pinned::largest()
}

/// The largest allocation of managed memory, in bytes.
pub(crate) const LARGEST_MANAGED: u64 = managed::LARGEST;
