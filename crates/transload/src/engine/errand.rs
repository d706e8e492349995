//! The steps of a proof that are done outside the engine's lock, and the bytes that a proof sends.

use alloc::boxed::Box;
use alloc::vec;

use transload_core::{DeviceId, MemoryId, MemoryKind};
use transload_hal::{
    AllocError, AllocSpec, Backend, Buffer, Fault, HostSpan, StorageId, StorageInfo,
};

use super::unwind::{guarded, own_fault};

/// The bytes that a proof sends: sixteen small pages and an odd tail, so that mistakes in units of pages and of cache
/// lines both show.
pub(crate) const PROOF_BYTES: u64 = (64 << 10) + 13;

/// The alignment of these bytes, in memory that supports it: a page, since links that reach whole pages refuse other
/// ranges. The largest page that is not a huge one has 64 KiB, on Arm.
const PROOF_ALIGNMENT: u64 = 64 << 10;

/// A step of a proof that is done outside the lock.
pub(crate) enum Errand {
    Connect {
        src: MemoryId,
        dst: MemoryId,
    },
    Allocate {
        memory: MemoryId,
    },
    Compare {
        pattern: Option<Buffer>,
        back: Option<Buffer>,
    },
}

/// The result of an errand.
pub(crate) enum Found {
    Connected,
    Scratch(Buffer),
    Equal(bool),
}

impl Errand {
    pub(crate) fn run(&self, backend: &dyn Backend) -> Result<Found, Fault> {
        match self {
            Errand::Connect { src, dst } => guarded(|| backend.connect(*src, *dst))?
                .map(|_| Found::Connected)
                .map_err(|error| own_fault(error.class(), &error)),
            Errand::Allocate { memory } => {
                let plain = AllocSpec::bytes(PROOF_BYTES);
                let paged = plain.aligned(PROOF_ALIGNMENT);
                guarded(|| match backend.allocate(*memory, &paged) {
                    Err(AllocError::Alignment { .. }) => backend.allocate(*memory, &plain),
                    answer => answer,
                })?
                .map(Found::Scratch)
                .map_err(|error| own_fault(error.class(), &error))
            }
            Errand::Compare { pattern, back } => {
                let bytes = |buffer: &Option<Buffer>| buffer.as_ref()?.host(0, PROOF_BYTES);
                let (Some(pattern), Some(back)) = (bytes(pattern), bytes(back)) else {
                    return Ok(Found::Equal(false));
                };
                // SAFETY: the job owns the vector behind the buffer, and its transfers are over.
                let pattern = unsafe { pattern.as_slice() };
                // SAFETY: as above.
                let back = unsafe { back.as_slice() };
                Ok(Found::Equal(pattern == back))
            }
        }
    }
}

/// Returns host memory with the pattern: no two neighbouring bytes, pages or cache lines are alike, and none is the
/// poison.
pub(crate) fn pattern() -> Buffer {
    scratch(|at| {
        let mixed = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
        if mixed == 0xA5 { 0x5A } else { mixed as u8 }
    })
}

/// Returns host memory with bytes that the pattern does not contain.
pub(crate) fn poison() -> Buffer {
    scratch(|_| 0xA5)
}

/// Returns host memory of the engine's own, which begins with a page. If no other way is left, it is an end of the link
/// under proof.
fn scratch(byte: impl Fn(u64) -> u8) -> Buffer {
    let mut bytes = vec![0; (PROOF_BYTES + PROOF_ALIGNMENT) as usize];
    let start = HostSpan::of(&bytes).addr();
    let lead = (start.next_multiple_of(PROOF_ALIGNMENT) - start) as usize;
    let some = &mut bytes[lead..][..PROOF_BYTES as usize];
    for (at, to) in (0..).zip(some.iter_mut()) {
        *to = byte(at);
    }
    let host = HostSpan::of_mut(some);
    let memory = DeviceId::CPU0.memory(MemoryKind::Pageable);
    let info = StorageInfo {
        id: StorageId::Host,
        base: host.addr(),
        len_bytes: PROOF_BYTES,
        memory,
        backend: memory.device.backend(),
        writable: true,
        host: Some(host),
    };
    // SAFETY: the vector's block stays in place until the vector is dropped, and nothing but the buffer uses it.
    unsafe { Buffer::new(info, Box::new(bytes)) }
}
