//! Requests: what to copy, and on which terms.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use transload_core::{Conversion, Instant, LinkId};

use crate::engine::checked::{Checked, Only, Terms};
use crate::engine::types::{BatchFlag, Priority};
use crate::{Cancelled, Canceller, Candidate, Event, Region, Report, Transfer, TransferError};

/// A copy to be made: two regions of equal payload, and terms.
#[derive(Clone)]
pub struct Request {
    pub(crate) src: Region,
    pub(crate) dst: Region,
    pub(crate) conversion: Option<Conversion>,
    pub(crate) terms: Terms,
}

impl Request {
    /// Copies `src` to `dst`.
    pub fn new(src: impl Into<Region>, dst: impl Into<Region>) -> Request {
        Request {
            src: src.into(),
            dst: dst.into(),
            conversion: None,
            terms: Terms::default(),
        }
    }

    /// Converts the numbers of the source while they are copied. The destination has as many numbers, in the other form, and
    /// its length is counted in reports and progress. The host's threads convert, on the first link of the way: bytes in a file,
    /// in the host's memory, or in device memory that is mapped for the host, on their way to any memory. There is no way
    /// where it begins with a device's own copy, as from `cpu:0/pinned` to that device. The forms are little-endian, and numbers
    /// may lie at any address.
    ///
    /// ```
    /// # #[cfg(feature = "std")] {
    /// # use transload::{Conversion, Element, Request, TransferManager};
    /// # let manager = TransferManager::builder().host().build()?;
    /// let halves = manager.adopt(vec![0x00u8, 0x3c, 0x00, 0xc0])?; // 1 and -2
    /// let singles = manager.adopt(vec![0u8; 8])?;
    /// let conversion = Conversion::new(Element::F16, Element::F32)?;
    /// manager.submit(&Request::new(&halves, &singles).convert(conversion)).wait()?;
    /// assert_eq!(manager.read_to_vec(&singles)?, [1f32.to_le_bytes(), (-2f32).to_le_bytes()].concat());
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn convert(mut self, conversion: Conversion) -> Request {
        self.conversion = Some(conversion);
        self
    }

    /// Reads both ends again after the copy and compares their checksums (xxh3-64). A difference
    /// fails the route, which is then quarantined and another one tried.
    pub fn verify(mut self) -> Request {
        self.terms.verify = true;
        self
    }

    /// Copies over exactly that link, in one pass and one piece, whatever it costs. The copy fails where the link does
    /// not exist or fails: no other way is tried. Use it to measure links, and to find out which of them fails;
    /// [`TransferManager::topology`](crate::TransferManager::topology) lists them. The copy does not make memory of
    /// kind `mapped` visible first: a program whose own commands use that memory waits for them before.
    pub fn over(mut self, link: LinkId) -> Request {
        self.terms.only = Some(Only::Link(link));
        self
    }

    /// Copies by exactly that way, whatever it costs. The copy fails where the way fails: no other one is tried. Use it
    /// to measure the ways that [`TransferManager::candidates`](crate::TransferManager::candidates) lists. The manager
    /// refuses the request if it did not list the way, or if the way joins other memories.
    pub fn by(mut self, way: &Candidate) -> Request {
        self.terms.only = Some(Only::Way(Arc::new(way.clone())));
        self
    }

    /// Sets whether the transfer goes before or after others that wait for the same engine or the same staging.
    pub fn priority(mut self, priority: Priority) -> Request {
        self.terms.priority = priority;
        self
    }

    /// Ends the transfer with an error at that time by the manager's clock, which
    /// [`TransferManager::now`](crate::TransferManager::now) tells: `manager.now() + limit`. The result is available at
    /// once. Until the operations under way have ended, the transfer keeps its place in the order and its buffers.
    /// Operations of the host's threads stop between two pieces, as for [`Transfer::cancel`], and may write a little
    /// more than the bytes that the error names; operations of a device cannot be called back, and may never end.
    pub fn deadline(mut self, at: Instant) -> Request {
        self.terms.deadline = Some(at);
        self
    }

    /// Starts the transfer only after the event was set. May be called several times.
    pub fn after(mut self, event: &Event) -> Request {
        self.terms.after.push(Arc::clone(&event.state));
        self
    }

    /// Sets the event when the transfer is over, however it ended. May be called several times.
    pub fn then(mut self, event: &Event) -> Request {
        self.terms.then.push(Arc::clone(&event.state));
        self
    }

    /// Stops the transfer when its handle is dropped before it is over, as [`Transfer::cancel`] does, but without
    /// waiting: for futures that a timeout or a `select` drops. Otherwise a dropped transfer goes on.
    pub fn cancel_on_drop(mut self) -> Request {
        self.terms.cancel_on_drop = true;
        self
    }

    /// Returns the source.
    pub fn src(&self) -> &Region {
        &self.src
    }

    /// Returns the destination.
    pub fn dst(&self) -> &Region {
        &self.dst
    }

    pub(crate) fn check(&self) -> Result<Checked, TransferError> {
        let src = self.src.operand();
        let src = match self.conversion {
            Some(conversion) => src.converted(conversion)?,
            None => src,
        };
        Checked::new(src, self.dst.operand())
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

/// What happens to the rest of a batch when one of its transfers fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The others go on.
    #[default]
    GoOn,
    /// Transfers that have not begun are not started.
    Stop,
}

/// Transfers that were submitted together, all or none. It is a `Future` of their results.
#[must_use = "a batch that is dropped goes on, but nothing waits for it or learns how it ends"]
pub struct Batch {
    transfers: Vec<Transfer>,
    /// Results of the first transfers, for a batch that is awaited.
    results: Vec<Result<Report, TransferError>>,
}

impl Batch {
    pub(crate) fn new(transfers: Vec<Transfer>) -> Batch {
        Batch {
            transfers,
            results: Vec::new(),
        }
    }

    /// Waits for all transfers. The results are in the order of the requests. A transfer that waits for a guard of this
    /// thread has the result [`TransferError::GuardHeld`], as for [`Transfer::wait`].
    pub fn wait(self) -> Vec<Result<Report, TransferError>> {
        let rest = self.transfers.into_iter().skip(self.results.len());
        self.results
            .into_iter()
            .chain(rest.map(Transfer::wait))
            .collect()
    }

    /// Returns whether all transfers are over. Takes in outcomes that have arrived, and does not block.
    pub fn is_over(&self) -> bool {
        self.transfers.iter().all(Transfer::is_over)
    }

    /// Returns how many payload bytes have arrived, and how many there are in all, summed over the transfers whose
    /// results were not taken.
    pub fn progress(&self) -> (u64, u64) {
        let each = self.transfers.iter().filter_map(Transfer::progress);
        each.fold((0, 0), |(arrived, all), one| (arrived + one.0, all + one.1))
    }

    /// Stops the transfers that are not over, and blocks until their operations are quiet. The answers are in the order
    /// of the requests.
    pub fn cancel(self) -> Vec<Cancelled> {
        self.canceller().cancel();
        let taken = self.results.into_iter().map(Cancelled::Finished);
        let rest = self.transfers.into_iter().skip(taken.len());
        let rest: Vec<Cancelled> = rest.map(Transfer::cancel).collect();
        taken.chain(rest).collect()
    }

    /// Returns a handle that stops all of them, from any thread.
    pub fn canceller(&self) -> Canceller {
        Canceller::of(&self.transfers)
    }

    /// Returns the transfers themselves, in the order of the requests.
    pub fn into_transfers(self) -> Vec<Transfer> {
        self.transfers
    }

    pub(crate) fn flag(on_failure: OnFailure) -> Option<Arc<BatchFlag>> {
        (on_failure == OnFailure::Stop).then(Arc::default)
    }
}

impl Future for Batch {
    type Output = Vec<Result<Report, TransferError>>;

    /// Waits for one after the other; all of them advance meanwhile.
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
