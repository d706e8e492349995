//! The host's own look at a buffer, as part of the order.

use alloc::sync::Arc;
use core::future::Future;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::pin::Pin;
use core::task::{Context, Poll};

use transload_core::{Footprint, MemoryId, MemoryKind, Shape};
use transload_hal::{ErrorClass, Fault, HostSpan};

use crate::Buffer;
use crate::engine::active::{Operand, TransferId};
use crate::engine::hint::Wish;
use crate::engine::shared::Shared;
use crate::error::GuardError;

/// A guard's place in the order. Dropping it gives the place back.
struct Entry {
    shared: Arc<Shared>,
    id: TransferId,
    /// Keeps the bytes where they are.
    end: Operand,
    writes: bool,
}

impl Entry {
    /// Has `enter` give a guard its place, if the buffer can have one.
    fn new(
        buffer: &Buffer,
        writes: bool,
        enter: impl FnOnce(&Arc<Shared>, Operand, Footprint) -> Result<TransferId, GuardError>,
    ) -> Result<Entry, GuardError> {
        buffer.shared.check_fork()?;
        let raw = &buffer.raw;
        let memory = raw.memory();
        let not_addressable = || GuardError::NotHostAddressable { memory };
        // Managed memory is written by commands that take unsafe code to give; mapped memory by any. A slot is unmapped as
        // long as its device reads it, which is no writer in the order.
        if memory.kind == MemoryKind::Mapped || memory.kind.takes_turns() {
            return Err(GuardError::NotExclusive { memory });
        }
        raw.host(0, raw.len()).ok_or_else(not_addressable)?;
        if writes && !raw.is_writable() {
            return Err(GuardError::ReadOnly { memory });
        }
        let shape = Shape::contiguous(raw.len());
        let footprint = Footprint::new(raw.storage_id(), raw.position(), shape, writes)
            .map_err(|_| not_addressable())?;
        let end = Operand {
            buffer: raw.clone(),
            offset: 0,
            shape,
        };
        let shared = Arc::clone(&buffer.shared);
        let id = enter(&shared, end.clone(), footprint)?;
        Ok(Entry {
            shared,
            id,
            end,
            writes,
        })
    }

    fn memory(&self) -> MemoryId {
        self.end.buffer.memory()
    }

    /// Where a device works on the memory, what its users gave it to do is over before the host looks.
    fn make_visible(&self) -> Result<(), GuardError> {
        let memory = self.memory();
        if !memory.kind.is_hidden() {
            return Ok(());
        }
        let Some(backend) = self.shared.backend_of(&self.end) else {
            return Ok(());
        };
        let asked = self.shared.ask(&backend, &self.end, Wish::MakeVisible);
        asked.map_err(|fault| GuardError::NotVisible { memory, fault })
    }

    fn ask_of_copies(&self, wish: Wish) -> Result<(), Fault> {
        if self.memory().kind != MemoryKind::Managed {
            return Ok(());
        }
        match self.shared.backend_of(&self.end) {
            Some(backend) => self.shared.ask(&backend, &self.end, wish),
            None => Ok(()),
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared.unguard(self.id);
    }
}

struct Guard {
    entry: Entry,
    span: HostSpan,
    /// Whether the device was told that the host writes.
    tells: bool,
    _own: OfOneThread,
}

impl Guard {
    /// Waits for its turn.
    fn new(buffer: &Buffer, writes: bool) -> Result<Guard, GuardError> {
        let enter =
            |shared: &Arc<Shared>, end, footprint| Ok(shared.guard_in_turn(end, footprint)?);
        Guard::of(Entry::new(buffer, writes, enter)?)
    }

    /// Has its turn now or not at all.
    fn now(buffer: &Buffer, writes: bool) -> Result<Guard, GuardError> {
        let enter = |shared: &Arc<Shared>, end, footprint| shared.guard_now(end, footprint);
        Guard::of(Entry::new(buffer, writes, enter)?)
    }

    /// Nothing stands before it in the order any more.
    fn of(entry: Entry) -> Result<Guard, GuardError> {
        entry.make_visible()?;
        // What went before may have moved the bytes.
        let memory = entry.memory();
        let span = entry.end.buffer.host(0, entry.end.buffer.len());
        let span = span.ok_or(GuardError::NotHostAddressable { memory })?;
        entry.shared.hold(entry.id);
        let mut guard = Guard {
            entry,
            span,
            tells: false,
            _own: OfOneThread(PhantomData),
        };
        if guard.entry.writes {
            guard.tell_writes()?;
            guard.tells = true;
        }
        Ok(guard)
    }

    /// Where host and device have a copy each, nobody brings the device's over while the host writes: other bytes of the
    /// buffer are no conflict, and may come with it. A backend that does not need to hear of that says so.
    fn tell_writes(&self) -> Result<(), GuardError> {
        let memory = self.entry.memory();
        match self.entry.ask_of_copies(Wish::AcquireHost) {
            Err(fault) if fault.class != ErrorClass::Unsupported => {
                Err(GuardError::NotVisible { memory, fault })
            }
            _ => Ok(()),
        }
    }

    /// The device learns that the host wrote its copy. Nothing can be done about any answer here.
    fn tell_written(&self) {
        if self.tells {
            let _ = self.entry.ask_of_copies(Wish::ReleaseHost);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.entry.shared.is_forked() {
            return;
        }
        self.tell_written();
        self.entry.shared.let_go(self.entry.id);
    }
}

/// What has it cannot be sent to another thread: the engine counts a guard to the thread that took it, to tell a wait for
/// that very thread.
struct OfOneThread(PhantomData<*const ()>);

// SAFETY: there is nothing in it.
unsafe impl Sync for OfOneThread {}

/// The bytes of a buffer, readable as long as the guard lives. Transfers that write them wait.
///
/// It is a slice of bytes; `bytemuck::cast_slice::<u8, f32>(&guard)` shows it as elements. That panics where the buffer
/// does not start at a multiple of the elements' alignment, or has no whole number of them: what was adopted from
/// elements does, and [`AllocSpec::aligned`](crate::AllocSpec::aligned) makes memory that does.
///
/// A guard stays on the thread that took it, as one of [`std::sync::Mutex`] does: a call that would wait for this
/// thread's own guard is an error and no deadlock. Other threads may use the slice.
///
/// [`std::sync::Mutex`]: https://doc.rust-lang.org/std/sync/struct.Mutex.html
#[must_use = "a guard that is dropped at once holds up nothing"]
pub struct ReadGuard(Guard);

/// The bytes of a buffer, readable and writable as long as the guard lives. Transfers that touch
/// them wait. `bytemuck::cast_slice_mut` shows them as elements, as for a [`ReadGuard`], and it stays on its thread as
/// that one does.
#[must_use = "a guard that is dropped at once holds up nothing"]
pub struct WriteGuard(Guard);

impl ReadGuard {
    pub(crate) fn new(buffer: &Buffer) -> Result<ReadGuard, GuardError> {
        Guard::new(buffer, false).map(ReadGuard)
    }

    pub(crate) fn now(buffer: &Buffer) -> Result<ReadGuard, GuardError> {
        Guard::now(buffer, false).map(ReadGuard)
    }
}

impl WriteGuard {
    pub(crate) fn new(buffer: &Buffer) -> Result<WriteGuard, GuardError> {
        Guard::new(buffer, true).map(WriteGuard)
    }

    pub(crate) fn now(buffer: &Buffer) -> Result<WriteGuard, GuardError> {
        Guard::now(buffer, true).map(WriteGuard)
    }
}

impl Deref for ReadGuard {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the guard's buffer keeps the span valid, and as long as the guard is in the order
        // no transfer writes it; other guards that live meanwhile only read.
        unsafe { self.0.span.as_slice() }
    }
}

impl Deref for WriteGuard {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the guard's buffer keeps the span valid, and as long as the guard is in the order
        // nobody else touches it.
        unsafe { self.0.span.as_slice() }
    }
}

impl DerefMut for WriteGuard {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the guard is borrowed mutably for as long as the slice is.
        unsafe { self.0.span.as_mut_slice() }
    }
}

impl core::fmt::Debug for ReadGuard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ReadGuard({} B)", self.len())
    }
}

impl core::fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "WriteGuard({} B)", self.len())
    }
}

/// A place in the order for a guard that is to come.
struct Coming(Option<Result<Entry, GuardError>>);

impl Coming {
    fn new(buffer: &Buffer, writes: bool) -> Coming {
        let enter = |shared: &Arc<Shared>, end, footprint| Ok(shared.guard(end, footprint));
        Coming(Some(Entry::new(buffer, writes, enter)))
    }

    fn poll(&mut self, context: &Context<'_>) -> Poll<Result<Guard, GuardError>> {
        if let Some(Ok(entry)) = &self.0
            && entry.shared.poll(entry.id, context.waker())
        {
            return Poll::Pending;
        }
        match self.0.take() {
            Some(entry) => Poll::Ready(entry.and_then(Guard::of)),
            None => panic!("a guard's future was polled after it was ready"),
        }
    }
}

/// A [`ReadGuard`] to be awaited, from [`Buffer::read_async`]. Dropping it gives its place in the order back.
#[must_use = "it holds up transfers that write the bytes until it is awaited or dropped"]
pub struct ReadFuture(Coming);

/// A [`WriteGuard`] to be awaited, from [`Buffer::write_async`]. Dropping it gives its place in the order back.
#[must_use = "it holds up transfers of the bytes until it is awaited or dropped"]
pub struct WriteFuture(Coming);

impl ReadFuture {
    pub(crate) fn new(buffer: &Buffer) -> ReadFuture {
        ReadFuture(Coming::new(buffer, false))
    }
}

impl WriteFuture {
    pub(crate) fn new(buffer: &Buffer) -> WriteFuture {
        WriteFuture(Coming::new(buffer, true))
    }
}

impl Future for ReadFuture {
    type Output = Result<ReadGuard, GuardError>;

    /// Turns the engine once.
    ///
    /// # Panics
    /// When polled again after it was ready, as futures may.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context).map_ok(ReadGuard)
    }
}

impl Future for WriteFuture {
    type Output = Result<WriteGuard, GuardError>;

    /// Turns the engine once.
    ///
    /// # Panics
    /// When polled again after it was ready, as futures may.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context).map_ok(WriteGuard)
    }
}

impl core::fmt::Debug for ReadFuture {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ReadFuture").finish_non_exhaustive()
    }
}

impl core::fmt::Debug for WriteFuture {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("WriteFuture").finish_non_exhaustive()
    }
}
