//! Events: points in streams, and the time between them.
//!
//! Source: CUDA Driver API, Event Management. Times are the ends of the recorded work: exact in virtual time; in
//! real time they depend on the load of the host.

mod functions;

use std::ffi::c_uint;

use transload_cuda::raw::{CUcontext, CUresult};

pub use self::functions::*;
use crate::engine::{Engine, Ticket};
use crate::ipc::{Last, SharedEvent};

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: CUcontext,
    pub(crate) flags: c_uint,
    /// The work before the last record by this process.
    pub(crate) recorded: Option<Ticket>,
    /// The part that other processes share, if the event was made for that.
    pub(crate) shared: Option<SharedEvent>,
}

impl Event {
    /// The work that its last record waits for, if that is not done.
    ///
    /// # Errors
    /// When that is another process's, and there is no thread left to wait for it.
    pub(crate) fn unfinished(&self, engine: &Engine) -> Result<Option<Ticket>, CUresult> {
        match self.shared.as_ref().map(SharedEvent::last) {
            Some(Last::Done) => Ok(None),
            Some(Last::Elsewhere(record)) => record.ticket(engine).map(Some),
            Some(Last::Here) | None => {
                let recorded = self.recorded.as_ref();
                Ok(recorded.filter(|ticket| !ticket.is_done()).cloned())
            }
        }
    }
}
