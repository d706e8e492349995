//! Hints to the driver about managed memory. The driver may refuse each of them: the bytes are reachable without
//! hints.

use transload_hal::ErrorClass;

use super::enqueue::Enqueuer;
use super::moves::Hint;
use crate::capture::relax;
use crate::raw::{CUdevice, CUdeviceptr, CUmem_advise, CUmemLocation, CallError};

impl Enqueuer<'_> {
    /// Passes a hint to the driver. Fails only if the device is lost.
    pub(super) fn hint(
        &self,
        (address, len): (CUdeviceptr, u64),
        hint: Hint,
    ) -> Result<(), CallError> {
        let bytes = len as usize;
        let told = match hint {
            Hint::Prefetch(to) => self.prefetch((address, bytes), to),
            Hint::Advise(advice, device) => self.advise((address, bytes), advice, device),
        };
        let Err(error) = told else {
            return Ok(());
        };
        let fault = self.context.blame(error, self.stream);
        match fault.class {
            ErrorClass::Lost => Err(error),
            _ => Ok(()),
        }
    }

    /// Uses the signature that the driver has; the later one if it has both.
    fn prefetch(
        &self,
        (address, bytes): (CUdeviceptr, usize),
        to: CUdevice,
    ) -> Result<(), CallError> {
        let (driver, stream) = (self.driver(), self.stream);
        if driver.table().cuMemPrefetchAsync_v2.is_some() {
            let place = place_of(to);
            // SAFETY: moves no byte to another address.
            return unsafe { driver.cuMemPrefetchAsync_v2(address, bytes, place, 0, stream) };
        }
        // SAFETY: as above.
        unsafe { driver.cuMemPrefetchAsync(address, bytes, to, stream) }
    }

    /// As [`Enqueuer::prefetch`]. Advice takes effect at once, not in the stream's order.
    fn advise(
        &self,
        (address, bytes): (CUdeviceptr, usize),
        advice: CUmem_advise,
        device: CUdevice,
    ) -> Result<(), CallError> {
        let driver = self.driver();
        let _relaxed = relax(driver);
        if driver.table().cuMemAdvise_v2.is_some() {
            // SAFETY: changes no byte.
            return unsafe { driver.cuMemAdvise_v2(address, bytes, advice, place_of(device)) };
        }
        // SAFETY: as above.
        unsafe { driver.cuMemAdvise(address, bytes, advice, device) }
    }
}

fn place_of(device: CUdevice) -> CUmemLocation {
    match device {
        CUdevice::CU_DEVICE_CPU => CUmemLocation::HOST,
        device => CUmemLocation::device(device.0),
    }
}
