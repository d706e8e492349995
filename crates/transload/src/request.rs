//! What is to be copied, and on which terms.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use transload_core::{Instant, LinkId};

use crate::engine::accept::{Checked, Terms};
use crate::engine::active::Priority;
use crate::engine::batch::BatchFlag;
use crate::{Cancelled, Canceller, Event, Region, Report, Transfer, TransferError};

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
    /// `manager.now() + limit`. The result is there at once. Until the operations that are under way have ended, the
    /// transfer keeps its place in the order and its buffers: those of the host's stop between two pieces, as for
    /// [`Transfer::cancel`], and may fill a little more than the bytes that were told; a device's cannot be called back, and
    /// may never end.
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

    /// Has the transfer stop when its handle is dropped before it is over, as [`Transfer::cancel`] does, but without
    /// waiting: for futures that a timeout or a `select` drops. Otherwise a dropped transfer goes on.
    pub fn cancel_on_drop(mut self) -> Request {
        self.terms.cancel_on_drop = true;
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

/// Transfers that were submitted together, all or none. It is a `Future` of their results.
#[must_use = "a batch that is dropped goes on, but nothing waits for it or learns how it ends"]
pub struct Batch {
    transfers: Vec<Transfer>,
    /// Results of the first of them, for a batch that is awaited.
    results: Vec<Result<Report, TransferError>>,
}

impl Batch {
    pub(crate) fn new(transfers: Vec<Transfer>) -> Batch {
        Batch {
            transfers,
            results: Vec::new(),
        }
    }

    /// Waits for all of them. The results are in the order of the requests: for one that stands behind a guard of this
    /// thread's it is [`TransferError::GuardHeld`], as for [`Transfer::wait`].
    pub fn wait(self) -> Vec<Result<Report, TransferError>> {
        let rest = self.transfers.into_iter().skip(self.results.len());
        self.results
            .into_iter()
            .chain(rest.map(Transfer::wait))
            .collect()
    }

    /// Whether all of them are over. Takes in what has happened, and does not block.
    pub fn is_over(&self) -> bool {
        self.transfers.iter().all(Transfer::is_over)
    }

    /// Payload bytes that have arrived, and all of them, summed over the transfers whose results were not taken.
    pub fn progress(&self) -> (u64, u64) {
        let each = self.transfers.iter().filter_map(Transfer::progress);
        each.fold((0, 0), |(arrived, all), one| (arrived + one.0, all + one.1))
    }

    /// Stops those that are not over, and blocks until their operations are quiet. The answers are in the order of the
    /// requests.
    pub fn cancel(self) -> Vec<Cancelled> {
        self.canceller().cancel();
        let taken = self.results.into_iter().map(Cancelled::Finished);
        let rest = self.transfers.into_iter().skip(taken.len());
        let rest: Vec<Cancelled> = rest.map(Transfer::cancel).collect();
        taken.chain(rest).collect()
    }

    /// What stops all of them, from any thread.
    pub fn canceller(&self) -> Canceller {
        Canceller::of(&self.transfers)
    }

    /// The transfers themselves, in the order of the requests.
    pub fn into_transfers(self) -> Vec<Transfer> {
        self.transfers
    }

    pub(crate) fn flag(on_failure: OnFailure) -> Option<Arc<BatchFlag>> {
        (on_failure == OnFailure::Stop).then(Arc::default)
    }
}

impl Future for Batch {
    type Output = Vec<Result<Report, TransferError>>;

    /// Waits for one after the other: all of them advance meanwhile.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let batch = self.get_mut();
        while let Some(next) = batch.transfers.get_mut(batch.results.len()) {
            match Pin::new(next).poll(context) {
                Poll::Ready(result) => batch.results.push(result),
                Poll::Pending => return Poll::Pending,
            }
        }
        batch.transfers.clear();
        Poll::Ready(core::mem::take(&mut batch.results))
    }
}

impl core::fmt::Debug for Batch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Batch")
            .field("transfers", &self.transfers.len())
            .field("results", &self.results.len())
            .finish()
    }
}
