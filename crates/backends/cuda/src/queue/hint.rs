//! Hints to the driver about managed memory. The driver may refuse each of them: the bytes are reachable without
//! hints.

use transload_hal::MemoryKind;
use transload_hal::{Advice, DeviceId, DeviceKind, ErrorClass, Part};

use super::enqueue::Enqueuer;
use super::moves::{End, Move, Reason, gpu_of};
use crate::capture::relax;
use crate::gpu::Gpu;
use crate::memory::PINNED;
use crate::raw::{CUdevice, CUdeviceptr, CUmem_advise, CUmemLocation, CallError};

/// A hint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hint {
    /// Bring the bytes there.
    Prefetch(CUdevice),
    /// How the bytes will be used. The device is ignored for advice that concerns no particular device.
    Advise(CUmem_advise, CUdevice),
}

impl Move {
    /// The hint to bring bytes to a device. Memory that is not managed stays where it is.
    pub(super) fn prefetch(
        gpus: &[Gpu],
        part: &Part<'_>,
        to: DeviceId,
    ) -> Result<Option<Move>, Reason> {
        let Some((gpu, address)) = managed(gpus, part)? else {
            return Ok(None);
        };
        let to = device_of(gpus, to)
            .ok_or_else(|| Reason::from(format!("{to} has no memory of these devices' driver")))?;
        Ok(Some(Move::Hint {
            gpu,
            address,
            len: part.len_bytes,
            hint: Hint::Prefetch(to),
        }))
    }

    /// The hint for advice. Advice that does not apply to managed memory, or that names a device of another
    /// backend, is ignored.
    pub(super) fn advise(
        gpus: &[Gpu],
        part: &Part<'_>,
        advice: Advice,
    ) -> Result<Option<Move>, Reason> {
        use CUmem_advise as Word;
        let any = Some(CUdevice::CU_DEVICE_CPU);
        let (word, device) = match advice {
            Advice::MostlyRead => (Word::CU_MEM_ADVISE_SET_READ_MOSTLY, any),
            Advice::NotMostlyRead => (Word::CU_MEM_ADVISE_UNSET_READ_MOSTLY, any),
            Advice::KeptAt(device) => (
                Word::CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                device_of(gpus, device),
            ),
            Advice::KeptAnywhere => (Word::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, any),
            Advice::UsedBy(device) => {
                (Word::CU_MEM_ADVISE_SET_ACCESSED_BY, device_of(gpus, device))
            }
            Advice::NotUsedBy(device) => (
                Word::CU_MEM_ADVISE_UNSET_ACCESSED_BY,
                device_of(gpus, device),
            ),
            _ => return Ok(None),
        };
        let Some(((gpu, address), device)) = managed(gpus, part)?.zip(device) else {
            return Ok(None);
        };
        Ok(Some(Move::Hint {
            gpu,
            address,
            len: part.len_bytes,
            hint: Hint::Advise(word, device),
        }))
    }
}

impl Enqueuer<'_> {
    /// Passes a hint to the driver. Fails only if the device is lost.
    pub(super) fn hint(
        &self,
        (address, len): (CUdeviceptr, u64),
        hint: Hint,
    ) -> Result<(), CallError> {
        let bytes = len as usize;
        let told = match hint {
            Hint::Prefetch(to) => self.tell_prefetch((address, bytes), to),
            Hint::Advise(advice, device) => self.tell_advice((address, bytes), advice, device),
        };
        let Err(error) = told else {
            return Ok(());
        };
        let fault = self.lane.context.blame(error, self.lane.stream);
        match fault.class {
            ErrorClass::Lost => Err(error),
            _ => Ok(()),
        }
    }

    /// Uses the signature that the driver has; the later one if it has both.
    fn tell_prefetch(
        &self,
        (address, bytes): (CUdeviceptr, usize),
        to: CUdevice,
    ) -> Result<(), CallError> {
        let (driver, stream) = (self.driver(), self.lane.stream);
        if driver.table().cuMemPrefetchAsync_v2.is_some() {
            let place = place_of(to);
            // SAFETY: moves no byte to another address.
            return unsafe { driver.cuMemPrefetchAsync_v2(address, bytes, place, 0, stream) };
        }
        // SAFETY: as above.
        unsafe { driver.cuMemPrefetchAsync(address, bytes, to, stream) }
    }

    /// As [`Enqueuer::tell_prefetch`]. Advice takes effect at once, not in the stream's order.
    fn tell_advice(
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

/// The device, by its position, and the address of managed memory; none where the memory is of another kind.
fn managed(gpus: &[Gpu], part: &Part<'_>) -> Result<Option<(usize, CUdeviceptr)>, Reason> {
    if part.buffer.memory() == PINNED {
        return Ok(None);
    }
    let gpu = gpu_of(gpus, part.buffer)?;
    if part.buffer.memory().kind != MemoryKind::Managed || part.len_bytes == 0 {
        return Ok(None);
    }
    match End::of(gpus, part)? {
        End::Device { address, .. } => Ok(Some((gpu.number, address))),
        End::Host(_) => Ok(None),
    }
}

/// The driver's handle of a device; `None` for a device of another backend.
fn device_of(gpus: &[Gpu], id: DeviceId) -> Option<CUdevice> {
    match id.kind {
        DeviceKind::CPU => Some(CUdevice::CU_DEVICE_CPU),
        _ => gpus.iter().find(|gpu| gpu.id == id).map(|gpu| gpu.device),
    }
}

fn place_of(device: CUdevice) -> CUmemLocation {
    match device {
        CUdevice::CU_DEVICE_CPU => CUmemLocation::HOST,
        device => CUmemLocation::device(device.0),
    }
}
