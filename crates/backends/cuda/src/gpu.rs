//! One device: its facts, and its state once it is opened.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use transload_hal::{DeviceId, ErrorClass, Fault};

use crate::context::Context;
use crate::facts::Facts;
use crate::queue::{Lane, Sink, Way};
use crate::raw::{CUdevice, Driver};
use crate::reaper::Reapers;

/// A device.
pub(crate) struct Gpu {
    pub(crate) id: DeviceId,
    /// Its position among the devices of the backend.
    pub(crate) number: usize,
    pub(crate) device: CUdevice,
    pub(crate) facts: Facts,
    driver: Arc<Driver>,
    sink: Sink,
    reapers: Reapers,
    opened: OnceLock<Opened>,
    opening: Mutex<()>,
}

/// The state of a device after its first use.
pub(crate) struct Opened {
    pub(crate) context: Arc<Context>,
    pub(crate) registers_read_only: bool,
    lanes: [Lane; Way::ALL.len()],
}

impl Gpu {
    pub(crate) fn new(
        driver: &Arc<Driver>,
        (sink, reapers): (&Sink, Reapers),
        (number, id): (usize, DeviceId),
        device: CUdevice,
        facts: Facts,
    ) -> Gpu {
        Gpu {
            id,
            number,
            device,
            facts,
            driver: Arc::clone(driver),
            sink: Arc::clone(sink),
            reapers,
            opened: OnceLock::new(),
            opening: Mutex::new(()),
        }
    }

    /// Returns the device's state; the first caller opens the device. If that fails, the next caller tries again.
    pub(crate) fn open(&self) -> Result<&Opened, Fault> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let _turn = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let refused = |fault: Fault| {
            let message = format!("{} cannot be opened: {}", self.id, fault.message);
            // A device that was never opened is not lost: the next attempt may succeed.
            let class = match fault.class {
                ErrorClass::Lost => ErrorClass::Failed,
                class => class,
            };
            Fault::new(class, message)
        };
        let context = Context::open(
            &self.driver,
            self.id,
            self.device,
            &self.facts,
            &self.reapers,
        );
        let context = context.map_err(refused)?;
        let mut lanes = Vec::with_capacity(Way::ALL.len());
        for way in Way::ALL {
            let number = (self.number, way);
            let lane = Lane::new(&context, &self.sink, number, &self.facts);
            lanes.push(lane.map_err(refused)?);
        }
        let lanes = match lanes.try_into() {
            Ok(lanes) => lanes,
            Err(_) => unreachable!("one was made for each way"),
        };
        Ok(self.opened.get_or_init(|| Opened {
            context,
            registers_read_only: self.facts.registers_read_only,
            lanes,
        }))
    }

    /// The device's state, or `None` before its first use.
    pub(crate) fn opened(&self) -> Option<&Opened> {
        self.opened.get()
    }
}

impl Opened {
    pub(crate) fn lane(&self, way: Way) -> &Lane {
        &self.lanes[way as usize]
    }

    pub(crate) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }
}

/// A working device: one that is open already, else the first that can be opened. Memory that one device registers is
/// reached by all.
pub(crate) fn any(gpus: &[Gpu]) -> Result<&Opened, Fault> {
    let mut refusal = Fault::new(ErrorClass::Unsupported, "there is no CUDA device");
    let is_lost = |opened: &Opened| opened.context.lost().cloned();
    let mut opened = gpus.iter().filter_map(Gpu::opened);
    if let Some(opened) = opened.find(|opened| is_lost(opened).is_none()) {
        return Ok(opened);
    }
    for gpu in gpus {
        match gpu.open() {
            Ok(opened) => match is_lost(opened) {
                None => return Ok(opened),
                Some(fault) => refusal = fault,
            },
            Err(fault) => refusal = fault,
        }
    }
    Err(refusal)
}

/// Calls the function with any working device, and with the next one if a device turns out to be lost.
pub(crate) fn by_any<T>(
    gpus: &[Gpu],
    mut act: impl FnMut(&Opened) -> Result<T, Fault>,
) -> Result<T, Fault> {
    loop {
        let opened = any(gpus)?;
        match act(opened) {
            // A lost device is not tried again.
            Err(_) if opened.context.lost().is_some() => {}
            answer => return answer,
        }
    }
}
