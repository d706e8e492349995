//! What an author of a backend gives the suite.

use std::time::Duration;

use transload_hal::{
    AllocError, AllocSpec, Backend, BackendId, Buffer, HostSpan, MemoryId, Name, StorageId,
    StorageInfo,
};

/// Gives the suite a backend, access to its memory without the backend's operations, and a way to
/// let time pass.
pub trait Harness {
    /// The backend in its initial state: without submissions and without a sink.
    fn backend(&self) -> &dyn Backend;

    /// Makes a buffer in a memory of the backend, or in another backend's memory at which a link
    /// ends.
    ///
    /// By default this calls the backend's own `allocate`; for memories of processors that the
    /// backend does not have, it makes a heap block that poses as one.
    ///
    /// # Errors
    /// As [`AllocError`] lists; an unsupported allocation skips the cases that need the memory.
    fn make(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
        let inventory = self.backend().inventory();
        let own = inventory.memories.iter().any(|info| info.id == memory);
        if !own && memory.device.is_host() {
            return Ok(posing_as(memory, spec.len_bytes));
        }
        self.backend().allocate(memory, spec)
    }

    /// Writes bytes without the backend's operations. Returns false if it cannot. By default it
    /// uses [`Buffer::host`].
    fn fill(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> bool {
        let Some(span) = buffer.host(offset, bytes.len() as u64) else {
            return false;
        };
        // SAFETY: the suite fills buffers that no operation uses, and they stay alive meanwhile.
        unsafe { HostSpan::of(bytes).copy_to(span) };
        true
    }

    /// Reads bytes without the backend's operations. Returns false if it cannot. By default it uses
    /// [`Buffer::host`].
    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> bool {
        let Some(span) = buffer.host(offset, out.len() as u64) else {
            return false;
        };
        // SAFETY: the suite reads buffers that no operation writes, and they stay alive meanwhile.
        unsafe { span.copy_to(HostSpan::of_mut(out)) };
        true
    }

    /// Lets a little time pass, for backends whose clock the test holds. By default a pump.
    fn drive(&self) {
        self.backend().pump();
    }

    /// How long a fence may take before it counts as hung. By default five minutes, because a busy machine is no hang.
    fn patience(&self) -> Duration {
        Duration::from_secs(300)
    }

    /// The lengths of copies, in bytes. The suite leaves out lengths beyond a memory's largest allocation.
    fn sizes(&self) -> Vec<u64> {
        SIZES.to_vec()
    }
}

/// Zero, single bytes, lengths around a word, a cache line, a page and the smallest chunk, and one odd length.
pub const SIZES: [u64; 17] = [
    0,
    1,
    3,
    4,
    7,
    8,
    63,
    64,
    65,
    4095,
    4096,
    4097,
    transload_core::defaults::MIN_CHUNK_BYTES - 1,
    transload_core::defaults::MIN_CHUNK_BYTES,
    transload_core::defaults::MIN_CHUNK_BYTES + 1,
    (1 << 20) - 1,
    (1 << 20) + 13,
];

/// A heap block that poses as another backend's memory.
pub(super) fn posing_as(memory: MemoryId, len_bytes: u64) -> Buffer {
    let mut block = vec![0u8; usize::try_from(len_bytes).unwrap_or(0)];
    let host = HostSpan::of_mut(&mut block);
    let info = StorageInfo {
        id: StorageId::Host,
        base: host.addr(),
        len_bytes: block.len() as u64,
        memory,
        backend: BackendId(Name::constant("elsewhere")),
        writable: true,
        host: Some(host),
    };
    // SAFETY: the vector's block stays in place while the buffer owns the vector, and no other code touches it.
    unsafe { Buffer::new(info, Box::new(block)) }
}
