//! Copies whose ends overlap: piece by piece, in an order in which no byte is overwritten before it was read.

use std::sync::Arc;

use super::moves::Endpoint;
use crate::context::Context;
use crate::raw::{CUdeviceptr, CallError};

/// If the ends lie closer together than this, pieces of this length go through the lane's own memory.
const PIECE: u64 = 1 << 20;

/// Memory of the lane, allocated at first use.
#[derive(Default)]
pub(super) struct Scratch(Option<CUdeviceptr>);

/// Part of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// Where it lies in the whole.
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) by: By,
}

/// How a piece is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// Its ends do not overlap.
    Direct,
    /// Its ends overlap.
    Scratch,
}

impl By {
    pub(super) fn is_direct(self) -> bool {
        self == By::Direct
    }
}

/// The pieces of a copy between two ranges of one memory that overlap, in order.
pub(super) fn pieces(from: u64, to: u64, len: u64) -> impl Iterator<Item = Piece> {
    let apart = from.abs_diff(to);
    let (piece, by) = match apart >= PIECE {
        true => (apart, By::Direct),
        false => (PIECE, By::Scratch),
    };
    let count = if apart == 0 { 0 } else { len.div_ceil(piece) };
    (0..count).map(move |number| {
        // From the back if the copy goes up, from the front if it goes down.
        let number = if to > from {
            count - 1 - number
        } else {
            number
        };
        let at = number * piece;
        let len = piece.min(len - at);
        Piece { at, len, by }
    })
}

impl Scratch {
    /// The scratch as an end, of the same device as another one.
    pub(super) fn end(&mut self, like: Endpoint, context: &Context) -> Result<Endpoint, CallError> {
        let address = match self.0 {
            Some(address) => address,
            None => {
                let mut address = 0;
                context.allocate(|| {
                    let driver = &context.driver;
                    // SAFETY: the place is ours.
                    unsafe { driver.cuMemAlloc_v2(&raw mut address, PIECE as usize) }
                })?;
                self.0 = Some(address);
                address
            }
        };
        Ok(match like {
            Endpoint::Device { gpu, context, .. } => Endpoint::Device {
                gpu,
                context,
                address,
            },
            Endpoint::Host(span) => Endpoint::Host(span),
        })
    }

    /// Frees the scratch without waiting for other lanes. The stream that used it must be quiet.
    pub(super) fn free(&mut self, context: &Arc<Context>) {
        if let Some(address) = self.0.take() {
            let own = Arc::clone(context);
            context.reapers.own.free(move || own.free(address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies pieces as the driver would, and looks at what comes of it.
    fn moved(from: usize, to: usize, len: usize, scale: usize) -> bool {
        let mut memory: Vec<usize> = (0..from.max(to) + len).collect();
        let before = memory.clone();
        let unit = PIECE / scale as u64;
        let at = |bytes: u64| (bytes / unit) as usize;
        for piece in pieces(from as u64 * unit, to as u64 * unit, len as u64 * unit) {
            let (start, count) = (at(piece.at), at(piece.len));
            let (source, target) = (from + start, to + start);
            assert!(!piece.by.is_direct() || source.abs_diff(target) >= count);
            memory.copy_within(source..source + count, target);
        }
        memory[to..to + len] == before[from..from + len]
    }

    #[test]
    fn every_piece_is_read_before_it_is_overwritten() {
        for (from, to) in [(0, 1), (1, 0), (0, 3), (5, 0), (0, 8), (9, 1), (4, 4)] {
            for len in [1, 7, 8, 9, 31] {
                assert!(moved(from, to, len, 4), "{from} to {to}, {len}");
            }
        }
    }
}
