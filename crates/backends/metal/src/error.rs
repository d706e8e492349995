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
#[non_exhaustive]
pub struct Absent {
    /// The id that it would have.
    pub device: DeviceId,
    /// The reason.
    pub reason: AbsentReason,
}

/// Why a device is not used. Metal gives no reasons, and may refuse while a device is being removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AbsentReason {
    /// The device gives too few command queues.
    #[error("Metal gave {made} of {needed} command queues, then newCommandQueue gave nothing")]
    NoQueue {
        /// The number of queues that it gave.
        made: usize,
        /// The number of queues that the backend needs.
        needed: usize,
    },
    /// The device gives too few events.
    #[error("Metal gave {made} of {needed} events, then newSharedEvent gave nothing")]
    NoEvent {
        /// The number of events that it gave.
        made: usize,
        /// The number of events that the backend needs.
        needed: usize,
    },
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
