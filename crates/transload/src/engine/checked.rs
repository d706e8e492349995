//! Requests whose bounds, lengths, permission and overlap were checked, and the terms on which they run.

use alloc::sync::Arc;
use alloc::vec::Vec;

use arrayvec::ArrayVec;
use transload_core::flight::Verify;
use transload_core::{DeviceId, Footprint, Instant, LinkId, MemoryKind, Plan, Shape};

use super::event::EventState;
use super::operand::{Operand, pair};
use super::types::{BatchFlag, Priority};
use crate::error::{RegionError, TransferError};
use crate::explain::Candidate;

/// The host writes memory that it shares with a device in bytes. The device's engine writes it in words, and writes the
/// old bytes beside a transfer's bytes back. So two transfers that write bytes of one word go one after the other. In
/// other memory one engine does all writes, in its own order.
const MAPPED_GRAIN: u64 = 4;

/// A request whose ends were checked.
#[derive(Clone)]
pub(crate) struct Checked {
    pub(crate) src: Operand,
    pub(crate) dst: Operand,
    pub(crate) in_place: bool,
    /// The footprints in the order: of both ends, or of the one that is not borrowed.
    pub(crate) footprints: ArrayVec<Footprint, 2>,
}

impl Checked {
    /// Returns whether an end is not host memory.
    pub(crate) fn leaves_the_host(&self) -> bool {
        let ends = [&self.src, &self.dst];
        ends.into_iter()
            .any(|end| end.buffer.memory().device != DeviceId::CPU0)
    }
}

/// The terms of a transfer.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    pub(crate) priority: Priority,
    pub(crate) deadline: Option<Instant>,
    pub(crate) verify: bool,
    /// The only way that it may take.
    pub(crate) only: Option<Only>,
    pub(crate) after: Vec<Arc<EventState>>,
    pub(crate) then: Vec<Arc<EventState>>,
    pub(crate) batch: Option<Arc<BatchFlag>>,
    pub(crate) proof: Option<usize>,
    pub(crate) cancel_on_drop: bool,
}

impl Terms {
    /// Returns whether the transfer is one of a user's that copies and no more, over any route.
    pub(crate) fn is_plain(&self) -> bool {
        self.only.is_none() && self.proof.is_none() && !self.verify
    }
}

/// The only way of a transfer whose user names one.
#[derive(Clone)]
pub(crate) enum Only {
    /// A link, in one pass and one piece.
    Link(LinkId),
    /// A way that the manager has listed.
    Way(Arc<Candidate>),
}

/// The plans of a transfer.
#[derive(Clone)]
pub(crate) struct Chosen {
    pub(crate) plan: Arc<Plan>,
    pub(crate) verify: Option<Verify>,
}

impl Checked {
    /// Checks bounds, lengths, permission and overlap.
    pub(crate) fn new(mut src: Operand, mut dst: Operand) -> Result<Checked, TransferError> {
        let (from, to) = (footprint(&src, false)?, footprint(&dst, true)?);
        let (src_bytes, dst_bytes) = (src.shape.payload_bytes(), dst.shape.payload_bytes());
        if src_bytes != dst_bytes {
            return Err(TransferError::LengthMismatch {
                src_bytes,
                dst_bytes,
            });
        }
        if let Some(conversion) = src.conversion() {
            let (element_bytes, list) = (conversion.to().len_bytes(), dst.scattered.as_ref());
            let whole = match list {
                Some(list) => list.is_whole(element_bytes),
                None => dst.shape.width_bytes().is_multiple_of(element_bytes),
            };
            if !whole {
                return Err(TransferError::Region(RegionError::Elements {
                    memory: dst.buffer.memory(),
                    found_bytes: dst_bytes,
                    element_bytes,
                }));
            }
        }
        if !dst.buffer.is_writable() {
            let memory = dst.buffer.memory();
            return Err(TransferError::ReadOnly { memory });
        }
        if let Some(twice) = dst.scattered.as_ref().and_then(|list| list.repeated()) {
            return Err(TransferError::Region(RegionError::Repeated {
                memory: dst.buffer.memory(),
                offset: twice.offset,
                len: twice.len,
            }));
        }
        pair(&mut src, &mut dst);
        let in_place = from.conflicts_with(&to) && src.meets(&dst);
        if in_place && !(src.is_contiguous() && dst.is_contiguous()) {
            let memory = dst.buffer.memory();
            return Err(TransferError::Overlap { memory });
        }
        let ordered = match dst.buffer.memory().kind {
            MemoryKind::Mapped => to.widened(MAPPED_GRAIN),
            _ => to,
        };
        Ok(Checked {
            src,
            dst,
            in_place,
            footprints: ArrayVec::from([from, ordered]),
        })
    }

    /// The same for an end that the caller has borrowed: while the borrow lasts no other code can touch its bytes, so
    /// it needs no place in the order. It may lie under a guard of the caller's own, and a place in the order would
    /// wait for that guard for ever.
    pub(crate) fn with_borrowed_src(mut self) -> Checked {
        self.footprints.remove(0);
        self
    }

    /// As [`Checked::with_borrowed_src`].
    pub(crate) fn with_borrowed_dst(mut self) -> Checked {
        self.footprints.truncate(1);
        self
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.src.shape.payload_bytes()
    }
}

/// Returns the footprint of one end, once its bounds were checked.
pub(crate) fn footprint(end: &Operand, writes: bool) -> Result<Footprint, TransferError> {
    let buffer = &end.buffer;
    let extent = end.extent();
    let out_of_bounds = RegionError::OutOfBounds {
        memory: buffer.memory(),
        offset: extent.offset,
        len: extent.len,
        limit: buffer.len(),
    };
    if !extent.fits(buffer.len()) {
        return Err(out_of_bounds.into());
    }
    let shape = match end.scattered {
        Some(_) => Shape::contiguous(extent.len),
        None => end.shape,
    };
    let position = buffer.position().checked_add(extent.offset);
    position
        .and_then(|at| Footprint::new(buffer.storage_id(), at, shape, writes).ok())
        .ok_or_else(|| out_of_bounds.into())
}
