//! Discovery of devices, and the reasons why others are not used.

use std::sync::{Arc, OnceLock};

use transload_hal::DeviceKind;
use transload_hal::{DeviceId, ErrorClass};

use crate::absent::{Absent, AbsentReason};
use crate::device::Cuda;
use crate::facts::Facts;
use crate::gpu::Gpu;
use crate::interconnect::{DeviceQuery, Interconnect};
use crate::raw::{
    CUcomputemode, CUdevice, CUdevice_attribute, CUresult, CallError, Driver, Function, LoadError,
    Source, Version,
};
use crate::reaper::Reapers;

/// The first CUDA version whose driver has every function that this backend requires.
const OLDEST: Version = Version::new(11, 0);

/// Functions that are older, and that a driver may still lack: hints, of which it may have only a later signature.
const SPARE: [&str; 2] = ["cuMemPrefetchAsync", "cuMemAdvise"];

/// Why no CUDA backend could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no driver, or it cannot be loaded.
    #[error(transparent)]
    NoDriver(#[from] LoadError),
    /// The library is a toolkit's stub for linking, and no driver.
    #[error(
        "{source_of} is a toolkit's stub for linking, not a driver: the driver comes with the display driver"
    )]
    Stub {
        /// The source that it was loaded from.
        source_of: Source,
    },
    /// The driver lacks a function that the backend requires.
    #[error(
        "the driver is of CUDA {driver} and has no {function}: the oldest that will do is CUDA {oldest}"
    )]
    TooOld {
        /// The CUDA version that the driver reports.
        driver: Version,
        /// The oldest CUDA version that the backend supports.
        oldest: Version,
        /// The first function that is missing.
        function: &'static str,
    },
    /// The driver finds no device, or none that the backend may use.
    #[error("the driver of CUDA {driver} has no device for this process{}", reasons(.absent))]
    NoDevice {
        /// The CUDA version that the driver reports.
        driver: Version,
        /// Devices that exist and may not be used.
        absent: Vec<Absent>,
    },
    /// Starting the driver failed.
    #[error("the driver does not start: {0}")]
    Failed(CallError),
}

fn reasons(absent: &[Absent]) -> String {
    let reason = |absent: &Absent| format!("; {}: {}", absent.device, absent.reason);
    absent.iter().map(reason).collect()
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
    /// Makes a backend of every device that this machine's driver shows to this process; `cuda:0` is the driver's
    /// device 0. The environment variable `CUDA_VISIBLE_DEVICES` hides devices and changes their order, as
    /// everywhere in CUDA.
    ///
    /// Does not open the devices: opening one takes time and device memory, and happens at its first use.
    ///
    /// # Errors
    /// If there is no driver, or the driver is older than CUDA 11.0, does not start, or has no device that this
    /// process may use.
    pub fn discover() -> Result<Cuda, OpenError> {
        Cuda::with_driver(Driver::load()?)
    }

    /// The same as [`Cuda::discover`], with the caller's driver.
    ///
    /// # Errors
    /// As [`Cuda::discover`].
    pub fn with_driver(driver: Driver) -> Result<Cuda, OpenError> {
        // A stand-in's devices have no wiring on this machine.
        let interconnect = match driver.is_stand_in() {
            true => |_: &[DeviceQuery]| Interconnect::default(),
            false => Interconnect::discover,
        };
        Cuda::with_interconnect(driver, interconnect)
    }

    /// The same as [`Cuda::with_driver`], with the wiring of the devices given by the caller: the closure gets the
    /// devices found. If the kernel's device tree is mounted elsewhere, use [`Interconnect::of_tree`].
    ///
    /// # Errors
    /// As [`Cuda::discover`].
    pub fn with_interconnect(
        driver: Driver,
        interconnect: impl FnOnce(&[DeviceQuery]) -> Interconnect,
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
            match inspect(&driver, ordinal) {
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
        let query = |gpu: &Gpu| DeviceQuery::new(gpu.facts.pci, gpu.facts.uuid);
        let queries: Vec<DeviceQuery> = gpus.iter().map(query).collect();
        let interconnect = interconnect(&queries);
        Ok(Cuda::new(driver, gpus, absent, sink, &interconnect))
    }
}

/// The device of an ordinal, or why it is not used.
fn inspect(driver: &Driver, ordinal: i32) -> Result<(CUdevice, Facts), AbsentReason> {
    let mut device = CUdevice::CU_DEVICE_INVALID;
    // SAFETY: the place is ours.
    unsafe { driver.cuDeviceGet(&raw mut device, ordinal) }?;
    let mut mode = 0;
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE;
    // SAFETY: as above.
    let asked = unsafe { driver.cuDeviceGetAttribute(&raw mut mode, attribute, device) };
    let prohibited = CUcomputemode::CU_COMPUTEMODE_PROHIBITED.0 as i32;
    if asked.is_ok() && mode == prohibited {
        return Err(AbsentReason::Prohibited);
    }
    let facts = Facts::of(driver, device)?;
    Ok((device, facts))
}
