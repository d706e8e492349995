//! What arrives: frames cut out of records, messages read, and bulk data copied to where they are expected.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use transload_hal::HostSpan;

use super::Event;
use crate::wire::{DATA_HEADER_LEN, HEADER_LEN, Header, Kind, Message, ProtocolError};

/// The reader of one direction. All that it is given is the peer's word.
#[derive(Default)]
pub(super) struct Incoming {
    reading: Reading,
    /// Whether the peer is a node, which alone may send an inventory: a client could otherwise have its session take as
    /// much memory.
    takes_inventory: bool,
    /// What each operation expects. Operations without anything are not in it.
    expected: HashMap<u64, Vec<Part>>,
}

/// Where in a frame the reader is.
enum Reading {
    /// In the header, of which the first `len` bytes came; that of a data frame has its operation and offset.
    Header {
        bytes: [u8; DATA_HEADER_LEN],
        len: usize,
    },
    /// In the body of a message.
    Body { header: Header, body: Vec<u8> },
    /// In the payload of a data frame.
    Payload { op: u64, offset: u64, left: usize },
}

impl Default for Reading {
    fn default() -> Reading {
        Reading::Header {
            bytes: [0; DATA_HEADER_LEN],
            len: 0,
        }
    }
}

/// A span that is expected.
struct Part {
    offset: u64,
    len: u64,
    /// What has come, counted from the part's first byte: ranges that rise and do not touch. One where bytes come in order.
    done: Vec<Range<u64>>,
    /// `None` if the bytes are dropped.
    span: Option<HostSpan>,
}

impl Part {
    /// Returns how many of the operation's bytes from `offset` on the part lacks; 0 where it has them, or ends before.
    fn lacks(&self, offset: u64) -> u64 {
        let Some(at) = offset.checked_sub(self.offset).filter(|at| *at < self.len) else {
            return 0;
        };
        match self.done.iter().find(|done| done.end > at) {
            Some(done) => done.start.saturating_sub(at),
            None => self.len - at,
        }
    }

    /// Takes in that bytes have come which the part lacked.
    fn add(&mut self, range: Range<u64>) {
        let at = self.done.partition_point(|done| done.end < range.start);
        match self.done.get_mut(at) {
            Some(before) if before.end == range.start => {
                before.end = range.end;
                let next = self
                    .done
                    .get(at + 1)
                    .filter(|next| next.start == range.end)
                    .cloned();
                if let Some(next) = next {
                    self.done[at].end = next.end;
                    self.done.remove(at + 1);
                }
            }
            Some(after) if after.start == range.end => after.start = range.start,
            _ => self.done.insert(at, range),
        }
    }

    fn is_whole(&self) -> bool {
        self.done
            .first()
            .is_some_and(|done| done.end - done.start == self.len)
    }
}

/// The most pieces of one span that may have come with gaps between them, so that a peer cannot make the list of them long.
/// A node sends a few chunks of a span at once.
const MOST_PIECES: usize = 256;

impl Incoming {
    pub(super) fn new(takes_inventory: bool) -> Incoming {
        Incoming {
            takes_inventory,
            ..Incoming::default()
        }
    }

    pub(super) fn expect(&mut self, op: u64, offset: u64, len: u64, span: Option<HostSpan>) {
        self.expected.entry(op).or_default().push(Part {
            offset,
            len,
            done: Vec::new(),
            span,
        });
    }

    /// Lets go of all spans. What still comes is not read.
    pub(super) fn clear(&mut self) {
        self.expected.clear();
    }

    pub(super) fn discard(&mut self, op: u64) {
        for part in self.expected.get_mut(&op).into_iter().flatten() {
            part.span = None;
        }
    }

    pub(super) fn discard_span(&mut self, op: u64, offset: u64) {
        let parts = self.expected.get_mut(&op).into_iter().flatten();
        for part in parts.filter(|part| part.offset == offset) {
            part.span = None;
        }
    }

    pub(super) fn forget(&mut self, op: u64) {
        self.expected.remove(&op);
    }

    /// Returns of how many operations bytes are still to come.
    pub(super) fn operations(&self) -> usize {
        self.expected.len()
    }

    pub(super) fn progress(&self, op: u64) -> Option<u64> {
        let part = self.expected.get(&op)?.first()?;
        let first = part.done.first().filter(|done| done.start == 0);
        Some(part.offset + first.map_or(0, |done| done.end))
    }

    /// Reads the plaintext of a record.
    pub(super) fn accept(
        &mut self,
        mut plain: &[u8],
        events: &mut VecDeque<Event>,
    ) -> Result<(), ProtocolError> {
        while !plain.is_empty() {
            match &mut self.reading {
                Reading::Header { bytes, len } => {
                    // First the header that all frames have, and then the rest of that of a data frame.
                    let end = match *len < HEADER_LEN {
                        true => HEADER_LEN,
                        false => DATA_HEADER_LEN,
                    };
                    let (part, rest) = plain.split_at(plain.len().min(end - *len));
                    bytes[*len..][..part.len()].copy_from_slice(part);
                    *len += part.len();
                    plain = rest;
                    if *len == end {
                        let bytes = *bytes;
                        self.end_header(bytes, end)?;
                    }
                }
                Reading::Body { header, body } => {
                    let (part, rest) = plain.split_at(plain.len().min(header.len - body.len()));
                    plain = rest;
                    if part.len() == header.len {
                        events.push_back(Event::Message(Message::decode(header.kind, part)?));
                        self.reading = Reading::default();
                        continue;
                    }
                    // Grows with what came, not with what is announced.
                    body.extend_from_slice(part);
                    if body.len() == header.len {
                        events.push_back(Event::Message(Message::decode(header.kind, body)?));
                        self.reading = Reading::default();
                    }
                }
                Reading::Payload { op, offset, left } => {
                    let (op, at) = (*op, *offset);
                    let (part, rest) = plain.split_at(plain.len().min(*left));
                    plain = rest;
                    // Fits, since the end of the frame was checked with its header.
                    *offset += part.len() as u64;
                    *left -= part.len();
                    if *left == 0 {
                        self.reading = Reading::default();
                    }
                    self.place(op, at, part, events)?;
                }
            }
        }
        Ok(())
    }

    /// Reads a header, of which `len` bytes have come.
    fn end_header(
        &mut self,
        bytes: [u8; DATA_HEADER_LEN],
        len: usize,
    ) -> Result<(), ProtocolError> {
        let word = |from: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[from..from + 8]);
            word
        };
        let header = Header::from_bytes(word(0))?;
        if header.kind == Kind::Inventory && !self.takes_inventory {
            let kind = header.kind as u8;
            return Err(ProtocolError::WrongKind { kind });
        }
        if header.kind != Kind::Data {
            let body = Vec::new();
            self.reading = Reading::Body { header, body };
        } else if len == DATA_HEADER_LEN {
            let [op, offset] = [8, 16].map(|from| u64::from_le_bytes(word(from)));
            let left = header.payload_len();
            if offset.checked_add(left as u64).is_none() {
                let len = left as u64;
                return Err(ProtocolError::Data { op, offset, len });
            }
            self.reading = Reading::Payload { op, offset, left };
        }
        Ok(())
    }

    /// Copies bytes of an operation to where they are expected, or drops them. One frame may end a span and begin the
    /// next.
    fn place(
        &mut self,
        op: u64,
        mut offset: u64,
        mut bytes: &[u8],
        events: &mut VecDeque<Event>,
    ) -> Result<(), ProtocolError> {
        while !bytes.is_empty() {
            let len = bytes.len() as u64;
            let unexpected = ProtocolError::Data { op, offset, len };
            let parts = self.expected.get_mut(&op);
            let found = parts.and_then(|parts| {
                let index = parts.iter().position(|part| part.lacks(offset) > 0)?;
                Some((parts, index))
            });
            let (parts, index) = found.ok_or(unexpected)?;
            let part = &mut parts[index];
            let (len, at) = (len.min(part.lacks(offset)), offset - part.offset);
            if part.done.len() >= MOST_PIECES {
                return Err(ProtocolError::Data { op, offset, len });
            }
            let (now, later) = bytes.split_at(len as usize);
            if let Some(span) = part.span {
                let to = span.slice(at, len).expect("no more than the span has left");
                // SAFETY: the caller of `Pipe::expect` keeps the span valid for writes, and untouched by others, until the
                // event below or until the part is dropped. The bytes are the record's, and as many as `to` has.
                unsafe { HostSpan::of(now).copy_to(to) };
            }
            part.add(at..at + len);
            offset += len;
            bytes = later;
            if part.is_whole() {
                let part = parts.remove(index);
                if parts.is_empty() {
                    self.expected.remove(&op);
                }
                if part.span.is_some() {
                    events.push_back(Event::Arrived {
                        op,
                        offset: part.offset,
                        len: part.len,
                    });
                }
            }
        }
        Ok(())
    }
}
