//! Which lane operations go through, and which of them together.

use transload_hal::{Access, Backend, Fence, LinkId, Op, SubmitError, check_ends};

use crate::device::Cuda;
use crate::gpu::Gpu;
use crate::queue::{LARGEST_IN_BATCH, Move, Way, joined};

impl Cuda {
    /// The device and the lane that execute the operations; none where there is nothing to do.
    pub(crate) fn place(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
    ) -> Result<Option<(&Gpu, Way)>, SubmitError> {
        let mut place = None;
        for (index, op) in ops.iter().enumerate() {
            let unsupported = |reason| SubmitError::Unsupported { index, reason };
            let Some(one) = Move::of(&self.gpus, op).map_err(unsupported)? else {
                continue;
            };
            let at = one.way().map_err(unsupported)?;
            if place.is_some_and(|place: (usize, Way)| place.0 != at.0) {
                return Err(unsupported(
                    "it is for another device than those before".into(),
                ));
            }
            if let Some((from, to)) = one.across()
                && via.is_none_or(|link| link.access == Access::Peer)
                && !self.reaches(from, to)
            {
                // The driver would take it and send the bytes over the host.
                return Err(unsupported("the two devices were never connected".into()));
            }
            check_ends(via, index, op)?;
            if place.is_some_and(|place| (place.1 == Way::Visible) != (at.1 == Way::Visible)) {
                // The two would have to be one fence.
                return Err(unsupported(
                    "memory is made visible by a submission of its own".into(),
                ));
            }
            place = place.or(Some(at));
        }
        Ok(place.and_then(|(gpu, way)| Some((self.gpus.get(gpu)?, way))))
    }
}

impl Cuda {
    /// Submits copies, each by itself, but for small ones that follow each other: these make one submission with a
    /// fence for each. That costs one event instead of many, and the driver gets them in one call where that pays.
    ///
    /// # Safety
    /// As `Backend::submit_each`.
    pub(crate) unsafe fn submit_small_together(
        &self,
        via: LinkId,
        ops: &[Op<'_>],
        told: &mut dyn FnMut(Result<Fence, SubmitError>),
    ) {
        let mut left = ops;
        while !left.is_empty() {
            let (together, later) = left.split_at(self.together(via, left).max(1));
            // SAFETY: the caller's promise.
            let fences = unsafe { self.submit_small(via, together) };
            match fences {
                Some(fences) => fences.for_each(|fence| told(Ok(fence))),
                None => {
                    for op in together {
                        // SAFETY: as above; nothing was done of it.
                        told(unsafe { self.submit(Some(via), std::slice::from_ref(op), &[]) });
                    }
                }
            }
            left = later;
        }
    }

    /// How many of the first operations are small copies that one lane would do.
    fn together(&self, via: LinkId, ops: &[Op<'_>]) -> usize {
        let lane = |op: &Op<'_>| {
            let is_small = Move::of(&self.gpus, op)
                .ok()
                .flatten()?
                .is_at_most(LARGEST_IN_BATCH);
            let (gpu, way) = self.place(Some(via), std::slice::from_ref(op)).ok()??;
            is_small.then_some((gpu.number, way))
        };
        let first = ops.first().and_then(lane);
        let like = |op: &&Op<'_>| first.is_some() && lane(op) == first;
        ops.iter().take_while(like).count()
    }

    /// Submits small copies that one lane does, all or none.
    ///
    /// # Safety
    /// As `Backend::submit_each`.
    unsafe fn submit_small<'a>(
        &'a self,
        via: LinkId,
        ops: &'a [Op<'a>],
    ) -> Option<impl Iterator<Item = Fence> + 'a> {
        if ops.len() < 2 {
            return None;
        }
        let (gpu, way) = self.place(Some(via), ops).ok()??;
        let lane = gpu.open().ok()?.lane(way);
        let moves = joined(&self.gpus, ops);
        // SAFETY: the caller's promise; a copy that is made of several touches what those do, and no more.
        unsafe { lane.submit_each(moves, ops.len() as u64) }.ok()
    }
}
