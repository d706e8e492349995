//! Memory of a device, named for other processes.

use core::fmt;

use transload_core::{Span, Uuid};

use crate::ExternalKind;

/// A handle to memory of a device, with which another process of the machine can open that memory. It is plain data:
/// the two processes may exchange it by any means.
///
/// The handle keeps nothing alive. The exporting process keeps the buffer until every process that opened it has
/// dropped its own: memory that is freed earlier may belong to another allocation by then. The handle orders nothing:
/// the transfers of two processes are not ordered against each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpcHandle {
    kind: ExternalKind,
    token: [u8; IpcHandle::TOKEN_BYTES],
    device: Uuid,
    allocation_bytes: u64,
    span: Span,
    writable: bool,
}

/// Why bytes are no [`IpcHandle`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IpcHandleError {
    /// Shorter or longer than a handle.
    #[error("a handle has {} bytes, not {len_bytes}", IpcHandle::BYTES)]
    Length {
        /// How many there are.
        len_bytes: usize,
    },
    /// The bytes do not start as a handle does.
    #[error("the bytes do not begin as a handle does")]
    Foreign,
    /// Written by a version of this library with another format.
    #[error(
        "the handle is of version {version}, and this library reads version {}",
        IpcHandle::VERSION
    )]
    Version {
        /// The version in the bytes.
        version: u8,
    },
    /// A handle whose checksum does not match.
    #[error("the handle was changed on its way")]
    Damaged,
    /// A handle of a kind that this library does not know.
    #[error("the handle is of kind {kind}, which this library does not know")]
    Kind {
        /// The kind in the bytes.
        kind: u8,
    },
    /// The handle names bytes past the end of the memory.
    #[error("the handle names {span} of {allocation_bytes} bytes")]
    Bounds {
        /// The bytes.
        span: Span,
        /// How many there are.
        allocation_bytes: u64,
    },
}

/// The first bytes of each handle.
const MAGIC: [u8; 8] = *b"tlipcmem";

/// The kinds of handles, with their numbers in the bytes.
const KINDS: [(u8, ExternalKind); 2] = [(1, ExternalKind::CudaIpc), (2, ExternalKind::Remote)];

const WRITABLE: u8 = 1;

impl IpcHandle {
    /// The length of a handle in bytes.
    pub const BYTES: usize = 128;

    /// The length of the driver's own part of it: the same for CUDA, HIP and Level Zero.
    pub const TOKEN_BYTES: usize = 64;

    /// The version of the format that [`IpcHandle::to_bytes`] writes.
    pub const VERSION: u8 = 1;

    /// Makes a handle to the bytes `span` of an allocation of `allocation_bytes` bytes on a device. `token` is the
    /// driver's name of the allocation. For backends.
    ///
    /// # Errors
    /// When the span does not lie within the allocation, or the kind does not name memory for other processes.
    pub fn new(
        kind: ExternalKind,
        token: [u8; IpcHandle::TOKEN_BYTES],
        device: Uuid,
        allocation_bytes: u64,
        span: Span,
        writable: bool,
    ) -> Result<IpcHandle, IpcHandleError> {
        if number_of(kind).is_none() {
            return Err(IpcHandleError::Kind { kind: 0 });
        }
        if !span.fits(allocation_bytes) {
            return Err(IpcHandleError::Bounds {
                span,
                allocation_bytes,
            });
        }
        Ok(IpcHandle {
            kind,
            token,
            device,
            allocation_bytes,
            span,
            writable,
        })
    }

    /// Returns the kind of the handle, which tells which driver it belongs to.
    pub fn kind(&self) -> ExternalKind {
        self.kind
    }

    /// Returns the driver's name of the allocation.
    pub fn token(&self) -> &[u8; IpcHandle::TOKEN_BYTES] {
        &self.token
    }

    /// Returns the UUID of the device that the memory is on. Its number may differ from one process to another.
    pub fn device(&self) -> Uuid {
        self.device
    }

    /// Returns the length of the allocation, of which the handle shows [`IpcHandle::span`].
    pub fn allocation_bytes(&self) -> u64 {
        self.allocation_bytes
    }

    /// Returns which bytes of the allocation the handle shows.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Returns whether the bytes may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the handle as bytes, in a format that is the same on every machine.
    pub fn to_bytes(&self) -> [u8; IpcHandle::BYTES] {
        let mut bytes = [0; IpcHandle::BYTES];
        let (body, sum) = bytes.split_at_mut(SUMMED);
        body[..8].copy_from_slice(&MAGIC);
        body[8] = IpcHandle::VERSION;
        body[9] = number_of(self.kind).unwrap_or(0);
        body[10] = if self.writable { WRITABLE } else { 0 };
        body[16..32].copy_from_slice(&self.device.0);
        body[32..40].copy_from_slice(&self.allocation_bytes.to_le_bytes());
        body[40..48].copy_from_slice(&self.span.offset.to_le_bytes());
        body[48..56].copy_from_slice(&self.span.len.to_le_bytes());
        body[56..].copy_from_slice(&self.token);
        sum.copy_from_slice(&checksum(body).to_le_bytes());
        bytes
    }

    /// Reads a handle that [`IpcHandle::to_bytes`] wrote.
    ///
    /// A checksum detects accidental changes, but no forgery: do not import handles from a process that you do not
    /// trust.
    ///
    /// # Errors
    /// As [`IpcHandleError`] lists.
    pub fn from_bytes(bytes: &[u8]) -> Result<IpcHandle, IpcHandleError> {
        let len_bytes = bytes.len();
        let length = IpcHandleError::Length { len_bytes };
        let bytes: &[u8; IpcHandle::BYTES] = bytes.try_into().map_err(|_| length)?;
        let (body, sum) = bytes.split_at(SUMMED);
        if body[..8] != MAGIC {
            return Err(IpcHandleError::Foreign);
        }
        if body[8] != IpcHandle::VERSION {
            return Err(IpcHandleError::Version { version: body[8] });
        }
        if sum != checksum(body).to_le_bytes() {
            return Err(IpcHandleError::Damaged);
        }
        let kind = KINDS.iter().find(|(number, _)| *number == body[9]);
        let (_, kind) = kind.ok_or(IpcHandleError::Kind { kind: body[9] })?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&body[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let mut device = [0; 16];
        device.copy_from_slice(&body[16..32]);
        let mut token = [0; IpcHandle::TOKEN_BYTES];
        token.copy_from_slice(&body[56..]);
        let span = Span::new(word(40), word(48));
        let writable = body[10] & WRITABLE != 0;
        IpcHandle::new(*kind, token, Uuid(device), word(32), span, writable)
    }
}

impl fmt::Debug for IpcHandle {
    /// Omits the token: with it any process could open the memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IpcHandle")
            .field("kind", &self.kind)
            .field("device", &self.device)
            .field("allocation_bytes", &self.allocation_bytes)
            .field("span", &self.span)
            .field("writable", &self.writable)
            .finish_non_exhaustive()
    }
}

/// The number of leading bytes that the checksum covers; the checksum comes after them.
const SUMMED: usize = IpcHandle::BYTES - 8;

fn number_of(kind: ExternalKind) -> Option<u8> {
    let known = KINDS.iter().find(|(_, of)| *of == kind);
    known.map(|(number, _)| *number)
}

/// FNV-1a, 64 bits wide (draft-eastlake-fnv, The FNV Non-Cryptographic Hash Algorithm).
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    fn handle(span: Span) -> Result<IpcHandle, IpcHandleError> {
        let token = core::array::from_fn(|at| at as u8);
        let device = Uuid([7; 16]);
        IpcHandle::new(ExternalKind::CudaIpc, token, device, 5000, span, true)
    }

    /// Returns the bytes with one byte replaced and the checksum corrected.
    fn with(at: usize, byte: u8) -> [u8; IpcHandle::BYTES] {
        let mut bytes = handle(Span::new(100, 200)).unwrap().to_bytes();
        bytes[at] = byte;
        let sum = checksum(&bytes[..SUMMED]).to_le_bytes();
        bytes[SUMMED..].copy_from_slice(&sum);
        bytes
    }

    #[test]
    fn a_handle_is_read_as_it_was_written() {
        for writable in [true, false] {
            let whole = handle(Span::new(4999, 1)).unwrap();
            let handle = IpcHandle { writable, ..whole };
            assert_eq!(IpcHandle::from_bytes(&handle.to_bytes()), Ok(handle));
        }
    }

    #[test]
    fn one_changed_byte_is_found_wherever_it_is() {
        let bytes = handle(Span::new(100, 200)).unwrap().to_bytes();
        for at in 0..IpcHandle::BYTES {
            for flip in [1, 0x80, 0xff] {
                let mut bytes = bytes;
                bytes[at] ^= flip;
                let error = IpcHandle::from_bytes(&bytes).unwrap_err();
                let expected = match at {
                    0..8 => IpcHandleError::Foreign,
                    8 => IpcHandleError::Version { version: bytes[8] },
                    _ => IpcHandleError::Damaged,
                };
                assert_eq!(error, expected, "byte {at}");
            }
        }
    }

    #[test]
    fn bytes_of_another_length_are_none() {
        let bytes = handle(Span::new(100, 200)).unwrap().to_bytes();
        for len_bytes in [0, 1, 64, 127] {
            let error = IpcHandle::from_bytes(&bytes[..len_bytes]).unwrap_err();
            assert_eq!(error, IpcHandleError::Length { len_bytes });
        }
        let more = [bytes, bytes].concat();
        let error = IpcHandle::from_bytes(&more).unwrap_err();
        assert_eq!(error.to_string(), "a handle has 128 bytes, not 256");
    }

    #[test]
    fn a_handle_shows_no_byte_past_its_memory() {
        assert!(handle(Span::new(5000, 0)).is_ok());
        for span in [(4999, 2), (5001, 0), (0, 5001), (1, u64::MAX)] {
            let span = Span::new(span.0, span.1);
            let allocation_bytes = 5000;
            let bounds = IpcHandleError::Bounds {
                span,
                allocation_bytes,
            };
            assert_eq!(handle(span), Err(bounds));
        }
        // The second lowest byte of the offset.
        assert!(matches!(
            IpcHandle::from_bytes(&with(41, 0x40)),
            Err(IpcHandleError::Bounds { .. })
        ));
        assert_eq!(
            IpcHandle::from_bytes(&with(9, 200)),
            Err(IpcHandleError::Kind { kind: 200 })
        );
    }

    #[test]
    fn nobody_learns_the_token_from_a_log() {
        let mut handle = handle(Span::new(0, 1)).unwrap();
        handle.token = [0xa5; 64];
        assert!(!std::format!("{handle:?}").contains("165"));
    }
}
