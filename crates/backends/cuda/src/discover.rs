//! Which devices there are, and why others are not.

use std::sync::{Arc, OnceLock};

use transload_hal::core::DeviceKind;
use transload_hal::{DeviceId, ErrorClass};

use crate::device::Cuda;
use crate::facts::Facts;
use crate::gpu::Gpu;
use crate::raw::{
    CUcomputemode, CUdevice, CUdevice_attribute, CUresult, CallError, Driver, Function, LoadError,
    Source, Version,
};
use crate::reaper::Reapers;
use crate::wires::{Asked, Wires};

/// The first CUDA whose driver has all that this backend cannot do without.
const OLDEST: Version = Version::new(11, 0);

/// Functions that are older, and that a driver may lack all the same: hints, of which it may know a later signature.
const SPARE: [&str; 2] = ["cuMemPrefetchAsync", "cuMemAdvise"];

/// Why there is no CUDA here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no driver, or it cannot be loaded.
    #[error(transparent)]
    NoDriver(#[from] LoadError),
    /// The library is one to link programs with, of a toolkit, and no driver.
    #[error(
        "{source_of} is a toolkit's stub for linking, not a driver: the driver comes with the display driver"
    )]
    Stub {
        /// Where it was loaded from.
        source_of: Source,
    },
    /// The driver lacks what the backend cannot do without.
    #[error(
        "the driver is of CUDA {driver} and has no {function}: the oldest that will do is CUDA {oldest}"
    )]
    TooOld {
        /// What the driver says of itself.
        driver: Version,
        /// The oldest that would do.
        oldest: Version,
        /// The first function that is missing.
        function: &'static str,
    },
    /// The driver finds no device, or none that may be used.
    #[error("the driver of CUDA {driver} has no device for this process{}", reasons(.absent))]
    NoDevice {
        /// What the driver says of itself.
        driver: Version,
        /// Devices that are there and may not be used.
        absent: Vec<Absent>,
    },
    /// The driver does not start.
    #[error("the driver does not start: {0}")]
    Failed(#[source] CallError),
}

/// A device that is there and takes no part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// What it would be called.
    pub device: DeviceId,
    /// Why not.
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
            OpenError::Failed(_) => ErrorClass::Failed,
            _ => ErrorClass::Unsupported,
        }
    }
}

impl Cuda {
    /// Every device that the driver of this machine shows to this process: `cuda:0` is its device 0. The environment
    /// variable `CUDA_VISIBLE_DEVICES` hides devices and changes their order, as everywhere in CUDA.
    ///
    /// Does not open the devices: opening one takes time and device memory, and happens at its first use.
    ///
    /// # Errors
    /// When there is no driver, it is older than CUDA 11.0, it does not start, or it has no device that this process
    /// may use.
    pub fn discover() -> Result<Cuda, OpenError> {
        Cuda::with_driver(Driver::load()?)
    }

    /// The same with a driver of the caller's choice.
    ///
    /// # Errors
    /// As [`Cuda::discover`].
    pub fn with_driver(driver: Driver) -> Result<Cuda, OpenError> {
        // Nothing of this machine is a stand-in's.
        let wires = match driver.is_stand_in() {
            true => |_: &[Asked]| Wires::default(),
            false => Wires::discover,
        };
        Cuda::with_wires(driver, wires)
    }

    /// The same, with the wiring of the devices given by the caller: the closure gets the devices found. If the
    /// kernel's device tree is mounted elsewhere, use [`Wires::of_tree`].
    ///
    /// # Errors
    /// As [`Cuda::discover`].
    pub fn with_wires(
        driver: Driver,
        wires: impl FnOnce(&[Asked]) -> Wires,
    ) -> Result<Cuda, OpenError> {
        // SAFETY: flags are zero.
        match unsafe { driver.cuInit(0) } {
            Ok(()) => {}
            Err(error) if error.is(CUresult::CUDA_ERROR_STUB_LIBRARY) => {
                let source_of = driver.source().clone();
                return Err(OpenError::Stub { source_of });
            }
            Err(error) if error.is(CUresult::CUDA_ERROR_NO_DEVICE) => {
                return Err(OpenError::NoDevice {
                    driver: driver.version(),
                    absent: Vec::new(),
                });
            }
            Err(error) => return Err(OpenError::Failed(error)),
        }
        let needed = |function: &&'static Function| {
            function.since <= OLDEST && !SPARE.contains(&function.name)
        };
        if let Some(missing) = driver.missing().find(needed) {
            return Err(OpenError::TooOld {
                driver: driver.version(),
                oldest: OLDEST,
                function: missing.name,
            });
        }
        let mut count = 0;
        // SAFETY: the place is ours.
        unsafe { driver.cuDeviceGetCount(&raw mut count) }.map_err(OpenError::Failed)?;
        let driver = Arc::new(driver);
        let sink = Arc::new(OnceLock::new());
        let reapers = Reapers::new();
        let mut gpus = Vec::new();
        let mut absent = Vec::new();
        for ordinal in 0..count {
            let id = DeviceId::new(DeviceKind::CUDA, ordinal.unsigned_abs());
            match look(&driver, ordinal) {
                Ok((device, facts)) => {
                    gpus.push(Gpu::new(
                        &driver,
                        (&sink, reapers.another()),
                        (gpus.len(), id),
                        device,
                        facts,
                    ));
                }
                Err(reason) => absent.push(Absent { device: id, reason }),
            }
        }
        if gpus.is_empty() {
            return Err(OpenError::NoDevice {
                driver: driver.version(),
                absent,
            });
        }
        let asked = |gpu: &Gpu| Asked {
            pci: gpu.facts.pci,
            uuid: gpu.facts.uuid,
        };
        let asked: Vec<Asked> = gpus.iter().map(asked).collect();
        let wires = wires(&asked);
        Ok(Cuda::new(driver, gpus, absent, sink, &wires))
    }
}

/// The device of an ordinal, or why it takes no part.
fn look(driver: &Driver, ordinal: i32) -> Result<(CUdevice, Facts), String> {
    let mut device = CUdevice::CU_DEVICE_INVALID;
    // SAFETY: the place is ours.
    unsafe { driver.cuDeviceGet(&raw mut device, ordinal) }.map_err(|error| error.to_string())?;
    let mut mode = 0;
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE;
    // SAFETY: as above.
    let asked = unsafe { driver.cuDeviceGetAttribute(&raw mut mode, attribute, device) };
    let prohibited = CUcomputemode::CU_COMPUTEMODE_PROHIBITED.0 as i32;
    if asked.is_ok() && mode == prohibited {
        return Err("its compute mode prohibits contexts".into());
    }
    let facts = Facts::of(driver, device).map_err(|error| error.to_string())?;
    Ok((device, facts))
}
