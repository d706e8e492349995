//! Memory that takes part in transfers.

use alloc::sync::Arc;
use core::any::Any;
use core::fmt;
use core::ops::{Bound, RangeBounds};

use transload_core::MemoryId;

use crate::adopt::Adopted;
use crate::engine::shared::Shared;
use crate::error::RegionError;

/// A counted view of some memory, known to one manager. Clones and slices show the same bytes. The memory is freed when
/// the last of them was dropped and no transfer needs it.
#[derive(Clone)]
pub struct Buffer {
    pub(crate) raw: transload_hal::Buffer,
    pub(crate) shared: Arc<Shared>,
}

/// A buffer that could not give its owner back, and why.
#[derive(Debug)]
#[non_exhaustive]
pub struct IntoInnerError {
    /// The buffer, unchanged.
    pub buffer: Buffer,
    /// Why not.
    pub reason: IntoInnerReason,
}

/// Why a buffer does not give its owner back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IntoInnerReason {
    /// The owner of the memory is no such object.
    OtherOwner,
    /// Other views of the memory exist, or a transfer of it is under way.
    InUse,
    /// This process is a child of `fork`, and its parent made the buffer.
    Forked,
}

/// The text continues "the buffer in {memory}".
impl fmt::Display for IntoInnerReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IntoInnerReason::OtherOwner => "was not adopted from such an object",
            IntoInnerReason::InUse => "has other views, or a transfer of it is under way",
            IntoInnerReason::Forked => "was made before this process was forked",
        })
    }
}

impl fmt::Display for IntoInnerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = self.buffer.memory();
        write!(f, "the buffer in {memory} {}", self.reason)
    }
}

impl core::error::Error for IntoInnerError {}

impl Buffer {
    pub(crate) fn new(raw: transload_hal::Buffer, shared: &Arc<Shared>) -> Buffer {
        Buffer {
            raw,
            shared: Arc::clone(shared),
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.raw.len()
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Returns the memory that the bytes are in.
    pub fn memory(&self) -> MemoryId {
        self.raw.memory()
    }

    /// Returns whether transfers may write the buffer.
    pub fn is_writable(&self) -> bool {
        self.raw.is_writable()
    }

    /// Returns whether this is the only view of its memory: no other clone or slice exists, and no transfer of it is under
    /// way.
    pub fn is_unique(&self) -> bool {
        self.raw.is_unique()
    }

    /// Returns a view of some of the bytes.
    ///
    /// # Errors
    /// When the range does not lie within the buffer, or ends before it starts.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Buffer, RegionError> {
        let out_of_bounds = |offset, len| RegionError::OutOfBounds {
            memory: self.memory(),
            offset,
            len,
            limit: self.len(),
        };
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.checked_add(1).ok_or(out_of_bounds(*before, 1))?,
            Bound::Unbounded => 0,
        };
        // A range that ends with the largest number is one longer than the distance of its bounds.
        let past_all = |last: u64| out_of_bounds(start, (last - start).saturating_add(1));
        let end = match range.end_bound() {
            Bound::Included(last) => last.checked_add(1).ok_or_else(|| past_all(*last))?,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len().max(start),
        };
        let reversed = RegionError::Reversed {
            memory: self.memory(),
            start,
            end,
        };
        let len = end.checked_sub(start).ok_or(reversed)?;
        let raw = self
            .raw
            .slice(start, len)
            .ok_or(out_of_bounds(start, len))?;
        Ok(Buffer::new(raw, &self.shared))
    }

    /// Returns the backend's own object behind the memory, if it is a `T`: the `wgpu::Buffer`, whether it was allocated
    /// or passed to [`TransferManager::adopt_native`](crate::TransferManager::adopt_native). It is the whole storage,
    /// also where this is a slice of it.
    ///
    /// Returns `None` for the owner of adopted host memory: its bytes are the manager's until [`Buffer::into_inner`]
    /// gives it back.
    pub fn native<T: Any>(&self) -> Option<&T> {
        self.raw().native()
    }

    /// Returns the view as backends see it. The library then takes into account that the program's own commands may use
    /// the bytes ([`transload_hal::Buffer::expose`]).
    pub fn raw(&self) -> &transload_hal::Buffer {
        self.raw.expose();
        &self.raw
    }

    /// Gives back the object that was adopted.
    ///
    /// A transfer whose deadline passed, or that was dropped, may still have operations under way. This does not wait
    /// for them; [`TransferManager::wait_idle`](crate::TransferManager::wait_idle) does. Taking a guard and dropping
    /// it, `drop(buffer.write()?)`, waits for this buffer's transfers alone. Another thread that turned the engine may
    /// drop its view a moment later: ask again then, with the buffer that the error gives back. A view that was
    /// [shared](crate::TransferManager::share) with pinned memory is let go of when devices are idle, which may be
    /// after it was dropped: ask again then, too.
    ///
    /// The buffer itself, when its owner is no `T`, when it has other views, when a transfer of it is under way, or in
    /// a child of `fork`.
    pub fn into_inner<T: Any>(self) -> Result<T, IntoInnerError> {
        if self.shared.is_forked() {
            let reason = IntoInnerReason::Forked;
            return Err(IntoInnerError {
                buffer: self,
                reason,
            });
        }
        let is_adopted = self.raw.native::<Adopted<T>>().is_some();
        let reason = match is_adopted || self.raw.native::<T>().is_some() {
            false => IntoInnerReason::OtherOwner,
            true => IntoInnerReason::InUse,
        };
        let Buffer { raw, shared } = self;
        let taken = match is_adopted {
            true => raw.into_owner().map(|Adopted(owner)| owner),
            false => raw.into_owner(),
        };
        taken.map_err(|raw| IntoInnerError {
            buffer: Buffer { raw, shared },
            reason,
        })
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}
