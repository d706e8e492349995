//! Finding out what this machine has.

use std::sync::OnceLock;

use crate::{Error, TransferManager};

impl TransferManager {
    /// A manager with every backend of this build whose hardware is here.
    ///
    /// # Errors
    /// When the host's own memory cannot be used.
    pub fn discover() -> Result<TransferManager, Error> {
        let manager = TransferManager::new();
        manager.register_backend(transload_host::Host::new())?;
        Ok(manager)
    }

    /// The manager that the whole process shares, discovered by the first who asks.
    ///
    /// # Errors
    /// As [`TransferManager::discover`]; the next caller tries again.
    pub fn shared() -> Result<&'static TransferManager, Error> {
        static PROCESS: OnceLock<TransferManager> = OnceLock::new();
        if let Some(manager) = PROCESS.get() {
            return Ok(manager);
        }
        let manager = TransferManager::discover()?;
        Ok(PROCESS.get_or_init(|| manager))
    }
}
