//! Managed memory and its hints.
//!
//! Source: CUDA Driver API, Memory Management: cuMemAllocManaged; Unified Addressing: cuMemPrefetchAsync,
//! cuMemAdvise, cuMemRangeGetAttribute; Stream Management: cuStreamAttachMemAsync.
//!
//! The host may touch managed memory at any time, whatever the machine's description says: a device that does not share
//! it with the host while it works only refuses prefetches to it, and advice that names it. Managed memory takes no
//! memory of a device: pages on devices and their migration on access are not modelled. Prefetching takes the time of a
//! copy from the place of the last prefetch, the host at first, and has no visible effect. Advice is stored and
//! returned, and has no effect; for pageable memory it is refused. There is a NUMA node for each that a device of the
//! machine is attached to, and node 0; the node of a thread is not modelled.

mod functions;
mod hints;

use std::collections::{BTreeMap, BTreeSet};

use transload_cuda::raw::CUresult;

pub use self::functions::*;
use self::hints::Hints;
use crate::space::Space;

const WRONG: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The hints for managed memory, by the number of the allocation.
#[derive(Debug, Default)]
pub(crate) struct Managed(BTreeMap<u64, Hints>);

impl Managed {
    /// Forgets the hints for memory that no longer exists.
    pub(crate) fn forget_all_but(&mut self, space: &Space) {
        if !self.0.is_empty() {
            let there: BTreeSet<_> = space.iter().map(|of| of.id).collect();
            self.0.retain(|id, _| there.contains(id));
        }
    }

    /// Forgets the hints for an allocation.
    pub(crate) fn forget(&mut self, id: u64) {
        self.0.remove(&id);
    }
}
