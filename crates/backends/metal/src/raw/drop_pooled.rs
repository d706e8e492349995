//! Values that are dropped within an autorelease pool.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use super::pooled;

/// A value that refers to Metal objects. Dropping them may autorelease other objects, and threads of Rust have no
/// autorelease pool.
pub(crate) struct DropPooled<T>(ManuallyDrop<T>);

impl<T> DropPooled<T> {
    pub(crate) fn new(what: T) -> DropPooled<T> {
        DropPooled(ManuallyDrop::new(what))
    }

    pub(crate) fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: it is taken once, since `this` is neither used nor dropped after that.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl<T> Deref for DropPooled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for DropPooled<T> {
    fn drop(&mut self) {
        pooled(|_| {
            // SAFETY: it is dropped here alone, and not used after that.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        });
    }
}
