//! What is to be sent: messages, and spans of host memory that take turns.

use std::collections::VecDeque;

use transload_hal::HostSpan;

use super::Event;
use crate::buffer::Buffer;
use crate::tls::{Channel, ChannelError, RECORD, sealed_len};
use crate::wire::{DATA_HEADER_LEN, Message, ProtocolError, data_header};

/// The queue of one direction.
#[derive(Default)]
pub(super) struct Outgoing {
    /// Frames of messages, of which the first `sealed` bytes are done with.
    frames: Vec<u8>,
    sealed: usize,
    /// Operations with something to send, the one whose turn it is first.
    ops: VecDeque<Op>,
}

struct Op {
    id: u64,
    spans: VecDeque<Part>,
}

struct Part {
    offset: u64,
    span: HostSpan,
    done: usize,
}

impl Outgoing {
    pub(super) fn queued(&self) -> usize {
        self.frames.len() - self.sealed
    }

    pub(super) fn send(&mut self, message: &Message) -> Result<(), ProtocolError> {
        if self.sealed > RECORD {
            self.frames.drain(..self.sealed);
            self.sealed = 0;
        }
        message.encode(&mut self.frames)
    }

    pub(super) fn send_data(&mut self, id: u64, offset: u64, span: HostSpan) {
        let part = Part {
            offset,
            span,
            done: 0,
        };
        match self.ops.iter_mut().find(|op| op.id == id) {
            Some(op) => op.spans.push_back(part),
            None => self.ops.push_back(Op {
                id,
                spans: [part].into(),
            }),
        }
    }

    pub(super) fn cancel(&mut self, id: u64) -> Option<u64> {
        let offset = self.progress(id);
        self.ops.retain(|op| op.id != id);
        offset
    }

    pub(super) fn cancel_span(&mut self, id: u64, offset: u64) -> bool {
        let Some(op) = self.ops.iter_mut().find(|op| op.id == id) else {
            return false;
        };
        let before = op.spans.len();
        op.spans.retain(|part| part.offset != offset);
        let is_found = op.spans.len() < before;
        self.ops.retain(|op| !op.spans.is_empty());
        is_found
    }

    pub(super) fn progress(&self, id: u64) -> Option<u64> {
        let op = self.ops.iter().find(|op| op.id == id)?;
        op.spans.front().map(|part| part.offset + part.done as u64)
    }

    /// Drops all but what has begun: a peer needs the rest of a frame to read the next one.
    pub(super) fn clear(&mut self) {
        self.ops.clear();
    }

    /// Encrypts until the output is full or nothing is left.
    pub(super) fn seal(
        &mut self,
        channel: &mut Channel,
        output: &mut Buffer,
        events: &mut VecDeque<Event>,
    ) -> Result<(), ChannelError> {
        loop {
            if self.queued() > 0 {
                let len = self.queued().min(RECORD);
                if !output.has_space(sealed_len(len) + Channel::RESERVE) {
                    return Ok(());
                }
                channel.seal(&self.frames[self.sealed..][..len], output)?;
                self.sealed += len;
                if self.queued() == 0 {
                    self.sealed = 0;
                    self.frames.clear();
                    self.frames.shrink_to(RECORD);
                }
            } else if self.ops.is_empty() || !output.has_space(SEALED_FRAME + Channel::RESERVE) {
                return Ok(());
            } else {
                self.seal_frame(channel, output, events)?;
            }
        }
    }

    /// Encrypts one data frame. It is never cut, so that an operation may be cancelled between any two calls.
    fn seal_frame(
        &mut self,
        channel: &mut Channel,
        output: &mut Buffer,
        events: &mut VecDeque<Event>,
    ) -> Result<(), ChannelError> {
        let Some(mut op) = self.ops.pop_front() else {
            return Ok(());
        };
        let Some(part) = op.spans.front_mut() else {
            return Ok(());
        };
        let len = (part.span.len() - part.done).min(FRAME);
        let header = data_header(op.id, part.offset + part.done as u64, len)
            .expect("a frame has 1 to FRAME bytes");
        let payload = part
            .span
            .slice(part.done as u64, len as u64)
            .expect("the length is what the span has left");
        // SAFETY: the caller of `Pipe::send_data` keeps the bytes initialised, valid and unchanged until the event below,
        // or until the part is dropped. The slice lives as long as this call, in which TLS copies the bytes.
        let payload = unsafe { payload.as_slice() };
        if len <= SMALL {
            let mut record = [0; DATA_HEADER_LEN + SMALL];
            record[..DATA_HEADER_LEN].copy_from_slice(&header);
            record[DATA_HEADER_LEN..][..len].copy_from_slice(payload);
            channel.seal(&record[..DATA_HEADER_LEN + len], output)?;
        } else {
            channel.seal(&header, output)?;
            channel.seal(payload, output)?;
        }
        part.done += len;
        if part.done == part.span.len() {
            events.push_back(Event::Sent {
                op: op.id,
                offset: part.offset,
                len: part.done as u64,
            });
            op.spans.pop_front();
        }
        if !op.spans.is_empty() {
            self.ops.push_back(op);
        }
        Ok(())
    }
}

/// The payload of a data frame. A message waits for no more than what is encrypted, which is two of them.
pub(super) const FRAME: usize = 64 << 10;

/// What a data frame takes in the output.
pub(super) const SEALED_FRAME: usize = sealed_len(DATA_HEADER_LEN) + sealed_len(FRAME);

/// The longest payload that is copied next to its header, so that both are one record.
const SMALL: usize = 4 << 10;
