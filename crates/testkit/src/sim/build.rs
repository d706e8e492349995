//! How a machine description becomes a sim.

use std::sync::{Arc, Condvar, Mutex, OnceLock};

use transload_core::schema::{Machine, SchemaError};
use transload_hal::{Curve, DeviceId, DeviceKind, EngineId, Inventory, Link, LinkId, MemoryId};

use super::completion::{Completion, Hook};
use super::memory::MemoryUse;
use super::script::Script;
use super::state::State;
use super::{BACKEND, Shared, Sim, SimClock};

/// Which backend provides the memories of the processors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HostSide {
    /// The sim: the whole machine is simulated, exact to the nanosecond.
    #[default]
    Simulated,
    /// A backend of the real host. The sim brings its own devices, and keeps their links to
    /// memories of `cpu:0`; it moves bytes of foreign buffers that the host can address.
    Real,
}

/// Collects what a sim shall be like.
pub struct Builder {
    machine: Machine,
    host: HostSide,
    completion: Completion,
    script: Script,
    hook: Option<Arc<dyn Hook>>,
}

/// What a link costs and needs, sorted by its ends so that it is found without a map.
pub(crate) struct LinkRow {
    pub(super) id: LinkId,
    pub(super) src: MemoryId,
    pub(super) dst: MemoryId,
    pub(super) engine: usize,
    pub(super) pitched: bool,
    pub(super) cost: Curve,
    pub(super) devices: u64,
    /// The device that is lost when a script loses one here.
    pub(super) victim: Option<usize>,
}

impl Sim {
    /// The whole machine, settling by time, without faults.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(machine: &Machine) -> Result<Sim, BuildError> {
        Sim::builder(machine).build()
    }

    /// A machine to choose more of.
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

/// Why a description makes no sim.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Something is wrong with the description.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// A device that is neither a processor nor simulated; a sim does not pose as hardware.
    #[error("device {device} in a simulated machine: only cpu and sim devices can be simulated")]
    ForeignDevice {
        /// The device.
        device: DeviceId,
    },
    /// More devices than a sim keeps apart.
    #[error("a simulated machine has at most {limit} devices, and this one has {devices}")]
    TooManyDevices {
        /// How many it has.
        devices: usize,
        /// How many are possible.
        limit: usize,
    },
}

impl Builder {
    /// Sets which backend provides the processors' memories.
    pub fn host(mut self, host: HostSide) -> Builder {
        self.host = host;
        self
    }

    /// How outcomes are told.
    pub fn completion(mut self, completion: Completion) -> Builder {
        self.completion = completion;
        self
    }

    /// Which faults strike.
    pub fn script(mut self, script: Script) -> Builder {
        self.script = script;
        self
    }

    /// What [`Completion::Reentrant`] calls.
    pub fn hook(mut self, hook: impl Hook + 'static) -> Builder {
        self.hook = Some(Arc::new(hook));
        self
    }

    /// The sim.
    ///
    /// # Errors
    /// A description that makes no machine, or names devices that cannot be simulated.
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
        let state = State::new(
            self.completion,
            engines,
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

/// As many as there are bits in the mask of an operation's devices.
const MAX_DEVICES: usize = 64;

fn leave_out_host(inventory: &mut Inventory) {
    let is_host = |memory: MemoryId| memory.device.kind == DeviceKind::CPU;
    inventory
        .devices
        .retain(|device| device.id.kind != DeviceKind::CPU);
    inventory.memories.retain(|memory| !is_host(memory.id));
    inventory.links.retain(|link| {
        let ends = [link.id.src, link.id.dst];
        let foreign = |&end: &MemoryId| is_host(end) && end.device != DeviceId::CPU0;
        !ends.iter().all(|&end| is_host(end)) && !ends.iter().any(foreign)
    });
    inventory.transform = None;
}

fn rows(inventory: &Inventory, engines: &mut Vec<EngineId>) -> Vec<LinkRow> {
    let at = |device: DeviceId| inventory.devices.iter().position(|info| info.id == device);
    let bit = |device: DeviceId| at(device).map_or(0, |at| 1u64 << at);
    let victim = |link: &Link| {
        let candidates = [
            link.id.engine.device,
            link.id.dst.device,
            link.id.src.device,
        ];
        let hardware = |device: &DeviceId| device.kind != DeviceKind::CPU;
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
            engine: position(engines, link.id.engine),
            pitched: link.pitched,
            cost: link.cost.clone(),
            devices: bit(link.id.src.device) | bit(link.id.dst.device) | bit(link.id.engine.device),
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
