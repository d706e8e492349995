//! Everything that the double keeps, behind one lock.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use transload_cuda::raw::CUresult;

use crate::answer::Answer;
use crate::capture::Captures;
use crate::config::{Config, FAULTS, TOPOLOGY};
use crate::context::Context;
use crate::device::Device;
use crate::engine::Engine;
use crate::event::Event;
use crate::external::External;
use crate::faults::Faults;
use crate::ipc::Ipc;
use crate::log::{self, Log};
use crate::machine::{Machine, Topology};
use crate::managed::Managed;
use crate::pool::Pools;
use crate::registry::{Registry, kind};
use crate::semaphore::Semaphore;
use crate::space::Space;
use crate::vmm::Vmm;
use crate::work::Streams;

/// The one machine of this library. Two copies of the library are two machines.
pub(crate) struct World {
    pub(crate) config: Config,
    /// Why the settings make no machine: `cuInit` fails then.
    pub(crate) trouble: Option<String>,
    pub(crate) machine: Machine,
    pub(crate) engine: Engine,
    pub(crate) faults: Faults,
    pub(crate) captures: Captures,
    pub(crate) log: Log,
    /// The process that called `cuInit`; 0 before. Not under the lock, which a fork may leave taken.
    process: AtomicU32,
    state: Mutex<State>,
}

/// The shared state of the functions. The file of its name handles each part.
pub(crate) struct State {
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: Registry<Context>,
    pub(crate) space: Space,
    pub(crate) managed: Managed,
    pub(crate) pools: Pools,
    pub(crate) vmm: Vmm,
    pub(crate) ipc: Ipc,
    pub(crate) externals: Registry<External>,
    pub(crate) semaphores: Registry<Semaphore>,
    pub(crate) streams: Streams,
    pub(crate) events: Registry<Event>,
}

impl State {
    fn new(machine: &Machine) -> State {
        State {
            devices: machine.devices().iter().map(Device::new).collect(),
            contexts: Registry::new(kind::CONTEXT),
            space: Space::default(),
            managed: Managed::default(),
            pools: Pools::new(),
            vmm: Vmm::new(),
            ipc: Ipc::default(),
            externals: Registry::new(kind::EXTERNAL),
            semaphores: Registry::new(kind::SEMAPHORE),
            streams: Streams::new(),
            events: Registry::new(kind::EVENT),
        }
    }

    /// The resources that should have been freed, a line each.
    pub(crate) fn leaks(&self) -> Vec<String> {
        let mut leaks = Vec::new();
        self.contexts.leaks(&mut leaks, "context");
        self.vmm.leaks(&mut leaks);
        self.externals.leaks(&mut leaks, "external memory");
        self.pools.leaks(&mut leaks);
        self.semaphores.leaks(&mut leaks, "external semaphore");
        leaks.extend(
            self.space
                .iter()
                .map(|of| format!("{:?} memory {:#x}, {} bytes", of.sort, of.base, of.size)),
        );
        self.streams.leaks(&mut leaks);
        self.events.leaks(&mut leaks, "event");
        leaks
    }
}

impl World {
    fn from_environment() -> World {
        let mut trouble = None;
        let config = Config::from_environment().unwrap_or_else(|error| {
            trouble = Some(error.to_string());
            Config::default()
        });
        let topology = match &config.topology {
            Some(path) => Topology::from_file(path).map_err(|error| format!("{TOPOLOGY}: {error}")),
            None => Ok(Topology::of(config.devices)),
        };
        let topology = topology.unwrap_or_else(|error| {
            trouble = Some(error);
            Topology::of(0)
        });
        let faults = Faults::default();
        if let Err(error) = faults.order(&config.faults) {
            trouble = Some(format!("{FAULTS}: {error}"));
        }
        let engine = Engine::new(config.clock);
        let machine = Machine::new(topology, &engine);
        World {
            state: Mutex::new(State::new(&machine)),
            config,
            trouble,
            machine,
            engine,
            faults,
            captures: Captures::default(),
            log: Log::default(),
            process: AtomicU32::new(0),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A call that panicked has reported that; later calls see the state that it left.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the driver in this process. A second time changes nothing.
    pub(crate) fn initialise(&self, process: u32) -> Answer {
        match self
            .process
            .compare_exchange(0, process, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => Ok(()),
            Err(before) if before == process => Ok(()),
            Err(_) => Err(CUresult::CUDA_ERROR_NOT_INITIALIZED),
        }
    }

    pub(crate) fn is_initialised_in(&self, process: u32) -> bool {
        self.process.load(Ordering::Acquire) == process
    }

    /// Whether this is a child that was forked of the process that uses the driver.
    pub(crate) fn is_initialised_elsewhere(&self, process: u32) -> bool {
        ![0, process].contains(&self.process.load(Ordering::Acquire))
    }
}

static WORLD: OnceLock<World> = OnceLock::new();

/// The machine, made of the settings when it is first asked for.
pub(crate) fn world() -> &'static World {
    WORLD.get_or_init(|| {
        // SAFETY: the function is of a library that is never unloaded.
        let registered = unsafe { libc::atexit(at_exit) };
        let world = World::from_environment();
        if registered != 0 {
            world
                .log
                .note("there will be no report at the end: atexit took nothing more");
        }
        world
    })
}

/// Whether the machine was made, and settings come too late.
pub(crate) fn is_in_use() -> bool {
    WORLD.get().is_some()
}

extern "C" fn at_exit() {
    let Some(world) = WORLD.get() else { return };
    // The report belongs to the parent, and a parent's thread may hold the locks.
    if world.is_initialised_elsewhere(std::process::id()) {
        return;
    }
    let told = panic::catch_unwind(AssertUnwindSafe(|| {
        if let Some(path) = &world.config.report {
            // A thread that was in the driver when the process ended may hold the lock for ever.
            let leaks = match world.state.try_lock() {
                Ok(state) => state.leaks(),
                Err(TryLockError::Poisoned(state)) => state.into_inner().leaks(),
                Err(TryLockError::WouldBlock) => vec!["unknown: a call was under way".into()],
            };
            log::write_report(path, &log::report(&world.log, &leaks));
        }
        if let Some(folder) = &world.config.calls {
            log::write_calls(folder);
        }
    }));
    if told.is_err() {
        world.log.note("the report at the end failed");
    }
}
