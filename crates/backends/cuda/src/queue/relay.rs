//! Streams of this backend that wait for events of the user.

use std::sync::{Arc, Mutex, PoisonError};

use transload_hal::DeviceId;

use super::error::StreamError;
use crate::context::Context;
use crate::fault::fault_of;
use crate::raw::{CUstream, CUstream_flags};

/// A stream of this backend that waits for an event of the user.
#[derive(Clone, Copy)]
pub(crate) struct Relay {
    device: DeviceId,
    pub(super) stream: CUstream,
}

/// All relays, made when they are needed.
#[derive(Default)]
pub(crate) struct Relays {
    all: Mutex<Vec<(Arc<Context>, CUstream)>>,
    /// The relays that wait for nothing.
    pub(super) idle: Arc<Mutex<Vec<Relay>>>,
}

impl Relays {
    /// Returns an idle or a new stream of a context, which must be current.
    pub(super) fn take(&self, context: &Arc<Context>) -> Result<Relay, StreamError> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let found = idle.iter().position(|relay| relay.device == context.id);
        if let Some(at) = found {
            return Ok(idle.swap_remove(at));
        }
        drop(idle);
        let mut stream = CUstream::NULL;
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: the place is ours.
        let made = unsafe { context.driver.cuStreamCreate(&raw mut stream, flags) };
        made.map_err(|error| StreamError::of_fault(fault_of(error)))?;
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((Arc::clone(context), stream));
        let device = context.id;
        Ok(Relay { device, stream })
    }

    pub(super) fn put_back(&self, relay: Relay) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(relay);
    }
}

impl Drop for Relays {
    /// Waits under way go on, and the driver destroys their streams after that (CUDA Driver API, cuStreamDestroy).
    fn drop(&mut self) {
        let all = self.all.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (context, stream) in all.drain(..) {
            let Ok(_current) = context.enter() else {
                continue;
            };
            // SAFETY: the stream was made here, and no code takes it any more.
            let _ = unsafe { context.driver.cuStreamDestroy_v2(stream) };
        }
    }
}
