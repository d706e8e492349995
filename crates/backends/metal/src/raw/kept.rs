//! Values that are dropped within an autorelease pool.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use super::pooled;

/// A value that refers to Metal objects. Dropping them may autorelease other objects, and threads of Rust have no
/// autorelease pool.
pub(crate) struct Kept<T>(ManuallyDrop<T>);

impl<T> Kept<T> {
    pub(crate) fn new(what: T) -> Kept<T> {
        Kept(ManuallyDrop::new(what))
    }

    pub(crate) fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: it is taken once, since `this` is neither used nor dropped after that.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        pooled(|_| {
            // SAFETY: it is dropped here alone, and not used after that.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        });
    }
}
