//! Transfers that were submitted together.

use core::sync::atomic::{AtomicBool, Ordering};

/// Shared by the transfers of a batch that stops at the first failure.
#[derive(Debug, Default)]
pub(crate) struct BatchFlag(AtomicBool);

impl BatchFlag {
    pub(crate) fn fail(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
