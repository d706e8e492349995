//! A slice inside an object that other code holds too.

use alloc::sync::Arc;
use core::fmt;

use bytemuck::NoUninit;
use transload_hal::{HostSpan, Owner};

use super::Adopt;

/// A slice that an object behind an [`Arc`] owns, to be [adopted](crate::TransferManager::adopt) read-only without a
/// copy: for example the weights of a model that the program goes on using.
///
/// ```
/// # #[cfg(feature = "std")] {
/// # use std::sync::Arc;
/// # use transload::{OwnedSlice, TransferManager};
/// struct Model {
///     name: String,
///     weights: Vec<f32>,
/// }
///
/// let model = Arc::new(Model { name: "small".into(), weights: vec![0.5; 1000] });
/// let manager = TransferManager::builder().host().build()?;
/// let weights = manager.adopt(OwnedSlice::new(Arc::clone(&model), |model| &model.weights))?;
/// assert_eq!(weights.len(), 4000);
/// println!("{} is still usable", model.name);
///
/// let slice: OwnedSlice<Model> = weights.into_inner()?;
/// assert!(Arc::ptr_eq(&slice.into_owner(), &model));
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OwnedSlice<O: ?Sized> {
    owner: Arc<O>,
    bytes: HostSpan,
}

impl<O: ?Sized + 'static> OwnedSlice<O> {
    /// Calls `slice` once, and keeps the span of the returned elements.
    ///
    /// The closure can only return a slice of the owner, or a static one:
    ///
    /// ```compile_fail
    /// # use std::sync::Arc;
    /// # use transload::OwnedSlice;
    /// let elsewhere = vec![0u8; 10];
    /// let borrowed = elsewhere.as_slice();
    /// OwnedSlice::new(Arc::new(()), |_| borrowed);
    /// ```
    pub fn new<T: NoUninit>(owner: Arc<O>, slice: impl FnOnce(&O) -> &[T]) -> OwnedSlice<O> {
        // The closure's type holds for every lifetime `'a` in `&'a O -> &'a [T]`, and `O` is static. So the slice is
        // valid and unchanged for as long as a shared reference to the owner could live, which is as long as this
        // handle does: meanwhile safe code gets no mutable reference to the owner (`Arc::get_mut` needs the only
        // handle), and the owner stays in place when the handle moves. The closure is called once, so an owner that
        // would return another slice the next time (`AsRef`, `Deref`) does not matter.
        let bytes = HostSpan::of(bytemuck::cast_slice(slice(&owner)));
        OwnedSlice { owner, bytes }
    }

    /// Returns the owner.
    pub fn into_owner(self) -> Arc<O> {
        self.owner
    }
}

// SAFETY: `new` shows why the span is valid and unchanged while the handle lives. `NoUninit` says that its bytes are
// initialised, and has no interior mutability.
unsafe impl<O: ?Sized + 'static> Adopt for OwnedSlice<O>
where
    OwnedSlice<O>: Owner,
{
    const WRITABLE: bool = false;

    fn span(&mut self) -> HostSpan {
        self.bytes
    }
}

impl<O: ?Sized> fmt::Debug for OwnedSlice<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedSlice({} B)", self.bytes.len())
    }
}
