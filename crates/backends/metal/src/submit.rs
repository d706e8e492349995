//! Chooses the lane of operations, and the parts that the host executes.

use transload_hal::{Fence, HostSpan, LinkId, Op, SubmitError, check_ends, check_fences};

use crate::device::Metal;
use crate::gpu::Gpu;
use crate::queue::{End, Lane, Move, Own, Way};
use crate::types::BACKEND;

impl Metal {
    /// As `Backend::submit`.
    ///
    /// # Safety
    /// As `Backend::submit`.
    pub(crate) unsafe fn start(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        check_fences(BACKEND, after)?;
        let place = self.place(via, ops)?;
        let is_pending = |fence: &&Fence| {
            let lane = self.lane(**fence);
            !fence.is_immediate() && lane.is_some_and(|lane| lane.is_pending(fence.sequence()))
        };
        if place.is_by_host
            && let Some(fence) = after.iter().find(is_pending)
        {
            return Err(SubmitError::unawaited(fence));
        }
        let moves = || ops.iter().filter_map(|op| Move::of(self.gpus(), op).ok());
        let on_device = moves().filter(|one| one.place().1.is_some() && !one.is_empty());
        let fence = match place.lane {
            None => Fence::immediate(BACKEND),
            Some((gpu, Way::Visible)) => {
                // The lanes' newest fences cover all earlier work of the device.
                let lanes = gpu.lanes().iter();
                let newest = lanes.filter_map(|lane| Some((lane, lane.newest()?)));
                match newest.clone().next() {
                    None if !moves().any(|one| one.is_stale()) => Fence::immediate(BACKEND),
                    // SAFETY: the caller's promise.
                    _ => unsafe {
                        let after = newest.chain(self.lanes_of(after));
                        gpu.lane(Way::Visible).submit(on_device, after)
                    }?,
                }
            }
            Some((gpu, way)) => {
                // SAFETY: the caller's promise.
                unsafe { gpu.lane(way).submit(on_device, self.lanes_of(after)) }?
            }
        };
        for one in moves() {
            // SAFETY: the caller's promise.
            unsafe { one.finish() };
        }
        Ok(fence)
    }

    fn lanes_of<'a>(&'a self, after: &'a [Fence]) -> impl Iterator<Item = (&'a Lane, u64)> {
        let unsettled = after.iter().filter(|fence| !fence.is_immediate());
        unsettled.filter_map(|fence| Some((self.lane(*fence)?, fence.sequence())))
    }

    /// The device and the lane that execute the operations.
    fn place(&self, via: Option<LinkId>, ops: &[Op<'_>]) -> Result<Place<'_>, SubmitError> {
        let mut found = Place {
            lane: None,
            is_by_host: false,
        };
        for (index, op) in ops.iter().enumerate() {
            let unsupported = |reason| SubmitError::Unsupported { index, reason };
            let one = Move::of(self.gpus(), op).map_err(unsupported)?;
            check_ends(via, index, op)?;
            let (gpu, way) = one.place();
            let Some(way) = way else {
                found.is_by_host = true;
                continue;
            };
            if one.is_empty() {
                continue;
            }
            let Some(gpu) = self.gpus().get(gpu) else {
                continue;
            };
            match found.lane {
                None => found.lane = Some((gpu, way)),
                Some((other, _)) if other.number != gpu.number => {
                    let reason = "it is for another device than those before";
                    return Err(unsupported(reason.into()));
                }
                Some((_, other)) if (other == Way::Visible) != (way == Way::Visible) => {
                    let reason = "memory is made visible by a submission of its own";
                    return Err(unsupported(reason.into()));
                }
                Some(_) => {}
            }
        }
        Ok(found)
    }
}

struct Place<'a> {
    lane: Option<(&'a Gpu, Way)>,
    /// The host executes a part.
    is_by_host: bool,
}

impl Move {
    /// Whether the host's copy is out of date.
    fn is_stale(&self) -> bool {
        match self {
            Move::Show { managed, .. } => {
                let coherence = managed.as_ref().and_then(|of| of.coherence.as_ref());
                coherence.is_some_and(|coherence| coherence.is_stale())
            }
            _ => false,
        }
    }

    /// Executes the host's part after the commands were committed, and records which buffers the device writes.
    ///
    /// # Safety
    /// As `Backend::submit`.
    unsafe fn finish(self) {
        match self {
            Move::Taken { of } => {
                if let Some(coherence) = &of.coherence {
                    coherence.take();
                }
            }
            Move::Modified { of, at, len } => {
                modified(&of, at, len, || {});
                if let Some(coherence) = &of.coherence {
                    coherence.give_back();
                }
            }
            Move::Copy {
                from: End::Host(from),
                to: End::Own { of, at, .. },
                shapes,
                span,
                ..
            } if of.coherence.is_some() => {
                for run in Move::runs(shapes.as_ref(), span) {
                    let (to, len) = (at + run.other_offset, run.len_bytes);
                    let source = from.span.slice(run.offset, len);
                    let start = of.raw.contents();
                    let whole =
                        start.map(|start| HostSpan::new(start, of.raw.len_bytes() as usize));
                    let target = whole.and_then(|whole| whole.slice(to, len));
                    let Some((source, target)) = source.zip(target) else {
                        continue;
                    };
                    modified(&of, to, len, || {
                        // SAFETY: both lie within operands, which nothing else touches, by the caller's promise;
                        // no synchronization writes the target meanwhile.
                        unsafe { source.copy_to(target) };
                    });
                }
            }
            Move::Copy {
                to: End::Own { of, .. },
                ..
            } => {
                if let Some(coherence) = &of.coherence {
                    coherence.wrote();
                }
            }
            _ => {}
        }
    }
}

/// Lets the host write a managed buffer, and notifies Metal.
fn modified(of: &Own, at: u64, len: u64, write: impl FnOnce()) {
    let Some(coherence) = &of.coherence else {
        return;
    };
    coherence.write(|| {
        write();
        if len > 0 {
            of.raw.did_modify(at, len);
        }
    });
}
