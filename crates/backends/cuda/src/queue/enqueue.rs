//! Translates moves into calls of the driver.

use std::cell::Cell;

use super::batch::Batch;
use super::lane::{Gate, Shared};
use super::moves::{End, Move};
use super::overlap::{Piece, Scratch, pieces};
use crate::raw::{CallError, Driver};

/// Puts moves into a lane's stream. The lane's context must be current meanwhile.
pub(super) struct Enqueuer<'a> {
    pub(super) lane: &'a Shared,
    pub(super) batch: &'a mut Batch,
    scratch: &'a mut Scratch,
    /// The driver has taken a copy.
    has_begun: Cell<bool>,
}

impl<'a> Enqueuer<'a> {
    pub(super) fn new(lane: &'a Shared, gate: &'a mut Gate) -> Enqueuer<'a> {
        let Gate { batch, scratch } = gate;
        batch.clear();
        Enqueuer {
            lane,
            batch,
            scratch,
            has_begun: Cell::new(false),
        }
    }

    /// Whether bytes may have moved.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.get()
    }

    /// Records the result of each copy call.
    pub(super) fn given(&self, answer: Result<(), CallError>) -> Result<(), CallError> {
        if answer.is_ok() {
            self.begin();
        }
        answer
    }

    /// The driver may have been given a copy, or a part of several.
    pub(super) fn begin(&self) {
        self.has_begun.set(true);
    }

    pub(super) fn driver(&self) -> &'a Driver {
        &self.lane.context.driver
    }

    /// Starts moves, in any order.
    ///
    /// # Safety
    /// As [`Enqueuer::start`], for each of them.
    pub(super) unsafe fn start_all(
        &mut self,
        mut moves: impl Iterator<Item = Move>,
    ) -> Result<(), CallError> {
        moves.try_for_each(|one| {
            // SAFETY: the caller's promise.
            unsafe { self.start(&one) }
        })?;
        // SAFETY: the caller's promise.
        unsafe { self.flush() }
    }

    /// Starts one move, or keeps it for [`Enqueuer::flush`].
    ///
    /// # Safety
    /// Both ends stay valid, and nothing else touches them, until the stream is past it.
    unsafe fn start(&mut self, one: &Move) -> Result<(), CallError> {
        match one {
            Move::Copy { from, to, len } => {
                // SAFETY: the caller's promise.
                unsafe { self.copy_overlapping(*from, *to, *len) }
            }
            Move::Pitched {
                from,
                from_shape,
                to,
                to_shape,
                span,
            } => {
                // SAFETY: the caller's promise.
                unsafe { self.copy_pitched((*from, from_shape), (*to, to_shape), *span) }
            }
            Move::Hint {
                address, len, hint, ..
            } => self.hint((*address, *len), *hint),
            Move::Visible { .. } => Ok(()),
        }
    }

    /// # Safety
    /// As [`Enqueuer::start`].
    unsafe fn copy_overlapping(&mut self, from: End, to: End, len: u64) -> Result<(), CallError> {
        if !from.overlaps(to, len) {
            // SAFETY: the caller's promise.
            return unsafe { self.gather(from, to, len) };
        }
        for Piece { at, len, by } in pieces(from.unified(), to.unified(), len) {
            let (from, to) = (from.after(at), to.after(at));
            if by.is_direct() {
                // SAFETY: the caller's promise; pieces that are direct do not overlap themselves.
                unsafe { self.copy(from, to, len) }?;
                continue;
            }
            let kept = self.scratch.end(from, &self.lane.context)?;
            // SAFETY: as above; the scratch is this lane's, and used in the stream's order.
            unsafe { self.copy(from, kept, len) }?;
            // SAFETY: as above.
            unsafe { self.copy(kept, to, len) }?;
        }
        Ok(())
    }

    /// Copies bytes between ends that do not overlap, behind what was put into the stream before.
    ///
    /// # Safety
    /// As [`Enqueuer::start`].
    pub(super) unsafe fn copy(&self, from: End, to: End, len: u64) -> Result<(), CallError> {
        let (driver, stream) = (self.driver(), self.lane.stream);
        // An operand lies in memory, so its length fits a usize.
        let bytes = len as usize;
        if bytes == 0 {
            return Ok(());
        }
        let answer = match (from, to) {
            (End::Host(from), End::Device { address, .. }) => {
                let from = from.as_ptr().cast_const().cast();
                // SAFETY: both are valid for so many bytes, by the caller's promise.
                unsafe { driver.cuMemcpyHtoDAsync_v2(address, from, bytes, stream) }
            }
            (End::Device { address, .. }, End::Host(to)) => {
                let to = to.as_ptr().cast();
                // SAFETY: as above.
                unsafe { driver.cuMemcpyDtoHAsync_v2(to, address, bytes, stream) }
            }
            (
                End::Device {
                    gpu,
                    context,
                    address,
                },
                End::Device {
                    gpu: to_gpu,
                    context: to_context,
                    address: target,
                },
            ) => {
                if gpu == to_gpu {
                    // SAFETY: as above.
                    unsafe { driver.cuMemcpyDtoDAsync_v2(target, address, bytes, stream) }
                } else {
                    // SAFETY: as above.
                    unsafe {
                        driver
                            .cuMemcpyPeerAsync(target, to_context, address, context, bytes, stream)
                    }
                }
            }
            // No lane has such a copy.
            (End::Host(_), End::Host(_)) => return Ok(()),
        };
        self.given(answer)
    }
}
