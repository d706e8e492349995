//! Devices that the backend does not use.

use transload_hal::DeviceId;

use crate::raw::CallError;

/// A device that exists and that the backend does not use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Absent {
    /// The id that it would have.
    pub device: DeviceId,
    /// The reason.
    pub reason: AbsentReason,
}

/// Why the backend does not use a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AbsentReason {
    /// Its compute mode is `CU_COMPUTEMODE_PROHIBITED`.
    #[error("its compute mode prohibits contexts")]
    Prohibited,
    /// The driver refused a query about the device.
    #[error(transparent)]
    Refused(#[from] CallError),
}
