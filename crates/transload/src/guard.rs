//! The host's own look at a buffer, as part of the order.

use alloc::sync::Arc;
use core::ops::{Deref, DerefMut};

use transload_core::{Footprint, MemoryKind, Shape};
use transload_hal::{ErrorClass, Fault, HostSpan};

use crate::Buffer;
use crate::engine::active::{Operand, TransferId};
use crate::engine::hint::Wish;
use crate::engine::shared::Shared;
use crate::error::GuardError;

struct Guard {
    shared: Arc<Shared>,
    id: TransferId,
    span: HostSpan,
    /// Keeps the bytes where they are.
    end: Operand,
    writes: bool,
}

impl Guard {
    fn new(buffer: &Buffer, writes: bool) -> Result<Guard, GuardError> {
        buffer.shared.check_fork()?;
        let raw = &buffer.raw;
        let memory = raw.memory();
        let not_addressable = || GuardError::NotHostAddressable { memory };
        // Managed memory is written by commands that take unsafe code to give; mapped memory by any.
        if memory.kind == MemoryKind::Mapped {
            return Err(GuardError::NotExclusive { memory });
        }
        let span = raw.host(0, raw.len()).ok_or_else(not_addressable)?;
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
        let id = shared.guard(end.clone(), footprint);
        let mut guard = Guard {
            shared,
            id,
            span,
            end,
            writes: false,
        };
        #[cfg(browser)]
        if !guard.shared.settles_now(id) {
            return Err(GuardError::WouldBlock { memory });
        }
        guard.shared.block_on(id, None);
        guard.make_visible()?;
        if writes {
            guard.tell_writes()?;
            guard.writes = true;
        }
        Ok(guard)
    }

    /// Where a device works on the memory, what its users gave it to do is over before the host looks.
    fn make_visible(&self) -> Result<(), GuardError> {
        let memory = self.end.buffer.memory();
        let backend = self.shared.backend_of(&self.end);
        let Some(backend) = backend.filter(|_| memory.kind.is_hidden()) else {
            return Ok(());
        };
        let asked = self.shared.ask(&backend, &self.end, Wish::MakeVisible);
        asked.map_err(|fault| GuardError::NotVisible { memory, fault })
    }

    /// Where host and device have a copy each, nobody brings the device's over while the host writes: other bytes of the
    /// buffer are no conflict, and may come with it. A backend that does not need to hear of that says so.
    fn tell_writes(&self) -> Result<(), GuardError> {
        let memory = self.end.buffer.memory();
        match self.ask_of_copies(Wish::AcquireHost) {
            Err(fault) if fault.class != ErrorClass::Unsupported => {
                Err(GuardError::NotVisible { memory, fault })
            }
            _ => Ok(()),
        }
    }

    /// The device learns that the host wrote its copy. Nothing can be done about any answer here.
    fn tell_written(&self) {
        if self.writes {
            let _ = self.ask_of_copies(Wish::ReleaseHost);
        }
    }

    fn ask_of_copies(&self, wish: Wish) -> Result<(), Fault> {
        let is_managed = self.end.buffer.memory().kind == MemoryKind::Managed;
        match self.shared.backend_of(&self.end).filter(|_| is_managed) {
            Some(backend) => self.shared.ask(&backend, &self.end, wish),
            None => Ok(()),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        self.tell_written();
        self.shared.unguard(self.id);
    }
}

/// The bytes of a buffer, readable as long as the guard lives. Transfers that write them wait.
///
/// It is a slice of bytes; `bytemuck::cast_slice::<u8, f32>(&guard)` shows it as elements. That panics where the buffer
/// does not start at a multiple of the elements' alignment, or has no whole number of them: what was adopted from
/// elements does, and [`AllocSpec::aligned`](crate::AllocSpec::aligned) makes memory that does.
pub struct ReadGuard(Guard);

/// The bytes of a buffer, readable and writable as long as the guard lives. Transfers that touch
/// them wait. `bytemuck::cast_slice_mut` shows them as elements, as for a [`ReadGuard`].
pub struct WriteGuard(Guard);

impl ReadGuard {
    pub(crate) fn new(buffer: &Buffer) -> Result<ReadGuard, GuardError> {
        Guard::new(buffer, false).map(ReadGuard)
    }
}

impl WriteGuard {
    pub(crate) fn new(buffer: &Buffer) -> Result<WriteGuard, GuardError> {
        Guard::new(buffer, true).map(WriteGuard)
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
