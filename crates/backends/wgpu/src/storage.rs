//! Buffers of wgpu as storages of the hal, natively and in the browser.

use transload_hal::MemoryId;
use transload_hal::{
    AllocError, AllocSpec, BackendId, ErrorClass, ExternalKind, Fault, ImportError, Name,
    StorageId, StorageInfo,
};

/// The name of this backend.
pub const BACKEND: BackendId = BackendId(Name::constant("wgpu"));

/// wgpu copies whole words of this many bytes.
pub(crate) const WORD: u64 = 4;

/// The strictest alignment that WebGPU lets an adapter demand of an offset into a buffer. A buffer's first byte has every
/// alignment.
pub(crate) const OFFSETS: u64 = 256;

/// The usages of buffers that the manager allocates: all that need no feature.
pub(crate) const USAGES: wgpu::BufferUsages = wgpu::BufferUsages::COPY_SRC
    .union(wgpu::BufferUsages::COPY_DST)
    .union(wgpu::BufferUsages::STORAGE)
    .union(wgpu::BufferUsages::UNIFORM)
    .union(wgpu::BufferUsages::VERTEX)
    .union(wgpu::BufferUsages::INDEX)
    .union(wgpu::BufferUsages::INDIRECT);

/// Why a private device imports no object of a user.
pub(crate) const PRIVATE: &str = "it is of another device: the program has not taken this one's handles \
                                  with `Wgpu::handles`; lend yours with `Wgpu::with_devices`";

pub(crate) fn failed(error: &dyn std::fmt::Display) -> Fault {
    Fault::new(ErrorClass::Failed, error.to_string())
}

/// A text of wgpu's or a browser's, which may have a line for each cause, on one line.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(crate) fn refused(memory: MemoryId, len_bytes: u64, fault: Fault) -> AllocError {
    match fault.class {
        ErrorClass::Exhausted => AllocError::OutOfMemory {
            memory,
            len_bytes,
            fault,
        },
        ErrorClass::Lost => AllocError::Lost {
            device: memory.device,
            fault,
        },
        _ => AllocError::Failed { memory, fault },
    }
}

/// Checks the length and the alignment of an allocation, of which a memory offers at most that.
///
/// # Errors
/// If either exceeds what there is.
pub(crate) fn check_spec(
    device: &wgpu::Device,
    memory: MemoryId,
    spec: &AllocSpec,
    alignment: u64,
) -> Result<(), AllocError> {
    let limit_bytes = device.limits().max_buffer_size;
    // In whole words.
    if spec.len_bytes > limit_bytes / WORD * WORD {
        return Err(AllocError::TooLarge {
            memory,
            len_bytes: spec.len_bytes,
            limit_bytes,
        });
    }
    if spec.alignment > alignment || !spec.alignment.is_power_of_two() {
        return Err(AllocError::Alignment {
            memory,
            alignment: spec.alignment,
            limit: alignment,
        });
    }
    Ok(())
}

/// # Errors
/// If the user's buffer was created without the usages that copies need, or ends with a part of a word, which no copy
/// reaches.
pub(crate) fn reject_unusable(memory: MemoryId, buffer: &wgpu::Buffer) -> Result<(), ImportError> {
    let needed = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let (usage, size) = (buffer.usage(), buffer.size());
    let lacks = needed.difference(usage);
    let reason = if !lacks.is_empty() {
        format!("its usages {usage:?} lack {lacks:?}")
    } else if !size.is_multiple_of(WORD) {
        format!(
            "its size of {size} bytes is no multiple of {WORD}: wgpu copies whole words, and none reaches the last one"
        )
    } else {
        return Ok(());
    };
    Err(ImportError::Invalid {
        memory,
        kind: ExternalKind::Object,
        reason: reason.into(),
    })
}

/// Clones of one wgpu object hash alike, so they are one storage in all managers of the process. wgpu hashes a number that
/// is unique for the object's type and instance, so the device's identity and the type are hashed as well. If two objects collide,
/// their transfers wait for each other.
pub(crate) fn handle_of<T: std::hash::Hash>(device: usize, object: &T) -> u64 {
    use std::hash::BuildHasher as _;
    let state = std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default();
    state.hash_one((device, std::any::type_name::<T>(), object))
}

pub(crate) fn info(memory: MemoryId, handle: u64, len: u64) -> StorageInfo {
    StorageInfo {
        id: StorageId::Native {
            backend: BACKEND.0,
            handle,
        },
        base: 0,
        len_bytes: len,
        memory,
        backend: BACKEND,
        writable: true,
        host: None,
    }
}
