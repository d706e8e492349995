//! The trait that a memory system implements.

use alloc::sync::Arc;
use core::any::Any;
use core::time::Duration;

use transload_core::{Access, Inventory, LinkId, MemoryId};

use crate::{
    AllocError, AllocSpec, Buffer, CompletionSink, ConnectError, External, ExternalKind, Fence,
    ImportError, MaybeSend, MaybeSync, Op, SubmitError, Waited,
};

/// Drives one memory system: allocates in it and moves bytes with its engines.
///
/// Who does what: the engine above checks bounds, orders conflicting operations, keeps every buffer
/// alive until its fence has settled, and calls from any thread without holding a lock of its own.
/// A backend validates what only it can know, executes, and tells the truth.
///
/// # Safety
/// The engine's safe interface rests on these promises of an implementation:
/// - A fence settles as [`Outcome::Done`](crate::Outcome::Done) only when the bytes moved, and
///   settles at all only when no operation behind it will touch memory again.
/// - A fence settles as [`Outcome::Stopped`](crate::Outcome::Stopped) only after [`Backend::stop`] was called for it,
///   and only with leading bytes that moved.
/// - `submit` is atomic: when it returns an error, or unwinds, nothing was done and nothing will be. So is
///   `submit_each`, copy by copy.
/// - Operations touch no byte outside their operands. The bytes that a copy is to write may be uninitialised: a
///   backend does not read them before it has written them.
/// - Each fence that was not settled at once is pushed to the sink exactly once; a lost device
///   settles all of its fences.
/// - Buffers satisfy [`Buffer::new`].
/// - A backend that unwinds out of `pump`, `wait` or `expect` is taken to be lost, and touches no memory from
///   then on: nothing can be known of its fences any more.
pub unsafe trait Backend: Any + MaybeSend + MaybeSync {
    /// Devices, memories, links. Does not block; the same answer each time until the backend says
    /// otherwise by being registered anew.
    fn inventory(&self) -> Inventory;

    /// Allocates in one of the backend's memories. May block on the driver.
    ///
    /// # Errors
    /// As [`AllocError`] lists.
    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError>;

    /// Makes a buffer of memory that comes from elsewhere, without copying it.
    ///
    /// # Errors
    /// As [`ImportError`] lists. What was passed in is dropped.
    ///
    /// # Safety
    /// The external is what it says: its span valid, its handle open and owned by the caller, and
    /// its bytes touched by nobody outside the library while the buffer lives, except where the
    /// user orders such access through the library.
    unsafe fn import(&self, memory: MemoryId, external: External) -> Result<Buffer, ImportError>;

    /// Gives out memory for another backend or process to import.
    ///
    /// # Errors
    /// As [`ImportError`] lists.
    ///
    /// # Safety
    /// Nobody writes the buffer's bytes until it returns: a backend may move them to pages of their own.
    unsafe fn export(&self, buffer: &Buffer, kind: ExternalKind) -> Result<External, ImportError>;

    /// Makes a link usable: enables peer access, registers. Idempotent. May block on the driver.
    ///
    /// # Errors
    /// As [`ConnectError`] lists.
    fn connect(&self, src: MemoryId, dst: MemoryId) -> Result<Access, ConnectError>;

    /// Starts operations, all of them or none, once every fence in `after` has settled. Copies go
    /// over the link `via`, or are refused: another link may be in quarantine, unproven, or the one
    /// that has just failed. `None` leaves the way to the backend. The
    /// operations of one call are not ordered among each other. Does not wait for them; small
    /// copies may be done before it returns.
    ///
    /// Fences in `after` are the backend's own; the engine awaits others. Where a backend
    /// could only block until one has settled, it may refuse with a fault of the class
    /// [`ErrorClass::Unsupported`](crate::ErrorClass::Unsupported): the caller awaits it then, and asks
    /// again.
    ///
    /// # Errors
    /// As [`SubmitError`] lists; then nothing was started.
    ///
    /// # Safety
    /// Until the fence has settled: operands lie within their buffers, buffers and transforms stay
    /// alive, no conflicting operation is submitted without being ordered through `after`, and
    /// nobody else touches the operands.
    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError>;

    /// As [`Backend::submit`], on a thread that serves other transfers too: the backend copies nothing on it, however
    /// little there is to copy. A page of the caller's memory may take as long to be there as a disk likes.
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

    /// Starts copies over one link that have nothing to do with each other: each is accepted or refused by itself, as
    /// if it alone were submitted with nothing before it, and has a fence of its own. `told` is
    /// called for each of them, in their order, before this returns. A backend to which many small copies are dearer
    /// one by one than at once makes use of it.
    ///
    /// When it unwinds, nothing was done and nothing will be of the copies that were not told.
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

    /// Where outcomes go. Called before the first `submit`. False when the backend has a sink
    /// already, which it keeps: it belongs to another engine.
    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool;

    /// Whether outcomes reach the sink without anybody calling [`Backend::pump`] or
    /// [`Backend::wait`]: from the driver's callbacks or the backend's own threads, at the latest once they
    /// are [expected](Backend::expect). Where they do not, the engine sees to it that somebody calls while work is
    /// under way.
    fn completes_unattended(&self) -> bool {
        false
    }

    /// Somebody may be asleep until outcomes reach the sink: those of all that was submitted so far must get there
    /// by themselves from now on. Never blocks, and costs next to nothing where there is nothing to do. A
    /// backend that completes unattended may leave its threads asleep until then, so that a copy costs no wake-up whose
    /// outcome is waited for in [`Backend::wait`], or not at all for now.
    fn expect(&self) {}

    /// Looks for settled fences, where completion needs somebody to look. Never blocks.
    fn pump(&self);

    /// Blocks until the fence has settled or the limit has passed. The caller's thread may be put
    /// to work meanwhile. When it returns [`Waited::Settled`] the outcome is at the sink.
    fn wait(&self, fence: Fence, limit: Duration) -> Waited;

    /// Blocks until one of the fences has settled or the limit has passed, as [`Backend::wait`] does
    /// for a single one. Waiting for the first alone, as a backend does that has nothing better, is
    /// right where fences settle in order; where they do not, it holds up what could follow the
    /// others.
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
    /// What is under way ends, so the fence settles soon afterwards, and its outcome goes to the sink as always: as
    /// [`Outcome::Stopped`](crate::Outcome::Stopped) when bytes were left out, as [`Outcome::Done`](crate::Outcome::Done)
    /// when everything had begun, or as a failure. A fence whose operations wait for others (`after` in
    /// [`Backend::submit`]) may settle only after these. Operations that wait for this fence are not stopped with it.
    ///
    /// Ignores a fence that has settled or is unknown, and returns 0. Ignores every fence by default: the operations run to
    /// their end. Never blocks; the outcome may be told before it returns.
    fn stop(&self, fence: Fence) -> u64 {
        let _ = fence;
        0
    }
}
