//! What is to be copied, and on which terms.

use alloc::sync::Arc;
use alloc::vec::Vec;

use transload_core::{Instant, LinkId};

use crate::engine::accept::{Checked, Terms};
use crate::engine::active::Priority;
use crate::engine::batch::BatchFlag;
use crate::{Event, Region, Report, Transfer, TransferError};

/// A copy to be made: two regions of equal payload, and terms.
#[derive(Clone)]
pub struct Request {
    pub(crate) src: Region,
    pub(crate) dst: Region,
    pub(crate) terms: Terms,
}

impl Request {
    /// Copies `src` to `dst`.
    pub fn new(src: impl Into<Region>, dst: impl Into<Region>) -> Request {
        Request {
            src: src.into(),
            dst: dst.into(),
            terms: Terms::default(),
        }
    }

    /// Reads both ends again after the copy and compares their checksums (xxh3-64). A difference
    /// fails the route, which is then quarantined and another one tried.
    pub fn verify(mut self) -> Request {
        self.terms.verify = true;
        self
    }

    /// Goes over exactly that link, in one pass and one piece, whatever it costs. Where the link is not
    /// there or fails, so does the copy: no other way is tried. For measuring links, and for finding out
    /// which of them fails; [`TransferManager::topology`](crate::TransferManager::topology) lists them.
    /// Memory of kind `mapped` is not made visible first: whoever's own commands use it waits for those.
    pub fn over(mut self, link: LinkId) -> Request {
        self.terms.over = Some(link);
        self
    }

    /// Goes before or after others that wait for the same engine or the same staging.
    pub fn priority(mut self, priority: Priority) -> Request {
        self.terms.priority = priority;
        self
    }

    /// Gives up at that time by the manager's clock, which [`TransferManager::now`](crate::TransferManager::now) tells:
    /// `manager.now() + limit`. What is under way then cannot be called back:
    /// the result is there at once, but until those operations have ended, if they ever do, the
    /// transfer keeps its place in the order and its buffers.
    pub fn deadline(mut self, at: Instant) -> Request {
        self.terms.deadline = Some(at);
        self
    }

    /// Starts only when the event was set. May be called several times.
    pub fn after(mut self, event: &Event) -> Request {
        self.terms.after.push(Arc::clone(&event.cell));
        self
    }

    /// Sets the event when the transfer is over, however it ended. May be called several times.
    pub fn then(mut self, event: &Event) -> Request {
        self.terms.then.push(Arc::clone(&event.cell));
        self
    }

    /// The source.
    pub fn src(&self) -> &Region {
        &self.src
    }

    /// The destination.
    pub fn dst(&self) -> &Region {
        &self.dst
    }

    pub(crate) fn check(&self) -> Result<Checked, TransferError> {
        Checked::new(self.src.operand(), self.dst.operand())
    }
}

impl core::fmt::Debug for Request {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Request")
            .field("src", &self.src)
            .field("dst", &self.dst)
            .field("verify", &self.terms.verify)
            .field("priority", &self.terms.priority)
            .field("deadline", &self.terms.deadline)
            .finish_non_exhaustive()
    }
}

/// What becomes of the rest of a batch when one of its transfers fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The others go on.
    #[default]
    GoOn,
    /// Those that have not begun are not started.
    Stop,
}

/// Transfers that were submitted together, all or none.
#[derive(Debug)]
#[must_use = "a batch that is dropped goes on, but nobody waits for it or learns how it ends"]
pub struct Batch {
    pub(crate) transfers: Vec<Transfer>,
}

impl Batch {
    /// Waits for all of them. The results are in the order of the requests.
    pub fn wait(self) -> Vec<Result<Report, TransferError>> {
        self.transfers.into_iter().map(Transfer::wait).collect()
    }

    /// The transfers themselves, in the order of the requests.
    pub fn into_transfers(self) -> Vec<Transfer> {
        self.transfers
    }

    pub(crate) fn flag(on_failure: OnFailure) -> Option<Arc<BatchFlag>> {
        (on_failure == OnFailure::Stop).then(Arc::default)
    }
}
