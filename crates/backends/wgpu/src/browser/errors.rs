//! Errors that the browser reports, always after the call and never during it.

use std::future::Future;
use std::pin::Pin;

use transload_hal::{ErrorClass, Fault};

use crate::storage::one_line;

/// Listens to what a device complains of, from the call that makes it to [`Scopes::end`].
///
/// Of three sorts of errors two are listened for: wgpu 30.0.1 panics when it takes an internal error out of
/// a scope. Those come of pipelines that cannot be made, and whatever uses one is a validation error.
pub(super) struct Scopes([wgpu::ErrorScopeGuard; 2]);

type Complaint = Pin<Box<dyn Future<Output = Option<wgpu::Error>>>>;

/// The errors, once the browser has reported them.
pub(super) struct Heard([Complaint; 2]);

impl Scopes {
    pub(super) fn of(device: &wgpu::Device) -> Scopes {
        let sorts = [
            wgpu::ErrorFilter::OutOfMemory,
            wgpu::ErrorFilter::Validation,
        ];
        Scopes(sorts.map(|sort| device.push_error_scope(sort)))
    }

    pub(super) fn end(self) -> Heard {
        let [outer, inner] = self.0;
        // The innermost goes first.
        let inner: Complaint = Box::pin(inner.pop());
        // An allocation that found no memory also fails validation later, so that error comes first.
        Heard([Box::pin(outer.pop()), inner])
    }
}

impl Heard {
    /// The first error.
    pub(super) async fn first(self) -> Option<Fault> {
        let mut first = None;
        for complaint in self.0 {
            first = first.or(complaint.await);
        }
        first.as_ref().map(fault_of)
    }
}

/// The browser gives its reasons only as text. This backend checks its commands before it submits them, so
/// a failed validation means an object that its owner has destroyed, mapped, or made on another device.
fn fault_of(error: &wgpu::Error) -> Fault {
    match error {
        wgpu::Error::OutOfMemory { .. } => {
            Fault::new(ErrorClass::Exhausted, "the browser is out of memory for it")
        }
        wgpu::Error::Validation { description, .. } => {
            Fault::new(ErrorClass::Caller, one_line(description))
        }
        wgpu::Error::Internal { description, .. } => {
            Fault::new(ErrorClass::Failed, one_line(description))
        }
    }
}
