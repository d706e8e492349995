//! Builds a sim from a machine description.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use transload_core::defaults::host_load;
use transload_core::schema::{Machine, SchemaError};
use transload_hal::{DeviceId, DeviceKind, EngineId, Inventory, Link, MemoryId};

use super::completion::{Completion, Hook};
use super::memory::MemoryUse;
use super::script::Script;
use super::shared::{BACKEND, LinkRow, Shared};
use super::state::{Needs, State};
use super::{Sim, SimClock};

/// The backend that provides the memories of the processors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HostSide {
    /// The sim provides them: the whole machine is simulated, exact to the nanosecond.
    #[default]
    Simulated,
    /// A backend of the real host provides them. The sim has only its own devices and their links
    /// to memories of `cpu:0`; it moves bytes of foreign buffers that the host can address.
    Real,
}

/// Collects the options of a sim.
pub struct Builder {
    machine: Machine,
    host: HostSide,
    completion: Completion,
    script: Script,
    hook: Option<Arc<dyn Hook>>,
}

impl Sim {
    /// Makes a sim of the whole machine, settling by time, without faults.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(machine: &Machine) -> Result<Sim, BuildError> {
        Sim::builder(machine).build()
    }

    /// Starts a sim with more options.
    pub fn builder(machine: &Machine) -> Builder {
        Builder {
            machine: machine.clone(),
            host: HostSide::default(),
            completion: Completion::default(),
            script: Script::new(),
            hook: None,
        }
    }
}

/// The reason why no sim could be built from a description.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The description is not valid.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// A device that is neither a processor nor simulated; a sim does not pose as hardware.
    #[error("device {device} in a simulated machine: only cpu and sim devices can be simulated")]
    ForeignDevice {
        /// The device.
        device: DeviceId,
    },
    /// The description has more devices than a sim can track.
    #[error("a simulated machine has at most {limit} devices, and this one has {devices}")]
    TooManyDevices {
        /// The number of devices in the description.
        devices: usize,
        /// The largest possible number.
        limit: usize,
    },
}

impl Builder {
    /// Sets which backend provides the processors' memories.
    pub fn host(mut self, host: HostSide) -> Builder {
        self.host = host;
        self
    }

    /// Sets how outcomes are reported.
    pub fn completion(mut self, completion: Completion) -> Builder {
        self.completion = completion;
        self
    }

    /// Sets the faults.
    pub fn script(mut self, script: Script) -> Builder {
        self.script = script;
        self
    }

    /// Sets the hook that [`Completion::Reentrant`] calls.
    pub fn hook(mut self, hook: impl Hook + 'static) -> Builder {
        self.hook = Some(Arc::new(hook));
        self
    }

    /// Builds the sim.
    ///
    /// # Errors
    /// If the description is no valid machine, or names devices that cannot be simulated.
    pub fn build(self) -> Result<Sim, BuildError> {
        let mut inventory = self.machine.inventory(BACKEND)?;
        for device in &inventory.devices {
            if !matches!(device.id.kind, DeviceKind::CPU | DeviceKind::SIM) {
                return Err(BuildError::ForeignDevice { device: device.id });
            }
        }
        if inventory.devices.len() > MAX_DEVICES {
            return Err(BuildError::TooManyDevices {
                devices: inventory.devices.len(),
                limit: MAX_DEVICES,
            });
        }
        if self.host == HostSide::Real {
            leave_out_host(&mut inventory);
        }
        let mut engines: Vec<EngineId> = Vec::new();
        let rows = rows(&inventory, &mut engines);
        let transform = inventory
            .transform
            .as_ref()
            .map(|(engine, _)| position(&mut engines, *engine));
        let pools = inventory
            .memories
            .iter()
            .map(|memory| MemoryUse::new(memory.id, memory.total_bytes.unwrap_or(u64::MAX)))
            .collect();
        let load = |engine: &EngineId| {
            let is_host = engine.device.is_host();
            let mut devices = inventory.devices.iter();
            let is_software = devices.any(|info| info.id == engine.device && info.software);
            host_load(is_host, !is_host && is_software)
        };
        let loads = engines.iter().map(load).collect();
        let state = State::new(
            self.completion,
            engines,
            loads,
            pools,
            inventory.devices.len(),
            self.script,
        );
        Ok(Sim {
            shared: Arc::new(Shared {
                name: self.machine.name,
                inventory,
                rows,
                transform,
                clock: SimClock::default(),
                sink: OnceLock::new(),
                hook: Mutex::new(self.hook),
                state: Mutex::new(state),
                delivered: Condvar::new(),
            }),
            #[cfg(transload_local)]
            _not_send: std::rc::Rc::new(()),
        })
    }
}

/// A cluster of ten thousand machines, and some devices beside it.
const MAX_DEVICES: usize = 1 << 14;

fn leave_out_host(inventory: &mut Inventory) {
    let is_host = |memory: MemoryId| memory.device.is_host();
    inventory.devices.retain(|device| !device.id.is_host());
    inventory.memories.retain(|memory| !is_host(memory.id));
    inventory.links.retain(|link| {
        let ends = [link.id.src, link.id.dst];
        let foreign = |&end: &MemoryId| is_host(end) && end.device != DeviceId::CPU0;
        !ends.iter().all(|&end| is_host(end)) && !ends.iter().any(foreign)
    });
    inventory.transform = None;
}

fn rows(inventory: &Inventory, engines: &mut Vec<EngineId>) -> Vec<LinkRow> {
    let numbers: BTreeMap<DeviceId, usize> = { inventory.devices.iter().enumerate() }
        .map(|(at, info)| (info.id, at))
        .collect();
    let at = |device: DeviceId| numbers.get(&device).copied();
    let mut positions = BTreeMap::new();
    let victim = |link: &Link| {
        let candidates = [
            link.id.engine.device,
            link.id.dst.device,
            link.id.src.device,
        ];
        let hardware = |device: &DeviceId| !device.is_host();
        let found = candidates.into_iter().find(hardware);
        at(found.unwrap_or(link.id.engine.device))
    };
    let mut rows: Vec<LinkRow> = inventory
        .links
        .iter()
        .map(|link| LinkRow {
            id: link.id,
            src: link.id.src,
            dst: link.id.dst,
            engine: *positions
                .entry(link.id.engine)
                .or_insert_with(|| position(engines, link.id.engine)),
            pitched: link.pitched,
            cost: link.cost.clone(),
            devices: Needs::of(
                [
                    link.id.src.device,
                    link.id.dst.device,
                    link.id.engine.device,
                ]
                .map(at),
            ),
            victim: victim(link),
        })
        .collect();
    rows.sort_by_key(|row| (row.src, row.dst));
    rows
}

fn position(engines: &mut Vec<EngineId>, engine: EngineId) -> usize {
    let at = engines.iter().position(|&known| known == engine);
    at.unwrap_or_else(|| {
        engines.push(engine);
        engines.len() - 1
    })
}
