//! Discovery of devices, and the reasons why others are not used.

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::MTLDevice;
use transload_hal::{DeviceId, DeviceKind, ErrorClass};

use crate::device::Metal;
use crate::gpu::{Gpu, Sink};
use crate::raw::{Device, all_devices, pooled};

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

impl Metal {
    /// Makes a backend of every device of this machine, in Metal's order. Blocks while Metal finds the devices and makes a
    /// few command queues of each. [`Metal::absent`] lists devices that give no queue; the backend does not use them.
    ///
    /// # Errors
    /// If there is no device, or none gives a queue.
    pub fn discover() -> Result<Metal, OpenError> {
        Metal::of(pooled(|_| all_devices()))
    }

    /// Makes a backend of devices that the program has already; `metal:0` is the first. Their buffers can be imported. The
    /// program's own command queues are not affected: this backend makes its own.
    ///
    /// # Errors
    /// If there is no device, or none gives a queue.
    pub fn with_devices(
        devices: impl IntoIterator<Item = Retained<ProtocolObject<dyn MTLDevice>>>,
    ) -> Result<Metal, OpenError> {
        Metal::of(devices.into_iter().map(Device).collect())
    }

    fn of(devices: Vec<Device>) -> Result<Metal, OpenError> {
        let sink = Sink::default();
        let (mut gpus, mut absent) = (Vec::new(), Vec::new());
        for (index, device) in devices.into_iter().enumerate() {
            let id = DeviceId::new(DeviceKind::METAL, index as u32);
            let made = pooled(|_| Gpu::new((gpus.len(), id), device, &sink));
            match made {
                Ok(gpu) => gpus.push(gpu),
                Err(fault) => absent.push(Absent {
                    device: id,
                    reason: fault.to_string(),
                }),
            }
        }
        if gpus.is_empty() {
            return Err(OpenError::NoDevice { absent });
        }
        Ok(Metal::new(gpus, absent, sink))
    }
}
