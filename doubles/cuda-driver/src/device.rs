//! Devices and their attributes.
//!
//! Source of every function here: CUDA Driver API, Device Management; of the attributes: `CUdevice_attribute`
//! there, and the compute capability 9.0 column of the CUDA C++ Programming Guide, Compute Capabilities.

mod functions;

use std::sync::OnceLock;

use transload_cuda::raw::CUresult;

pub use self::functions::*;
use crate::context::Primary;
use crate::machine::DeviceDescription;
use crate::physical::Physical;

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) description: DeviceDescription,
    /// The context that the whole process shares.
    pub(crate) primary: Primary,
    memory: OnceLock<Physical>,
}

impl Device {
    /// Its memory, which takes no host memory until it is written.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when the host has no addresses for it.
    pub(crate) fn memory(&self) -> Result<&Physical, CUresult> {
        if self.memory.get().is_none() {
            let made = Physical::new(self.description.memory_bytes);
            let made = made.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
            // The caller holds the state's lock, so no other thread does this meanwhile.
            let _ = self.memory.set(made);
        }
        self.memory.get().ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    pub(crate) fn new(description: &DeviceDescription) -> Device {
        Device {
            description: description.clone(),
            primary: Primary::default(),
            memory: OnceLock::new(),
        }
    }
}
