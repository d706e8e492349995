//! Errors of watching a submission of the user's own.

use transload_hal::{DeviceId, ErrorClass, Fault};

/// Why the end of a submission cannot be watched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The device does not belong to this backend.
    #[error("the device is not among the {devices} of this backend")]
    UnknownDevice {
        /// The number of devices of this backend.
        devices: usize,
    },
    /// The device has no such submission.
    #[error(
        "{device} has no submission {number}, its last is {last}: another device made it, or it was \
         refused"
    )]
    UnknownSubmission {
        /// The device.
        device: DeviceId,
        /// The submission's number.
        number: u64,
        /// The number of the device's last submission.
        last: u64,
    },
    /// The device is lost.
    #[error("device {device} is lost: {fault}")]
    Lost {
        /// The device.
        device: DeviceId,
        /// How it was lost.
        fault: Fault,
    },
}

impl WatchError {
    /// The category of the error. Use it to decide whether to retry.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            WatchError::UnknownDevice { .. } | WatchError::UnknownSubmission { .. } => {
                ErrorClass::Caller
            }
            WatchError::Lost { .. } => ErrorClass::Lost,
        }
    }
}
