//! Many contiguous copies in one call.
//!
//! A call of the driver takes about as long as a small copy. So copies of a submission that may run in any order are
//! gathered first, and then one call starts them, if that is cheaper than one call for each.

use super::enqueue::Enqueuer;
use super::moves::End;
use crate::raw::{
    CUdeviceptr, CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUresult, CUstream, CallError, Driver,
};

/// The number of copies from which one call for all pays: the smallest for which a gain was published. On an H100 16
/// copies of 1 byte to 64 KiB took 2.2 to 2.5 µs each in a batch and 3.5 to 4 µs in a loop (meta-pytorch/torchcomms
/// pull request 2195).
const FEWEST: usize = 16;

/// One call pays for copies of this length on average, in bytes, and shorter ones. Such a copy takes 2.4 µs at the
/// 55 GB/s of PCIe 5.0 x16, as long as ordering the next one does; with longer ones a loop's calls hide behind
/// the wire. Others found large blocks to gain nothing (llm-d/llm-d-kv-cache pull request 607).
pub(crate) const LARGEST: u64 = 128 << 10;

/// The largest number of copies in one call. A lane keeps room for as many as it ever gathered, some 100 KB at most,
/// so that later gathering does not allocate.
const MOST: usize = 1024;

/// Copies that were gathered, and the arrays that the driver wants. Kept with a lane.
#[derive(Default)]
pub(super) struct Batch {
    copies: Vec<Contiguous>,
    targets: Vec<CUdeviceptr>,
    sources: Vec<CUdeviceptr>,
    lens: Vec<usize>,
    /// The driver refused a batch whose copies it took one by one.
    is_refused: bool,
}

/// A copy between ends that do not overlap.
#[derive(Clone, Copy)]
struct Contiguous {
    from: End,
    to: End,
    len: u64,
}

/// Whether one call for all is cheaper than one for each.
fn pays(count: usize, bytes: u64) -> bool {
    count >= FEWEST && bytes / count as u64 <= LARGEST
}

impl Batch {
    /// Drops gathered copies that were not started.
    pub(super) fn clear(&mut self) {
        self.copies.clear();
    }

    /// Fills the arrays.
    fn list(&mut self) {
        self.targets.clear();
        self.sources.clear();
        self.lens.clear();
        for copy in &self.copies {
            self.targets.push(copy.to.unified());
            self.sources.push(copy.from.unified());
            self.lens.push(copy.len as usize);
        }
    }

    /// Starts what is listed.
    ///
    /// # Safety
    /// As [`Enqueuer::start`].
    unsafe fn call(&mut self, driver: &Driver, stream: CUstream) -> Result<(), CallError> {
        let (targets, sources) = (self.targets.as_mut_ptr(), self.sources.as_mut_ptr());
        let (lens, count) = (self.lens.as_mut_ptr(), self.lens.len());
        // Earlier work of the stream may have written the sources.
        let mut attributes = CUmemcpyAttributes {
            srcAccessOrder: CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            ..CUmemcpyAttributes::default()
        };
        let attributes = &raw mut attributes;
        let mut first = 0;
        let first = &raw mut first;
        if driver.table().cuMemcpyBatchAsync_v2.is_some() {
            // SAFETY: the arrays are as long as is said; what they name is valid, by the caller's promise.
            return unsafe {
                driver.cuMemcpyBatchAsync_v2(
                    targets, sources, lens, count, attributes, first, 1, stream,
                )
            };
        }
        let mut failed = 0;
        // SAFETY: as above.
        unsafe {
            driver.cuMemcpyBatchAsync(
                targets,
                sources,
                lens,
                count,
                attributes,
                first,
                1,
                &raw mut failed,
                stream,
            )
        }
    }
}

impl Enqueuer<'_> {
    /// Copies bytes between ends that do not overlap, in any order with other copies of the submission: at once, or
    /// together with the others if one call for all pays.
    ///
    /// # Safety
    /// As [`Enqueuer::start`].
    pub(super) unsafe fn gather(&mut self, from: End, to: End, len: u64) -> Result<(), CallError> {
        if len == 0 {
            return Ok(());
        }
        if !self.lane.has_batches || self.batch.is_refused || from.is_across(to) {
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
            let called = unsafe { self.batch.call(self.driver(), self.lane.stream) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_small_copies_are_cheaper_together() {
        assert!(!pays(0, 0));
        assert!(!pays(FEWEST - 1, 1));
        assert!(pays(FEWEST, 1));
        assert!(pays(MOST, MOST as u64 * LARGEST));
        assert!(!pays(MOST, MOST as u64 * (LARGEST + 1)));
    }
}
