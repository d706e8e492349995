//! The messages, and their bytes.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::frame::{Header, Kind, ProtocolError};
use super::{Fault, Outcome};

/// One message. "Client" and "server" are the sides that connected and accepted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The first message of each side, which the session sends and checks.
    Hello {
        /// [`VERSION`](super::VERSION) of the sender.
        version: u16,
        /// The sender takes the network between the two for trusted.
        trusted_network: bool,
    },
    /// Either, right after both `Hello`s where both sides take the network for trusted: how UCX reaches the sender. Again when
    /// the sender has lost it.
    Ucx(Reach),
    /// Server: the devices and memories that it offers, after `Hello` and `Ucx`. Travels in a frame of its own kind.
    Inventory(Inventory),
    /// Client: allocate memory. Answered by `Allocated` or `Refused`.
    Allocate {
        /// From now on the lease's id.
        id: u64,
        /// Which memory of the node.
        memory: String,
        /// The length in bytes.
        len: u64,
        /// The alignment in bytes.
        align: u64,
        /// Whether the client asks for a descriptor of it.
        mapped: bool,
    },
    /// Server: the lease exists.
    Allocated {
        /// The lease.
        id: u64,
        /// The server's number of the memory, which is the same in all sessions and used once.
        number: u64,
        /// By which [`Inventory::descriptors`] gives the descriptor of it, where it has one.
        descriptor: Option<[u8; 16]>,
    },
    /// Server: the request with this id was refused, and changed nothing.
    Refused {
        /// The request.
        id: u64,
        /// Why.
        fault: Fault,
    },
    /// Client: let other sessions use a lease, too. Each transfer of it has a place in the node's order from then on, as
    /// `Enter` takes it. Answered by `Shared` or `Refused`.
    Share {
        /// The question.
        id: u64,
        /// The lease.
        lease: u64,
    },
    /// Server: the answer to `Share`.
    Shared {
        /// The question.
        id: u64,
        /// A session that sends it can open the lease.
        token: [u8; 16],
    },
    /// Client: use a lease that another session has shared. Answered by `Opened` or `Refused`.
    Open {
        /// From now on this session's id of the lease.
        id: u64,
        /// The token of the lease.
        token: [u8; 16],
    },
    /// Server: the lease is open.
    Opened {
        /// The lease.
        id: u64,
        /// The server's number of the memory, which is the same in all sessions.
        number: u64,
        /// The memory that it lies in.
        memory: String,
        /// Its length in bytes.
        len: u64,
        /// By which [`Inventory::descriptors`] gives the descriptor of it, where it has one.
        descriptor: Option<[u8; 16]>,
    },
    /// Client: the lease is no longer used.
    Free {
        /// The lease.
        lease: u64,
    },
    /// Client: how much room has a memory? Answered by `AvailableBytes`.
    Available {
        /// The question.
        id: u64,
        /// Which memory of the node.
        memory: String,
    },
    /// Server: the answer to `Available`.
    AvailableBytes {
        /// The question.
        id: u64,
        /// How many bytes, where that is known.
        bytes: Option<u64>,
    },
    /// Client: take a transfer's place in the order of the node. Answered by `Entered` once the transfer may touch the
    /// bytes, or by `Refused`.
    Enter {
        /// From now on the reservation's id.
        id: u64,
        /// The bytes that the transfer will touch.
        #[serde(deserialize_with = "sparing")]
        uses: Vec<Use>,
    },
    /// Server: the transfer's turn has come.
    Entered {
        /// The reservation.
        id: u64,
    },
    /// Client: the transfer has ended, and its place is free.
    Leave {
        /// The reservation.
        reservation: u64,
    },
    /// Client: write its bytes to a lease. The server asks for the bytes with `Go` or `Move` unless they follow at once, and ends with
    /// `Ended`.
    Write {
        /// The operation.
        id: u64,
        /// The transfer that it is of.
        reservation: u64,
        /// Where the bytes go.
        lease: u64,
        /// The first byte in the lease.
        offset: u64,
        /// How they lie where they are apart: `offset` is that of the lowest byte then.
        apart: Option<Elements>,
        /// How many bytes.
        len: u64,
        /// What carries the bytes.
        network: Network,
        /// The bytes follow at once, in data frames, and no `Go`: at most [`MOST_EAGER`](super::MOST_EAGER) of them, over TLS.
        /// The writes of a session that have not ended may have [`EAGER_WINDOW`](super::EAGER_WINDOW) bytes together.
        eager: bool,
    },
    /// Server: it is ready for some of the bytes of a `Write` over TLS, which now come in data frames.
    Go {
        /// The operation.
        id: u64,
        /// The first byte, counted from the start of the operation.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Client: read a lease. Over TLS the bytes come in data frames, and `Ended` after them.
    Read {
        /// The operation.
        id: u64,
        /// The transfer that it is of.
        reservation: u64,
        /// Where the bytes are.
        lease: u64,
        /// The first byte in the lease.
        offset: u64,
        /// How they lie where they are apart: `offset` is that of the lowest byte then.
        apart: Option<Elements>,
        /// How many bytes.
        len: u64,
        /// What carries the bytes.
        network: Network,
    },
    /// Server: some of the bytes of an operation go over UCX, as one message with this tag: from the client for a `Write`, to
    /// it for a `Read`. Each message is sent and received, whatever becomes of the operation; `Ended` does not wait for the
    /// client's side of it.
    Move {
        /// The operation.
        id: u64,
        /// The first byte, counted from the start of the operation.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// The tag.
        tag: u32,
    },
    /// Client: copy from a lease to another place that the server reaches. Ends with `Ended`.
    Copy {
        /// The operation.
        id: u64,
        /// The transfer that it is of.
        reservation: u64,
        /// Where the bytes are.
        src: Place,
        /// Where they go.
        dst: Destination,
        /// How many bytes.
        len: u64,
    },
    /// Client: let another session, which knows the answer's token, write some bytes of a lease, as one operation of this
    /// session. Answered by `Granted` or `Refused`. Ends with `Ended` once all the bytes were written, a write failed, or
    /// `Stop` came, and nothing writes by it any more. The end of the session ends it, too.
    Grant {
        /// The operation.
        id: u64,
        /// The transfer that it is of.
        reservation: u64,
        /// Where the bytes go.
        lease: u64,
        /// The first byte in the lease.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Server: the bytes may be written.
    Granted {
        /// The operation.
        id: u64,
        /// A session that knows it can write the bytes.
        token: [u8; 16],
    },
    /// Client: as `Write`, to bytes that another session has granted. Writes of one grant may have no more bytes together
    /// than the grant.
    WriteGranted {
        /// The operation.
        id: u64,
        /// The token of the grant.
        token: [u8; 16],
        /// The first byte in the grant.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// What carries the bytes.
        network: Network,
    },
    /// Server: the operation has ended, and no longer touches a byte.
    Ended {
        /// The operation.
        id: u64,
        /// How.
        outcome: Outcome,
    },
    /// Client: leave out as much of the operation as is possible. The operation still ends with `Ended`.
    Stop {
        /// The operation.
        id: u64,
    },
    /// Either: asks for `Pong`. The session sends and answers it.
    Ping,
    /// Either: the answer to `Ping`.
    Pong,
    /// Either: the last message.
    Bye {
        /// Why, for people.
        reason: String,
    },
}

/// What carries the bytes of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Network {
    /// The session itself, in data frames.
    Tls,
    /// UCX, which both sides have told of.
    Ucx,
}

/// How UCX reaches one side of a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reach {
    /// It is here.
    Worker {
        /// The address of its worker for this session.
        address: Vec<u8>,
        /// It wants checksums of what goes over UCX.
        checksums: bool,
    },
    /// There is none.
    None {
        /// Why, for people.
        reason: String,
    },
}

/// What a server offers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Inventory {
    /// Its devices.
    #[serde(deserialize_with = "sparing")]
    pub devices: Vec<Device>,
    /// Memories of those, in which the client can allocate.
    #[serde(deserialize_with = "sparing")]
    pub memories: Vec<Memory>,
    /// Whether it connects to other nodes, for a `Copy` to bytes that they have granted.
    pub forwards: bool,
    /// The name of the socket where processes of its machine get descriptors of leases in `cpu:0/shared`: `transload-` and
    /// these bytes as 32 hexadecimal digits, in Linux's abstract names.
    pub descriptors: Option<[u8; 16]>,
}

/// A device, by its name at the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Device {
    /// Its name: `cuda:0`.
    pub id: String,
    /// The vendor's name of it.
    pub name: String,
    /// A software implementation of what is usually hardware.
    pub software: bool,
    /// A stand-in whose times are modelled.
    pub simulated: bool,
    /// The bytes of its own memory, where known.
    pub memory_bytes: Option<u64>,
    /// The driver and its version, where known.
    pub driver: Option<String>,
}

/// A memory, by its name at the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// Its name: `cuda:0/device`.
    pub id: String,
    /// Its size in bytes, where known.
    pub total_bytes: Option<u64>,
    /// The largest single allocation in bytes.
    pub max_alloc_bytes: u64,
    /// Every allocation starts at a multiple of this, a power of two.
    pub alignment: u64,
    /// A copy from the network into it.
    pub into: Way,
    /// A copy out of it to the network.
    pub out_of: Way,
}

/// A copy within the server, between a memory and the network, by the server's plans.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Way {
    /// What it costs.
    #[serde(deserialize_with = "sparing")]
    pub cost: Vec<Piece>,
    /// The memories that bytes of a large one pass between the two, with a space between each two names.
    pub passes: String,
}

/// One linear piece of a cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Piece {
    /// The first size that it holds for, in bytes.
    pub from_bytes: u64,
    /// The time that any copy takes, in nanoseconds.
    pub fixed_ns: u64,
    /// The rate in bytes per second.
    pub bytes_per_second: u64,
}

/// Some bytes of a lease that a transfer will touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Use {
    /// The lease.
    pub lease: u64,
    /// The first byte in the lease.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// Whether the transfer writes them.
    pub writes: bool,
}

/// Elements at strides, as [`transload_hal::Strided`] has them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Elements {
    /// The bytes of an element.
    pub element_bytes: u64,
    /// How many there are along each dimension, and the bytes from one to the next, the outermost first.
    #[serde(deserialize_with = "sparing")]
    pub axes: Vec<(u64, i64)>,
}

/// A position in a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The lease.
    pub lease: u64,
    /// The byte in the lease.
    pub offset: u64,
}

/// Where a `Copy` goes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Destination {
    /// To a lease of the same node.
    Lease(Place),
    /// To bytes that another node has granted. The source's node connects to it.
    Node {
        /// The other node, `host:port`.
        address: String,
        /// The other node's public key.
        key: [u8; 32],
        /// The token of the grant, which has as many bytes as the `Copy`.
        token: [u8; 16],
    },
}

impl Message {
    /// Reads the body of a frame that has the given kind.
    ///
    /// # Errors
    /// A [`ProtocolError`] if the bytes are no message, have more bytes after it, or are of the other kind.
    pub(crate) fn decode(kind: Kind, body: &[u8]) -> Result<Message, ProtocolError> {
        let len = body.len();
        let (message, rest) = postcard::take_from_bytes::<Message>(body).map_err(|error| {
            let reason = format!("{error}");
            ProtocolError::Message { len, reason }
        })?;
        if !rest.is_empty() {
            let left = rest.len();
            return Err(ProtocolError::Trailing { len, left });
        }
        match message.kind() == kind {
            true => Ok(message),
            false => Err(ProtocolError::WrongKind { kind: kind as u8 }),
        }
    }

    /// Appends the message's frame.
    ///
    /// # Errors
    /// [`ProtocolError::TooLong`] if it exceeds the limit of its kind; nothing is appended then.
    pub(crate) fn encode(&self, frames: &mut Vec<u8>) -> Result<(), ProtocolError> {
        let body = postcard::to_allocvec(self).map_err(|error| ProtocolError::Message {
            len: 0,
            reason: format!("{error}"),
        })?;
        frames.extend_from_slice(&Header::new(self.kind(), body.len())?.to_bytes());
        frames.extend_from_slice(&body);
        Ok(())
    }

    /// Returns what carries the bytes of the operation that the message asks for.
    pub(crate) fn network(&self) -> Network {
        match self {
            Message::Write { network, .. }
            | Message::Read { network, .. }
            | Message::WriteGranted { network, .. } => *network,
            _ => Network::Tls,
        }
    }

    /// Returns the name of the message, for errors.
    pub fn name(&self) -> &'static str {
        match self {
            Message::Hello { .. } => "Hello",
            Message::Ucx(_) => "Ucx",
            Message::Inventory(_) => "Inventory",
            Message::Allocate { .. } => "Allocate",
            Message::Allocated { .. } => "Allocated",
            Message::Refused { .. } => "Refused",
            Message::Share { .. } => "Share",
            Message::Shared { .. } => "Shared",
            Message::Open { .. } => "Open",
            Message::Opened { .. } => "Opened",
            Message::Free { .. } => "Free",
            Message::Available { .. } => "Available",
            Message::AvailableBytes { .. } => "AvailableBytes",
            Message::Enter { .. } => "Enter",
            Message::Entered { .. } => "Entered",
            Message::Leave { .. } => "Leave",
            Message::Write { .. } => "Write",
            Message::Go { .. } => "Go",
            Message::Read { .. } => "Read",
            Message::Move { .. } => "Move",
            Message::Copy { .. } => "Copy",
            Message::Grant { .. } => "Grant",
            Message::Granted { .. } => "Granted",
            Message::WriteGranted { .. } => "WriteGranted",
            Message::Ended { .. } => "Ended",
            Message::Stop { .. } => "Stop",
            Message::Ping => "Ping",
            Message::Pong => "Pong",
            Message::Bye { .. } => "Bye",
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            Message::Inventory(_) => Kind::Inventory,
            _ => Kind::Control,
        }
    }
}

/// Reads a list without reserving memory for as many elements as it claims to have.
fn sparing<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    struct List<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(element) = elements.next_element()? {
                list.push(element);
            }
            Ok(list)
        }
    }

    from.deserialize_seq(List(PhantomData))
}
