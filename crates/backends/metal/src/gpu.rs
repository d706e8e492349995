//! One device: its facts, its lanes, and whether it is lost.

use transload_hal::{DeviceId, Fault};

use crate::error::AbsentReason;
use crate::memory::{CoherenceMap, Hosted};
use crate::queue::{Lane, Way};
use crate::raw::{Device, Facts, facts};
use crate::types::{Lost, Sink};

/// A device.
pub(crate) struct Gpu {
    pub(crate) id: DeviceId,
    /// Its position among the devices of the backend.
    pub(crate) number: usize,
    pub(crate) device: Device,
    pub(crate) facts: Facts,
    /// Host memory that it reaches in place for longer than a submission.
    pub(crate) hosted: Hosted,
    /// Which copies of its managed buffers are the newer ones.
    pub(crate) coherence: CoherenceMap,
    lost: Lost,
    lanes: [Lane; Way::ALL.len()],
}

impl Gpu {
    /// # Errors
    /// If the device gives no queue, as may happen while it is being removed.
    pub(crate) fn new(
        (number, id): (usize, DeviceId),
        device: Device,
        sink: &Sink,
    ) -> Result<Gpu, AbsentReason> {
        let lost = Lost::default();
        let facts = facts(&device);
        let mut lanes = Vec::with_capacity(Way::ALL.len());
        for way in Way::ALL {
            lanes.push(Lane::new(&device, (number, way), sink, &lost)?);
        }
        let lanes = match lanes.try_into() {
            Ok(lanes) => lanes,
            Err(_) => unreachable!("one was made for each way"),
        };
        Ok(Gpu {
            id,
            number,
            device,
            facts,
            hosted: Hosted::default(),
            coherence: CoherenceMap::default(),
            lost,
            lanes,
        })
    }

    /// Whether the device has managed memory: only macOS has that mode, and only if host and device do not share
    /// one memory.
    pub(crate) fn has_managed(&self) -> bool {
        let is_offered = cfg!(any(target_os = "macos", transload_metal_double));
        is_offered && !self.facts.is_unified
    }

    pub(crate) fn lost(&self) -> Option<&Fault> {
        self.lost.get()
    }

    pub(crate) fn lane(&self, way: Way) -> &Lane {
        &self.lanes[way as usize]
    }

    pub(crate) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }
}
