//! A manager with backends that stall, and copies of it that are going to.

#[path = "../../../../crates/transload/tests/all/plain.rs"]
#[allow(unsafe_code, reason = "a backend promises what it does with memory")]
pub(super) mod plain;
#[cfg(target_os = "linux")]
#[path = "../../../../crates/transload/tests/all/stuck_page.rs"]
#[allow(unsafe_code, reason = "pages that block are made by system calls")]
pub(super) mod stuck_page;

use std::sync::Arc;

use anyhow::Result;
use transload::{Buffer, TransferManager};

use plain::Desk;

/// A third party's backend whose operation never ends, and one whose operations end when the case says so.
pub(super) const STALLS: &str = "stalls";
pub(super) const LATER: &str = "later";

/// A manager with the host and the two backends.
pub(super) struct Scene {
    pub(super) manager: TransferManager,
    pub(super) stalls: Arc<Desk>,
    pub(super) later: Arc<Desk>,
}

impl Scene {
    pub(super) fn new() -> Scene {
        let (manager, desks) = plain::manager(&[STALLS, LATER]);
        let [stalls, later] = [0, 1].map(|at| Arc::clone(&desks[at]));
        Scene {
            manager,
            stalls,
            later,
        }
    }
}

/// A copy that is going to stall.
pub(super) struct Pair {
    pub(super) src: Buffer,
    pub(super) dst: Buffer,
    /// Returns when the copy has stalled.
    pub(super) stalled: Box<dyn FnOnce() -> Result<()>>,
    pub(super) release: Box<dyn FnOnce() -> Result<()>>,
    /// Whether every byte has arrived.
    pub(super) check: Box<dyn FnOnce() -> Result<bool>>,
}
