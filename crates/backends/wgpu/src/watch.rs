//! What may be wrong with a submission of the user's own, whose end somebody wants to hear of.

use transload_hal::{DeviceId, ErrorClass, Fault};

/// Why nobody is told of the end of a submission.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The device is none of this backend's.
    #[error("the device is not among the {devices} of this backend")]
    UnknownDevice {
        /// How many there are.
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
        /// The submission.
        number: u64,
        /// The device's last one.
        last: u64,
    },
    /// The device is gone.
    #[error("device {device} is lost: {fault}")]
    Lost {
        /// The device.
        device: DeviceId,
        /// How.
        fault: Fault,
    },
}

impl WatchError {
    /// Whose turn it is now.
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
