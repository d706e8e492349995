//! What the two sides of a session say: messages, and the frames that they and bulk data travel in.
//!
//! A frame is a header of 8 bytes and a body. The header is the length of the body (`u32`, little-endian), the kind
//! (`u8`: 1 control, 2 data, 3 inventory) and three zero bytes. The body of a control frame is one [`Message`] in the
//! format of `postcard` 1; that of a data frame is the id of the operation and the offset of the first byte (both `u64`,
//! little-endian), and at least one byte of payload.
//!
//! The client is the side that connects. It chooses the ids, one space for leases, reservations and operations, and
//! never uses an id twice in a session. A change of the messages or frames changes [`VERSION`].

mod fault;
mod frame;
mod message;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use fault::truncate;
pub use fault::{Class, Fault, Outcome};
pub(crate) use frame::{DATA_HEADER_LEN, HEADER_LEN, Header, Kind, data_header};
pub use frame::{
    EAGER_WINDOW, LONGEST_CONTROL, LONGEST_INVENTORY, LONGEST_PAYLOAD, MOST_EAGER, ProtocolError,
    VERSION,
};
pub use message::{
    Destination, Device, Elements, Inventory, Memory, Message, Network, Piece, Place, Reach, Use,
    Way,
};
