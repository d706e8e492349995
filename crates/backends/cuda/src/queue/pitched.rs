//! Copies of rows.

use transload_hal::Span;
use transload_hal::{Rows, Shape};

use super::enqueue::Enqueuer;
use super::moves::Endpoint;
use crate::raw::{CUDA_MEMCPY2D, CUDA_MEMCPY3D_PEER, CUmemorytype, CUresult, CallError};

impl Enqueuer<'_> {
    /// Copies the payload bytes `span` from one shape to the same of another.
    ///
    /// # Safety
    /// As [`Enqueuer::start`].
    pub(super) unsafe fn copy_pitched(
        &mut self,
        (from, from_shape): (Endpoint, &Shape),
        (to, to_shape): (Endpoint, &Shape),
        span: Span,
    ) -> Result<(), CallError> {
        for rows in from_shape.runs(0, to_shape, 0, span).rows(true) {
            let (from, to) = (from.after(rows.from), to.after(rows.to));
            // SAFETY: the rows lie within the ends; the rest is the caller's promise.
            unsafe { self.copy_rows(from, to, &rows) }?;
        }
        Ok(())
    }

    /// # Safety
    /// As [`Enqueuer::start`].
    unsafe fn copy_rows(
        &mut self,
        from: Endpoint,
        to: Endpoint,
        rows: &Rows,
    ) -> Result<(), CallError> {
        if rows.rows == 1 {
            // SAFETY: the caller's promise.
            return unsafe { self.gather(from, to, rows.len) };
        }
        let is_across = from.is_across(to);
        let fits = rows.from_pitch.max(rows.to_pitch) <= self.limits.max_pitch;
        let asked = match (fits, is_across) {
            (false, _) => None,
            // SAFETY: the caller's promise.
            (true, false) => Some(unsafe { self.copy_2d(from, to, rows) }),
            // SAFETY: the caller's promise.
            (true, true) => Some(unsafe { self.copy_2d_across(from, to, rows) }),
        };
        match asked.map(|answer| self.given(answer)) {
            // Within a device rows may be refused that lie at a pitch of one's own choice (CUDA Driver API, Memory
            // Management, cuMemcpy2D).
            Some(Err(error)) if !error.is(CUresult::CUDA_ERROR_INVALID_VALUE) => Err(error),
            Some(Ok(())) => Ok(()),
            // SAFETY: the caller's promise.
            _ => (0..rows.rows).try_for_each(|row| unsafe {
                let (from, to) = (
                    from.after(row * rows.from_pitch),
                    to.after(row * rows.to_pitch),
                );
                self.gather(from, to, rows.len)
            }),
        }
    }

    /// # Safety
    /// As [`Enqueuer::start`].
    unsafe fn copy_2d(&self, from: Endpoint, to: Endpoint, rows: &Rows) -> Result<(), CallError> {
        let mut copy = CUDA_MEMCPY2D {
            srcPitch: rows.from_pitch as usize,
            dstPitch: rows.to_pitch as usize,
            WidthInBytes: rows.len as usize,
            Height: rows.rows as usize,
            ..CUDA_MEMCPY2D::default()
        };
        match from {
            Endpoint::Host(span) => {
                copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
                copy.srcHost = span.as_ptr().cast_const().cast();
            }
            Endpoint::Device { address, .. } => {
                copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
                copy.srcDevice = address;
            }
        }
        match to {
            Endpoint::Host(span) => {
                copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
                copy.dstHost = span.as_ptr().cast();
            }
            Endpoint::Device { address, .. } => {
                copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
                copy.dstDevice = address;
            }
        }
        // SAFETY: the rows lie within memory that is valid by the caller's promise.
        unsafe {
            self.driver()
                .cuMemcpy2DAsync_v2(&raw const copy, self.stream)
        }
    }

    /// # Safety
    /// As [`Enqueuer::start`].
    unsafe fn copy_2d_across(
        &self,
        from: Endpoint,
        to: Endpoint,
        rows: &Rows,
    ) -> Result<(), CallError> {
        let mut copy = CUDA_MEMCPY3D_PEER {
            srcPitch: rows.from_pitch as usize,
            srcHeight: rows.rows as usize,
            dstPitch: rows.to_pitch as usize,
            dstHeight: rows.rows as usize,
            WidthInBytes: rows.len as usize,
            Height: rows.rows as usize,
            Depth: 1,
            ..CUDA_MEMCPY3D_PEER::default()
        };
        if let Endpoint::Device {
            context, address, ..
        } = from
        {
            copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
            (copy.srcContext, copy.srcDevice) = (context, address);
        }
        if let Endpoint::Device {
            context, address, ..
        } = to
        {
            copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
            (copy.dstContext, copy.dstDevice) = (context, address);
        }
        // SAFETY: the rows lie within memory that is valid by the caller's promise.
        unsafe {
            self.driver()
                .cuMemcpy3DPeerAsync(&raw const copy, self.stream)
        }
    }
}
