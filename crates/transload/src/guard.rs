//! Guards: the host's access to a buffer, as part of the order.

use alloc::sync::Arc;
use core::future::Future;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::pin::Pin;
use core::task::{Context, Poll};

use transload_core::{Footprint, MemoryId, MemoryKind, Shape};
use transload_hal::{ErrorClass, Fault, HostSpan};

use crate::Buffer;
use crate::engine::hint::Wish;
use crate::engine::operand::Operand;
use crate::engine::shared::Shared;
use crate::engine::types::TransferId;
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
    /// Calls `enter`, which gives a guard its place in the order, if the buffer can have one.
    fn new(
        buffer: &Buffer,
        writes: bool,
        enter: impl FnOnce(&Arc<Shared>, Operand, Footprint) -> Result<TransferId, GuardError>,
    ) -> Result<Entry, GuardError> {
        buffer.shared.check_fork()?;
        let raw = &buffer.raw;
        let memory = raw.memory();
        let not_addressable = || GuardError::NotHostAddressable { memory };
        // Only unsafe code can have a device write managed memory; safe code can have it write mapped memory. A slot is
        // unmapped while its device reads it, which is no write in the order.
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
            scattered: None,
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

    /// Waits for the work that other code gave the device of the memory, before the host looks. Memory of another machine
    /// that other programs may use is refused: its order knows transfers alone.
    fn make_visible(&self) -> Result<(), GuardError> {
        let memory = self.memory();
        if !memory.is_hidden() && memory.device.node.is_here() {
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
    /// Whether the backend was told that the host writes.
    tells: bool,
    _own: OfOneThread,
}

impl Guard {
    /// Waits for its turn in the order.
    fn new(buffer: &Buffer, writes: bool) -> Result<Guard, GuardError> {
        let enter =
            |shared: &Arc<Shared>, end, footprint| Ok(shared.guard_in_turn(end, footprint)?);
        Guard::of(Entry::new(buffer, writes, enter)?)
    }

    /// Takes its turn now, or returns an error.
    fn now(buffer: &Buffer, writes: bool) -> Result<Guard, GuardError> {
        let enter = |shared: &Arc<Shared>, end, footprint| shared.guard_now(end, footprint);
        Guard::of(Entry::new(buffer, writes, enter)?)
    }

    /// Called when nothing stands before the entry in the order any more.
    fn of(entry: Entry) -> Result<Guard, GuardError> {
        entry.make_visible()?;
        // Transfers that went before may have moved the bytes.
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

    /// Announces that the host writes. Where host and device have a copy each, the backend then does not copy the
    /// device's bytes over the host's, not even for other bytes of the buffer, which the order does not see as a
    /// conflict. A backend that does not need this answers `Unsupported`.
    fn tell_writes(&self) -> Result<(), GuardError> {
        let memory = self.entry.memory();
        match self.entry.ask_of_copies(Wish::AcquireHost) {
            Err(fault) if fault.class != ErrorClass::Unsupported => {
                Err(GuardError::NotVisible { memory, fault })
            }
            _ => Ok(()),
        }
    }

    /// Tells the backend that the host wrote its copy. Ignores the answer, since a drop cannot act on it.
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

/// Makes its owner stay on one thread: the engine counts a guard to the thread that took it, to recognise a wait of
/// that thread for its own guard.
struct OfOneThread(PhantomData<*const ()>);

// SAFETY: the type holds no value.
unsafe impl Sync for OfOneThread {}

/// A guard with which the host reads the bytes of a buffer. Transfers that write them wait while it lives.
///
/// It is a slice of bytes; `bytemuck::cast_slice::<u8, f32>(&guard)` shows it as elements. That panics where the buffer
/// does not start at a multiple of the elements' alignment, or does not hold a whole number of them. Memory adopted
/// from elements meets both conditions, and so does memory of [`AllocSpec::aligned`](crate::AllocSpec::aligned).
///
/// A guard stays on the thread that took it, as one of [`std::sync::Mutex`] does. So a call that would wait for this
/// thread's own guard is an error and no deadlock. Other threads may use the slice.
///
/// [`std::sync::Mutex`]: https://doc.rust-lang.org/std/sync/struct.Mutex.html
#[must_use = "a guard that is dropped at once holds up nothing"]
pub struct ReadGuard(Guard);

/// A guard with which the host reads and writes the bytes of a buffer. Transfers that touch them wait while it lives.
/// `bytemuck::cast_slice_mut` shows them as elements, as for a [`ReadGuard`], and the guard stays on its thread as that
/// one does.
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
        // SAFETY: the guard's buffer keeps the span valid, and as long as the guard is in the order no transfer and no
        // other guard touches it.
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
        let enter = |shared: &Arc<Shared>, end, footprint| Ok(shared.start_guard(end, footprint).0);
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

/// A future of a [`ReadGuard`], from [`Buffer::read_async`]. Dropping it gives its place in the order back.
#[must_use = "it holds up transfers that write the bytes until it is awaited or dropped"]
pub struct ReadFuture(Coming);

/// A future of a [`WriteGuard`], from [`Buffer::write_async`]. Dropping it gives its place in the order back.
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

impl Buffer {
    /// Returns a guard with which the host reads the bytes. Blocks until transfers that write them and were submitted
    /// before have ended, and while a [`WriteGuard`] on any of the bytes lives; transfers that come later wait for the
    /// guard.
    ///
    /// Managed memory is made visible first: this waits for all work that its device was given by then, by other code
    /// too. Work that the device is given while the guard lives must leave the bytes alone.
    ///
    /// # While this thread holds a guard
    /// A call that would wait for a guard of the calling thread returns an error: this call and [`Buffer::write`]
    /// ([`GuardError::GuardHeld`]), [`Transfer::wait`](crate::Transfer::wait) and copies of borrowed bytes
    /// ([`TransferError::GuardHeld`](crate::TransferError::GuardHeld)). It may wait for the guard directly, or for
    /// transfers that wait for it. Three waits cannot be refused and never end: to await on this thread what waits for
    /// the guard, to wait for an [`Event`](crate::Event) that this thread would set later, and
    /// [`TransferManager::wait_idle`](crate::TransferManager::wait_idle). Without the feature `std` threads cannot be
    /// told apart, and all such waits never end.
    ///
    /// When the host cannot reach the memory through a pointer, or its device does not make it visible. For `mapped`
    /// memory, because commands of the program may write it meanwhile: read and write it by copies. When the call would
    /// wait for a guard of this thread.
    pub fn read(&self) -> Result<ReadGuard, GuardError> {
        ReadGuard::new(self)
    }

    /// Returns a guard with which the host reads and writes the bytes. As [`Buffer::read`]; transfers and guards that
    /// read the bytes wait too, and are waited for.
    ///
    /// # Errors
    /// As [`Buffer::read`], and when the buffer is read-only.
    pub fn write(&self) -> Result<WriteGuard, GuardError> {
        WriteGuard::new(self)
    }

    /// As [`Buffer::read`], but waits for no transfer and no guard. It still makes managed memory visible, which waits
    /// for its device.
    ///
    /// # Errors
    /// As [`Buffer::read`], for a guard that this thread holds too. [`GuardError::WouldBlock`] when transfers or guards of
    /// other threads have to end first.
    pub fn try_read(&self) -> Result<ReadGuard, GuardError> {
        ReadGuard::now(self)
    }

    /// As [`Buffer::write`], but waits for no transfer and no guard. It still makes managed memory visible, which waits
    /// for its device.
    ///
    /// # Errors
    /// As [`Buffer::write`], for a guard that this thread holds too. [`GuardError::WouldBlock`] when transfers or guards of
    /// other threads have to end first.
    pub fn try_write(&self) -> Result<WriteGuard, GuardError> {
        WriteGuard::now(self)
    }

    /// Returns a future of the guard that [`Buffer::read`] returns.
    ///
    /// The guard has its place in the order when this returns, before the future is polled: transfers that write the
    /// bytes and are submitted later wait until the guard, or the future, is dropped. The future may go to another
    /// thread; the guard stays on the thread that polled it. So in a task that moves between threads hold no guard over
    /// an `await`: close the block that it lives in before. A call of `drop` is not enough for the compiler. In a task
    /// of one thread, as on tokio's `LocalSet`, it may be held. Awaiting blocks in one case: to make managed memory
    /// visible.
    ///
    /// The engine does not refuse a task that holds a guard and awaits a transfer or guard that waits for it: the task
    /// never ends.
    ///
    /// ```
    /// # #[cfg(feature = "std")] {
    /// # use transload::{Error, TransferManager};
    /// async fn sum(manager: &TransferManager) -> Result<u32, Error> {
    ///     let src = manager.adopt(vec![1u8; 100])?;
    ///     let dst = manager.adopt(vec![0u8; 100])?;
    ///     let copy = manager.copy(&src, &dst);
    ///     let sum = dst.read_async().await?.iter().map(|byte| u32::from(*byte)).sum();
    ///     copy.await?;
    ///     Ok(sum)
    /// }
    /// # }
    /// ```
    pub fn read_async(&self) -> ReadFuture {
        ReadFuture::new(self)
    }

    /// Returns a future of the guard that [`Buffer::write`] returns; as [`Buffer::read_async`], and transfers that read
    /// the bytes wait too.
    pub fn write_async(&self) -> WriteFuture {
        WriteFuture::new(self)
    }
}
