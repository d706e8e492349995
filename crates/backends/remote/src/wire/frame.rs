//! The header of frames, its limits, and the errors of a peer that does not keep to the protocol.

use std::borrow::Cow;

/// The version of the protocol. Two sides with different versions do not talk.
pub const VERSION: u16 = 4;

/// The most bytes in the body of a control frame.
pub const LONGEST_CONTROL: usize = 64 << 10;

/// The most bytes in the body of the frame of [`Message::Inventory`](super::Message::Inventory).
pub const LONGEST_INVENTORY: usize = 4 << 20;

/// The most bytes of payload in a data frame, so that a control frame never waits for long behind bulk data.
pub const LONGEST_PAYLOAD: usize = 256 << 10;

/// The most bytes of a write that follow it at once. A longer write waits for a place instead, which costs it little.
pub const MOST_EAGER: u64 = 64 << 10;

/// The most bytes of such writes of a session at once, which the server holds beside its slots.
pub const EAGER_WINDOW: u64 = 1 << 20;

/// The bytes of each frame before its body.
pub(crate) const HEADER_LEN: usize = 8;

/// The bytes of a data frame before its payload: the header, the operation and the offset.
pub(crate) const DATA_HEADER_LEN: usize = HEADER_LEN + OP_LEN;

/// The operation and the offset.
const OP_LEN: usize = 16;

/// What a frame carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    Control = 1,
    Data = 2,
    /// A message with a limit of its own, so that the header alone tells how much memory the body may take.
    Inventory = 3,
}

/// The first bytes of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// The length of the body.
    pub(crate) len: usize,
}

impl Header {
    pub(crate) fn new(kind: Kind, len: usize) -> Result<Header, ProtocolError> {
        let (least, limit) = match kind {
            Kind::Control => (1, LONGEST_CONTROL),
            Kind::Data => (OP_LEN + 1, OP_LEN + LONGEST_PAYLOAD),
            Kind::Inventory => (1, LONGEST_INVENTORY),
        };
        let kind_number = kind as u8;
        if len > limit {
            return Err(ProtocolError::TooLong {
                kind: kind_number,
                len,
                limit,
            });
        }
        if len < least {
            return Err(ProtocolError::TooShort {
                kind: kind_number,
                len,
                least,
            });
        }
        Ok(Header { kind, len })
    }

    pub(crate) fn from_bytes(bytes: [u8; HEADER_LEN]) -> Result<Header, ProtocolError> {
        let [a, b, c, d, kind, reserved @ ..] = bytes;
        if reserved != [0; 3] {
            return Err(ProtocolError::Reserved { bytes: reserved });
        }
        let kind = match kind {
            1 => Kind::Control,
            2 => Kind::Data,
            3 => Kind::Inventory,
            _ => return Err(ProtocolError::Kind { kind }),
        };
        Header::new(kind, u32::from_le_bytes([a, b, c, d]) as usize)
    }

    pub(crate) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let [a, b, c, d] = (self.len as u32).to_le_bytes();
        [a, b, c, d, self.kind as u8, 0, 0, 0]
    }

    /// Returns how many bytes of payload a data frame has.
    pub(crate) fn payload_len(self) -> usize {
        self.len - OP_LEN
    }
}

/// Returns what precedes `len` bytes of payload.
pub(crate) fn data_header(
    op: u64,
    offset: u64,
    len: usize,
) -> Result<[u8; DATA_HEADER_LEN], ProtocolError> {
    let mut bytes = [0; DATA_HEADER_LEN];
    bytes[..8].copy_from_slice(&Header::new(Kind::Data, OP_LEN + len)?.to_bytes());
    bytes[8..16].copy_from_slice(&op.to_le_bytes());
    bytes[16..].copy_from_slice(&offset.to_le_bytes());
    Ok(bytes)
}

/// How the peer breaks the protocol. The session ends: nothing after such an error can be trusted to mean anything.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// There is no such kind of frame.
    #[error("a frame has kind {kind}, and kinds are 1 to 3")]
    Kind {
        /// The kind.
        kind: u8,
    },
    /// The message belongs into a frame of another kind, or a client sends an inventory.
    #[error("a frame of kind {kind} came where only another kind may")]
    WrongKind {
        /// The kind.
        kind: u8,
    },
    /// Bytes of the header that are zero in this version are not.
    #[error("the last bytes of a frame's header are {bytes:?} and not zero")]
    Reserved {
        /// The bytes.
        bytes: [u8; 3],
    },
    /// The frame is too long.
    #[error("a frame of kind {kind} with {len} bytes exceeds the limit, {limit} bytes")]
    TooLong {
        /// The kind of frame.
        kind: u8,
        /// The length of its body in bytes.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The frame is too short for its kind.
    #[error("a frame of kind {kind} with {len} bytes is shorter than any, {least} bytes")]
    TooShort {
        /// The kind of frame.
        kind: u8,
        /// The length of its body in bytes.
        len: usize,
        /// The least length.
        least: usize,
    },
    /// The body of a frame is no message.
    #[error("the {len} bytes of a frame are no message: {reason}")]
    Message {
        /// The length of the body in bytes.
        len: usize,
        /// What is wrong.
        reason: String,
    },
    /// The body of a frame has bytes after the message.
    #[error("{left} of the {len} bytes of a frame follow its message")]
    Trailing {
        /// The length of the body in bytes.
        len: usize,
        /// How many bytes follow.
        left: usize,
    },
    /// The peer speaks another version.
    #[error(
        "the peer speaks version {theirs} of the protocol and this side {ours}; install the same Transload on both"
    )]
    Version {
        /// The version of this side.
        ours: u16,
        /// The version of the peer.
        theirs: u16,
    },
    /// A session starts with one `Hello` of each side, and has no other.
    #[error("the session does not start with one Hello")]
    Hello,
    /// Data came that this side does not expect: of another operation, outside the expected bytes, or a second time.
    #[error("{len} bytes of data from byte {offset} of operation {op} on are not expected")]
    Data {
        /// The operation.
        op: u64,
        /// The first byte that is not expected.
        offset: u64,
        /// How many bytes of the frame are left from there on.
        len: u64,
    },
    /// A message makes no sense where it came, in the handler's view.
    #[error("{0}")]
    Misplaced(Cow<'static, str>),
}
