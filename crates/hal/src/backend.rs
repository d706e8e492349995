//! The trait that a memory system implements.

use alloc::sync::Arc;
use core::any::Any;
use core::time::Duration;

use transload_core::{Access, Inventory, LinkId, MemoryId, StorageId};

use crate::{
    AllocError, AllocSpec, Buffer, CompletionSink, ConnectError, Entered, External, ExternalKind,
    Fault, Fence, HostSpan, ImportError, MaybeSend, MaybeSync, Op, SubmitError, Use, Waited,
};

/// Drives one memory system: allocates in it and moves bytes with its engines.
///
/// The engine checks bounds, orders conflicting operations, keeps every buffer alive until its fence has settled, and
/// calls the backend from any thread without holding a lock of its own. A backend validates what only it can know,
/// executes operations, and reports outcomes that are true.
///
/// # Safety
/// The engine's safe interface rests on these promises of an implementation:
/// - A fence settles as [`Outcome::Done`](crate::Outcome::Done) only when the bytes moved, and
///   settles at all only when no operation behind it will touch memory again.
/// - A fence settles as [`Outcome::Stopped`](crate::Outcome::Stopped) only after [`Backend::stop`] was called for it,
///   and only with leading bytes that moved.
/// - `submit` is atomic: when it returns an error, or unwinds, nothing was done and nothing will be. The same holds for
///   each copy of a `submit_each`.
/// - Operations touch no byte outside their operands. The destination bytes of a copy may be uninitialised: a backend
///   does not read them before it has written them.
/// - Each fence that was not settled at once is pushed to the sink exactly once; a lost device
///   settles all of its fences.
/// - Buffers satisfy [`Buffer::new`].
/// - A backend that unwinds out of `pump`, `wait` or `expect` is taken to be lost, and touches no memory from then on:
///   the engine can know nothing of its fences any more.
pub unsafe trait Backend: Any + MaybeSend + MaybeSync {
    /// Returns the devices, memories and links. Does not block. The answer stays the same until the backend is
    /// registered anew.
    fn inventory(&self) -> Inventory;

    /// Allocates in one of the backend's memories. May block on the driver.
    ///
    /// # Errors
    /// As [`AllocError`] lists.
    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError>;

    /// Returns how many bytes could be allocated in a memory now, where the system tells. May block on the driver.
    fn available_bytes(&self, memory: MemoryId) -> Option<u64> {
        let _ = memory;
        None
    }

    /// Returns the identity of host memory that code outside the library names by its address, and the position of its first
    /// byte: the address itself, except for memory that the backend has [exported](Backend::export) by its address and that has
    /// another identity.
    fn identity(&self, span: HostSpan) -> (StorageId, u64) {
        (StorageId::Host, span.addr())
    }

    /// Makes a buffer of memory that comes from elsewhere, without copying it.
    ///
    /// # Errors
    /// As [`ImportError`] lists. The external is dropped then.
    ///
    /// # Safety
    /// The external is what it says: its span is valid, its handle is open and owned by the caller, and no code outside
    /// the library touches its bytes while the buffer lives, except where the user orders such access through the
    /// library.
    unsafe fn import(&self, memory: MemoryId, external: External) -> Result<Buffer, ImportError>;

    /// Gives out memory for another backend or process to import.
    ///
    /// # Errors
    /// As [`ImportError`] lists.
    ///
    /// # Safety
    /// No thread or device writes the buffer's bytes until the call returns: a backend may move them to pages of their
    /// own.
    unsafe fn export(&self, buffer: &Buffer, kind: ExternalKind) -> Result<External, ImportError>;

    /// Makes a link usable: enables peer access, registers. Idempotent. May block on the driver.
    ///
    /// # Errors
    /// As [`ConnectError`] lists.
    fn connect(&self, src: MemoryId, dst: MemoryId) -> Result<Access, ConnectError>;

    /// Gives a transfer a place in an order that is kept elsewhere: by another machine, for memory that several machines use.
    /// The engine calls it once for each transfer and such machine, before the transfer's first operation, and when no
    /// transfer of its own stands before it. Never blocks.
    ///
    /// Returns a view for each of the uses, in their order, which shows the same bytes and which the transfer's operations
    /// then have in place of the use's own; the place is given up when the views are dropped. The fence settles as done
    /// when the transfer's turn has come. Returns `None` where there is no order but the engine's.
    ///
    /// # Errors
    /// When there is no place to be had, such as when the machine is gone.
    fn enter(&self, uses: &[Use<'_>]) -> Result<Option<Entered>, Fault> {
        let _ = uses;
        Ok(None)
    }

    /// Starts operations, all of them or none, once every fence in `after` has settled. The operations of one call are
    /// not ordered among each other. Does not wait for them; small copies may be done before it returns.
    ///
    /// Copies go over the link `via`; a backend that cannot use that link refuses them, since another link may be in
    /// quarantine, unproven, or the one that has just failed. With `None` the backend chooses the link.
    ///
    /// Fences in `after` are the backend's own. A backend that could only block until such a fence has settled may refuse
    /// with a fault of the class [`ErrorClass::Unsupported`](crate::ErrorClass::Unsupported): the caller then awaits the
    /// fence and submits again. The engine itself submits what is free to start, with an empty list.
    ///
    /// # Errors
    /// As [`SubmitError`] lists; then nothing was started.
    ///
    /// # Safety
    /// Until the fence has settled: operands lie within their buffers, buffers and transforms stay alive, no
    /// conflicting operation is submitted without being ordered through `after`, and no other thread or device touches
    /// the operands.
    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError>;

    /// As [`Backend::submit`], on a thread that serves other transfers too: the backend copies nothing on this thread,
    /// not even a few bytes, because a page fault in the caller's memory may wait for a disk.
    ///
    /// # Errors
    /// As [`Backend::submit`].
    ///
    /// # Safety
    /// As [`Backend::submit`].
    unsafe fn submit_apart(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        // SAFETY: the caller's promise.
        unsafe { self.submit(via, ops, after) }
    }

    /// Starts independent copies over one link. The backend accepts or refuses each copy as if it were submitted alone
    /// with nothing before it, and gives each a fence of its own. It calls `told` for each copy, in order, before this
    /// returns. A backend implements this where one call for many small copies is cheaper than one call for each.
    ///
    /// When it unwinds, the copies for which `told` was not called were not done and will not be.
    ///
    /// # Safety
    /// As [`Backend::submit`], for each of them.
    unsafe fn submit_each(
        &self,
        via: LinkId,
        ops: &[Op<'_>],
        told: &mut dyn FnMut(Result<Fence, SubmitError>),
    ) {
        for op in ops {
            // SAFETY: the caller's promise.
            told(unsafe { self.submit(Some(via), core::slice::from_ref(op), &[]) });
        }
    }

    /// Sets the sink for outcomes. Called before the first `submit`. Returns false when the backend already has a sink
    /// of another engine, which it keeps.
    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool;

    /// Returns whether outcomes reach the sink without a call of [`Backend::pump`] or [`Backend::wait`]: from the
    /// driver's callbacks or the backend's own threads, at the latest once the engine has called [`Backend::expect`].
    /// Where it returns false, the engine calls one of the two while operations are under way.
    fn completes_unattended(&self) -> bool {
        false
    }

    /// Announces that a thread may be parked until outcomes reach the sink. From this call on, the outcomes of all
    /// operations submitted so far reach the sink without another call. Never blocks, and costs next to nothing where
    /// there is nothing to do.
    ///
    /// A backend that completes unattended may leave its completion threads parked until this call. A copy whose
    /// outcome is awaited in [`Backend::wait`], or not awaited yet, then wakes no thread.
    fn expect(&self) {}

    /// Looks for settled fences, where the backend needs a call to find them. Never blocks.
    fn pump(&self);

    /// Blocks until the fence has settled or the limit has passed. The backend may put the caller's thread to work
    /// meanwhile. When it returns [`Waited::Settled`], the outcome is at the sink.
    fn wait(&self, fence: Fence, limit: Duration) -> Waited;

    /// Blocks until one of the fences has settled or the limit has passed, as [`Backend::wait`] does for a single one.
    /// The default waits for the first fence alone. That is right where fences settle in order; elsewhere it holds up
    /// what could follow the other fences.
    fn wait_any(&self, fences: &[Fence], limit: Duration) -> Waited {
        match fences {
            [] => Waited::TimedOut,
            [first, ..] => self.wait(*first, limit),
        }
    }

    /// Returns how many payload bytes the operations behind `fence` have moved so far, in any order.
    ///
    /// The number never exceeds the payload of the operations. Returns 0 where the backend does not count, and for a fence
    /// that has settled or is unknown: the outcome says what moved then. Never blocks, and takes at most a
    /// short lock. Callable from any thread, while other threads submit and wait.
    fn progress(&self, fence: Fence) -> u64 {
        let _ = fence;
        0
    }

    /// Asks the backend to begin nothing more of the operations behind `fence`, and returns the leading payload bytes
    /// that are known to have moved at that moment.
    ///
    /// Operations that are under way end, so the fence settles soon afterwards. Its outcome goes to the sink as always:
    /// as [`Outcome::Stopped`](crate::Outcome::Stopped) when bytes were left out, as
    /// [`Outcome::Done`](crate::Outcome::Done) when everything had begun, or as a failure. A fence whose operations
    /// wait for others (`after` in [`Backend::submit`]) may settle only after these. Operations that wait for this
    /// fence are not stopped with it.
    ///
    /// Returns 0 and does nothing for a fence that has settled or is unknown. The default does so for every fence: the
    /// operations run to their end. Never blocks; the outcome may reach the sink before this returns.
    fn stop(&self, fence: Fence) -> u64 {
        let _ = fence;
        0
    }
}
