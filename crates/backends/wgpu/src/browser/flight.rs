//! Submission and completion.

use std::rc::Rc;

use transload_hal::{Buffer, Fence, Op, Outcome, SubmitError};

use super::errors::{Heard, Scopes};
use super::gpu::Gpu;
use super::moves::Moves;
use super::once::{Told, once};
use super::readback::PendingReadback;
use crate::storage::{BACKEND, failed};

/// A submission that the browser has not ended.
struct Flight {
    number: u64,
    /// The operands.
    buffers: Vec<Buffer>,
    readback: Option<PendingReadback>,
    heard: Heard,
    over: Told<()>,
}

/// Starts the operations, all of which must be of this device, after everything that was submitted to it
/// before.
///
/// # Safety
/// As for `Backend::submit`.
pub(super) unsafe fn submit(
    gpu: &Rc<Gpu>,
    ops: &[Op<'_>],
    after: &[Fence],
) -> Result<Fence, SubmitError> {
    let moves = Moves::of(gpu, ops)?;
    if moves.is_empty() {
        return Ok(Fence::immediate(BACKEND));
    }
    // Host memory is read during this call, and written when the browser has mapped the bytes for it:
    // outside the queue's order.
    if moves.touches_host()
        && let Some(fence) = after.iter().find(|fence| gpu.is_pending(fence.number()))
    {
        return Err(SubmitError::unawaited(fence));
    }
    if let Some(fault) = gpu.lost.get() {
        return Err(SubmitError::Refused(fault.clone()));
    }
    let scopes = Scopes::of(&gpu.device);
    // SAFETY: the caller's promise; the buffers are kept until the flight is over.
    let readback = unsafe { moves.start(gpu) };
    let heard = scopes.end();
    let (tell, over) = once();
    gpu.queue.on_submitted_work_done(move || tell.tell(()));
    let flight = Flight {
        number: gpu.begin(),
        buffers: moves.buffers(),
        readback,
        heard,
        over,
    };
    let fence = Fence::new(BACKEND, flight.number);
    let gpu = Rc::clone(gpu);
    wasm_bindgen_futures::spawn_local(async move {
        // SAFETY: by the caller's promise operands are valid, and nothing else touches them, until the
        // fence has settled, which is the last thing that happens here.
        unsafe { flight.finish(&gpu) }.await;
    });
    Ok(fence)
}

impl Flight {
    /// Waits for all reports of the browser, and settles the fence.
    ///
    /// # Safety
    /// Until the fence has settled the operands are valid, and nothing else touches them.
    async unsafe fn finish(self, gpu: &Gpu) {
        let mut fault = self.heard.first().await;
        let over = self.over.await;
        if let Some(readback) = self.readback {
            // SAFETY: the caller's promise.
            let copied = unsafe { readback.finish(&gpu.readbacks, fault.is_none()) }.await;
            fault = fault.or(copied.err());
        }
        if over.is_none() {
            fault = fault.or(Some(failed(&"the browser forgot the submission")));
        }
        let outcome = match (gpu.lost.get(), fault) {
            (Some(lost), _) => Outcome::Lost(lost.clone()),
            (None, None) => Outcome::Done,
            (None, Some(fault)) => {
                gpu.forget_scratch();
                let refusals = self.buffers.iter().map(Buffer::storage_id);
                let refusal = refusals.filter_map(|id| gpu.refusal(id)).next();
                Outcome::Failed(refusal.unwrap_or(fault))
            }
        };
        // Dropped before the fence settles, so that no view of the operands is left then.
        drop(self.buffers);
        gpu.settle(self.number, outcome);
    }
}
