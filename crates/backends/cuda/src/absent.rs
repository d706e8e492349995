//! Devices that the backend does not use.

use transload_hal::DeviceId;

/// A device that exists and that the backend does not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The id that it would have.
    pub device: DeviceId,
    /// The reason.
    pub reason: String,
}
