//! Objects: a header that clients see, and a payload that is a Rust value.
//!
//! A header outlives its object for a while, as with `NSZombieEnabled`: a use of the ended object is reported,
//! and no freed memory is read.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::class::{Class, Object};
use super::method::Coded;
use crate::ledger::{Misuse, report};

/// A value that objects hold, and their class unless one is named.
pub(crate) trait Instance: Send + Sync + Sized + 'static {
    fn class() -> &'static Class;
}

/// The header at the address that clients use.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Header {
    object: Object,
    /// How often it is retained; [`FOREVER`] for objects that were not allocated. At zero it is a zombie.
    count: AtomicUsize,
    /// A `Box` of the class's state; null before `init` and after the end.
    payload: AtomicPtr<()>,
}

/// An object that was named in a message: nil, or one that the sender keeps alive meanwhile.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Id(Option<NonNull<Header>>);

/// The object that a message was sent to, which holds a `T`.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Receiver<T>(NonNull<Header>, PhantomData<T>);

/// The class that a message was sent to.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct ClassReceiver(&'static Class);

/// The object that `init` was sent to, which holds nothing yet.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct New(NonNull<Header>);

/// A reference that is counted.
#[derive(Debug)]
pub(crate) struct Ref<T> {
    header: NonNull<Header>,
    holds: PhantomData<T>,
}

coded! {
    Id => "@",
    New => "@",
    ClassReceiver => "@",
    *const Id => "^@",
    *mut Id => "^@",
}

impl<T> Coded for Receiver<T> {
    const CODE: &'static str = "@";
}

// SAFETY: the count is atomic, and a payload may be shared and sent (`Instance`).
unsafe impl<T: Instance> Send for Ref<T> {}
// SAFETY: as above.
unsafe impl<T: Instance> Sync for Ref<T> {}

impl Header {
    /// One that is never freed, for strings that are constants.
    pub(crate) const fn forever(class: &'static Class, payload: &'static impl Instance) -> Self {
        Self {
            object: Object { isa: Some(class) },
            count: AtomicUsize::new(FOREVER),
            payload: AtomicPtr::new(ptr::from_ref(payload).cast_mut().cast()),
        }
    }

    fn allocate(class: &'static Class, payload: *mut ()) -> NonNull<Self> {
        class.born();
        NonNull::from(Box::leak(Box::new(Self {
            object: Object { isa: Some(class) },
            count: AtomicUsize::new(1),
            payload: AtomicPtr::new(payload),
        })))
    }

    pub(crate) fn class(&self) -> &'static Class {
        self.object
            .isa
            .expect("only metaclasses are of no class, and they have no header")
    }

    /// How often it is retained.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Its state, if that is a `T` and still exists.
    fn payload<T: Instance>(&self) -> Option<&T> {
        if !self.class().holds::<T>() {
            return None;
        }
        let payload: NonNull<T> = NonNull::new(self.payload.load(Ordering::Acquire))?.cast();
        // SAFETY: the class says that it is a `T`; it was made by `Ref::new` or `New::hold`, and lives as long as
        // the header has a count, which the giver of this reference keeps.
        Some(unsafe { payload.as_ref() })
    }

    pub(super) fn retain(&self) {
        let more = |count| match count {
            0 => None,
            FOREVER => Some(FOREVER),
            count => Some(count + 1),
        };
        if self
            .count
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .is_err()
        {
            self.told_dead("retained");
        }
    }

    pub(super) fn release(&self) {
        let less = |count: usize| match count {
            FOREVER => Some(FOREVER),
            count => count.checked_sub(1),
        };
        match self
            .count
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less)
        {
            Ok(1) => self.end(),
            Ok(_) => {}
            Err(_) => self.told_dead("released"),
        }
    }

    fn end(&self) {
        let payload = self.payload.swap(ptr::null_mut(), Ordering::AcqRel);
        if let Some(payload) = NonNull::new(payload) {
            // SAFETY: it is the class's state, and the last release took it out of the header.
            unsafe { self.class().drop_payload(payload) };
        }
        self.class().died();
        bury(NonNull::from(self));
    }

    pub(super) fn told_dead(&self, what: &str) {
        let name = self.class().name();
        report(
            Misuse::OverReleased,
            format!("a {name} was {what} after its end"),
        );
    }
}

impl Id {
    pub(crate) const NIL: Self = Self(None);

    /// The object of a header that is no class.
    pub(super) fn of(object: &Object) -> Self {
        Self(Some(NonNull::from(object).cast()))
    }

    pub(crate) fn header(&self) -> Option<&Header> {
        // SAFETY: an object in a message is nil or there for as long as the message lasts (The Objective-C
        // Programming Language, Memory Management Policy); one that ended lies buried as a zombie.
        self.0.map(|header| unsafe { header.as_ref() })
    }

    /// Its state, if that is a `T`.
    pub(crate) fn get<T: Instance>(&self) -> Option<&T> {
        let header = self.header()?;
        if header.count() == 0 {
            header.told_dead("named in a message");
            return None;
        }
        header.payload()
    }

    /// A reference of our own, where it holds a `T`.
    pub(crate) fn retained<T: Instance>(&self) -> Option<Ref<T>> {
        self.get::<T>()?;
        let header = self.header()?;
        header.retain();
        Some(Ref {
            header: NonNull::from(header),
            holds: PhantomData,
        })
    }

    /// An object that is never freed.
    pub(crate) fn forever(header: &'static Header) -> Self {
        Self(Some(NonNull::from(header)))
    }

    /// Takes a count of it.
    pub(crate) fn retain(self) {
        if let Some(header) = self.header() {
            header.retain();
        }
    }

    /// Gives a count of it back.
    pub(crate) fn release(self) {
        if let Some(header) = self.header() {
            header.release();
        }
    }

    /// Whether both are the same object.
    pub(crate) fn is(self, other: Self) -> bool {
        self.0 == other.0
    }

    pub(crate) fn address(self) -> usize {
        self.0.map_or(0, |header| header.addr().get())
    }
}

impl<T: Instance> Receiver<T> {
    pub(crate) fn id(&self) -> Id {
        Id(Some(self.0))
    }

    pub(crate) fn retained(&self) -> Ref<T> {
        self.id()
            .retained()
            .expect("messages to what has ended are not delivered")
    }
}

impl<T: Instance> Deref for Receiver<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the object is there while it is sent a message; a message that found this method went to an
        // instance of its class.
        let header = unsafe { self.0.as_ref() };
        header
            .payload()
            .expect("messages to what has ended are not delivered")
    }
}

impl ClassReceiver {
    /// An object of it that holds nothing yet.
    pub(crate) fn allocate(self) -> Id {
        Id(Some(Header::allocate(self.0, ptr::null_mut())))
    }

    pub(crate) fn class(self) -> &'static Class {
        self.0
    }
}

impl New {
    /// Puts `payload` into it; it is the answer of `init`.
    pub(crate) fn hold<T: Instance>(self, payload: T) -> Id {
        // SAFETY: `init` is sent to what `alloc` has just answered, which the sender owns.
        let header = unsafe { self.0.as_ref() };
        assert!(
            header.class().holds::<T>(),
            "init of one class was sent to another"
        );
        let payload = Box::into_raw(Box::new(payload));
        let before = header.payload.swap(payload.cast(), Ordering::AcqRel);
        assert!(before.is_null(), "init was sent twice");
        Id(Some(self.0))
    }

    /// It holds nothing by itself: `NSObject`.
    pub(crate) fn id(self) -> Id {
        Id(Some(self.0))
    }

    /// Gives it up; `init` then answers nil.
    pub(crate) fn refuse(self) -> Id {
        // SAFETY: as in `hold`.
        unsafe { self.0.as_ref() }.release();
        Id::NIL
    }
}

impl<T: Instance> Ref<T> {
    pub(crate) fn new(payload: T) -> Self {
        Self::of_class(T::class(), payload)
    }

    /// One of `class`, which holds a `T` too.
    pub(crate) fn of_class(class: &'static Class, payload: T) -> Self {
        assert!(class.holds::<T>(), "{} holds something else", class.name());
        let payload = Box::into_raw(Box::new(payload));
        Self {
            header: Header::allocate(class, payload.cast()),
            holds: PhantomData,
        }
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: this reference keeps it.
        unsafe { self.header.as_ref() }
    }

    pub(crate) fn id(&self) -> Id {
        Id(Some(self.header))
    }

    /// For callers of a method whose name begins with `new`, `copy` or `alloc`: they release it.
    pub(crate) fn into_id(self) -> Id {
        let id = self.id();
        std::mem::forget(self);
        id
    }

    /// Never gives its count back.
    pub(crate) fn forever(self) -> &'static Header {
        let header = self.header;
        std::mem::forget(self);
        // SAFETY: the count that this reference had keeps it.
        unsafe { header.as_ref() }
    }
}

impl<T: Instance> Deref for Ref<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.header()
            .payload()
            .expect("what is retained holds what it was made of")
    }
}

impl<T> Clone for Ref<T> {
    fn clone(&self) -> Self {
        // SAFETY: this reference keeps it.
        unsafe { self.header.as_ref() }.retain();
        Self {
            header: self.header,
            holds: PhantomData,
        }
    }
}

impl<T> Drop for Ref<T> {
    fn drop(&mut self) {
        // SAFETY: this reference keeps it until now.
        unsafe { self.header.as_ref() }.release();
    }
}

/// Headers without objects, the oldest first.
struct Morgue(VecDeque<NonNull<Header>>);

// SAFETY: only the morgue frees them, and zombies are only read.
unsafe impl Send for Morgue {}

static MORGUE: Mutex<Morgue> = Mutex::new(Morgue(VecDeque::new()));

/// Keeps the header for a while. The object that was buried longest ago is forgotten.
fn bury(header: NonNull<Header>) {
    let mut morgue = MORGUE.lock().unwrap_or_else(PoisonError::into_inner);
    morgue.0.push_back(header);
    if morgue.0.len() > GRAVES
        && let Some(oldest) = morgue.0.pop_front()
    {
        // SAFETY: it came from a box in `Header::allocate`, and has no count left: no code that keeps to the
        // rules knows it.
        drop(unsafe { Box::from_raw(oldest.as_ptr()) });
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_retain(object: Id) -> Id {
    object.retain();
    object
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_release(object: Id) {
    object.release();
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_retainAutoreleasedReturnValue(object: Id) -> Id {
    // Apple's runtime may hand it over without its pool; clients cannot rely on that, and here it never does.
    objc_retain(object)
}

/// As many as a long test makes in a moment; they hold forty bytes each.
const GRAVES: usize = 1 << 16;

const FOREVER: usize = usize::MAX;
