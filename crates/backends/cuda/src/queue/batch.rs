//! Many contiguous copies in one call.
//!
//! A call of the driver takes about as long as a small copy. So copies of a submission that may run in any order are
//! gathered first, and then one call starts them, if that is cheaper than one call for each.

use super::moves::Endpoint;
use crate::raw::{
    CUdeviceptr, CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUstream, CallError, Driver,
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
pub(super) const MOST: usize = 1024;

/// Copies that were gathered, and the arrays that the driver wants. Kept with a lane.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) copies: Vec<Contiguous>,
    targets: Vec<CUdeviceptr>,
    sources: Vec<CUdeviceptr>,
    lens: Vec<usize>,
    /// The driver refused a batch whose copies it took one by one.
    pub(super) is_refused: bool,
}

/// A copy between ends that do not overlap.
#[derive(Clone, Copy)]
pub(super) struct Contiguous {
    pub(super) from: Endpoint,
    pub(super) to: Endpoint,
    pub(super) len: u64,
}

/// Whether one call for all is cheaper than one for each.
pub(super) fn pays(count: usize, bytes: u64) -> bool {
    count >= FEWEST && bytes / count as u64 <= LARGEST
}

impl Batch {
    /// Drops gathered copies that were not started.
    pub(super) fn clear(&mut self) {
        self.copies.clear();
    }

    /// Fills the arrays.
    pub(super) fn list(&mut self) {
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
    /// Both ends of each copy stay valid, and nothing else touches them, until the stream is past it.
    pub(super) unsafe fn call(
        &mut self,
        driver: &Driver,
        stream: CUstream,
    ) -> Result<(), CallError> {
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
