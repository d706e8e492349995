//! Why no backend is opened, and why a device is not used.

use transload_hal::{DeviceId, ErrorClass};

/// Why no Metal backend could be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Metal lists no device, or none that works.
    #[error("Metal has no device for this process{}", reasons(.absent))]
    NoDevice {
        /// Devices that exist and give no queue.
        absent: Vec<Absent>,
    },
}

/// A device that exists and that the backend does not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The id that it would have.
    pub device: DeviceId,
    /// The reason.
    pub reason: String,
}

fn reasons(absent: &[Absent]) -> String {
    let told = |absent: &Absent| format!("; {}: {}", absent.device, absent.reason);
    absent.iter().map(told).collect()
}

impl OpenError {
    /// The category of the error. Use it to decide whether to retry.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            OpenError::NoDevice { .. } => ErrorClass::Unsupported,
        }
    }
}
