//! Requests to a backend about bytes that move none for the user, outside any flight: hints, and requests to make a
//! device's writes visible.
//!
//! The caller has a place in the order, since a backend may touch the bytes, and submits and awaits by itself.

use alloc::sync::Arc;

use transload_core::DeviceId;
use transload_hal::{Advice, Backend, BackendId, ErrorClass, Fault, Op, Outcome, Part};

use super::operand::Operand;
use super::shared::Shared;
use super::unwind::guarded;

/// The kind of request.
#[derive(Clone, Copy)]
pub(crate) enum Wish {
    Prefetch(DeviceId),
    Advise(Advice),
    MakeVisible,
    /// The host is going to write all of the buffer, or some.
    AcquireHost,
    /// The host has written all of the buffer, or some.
    ReleaseHost,
}

impl Wish {
    fn about(self, part: Part<'_>) -> Op<'_> {
        match self {
            Wish::Prefetch(to) => Op::Prefetch { part, to },
            Wish::Advise(advice) => Op::Advise { part, advice },
            Wish::MakeVisible => Op::MakeVisible { part },
            Wish::AcquireHost => Op::AcquireHost {
                buffer: part.buffer,
            },
            Wish::ReleaseHost => Op::ReleaseHost {
                buffer: part.buffer,
            },
        }
    }
}

impl Shared {
    /// Returns the backend of the memory that an operand lies in.
    pub(crate) fn backend_of(&self, end: &Operand) -> Option<(Arc<dyn Backend>, BackendId)> {
        self.state.with(|state| {
            let known = state.in_flight.known(end.buffer.backend())?;
            Some((Arc::clone(&known.backend), known.id))
        })
    }

    /// Submits a request about bytes to a backend, and blocks until it is done. The caller holds a guard on them.
    pub(crate) fn ask(
        self: &Arc<Self>,
        (backend, name): &(Arc<dyn Backend>, BackendId),
        end: &Operand,
        wish: Wish,
    ) -> Result<(), Fault> {
        let name = *name;
        let waits = end.buffer.memory().device != DeviceId::CPU0;
        if waits && transload_hal::in_callback() && !matches!(wish, Wish::ReleaseHost) {
            let message = "a callback of a backend must not wait for a device: it may run on the thread that ends the \
                           device's work";
            return Err(Fault::new(ErrorClass::Caller, message));
        }
        let extent = end.extent();
        let part = Part {
            buffer: &end.buffer,
            offset: extent.offset,
            len_bytes: extent.len,
        };
        self.state.with(|state| state.in_flight.begin_hint(name));
        // SAFETY: the operand's bounds were checked, its buffer lives as long as this call, the
        // guard keeps writers away, and this call returns only when the fence has settled.
        let submitted = guarded(|| unsafe { backend.submit(None, &[wish.about(part)], &[]) });
        let submitted =
            submitted.and_then(|fence| fence.map_err(transload_hal::SubmitError::into_fault));
        if self.change(|state| state.in_flight.handle_hint(name, &submitted)) {
            self.turn_quickly();
        }
        let fence = submitted?;
        if fence.is_immediate() {
            return Ok(());
        }
        loop {
            self.turn_quickly();
            let (outcome, lost) = self.state.with(|state| {
                let lost = state
                    .in_flight
                    .known(name)
                    .and_then(|known| known.lost.clone());
                (state.in_flight.take_hint(fence), lost)
            });
            match (outcome, lost) {
                (Some(Outcome::Done), _) => return Ok(()),
                (Some(Outcome::Stopped { .. }), _) => {
                    let message = "the backend stopped a hint that it was not asked to stop";
                    return Err(Fault::new(ErrorClass::Failed, message));
                }
                (Some(Outcome::Failed(fault) | Outcome::Lost(fault)), _) => return Err(fault),
                (None, Some(fault)) => {
                    // The backend panicked, and may still touch the bytes: they are never freed.
                    core::mem::forget(end.buffer.clone());
                    self.state.with(|state| state.in_flight.forget_hint(fence));
                    return Err(fault);
                }
                (None, None) => {
                    self.wait_for_fences(&**backend, name, &[fence], super::listen::LONGEST);
                }
            }
        }
    }
}
