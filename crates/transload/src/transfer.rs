//! The user's handle to a copy that was submitted.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use transload_hal::Fence;

use crate::engine::shared::Shared;
use crate::engine::turn::Submitted;
use crate::engine::types::TransferId;
use crate::{Report, TransferError};

/// A submitted copy. It is a `Future` of its [`Report`] and can be waited for without any runtime.
///
/// Dropping it detaches the transfer: it goes on, and its buffers live until it has completed, unless
/// the process [ends](crate::TransferManager#when-the-process-ends) first.
///
/// With the feature `std` it advances by itself, whether its handle is waited for, polled, looked at or none of these.
/// There is one exception: a copy whose operations were all under way when it was submitted, and that fails on its
/// device, takes another way only when its owner waits, polls or asks.
#[must_use = "a transfer that is dropped goes on, and its result is lost"]
pub struct Transfer {
    inner: Submitted,
}

/// The result of cancelling a transfer.
#[derive(Clone, Debug, PartialEq)]
pub enum Cancelled {
    /// Nothing was submitted for it; the destination is untouched.
    NotStarted,
    /// It stopped. The destination's first `leading_bytes` bytes equal the source; what follows them
    /// is unspecified.
    Stopped {
        /// The number of leading bytes.
        leading_bytes: u64,
    },
    /// The transfer had finished already, or ended in another way.
    Finished(Result<Report, TransferError>),
}

impl Cancelled {
    fn new(has_started: bool, result: Result<Report, TransferError>) -> Cancelled {
        match result {
            Err(TransferError::Cancelled { .. }) if !has_started => Cancelled::NotStarted,
            Err(TransferError::Cancelled { leading_bytes }) => Cancelled::Stopped { leading_bytes },
            result => Cancelled::Finished(result),
        }
    }
}

/// Stops transfers whose handles are held elsewhere, by a thread that waits or a task that awaits. Their result is then
/// [`TransferError::Cancelled`], or that of a transfer that had finished.
///
/// It keeps neither the manager nor any buffer alive. Clones stop the same transfers.
#[derive(Clone)]
pub struct Canceller {
    shared: Weak<Shared>,
    ids: Arc<[TransferId]>,
}

impl Canceller {
    pub(crate) fn of(transfers: &[Transfer]) -> Canceller {
        let mut shared = Weak::new();
        let id = |transfer: &Transfer| match &transfer.inner {
            Submitted::UnderWay { shared: of, id } => {
                shared = Arc::downgrade(of);
                Some(*id)
            }
            Submitted::Settled(_) => None,
        };
        let ids = transfers.iter().filter_map(id).collect();
        Canceller { shared, ids }
    }

    /// Asks the transfers to stop. Does not block; a transfer that is over keeps its result. None of them starts because
    /// another one was stopped before it.
    pub fn cancel(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.cancel(&self.ids);
        }
    }
}

impl core::fmt::Debug for Canceller {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Canceller")
            .field("transfers", &self.ids.len())
            .finish_non_exhaustive()
    }
}

impl Transfer {
    /// Makes the handle of what was submitted.
    pub(crate) fn new(inner: Submitted) -> Transfer {
        Transfer { inner }
    }

    /// Blocks until it is over. The thread turns the engine meanwhile and may be put to work copying.
    ///
    /// In the browser nothing may block: a transfer that is not over at once is an error there, and goes on.
    /// Await it.
    ///
    /// # Errors
    /// As [`TransferError`] lists. [`TransferError::GuardHeld`] when the transfer waits for a guard that this thread
    /// holds: it goes on like a dropped transfer once that guard is dropped. A transfer with a deadline is waited for
    /// all the same, and ends at its deadline. [`TransferError::WouldBlock`] in a callback of a backend, where waiting
    /// for a device may never end; the transfer goes on.
    pub fn wait(mut self) -> Result<Report, TransferError> {
        if let Some(result) = self.take_if_over() {
            return result;
        }
        if let Submitted::UnderWay { shared, id } = &self.inner {
            shared.may_wait(*id)?;
            shared.block_on(*id, None);
        }
        self.take().unwrap_or(Err(TransferError::ResultTaken))
    }

    /// Blocks until it is over, or the limit has passed by the manager's clock. Returns `None` in the latter case; the
    /// transfer goes on.
    pub fn wait_timeout(&mut self, limit: Duration) -> Option<Result<Report, TransferError>> {
        if let Submitted::UnderWay { shared, id } = &self.inner {
            #[cfg(browser)]
            if shared.may_wait(*id).is_err() {
                return None;
            }
            let until = shared.clock.now() + limit;
            if !shared.block_on(*id, Some(until)) {
                return None;
            }
        }
        self.take()
    }

    /// Returns whether it is over. Takes in outcomes that have arrived, and does not block.
    pub fn is_over(&self) -> bool {
        match &self.inner {
            Submitted::UnderWay { shared, id } => {
                shared.is_settled(*id) || {
                    shared.take_outcomes();
                    shared.is_settled(*id)
                }
            }
            Submitted::Settled(_) => true,
        }
    }

    /// Returns how many payload bytes have arrived, and how many there are in all. `None` when the transfer was refused
    /// or its result was taken. A transfer that [verifies](crate::Request::verify) reads both ends after all bytes have
    /// arrived, and is over after that.
    pub fn progress(&self) -> Option<(u64, u64)> {
        match &self.inner {
            Submitted::UnderWay { shared, id } => {
                shared.take_outcomes();
                shared.progress(*id)
            }
            Submitted::Settled(Some(Ok(report))) => Some((report.bytes(), report.bytes())),
            Submitted::Settled(_) => None,
        }
    }

    /// Returns the fences that the transfer still waits for, once all of its operations are submitted: the bytes have
    /// arrived when all of these have settled as done. The list is empty for a transfer that has ended well. Returns
    /// `None` while the transfer waits for something else, has steps to submit, or will compare the ends; and when it
    /// failed.
    ///
    /// A transfer that goes over one link in one piece, and waits for no other transfer, guard or event, is submitted
    /// when the call that made it returns. So a stream of the program can wait for it without a thread:
    /// `transload_cuda::Cuda::follow`. If an operation fails, the transfer takes another way with operations that are
    /// not among these fences; [`Transfer::wait`] tells how it ended.
    pub fn fences(&self) -> Option<Vec<Fence>> {
        match &self.inner {
            Submitted::UnderWay { shared, id } => shared.fences(*id),
            Submitted::Settled(result) => {
                let is_done = matches!(result, Some(Ok(_)));
                is_done.then(Vec::new)
            }
        }
    }

    /// Stops the transfer, and blocks until its operations are quiet. Operations of the host's threads stop between two
    /// pieces, as a rule after a fraction of a millisecond; operations that a device has begun run to their end. A
    /// transfer that could no longer be stopped has finished; the answer tells which. In the browser and in a callback
    /// of a backend this does not block: with operations under way it returns the error of a call that would block, and
    /// the transfer stops by itself.
    pub fn cancel(mut self) -> Cancelled {
        let has_started = self.stop();
        if let Submitted::UnderWay { shared, id } = &self.inner {
            if let Err(deadlock) = shared.may_wait(*id) {
                return Cancelled::Finished(Err(deadlock.into()));
            }
            shared.block_on(*id, None);
        }
        let result = self.take().unwrap_or(Err(TransferError::ResultTaken));
        Cancelled::new(has_started, result)
    }

    /// Stops the transfer, and resolves when its operations are quiet, as [`Transfer::cancel`] does. The transfer is
    /// asked to stop at once, and stops even if the future is dropped.
    #[must_use = "the transfer stops without it; the future tells how far it came"]
    pub fn cancel_async(self) -> impl Future<Output = Cancelled> {
        let has_started = self.stop();
        async move { Cancelled::new(has_started, self.await) }
    }

    /// Returns a handle that stops the transfer from any thread, while this one is waited for or awaited.
    pub fn canceller(&self) -> Canceller {
        Canceller::of(core::slice::from_ref(self))
    }

    /// Asks the transfer to stop. Returns whether it had begun.
    fn stop(&self) -> bool {
        match &self.inner {
            Submitted::UnderWay { shared, id } => shared.cancel(core::slice::from_ref(id)),
            Submitted::Settled(_) => true,
        }
    }

    fn take_if_over(&mut self) -> Option<Result<Report, TransferError>> {
        match &mut self.inner {
            Submitted::UnderWay { shared, id } => {
                let result = shared.take_result(*id)?;
                if let Err(TransferError::Deadline { .. }) = result {
                    // Operations of it may still be under way.
                    shared.detach(*id);
                }
                self.inner = Submitted::Settled(None);
                Some(result)
            }
            Submitted::Settled(result) => result.take(),
        }
    }

    fn take(&mut self) -> Option<Result<Report, TransferError>> {
        match &mut self.inner {
            Submitted::UnderWay { .. } => {
                let result = self.take_if_over();
                self.inner = Submitted::Settled(None);
                result
            }
            Submitted::Settled(result) => result.take(),
        }
    }
}

impl Future for Transfer {
    type Output = Result<Report, TransferError>;

    /// Turns the engine once.
    ///
    /// # Panics
    /// When polled again after it was ready, as futures may.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Submitted::UnderWay { shared, id } = &self.inner
            && shared.poll(*id, context.waker())
        {
            return Poll::Pending;
        }
        match self.take() {
            Some(result) => Poll::Ready(result),
            None => panic!("a transfer was polled after it was ready"),
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Submitted::UnderWay { shared, id } = &self.inner {
            shared.detach(*id);
        }
    }
}

impl core::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut debug = f.debug_struct("Transfer");
        match &self.inner {
            Submitted::UnderWay { .. } => debug.field("progress", &self.progress()),
            Submitted::Settled(result) => debug.field("result", result),
        };
        debug.finish()
    }
}
