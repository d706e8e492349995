//! Bytes of the peer's writes that come unasked, right behind the message.

use transload_hal::{HostSpan, Outcome};

use super::{Payload, Piece};
use crate::Pipe;

/// A write whose bytes come unasked, and do not go straight to where the engine wants them.
#[derive(Debug)]
pub(super) struct Early {
    len_bytes: u64,
    /// The bytes; `None` until it is clear that they must be kept.
    kept: Option<Vec<u8>>,
    has_arrived: bool,
    /// What the engine wants of them.
    pub(super) wanted: Vec<Piece>,
}

impl Payload {
    /// Takes in that the `len_bytes` bytes of the peer's write `op` come unasked, before its transfer is submitted. They go
    /// straight to where the engine wants them if it says so until [`Payload::woken`] returns. Otherwise they are kept.
    pub fn announce(&mut self, op: u64, len_bytes: u64) {
        let early = Early {
            len_bytes,
            kept: None,
            has_arrived: false,
            wanted: Vec::new(),
        };
        self.early.insert(op, early);
        self.announced = Some(op);
    }

    /// Lets go of the bytes of an operation, which has ended. What still comes is dropped. Call [`Pipe::discard`] before.
    pub fn forget(&mut self, op: u64, pipe: &mut Pipe) {
        self.announced.take_if(|announced| *announced == op);
        if let Some(early) = self.early.remove(&op)
            && early.kept.is_none()
        {
            pipe.ignore(op, early.len_bytes);
        }
    }

    /// Takes in that the engine wants a range. Returns whether the peer is to be asked for it; `None` if it is of bytes that
    /// are kept, which go there once they have arrived.
    pub(super) fn want(&mut self, piece: &Piece) -> Option<bool> {
        let Some(early) = self.early.get_mut(&piece.op) else {
            return Some(true);
        };
        let is_whole = piece.span.len() as u64 == early.len_bytes;
        match &early.kept {
            None if is_whole && early.wanted.is_empty() => {
                self.announced = None;
                self.early.remove(&piece.op);
                return Some(false);
            }
            Some(bytes) if early.has_arrived => {
                give(bytes, piece);
                self.settle(piece);
            }
            _ => early.wanted.push(*piece),
        }
        None
    }

    /// Keeps the bytes of the write that was announced, since the engine does not say yet where they go.
    pub(super) fn keep(&mut self, pipe: &mut Pipe) {
        let Some(op) = self.announced.take() else {
            return;
        };
        if let Some(early) = self.early.get_mut(&op) {
            let bytes = early.kept.insert(vec![0; early.len_bytes as usize]);
            early.has_arrived = bytes.is_empty();
            if early.has_arrived {
                return;
            }
            // SAFETY: the bytes stay in their place until `forget`, before which the pipe lets go of them, or `close`, after
            // which it touches no memory.
            unsafe { pipe.expect(op, 0, HostSpan::of_mut(bytes)) };
        }
    }

    /// Takes in that kept bytes have arrived. Returns whether they were some.
    pub(super) fn take_in(&mut self, op: u64) -> bool {
        let Some(early) = self.early.get_mut(&op) else {
            return false;
        };
        early.has_arrived = true;
        let wanted = std::mem::take(&mut early.wanted);
        if let Some(bytes) = &early.kept {
            wanted.iter().for_each(|piece| give(bytes, piece));
        }
        wanted.iter().for_each(|piece| self.settle(piece));
        true
    }

    fn settle(&self, piece: &Piece) {
        self.board.advance(piece.job, piece.span.len() as u64);
        self.board.end(piece.job, Outcome::Done);
    }
}

/// Copies a range of kept bytes to where the engine wants it.
fn give(bytes: &[u8], piece: &Piece) {
    let (offset, len) = (piece.offset as usize, piece.span.len());
    let from = HostSpan::of(&bytes[offset..offset + len]);
    // SAFETY: the submission keeps the operand valid for writes until its fence settles, which is afterwards; it is as long.
    unsafe { from.copy_to(piece.span) };
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use transload_hal::Fence;

    use super::super::{Command, Streams};
    use super::*;
    use crate::pipe::tests::{pair, shuttle};
    use crate::wire::Network;

    const OP: u64 = 7;

    /// The ends of a session, a write of 100 bytes in it, and where the engine wants them.
    struct Fixture {
        client: Pipe,
        node: Pipe,
        payload: Payload,
        sent: Vec<u8>,
        got: Vec<u8>,
    }

    impl Fixture {
        fn new() -> Fixture {
            let (client, node) = pair();
            let mut payload = Streams::new().payload();
            payload.announce(OP, 100);
            Fixture {
                client,
                node,
                payload,
                sent: (0..100).collect(),
                got: vec![0xAA; 100],
            }
        }

        /// The engine wants some of the bytes. Returns the fence, and whether the peer is to be asked for them.
        fn want(&mut self, offset: u64, len: u64) -> (Fence, bool) {
            let fence = self.payload.board.begin(1, 0).unwrap();
            let span = HostSpan::of_mut(&mut self.got).slice(offset, len).unwrap();
            let piece = Piece {
                job: fence.number(),
                op: OP,
                offset,
                span,
                is_taken: false,
                network: Network::Tls,
            };
            let is_asked_for = self.payload.want(&piece);
            if let Some(is_asked_for) = is_asked_for {
                { self.payload.start(piece, is_asked_for, &mut self.node) }.unwrap();
            }
            (fence, is_asked_for == Some(true))
        }

        /// The bytes come.
        fn come(&mut self) {
            // SAFETY: the bytes outlive the pipe, and nothing else touches them.
            unsafe { self.client.send_data(OP, 0, HostSpan::of(&self.sent)) };
            let events = shuttle(&mut self.client, &mut self.node, |_| ()).unwrap();
            events.iter().for_each(|event| {
                self.payload.handle(event);
            });
        }

        fn is_open(&self, fence: Fence) -> bool {
            self.payload.board.is_open(&fence)
        }
    }

    #[test]
    fn bytes_go_straight_to_where_the_engine_wants_all_of_them() {
        let mut fixture = Fixture::new();
        let (fence, is_asked_for) = fixture.want(0, 100);
        fixture.payload.woken(&mut fixture.node).unwrap();
        assert!(!is_asked_for && fixture.payload.is_under_way(OP, 100) && fixture.is_open(fence));
        fixture.come();
        assert!(!fixture.is_open(fence) && !fixture.payload.is_under_way(OP, 100));
        assert_eq!(fixture.got, fixture.sent);
        // Wanted once more, they are asked for.
        assert!(fixture.want(0, 100).1);
    }

    #[test]
    fn bytes_are_kept_until_the_engine_wants_them() {
        let mut fixture = Fixture::new();
        fixture.payload.woken(&mut fixture.node).unwrap();
        let (early, _) = fixture.want(60, 40);
        assert!(!fixture.payload.is_under_way(OP, 100) && fixture.is_open(early));
        fixture.come();
        assert!(!fixture.is_open(early));
        let (late, is_asked_for) = fixture.want(0, 60);
        assert!(!is_asked_for && !fixture.is_open(late));
        assert_eq!(fixture.got, fixture.sent);
        fixture.payload.forget(OP, &mut fixture.node);
        assert!(fixture.payload.early.is_empty());
    }

    #[test]
    fn bytes_of_an_operation_that_has_ended_are_dropped() {
        for is_kept in [false, true] {
            let mut fixture = Fixture::new();
            if is_kept {
                fixture.payload.woken(&mut fixture.node).unwrap();
            }
            fixture.node.discard(OP);
            fixture.payload.forget(OP, &mut fixture.node);
            assert_eq!(fixture.payload.under_way, HashMap::new());
            fixture.come();
            assert_eq!((fixture.got[0], fixture.node.expecting()), (0xAA, 0));
        }
    }

    #[test]
    fn what_the_engine_gives_up_is_not_waited_for() {
        let mut fixture = Fixture::new();
        fixture.payload.woken(&mut fixture.node).unwrap();
        let (fence, _) = fixture.want(0, 50);
        assert!(fixture.payload.feed.push([Command::Stop(fence.number())]));
        fixture.payload.woken(&mut fixture.node).unwrap();
        assert!(!fixture.is_open(fence));
        fixture.come();
        assert_eq!(fixture.got[0], 0xAA);
    }
}
