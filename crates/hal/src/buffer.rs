//! Counted views of a storage.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::any::Any;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering, fence};

use once_cell::race::OnceBox;
use transload_core::{BackendId, MemoryId, Span, StorageId};

use crate::{HostSpan, MaybeSend, MaybeSync, ProcessBound};

/// Keeps a storage's memory alive, and frees it when dropped: a backend's own allocation, or the object that a user
/// handed over.
pub trait Owner: Any + MaybeSend + MaybeSync {}
impl<T: Any + MaybeSend + MaybeSync> Owner for T {}

/// A storage as a backend describes it when it makes one.
#[derive(Clone, Copy, Debug)]
pub struct StorageInfo {
    /// The identity of the bytes.
    pub id: StorageId,
    /// The position of the first byte within that identity: an address, a file offset, or 0.
    pub base: u64,
    /// The length in bytes.
    pub len_bytes: u64,
    /// The memory that it lies in.
    pub memory: MemoryId,
    /// The backend that made it.
    pub backend: BackendId,
    /// Whether it may be written.
    pub writable: bool,
    /// Where the host can access it. `None` for memory that the host cannot reach, or cannot reach yet.
    pub host: Option<HostSpan>,
}

/// A use of an owner's bytes that must end before the owner is dropped or taken out, such as their registration with a
/// driver. Dropping the guard ends the use and blocks until that is done.
pub trait Guard: Owner {
    /// Called when the last view is gone: ends the use, and drops the owner after that. An implementation for which
    /// this takes long may hand both to another thread.
    fn release(self: Box<Self>, owner: Box<dyn Owner>);
}

struct Storage {
    info: StorageInfo,
    mapped: AtomicPtr<u8>,
    /// Code outside the library may know the backend's object ([`Buffer::expose`]).
    exposed: AtomicBool,
    /// Leaked in a child of `fork`: owners take locks and call drivers when they go.
    held: ProcessBound<Held>,
}

/// An owner, with the uses of its bytes that must end before it is dropped.
struct Held {
    /// A manager's claim on the bytes ([`Buffer::keep_claim`]).
    claim: OnceBox<Box<dyn Owner>>,
    guard: Option<Box<dyn Guard>>,
    /// `None` once it was dropped or taken out.
    owner: Option<Box<dyn Owner>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        // Another manager may take the bytes as soon as the owner is dropped.
        self.claim = OnceBox::new();
        if let Some((guard, owner)) = self.guard.take().zip(self.owner.take()) {
            guard.release(owner);
        }
    }
}

/// A view that keeps nothing alive. A backend finds a storage again with it while other views exist.
#[derive(Clone)]
pub struct WeakBuffer {
    storage: Weak<Storage>,
    span: Span,
}

impl WeakBuffer {
    /// Returns the view, unless the storage has gone.
    pub fn upgrade(&self) -> Option<Buffer> {
        self.storage.upgrade().map(|storage| Buffer {
            storage,
            span: self.span,
        })
    }

    /// Returns whether the storage has gone.
    pub fn is_gone(&self) -> bool {
        self.storage.strong_count() == 0
    }

    /// Returns whether both are views of one storage object.
    pub fn is_of(&self, buffer: &Buffer) -> bool {
        core::ptr::eq(self.storage.as_ptr(), Arc::as_ptr(&buffer.storage))
    }
}

/// A view of some bytes of a storage. Clones share the storage; dropping the last one frees it. A child of `fork` leaks
/// the storages of its parent ([`ProcessBound`]).
#[derive(Clone)]
pub struct Buffer {
    storage: Arc<Storage>,
    span: Span,
}

impl Buffer {
    /// Makes a buffer of a whole new storage. For backends.
    ///
    /// # Safety
    /// As long as `owner` is not dropped: `info.host`, where given, is valid for reads of `info.len_bytes` bytes, and
    /// for writes if `info.writable`; `info.id` and `info.base` name those bytes truthfully; and no code outside the
    /// library writes them, or reads them while the library writes.
    pub unsafe fn new(info: StorageInfo, owner: Box<dyn Owner>) -> Buffer {
        // SAFETY: the caller's promise.
        unsafe { Buffer::with_guard(info, owner, None) }
    }

    /// As [`Buffer::new`], with a guard whose use of the bytes must end before the owner is dropped or taken out.
    ///
    /// # Safety
    /// As [`Buffer::new`].
    pub unsafe fn guarded(
        info: StorageInfo,
        owner: Box<dyn Owner>,
        guard: Box<dyn Guard>,
    ) -> Buffer {
        // SAFETY: the caller's promise.
        unsafe { Buffer::with_guard(info, owner, Some(guard)) }
    }

    /// # Safety
    /// As [`Buffer::new`].
    #[allow(
        clippy::arc_with_non_send_sync,
        reason = "where there is one thread, owners need be neither Send nor Sync"
    )]
    unsafe fn with_guard(
        info: StorageInfo,
        owner: Box<dyn Owner>,
        guard: Option<Box<dyn Guard>>,
    ) -> Buffer {
        let mapped = info.host.map_or(core::ptr::null_mut(), HostSpan::as_ptr);
        Buffer {
            span: Span::new(0, info.len_bytes),
            storage: Arc::new(Storage {
                info,
                mapped: AtomicPtr::new(mapped),
                exposed: AtomicBool::new(false),
                held: ProcessBound::new(Held {
                    claim: OnceBox::new(),
                    guard,
                    owner: Some(owner),
                }),
            }),
        }
    }

    /// Returns the length of this view in bytes.
    pub fn len(&self) -> u64 {
        self.span.len
    }

    /// Returns whether the view has no bytes.
    pub fn is_empty(&self) -> bool {
        self.span.len == 0
    }

    /// Returns the view's range within its storage.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Returns the storage as its backend described it.
    pub fn info(&self) -> &StorageInfo {
        &self.storage.info
    }

    /// Returns the memory that the bytes lie in.
    pub fn memory(&self) -> MemoryId {
        self.storage.info.memory
    }

    /// Returns the backend that made the storage.
    pub fn backend(&self) -> BackendId {
        self.storage.info.backend
    }

    /// Returns whether the bytes may be written.
    pub fn is_writable(&self) -> bool {
        self.storage.info.writable
    }

    /// Returns the identity of the bytes.
    pub fn storage_id(&self) -> StorageId {
        self.storage.info.id
    }

    /// Returns the position of the view's first byte within its [`StorageId`].
    pub fn position(&self) -> u64 {
        self.storage.info.base + self.span.offset
    }

    /// Returns `len` bytes from `offset` on as a view of their own; `None` where they do not all lie within this one.
    pub fn slice(&self, offset: u64, len: u64) -> Option<Buffer> {
        Span::new(offset, len).fits(self.span.len).then(|| Buffer {
            storage: Arc::clone(&self.storage),
            span: Span::new(self.span.offset + offset, len),
        })
    }

    /// Returns all of the storage that this is a view of.
    pub fn whole(&self) -> Buffer {
        Buffer {
            storage: Arc::clone(&self.storage),
            span: Span::new(0, self.storage.info.len_bytes),
        }
    }

    /// The same view, keeping nothing alive.
    pub fn downgrade(&self) -> WeakBuffer {
        WeakBuffer {
            storage: Arc::downgrade(&self.storage),
            span: self.span,
        }
    }

    /// Returns where the host can access `len` bytes from `offset` on now; `None` where it cannot, or where the bytes
    /// do not all lie within the view.
    pub fn host(&self, offset: u64, len: u64) -> Option<HostSpan> {
        let start = NonNull::new(self.storage.mapped.load(Ordering::Acquire))?;
        if !Span::new(offset, len).fits(self.span.len) {
            return None;
        }
        let whole = HostSpan::new(start, usize::try_from(self.storage.info.len_bytes).ok()?);
        whole.slice(self.span.offset + offset, len)
    }

    /// Sets where the host finds the storage's first byte from now on; `None` when it no longer can. For backends, when
    /// they map and unmap.
    ///
    /// # Safety
    /// As [`Buffer::new`] for `start`, until the next call.
    pub unsafe fn set_mapped(&self, start: Option<NonNull<u8>>) {
        let start = start.map_or(core::ptr::null_mut(), NonNull::as_ptr);
        self.storage.mapped.store(start, Ordering::Release);
    }

    /// Makes this view show other memory, without allocating. It must be the only view of its storage, weak ones
    /// included: returns false and changes nothing where others exist. The owner stays.
    ///
    /// # Safety
    /// As [`Buffer::new`], but for as long as the buffer shows that memory instead of as long as the
    /// owner lives.
    pub unsafe fn rebind(&mut self, info: StorageInfo) -> bool {
        let Some(storage) = Arc::get_mut(&mut self.storage) else {
            return false;
        };
        *storage.mapped.get_mut() = info.host.map_or(core::ptr::null_mut(), HostSpan::as_ptr);
        storage.info = info;
        self.span = Span::new(0, info.len_bytes);
        true
    }

    /// Keeps a manager's claim on the bytes until the storage is dropped or its owner is taken out, and drops the claim
    /// before that. Returns false, and drops the claim, when the storage already has one.
    pub fn keep_claim(&self, claim: Box<dyn Owner>) -> bool {
        self.storage.held.claim.set(Box::new(claim)).is_ok()
    }

    /// Returns the owner, if it is a `T`. A backend finds its own object again this way. Code that has a device use the
    /// object, other than through operations of the backend, calls [`Buffer::expose`] before.
    pub fn native<T: Any>(&self) -> Option<&T> {
        let owner: &dyn Any = self.storage.held.owner.as_deref()?;
        owner.downcast_ref()
    }

    /// Notes that code outside the library may have a device work on the bytes from now on: it was given the backend's
    /// object behind them, or brought it.
    pub fn expose(&self) {
        self.storage.exposed.store(true, Ordering::Release);
    }

    /// Returns whether code outside the library may have a device work on the bytes. If it returns false, only
    /// operations that were submitted to the backend use them.
    pub fn is_exposed(&self) -> bool {
        self.storage.exposed.load(Ordering::Acquire)
    }

    /// Returns whether this is the only view of its storage. If so, what other threads did with views that are gone has
    /// happened before.
    pub fn is_unique(&self) -> bool {
        let is_unique = Arc::strong_count(&self.storage) == 1;
        if is_unique {
            // The count is loaded without an order; a view that is dropped lowers it with a release.
            fence(Ordering::Acquire);
        }
        is_unique
    }

    /// Returns whether both are views of one storage object.
    pub fn same_storage(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// Takes the owner out. Blocks while a guard ends its use of the bytes.
    ///
    /// # Errors
    /// The buffer itself, when other views exist or the owner is no `T`.
    pub fn into_owner<T: Any>(self) -> Result<T, Buffer> {
        if self.native::<T>().is_none() {
            return Err(self);
        }
        let span = self.span;
        let mut storage =
            Arc::try_unwrap(self.storage).map_err(|storage| Buffer { storage, span })?;
        drop(storage.held.guard.take());
        let owner = storage.held.owner.take();
        let owner = owner.map(|owner| -> Box<dyn Any> { owner });
        match owner.and_then(|owner| owner.downcast().ok()) {
            Some(owner) => Ok(*owner),
            None => unreachable!("the owner was found to be a T above"),
        }
    }
}

impl fmt::Debug for WeakBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakBuffer")
            .field("span", &self.span)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("memory", &self.memory())
            .field("storage", &self.storage_id())
            .field("span", &self.span)
            .field("writable", &self.is_writable())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use transload_core::{DeviceId, MemoryKind, Name};

    use super::*;

    fn of_vec(mut bytes: Vec<u8>) -> Buffer {
        let host = HostSpan::of_mut(&mut bytes);
        let info = StorageInfo {
            id: StorageId::Host,
            base: host.addr(),
            len_bytes: bytes.len() as u64,
            memory: DeviceId::CPU0.memory(MemoryKind::Pageable),
            backend: BackendId(Name::constant("test")),
            writable: true,
            host: Some(host),
        };
        // SAFETY: the vector's heap block does not move, and nothing but this buffer touches it.
        unsafe { Buffer::new(info, Box::new(bytes)) }
    }

    #[test]
    fn views_are_bounded_by_their_parent() {
        let buffer = of_vec(vec![0; 16]);
        let view = buffer.slice(4, 8).unwrap();
        assert_eq!(view.position(), buffer.position() + 4);
        assert!(view.slice(8, 0).is_some());
        assert!(view.slice(8, 1).is_none());
        assert!(view.slice(u64::MAX, 1).is_none());
        assert!(view.host(0, 9).is_none());
        assert_eq!(
            view.host(1, 2).map(HostSpan::addr),
            Some(buffer.position() + 5)
        );
    }

    /// Says when it goes.
    struct Told(&'static str, Arc<std::sync::Mutex<Vec<&'static str>>>);

    impl Drop for Told {
        fn drop(&mut self) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    impl Guard for Told {
        fn release(self: Box<Self>, owner: Box<dyn Owner>) {
            drop(self);
            drop(owner);
        }
    }

    #[test]
    fn a_guard_goes_before_its_owner_does() {
        let told = Arc::default();
        let buffer = || {
            let info = *of_vec(vec![0; 1]).info();
            let [guard, owner] = ["guard", "owner"].map(|name| Told(name, Arc::clone(&told)));
            let info = StorageInfo { host: None, ..info };
            // SAFETY: it shows no bytes.
            unsafe { Buffer::guarded(info, Box::new(owner), Box::new(guard)) }
        };
        drop(buffer());
        assert_eq!(*told.lock().unwrap(), ["guard", "owner"]);
        let Ok(owner) = buffer().into_owner::<Told>() else {
            panic!("there is one view");
        };
        assert_eq!(*told.lock().unwrap(), ["guard", "owner", "guard"]);
        drop(owner);
    }

    #[test]
    fn a_weak_view_finds_the_storage_as_long_as_another_view_lives() {
        let buffer = of_vec(vec![7; 16]);
        let view = buffer.slice(4, 8).unwrap();
        let weak = view.downgrade();
        let found = weak.upgrade().unwrap();
        assert!(found.same_storage(&buffer) && found.span() == Span::new(4, 8));
        assert!(weak.is_of(&buffer) && !weak.is_of(&of_vec(vec![7; 16])));
        assert_eq!(found.whole().span(), Span::new(0, 16));
        drop((view, found));
        let owner = buffer.into_owner::<Vec<u8>>();
        assert_eq!(owner.unwrap(), [7; 16], "a weak view held it");
        assert!(weak.upgrade().is_none() && weak.is_gone());
    }

    #[test]
    fn an_owner_comes_back_only_from_the_last_view() {
        let buffer = of_vec(vec![7; 4]);
        let view = buffer.slice(0, 1).unwrap();
        let buffer = buffer.into_owner::<Vec<u8>>().unwrap_err();
        drop(view);
        let buffer = buffer.into_owner::<Vec<u16>>().unwrap_err();
        assert_eq!(buffer.into_owner::<Vec<u8>>().unwrap(), [7; 4]);
    }
}
