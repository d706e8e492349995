//! Translates moves into calls of the driver.

use std::cell::Cell;
use std::sync::Arc;

use super::batch::{Batch, Contiguous, MOST, pays};
use super::moves::{Endpoint, Move};
use super::overlap::{Piece, Scratch, pieces};
use crate::context::Context;
use crate::raw::{CUresult, CUstream, CallError, Driver};

/// Puts moves into a stream, whose context must be current meanwhile.
pub(super) struct Enqueuer<'a> {
    pub(super) context: &'a Context,
    pub(super) stream: CUstream,
    pub(super) limits: Limits,
    batch: &'a mut Batch,
    scratch: &'a mut Scratch,
    /// The driver has taken a copy.
    has_begun: Cell<bool>,
}

/// What the device and its driver can do in one call.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// The largest pitch of a copy, in bytes.
    pub(super) max_pitch: u64,
    /// Many copies can be ordered in one call.
    pub(super) has_batches: bool,
}

/// The buffers that a submission works with.
#[derive(Default)]
pub(super) struct Buffers {
    batch: Batch,
    scratch: Scratch,
}

impl Buffers {
    /// Frees the scratch without waiting for other lanes. The stream that used it must be quiet.
    pub(super) fn free(&mut self, context: &Arc<Context>) {
        self.scratch.free(context);
    }
}

impl<'a> Enqueuer<'a> {
    pub(super) fn new(
        context: &'a Context,
        stream: CUstream,
        limits: Limits,
        buffers: &'a mut Buffers,
    ) -> Enqueuer<'a> {
        let Buffers { batch, scratch } = buffers;
        batch.clear();
        Enqueuer {
            context,
            stream,
            limits,
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
        &self.context.driver
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
    unsafe fn copy_overlapping(
        &mut self,
        from: Endpoint,
        to: Endpoint,
        len: u64,
    ) -> Result<(), CallError> {
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
            let scratch = self.scratch.end(from, self.context)?;
            // SAFETY: as above; the scratch is this lane's, and used in the stream's order.
            unsafe { self.copy(from, scratch, len) }?;
            // SAFETY: as above.
            unsafe { self.copy(scratch, to, len) }?;
        }
        Ok(())
    }

    /// Copies bytes between ends that do not overlap, behind what was put into the stream before.
    ///
    /// # Safety
    /// As [`Enqueuer::start`].
    pub(super) unsafe fn copy(
        &self,
        from: Endpoint,
        to: Endpoint,
        len: u64,
    ) -> Result<(), CallError> {
        let (driver, stream) = (self.driver(), self.stream);
        // An operand lies in memory, so its length fits a usize.
        let bytes = len as usize;
        if bytes == 0 {
            return Ok(());
        }
        let answer = match (from, to) {
            (Endpoint::Host(from), Endpoint::Device { address, .. }) => {
                let from = from.as_ptr().cast_const().cast();
                // SAFETY: both are valid for so many bytes, by the caller's promise.
                unsafe { driver.cuMemcpyHtoDAsync_v2(address, from, bytes, stream) }
            }
            (Endpoint::Device { address, .. }, Endpoint::Host(to)) => {
                let to = to.as_ptr().cast();
                // SAFETY: as above.
                unsafe { driver.cuMemcpyDtoHAsync_v2(to, address, bytes, stream) }
            }
            (
                Endpoint::Device {
                    gpu,
                    context,
                    address,
                },
                Endpoint::Device {
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
            (Endpoint::Host(_), Endpoint::Host(_)) => return Ok(()),
        };
        self.given(answer)
    }

    /// Copies bytes between ends that do not overlap, in any order with other copies of the submission: at once, or
    /// together with the others if one call for all pays.
    ///
    /// # Safety
    /// As [`Enqueuer::start`].
    pub(super) unsafe fn gather(
        &mut self,
        from: Endpoint,
        to: Endpoint,
        len: u64,
    ) -> Result<(), CallError> {
        if len == 0 {
            return Ok(());
        }
        if !self.limits.has_batches || self.batch.is_refused || from.is_across(to) {
            // SAFETY: the caller's promise.
            return unsafe { self.copy(from, to, len) };
        }
        self.batch.copies.push(Contiguous { from, to, len });
        if self.batch.copies.len() < MOST {
            return Ok(());
        }
        // SAFETY: the caller's promise, for each that was gathered.
        unsafe { self.flush() }
    }

    /// Starts the gathered copies.
    ///
    /// # Safety
    /// As [`Enqueuer::start`], for each that was gathered.
    pub(super) unsafe fn flush(&mut self) -> Result<(), CallError> {
        let copies = &self.batch.copies;
        let bytes = copies.iter().map(|copy| copy.len).sum();
        let refused = if pays(copies.len(), bytes) {
            self.batch.list();
            // SAFETY: the caller's promise.
            let called = unsafe { self.batch.call(self.driver(), self.stream) };
            // The driver does not say how much of a failed batch was begun, refused or not.
            self.begin();
            match called {
                Ok(()) => {
                    self.batch.clear();
                    return Ok(());
                }
                Err(error) if is_refusal(&error) => true,
                Err(error) => return Err(error),
            }
        } else {
            false
        };
        // Copies that a refused batch may have begun are done again, with the same result.
        for copy in &self.batch.copies {
            // SAFETY: the caller's promise.
            unsafe { self.copy(copy.from, copy.to, copy.len) }?;
        }
        self.batch.clear();
        // If single copies fail too, the batch was not the cause.
        self.batch.is_refused |= refused;
        Ok(())
    }
}

/// Whether the error says that the driver does not support batches, or not this one.
fn is_refusal(error: &CallError) -> bool {
    error.is(CUresult::CUDA_ERROR_NOT_SUPPORTED) || error.is(CUresult::CUDA_ERROR_INVALID_VALUE)
}
