//! Builds managers with other settings than the default.

use alloc::sync::Arc;
use alloc::vec::Vec;

use transload_core::{Limits, PlanCache, defaults};
use transload_hal::{Backend, Clock};

use crate::engine::admission::budget::{Pool, StagingBudget};
use crate::engine::shared::Shared;
use crate::engine::signal::Signal;
use crate::engine::state::State;
use crate::engine::trace::Recorder;
use crate::{Error, TransferManager};

/// Makes a [`TransferManager`] with other settings than the default.
pub struct Builder {
    backends: Vec<Arc<dyn Backend>>,
    clock: Option<Arc<dyn Clock>>,
    budget: Option<Arc<StagingBudget>>,
    lanes: u8,
    plans: usize,
    metrics: bool,
    learning: bool,
    trace: bool,
    #[cfg(feature = "std")]
    pub(crate) costs: crate::std::profile::Costs,
    #[cfg(feature = "std")]
    pub(crate) kinds: crate::std::Kinds,
    #[cfg(feature = "std")]
    verdicts: Option<std::path::PathBuf>,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            backends: Vec::new(),
            clock: None,
            budget: None,
            lanes: Limits::MAX_LANES,
            plans: PlanCache::DEFAULT_CAPACITY,
            metrics: false,
            learning: true,
            trace: false,
            #[cfg(feature = "std")]
            costs: Default::default(),
            #[cfg(feature = "std")]
            kinds: Default::default(),
            #[cfg(feature = "std")]
            verdicts: None,
        }
    }
}

impl Builder {
    /// Adds a backend. Backends are registered in the order of these calls.
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Builder {
        self.backends.push(backend);
        self
    }

    /// Takes the time from the caller's clock, as in a simulation, where the caller decides when time passes. Transfers
    /// whose handle is held then advance only while a thread waits, polls or calls [`TransferManager::turn`]; the
    /// manager's own thread serves only futures and dropped transfers.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Builder {
        self.clock = Some(clock);
        self
    }

    /// Uses a staging budget of its own, or one that it shares with other managers, in place of the process's.
    pub fn staging(mut self, budget: Arc<StagingBudget>) -> Builder {
        self.budget = Some(budget);
        self
    }

    /// Limits a transfer to `lanes` links at once, 1 to 4.
    pub fn lanes(mut self, lanes: u8) -> Builder {
        self.lanes = lanes.clamp(1, Limits::MAX_LANES);
        self
    }

    /// Sets for how many pairs of memories the plan cache has room, at least 1.
    pub fn cached_plans(mut self, plans: usize) -> Builder {
        self.plans = plans.max(1);
        self
    }

    /// Whether the manager learns from its transfers how fast routes are, while no profile tells it. On by default. It
    /// keeps what it learns for itself and saves nothing.
    ///
    /// A transfer of 256 KiB or more that has the manager to itself is compared with its prediction. Once the median of a
    /// route's last three to five times is off by more than a quarter, the manager plans with the measured time. Now and
    /// then it sends the leading bytes of such a transfer over another route, in case that one is or has become faster:
    /// at most as often as keeps the time lost at 1 %, as far as it can be predicted, and never of a transfer with a
    /// deadline. [`Report::tried`](crate::Report::tried) tells. New plans, the first staging
    /// slots of another route, and reports of trials are allocated then.
    ///
    /// A time counts if a thread or task waited for the transfer almost from its start. The manager may see the end of other
    /// transfers late.
    pub fn learning(mut self, on: bool) -> Builder {
        self.learning = on;
        self
    }

    /// Whether the manager records what its transfers, engines and threads do, for [`TransferManager::take_trace`]. Off by
    /// default. Each event costs two readings of the clock and a short lock; room for 65,536 events, at most 16 MiB, is there
    /// from the start. A clock of the program's own is then also read in callbacks of drivers.
    pub fn trace(mut self, on: bool) -> Builder {
        self.trace = on;
        self
    }

    /// Counts transfers through the `metrics` facade as they end: `transload_transfers_total`, `transload_bytes_total`,
    /// `transload_failures_total`, `transload_fallbacks_total` and `transload_seconds`, each by method. Off by default:
    /// the library cannot tell a facade without a recorder from one with a recorder, and calling it costs more than the
    /// rest of a small copy's bookkeeping.
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, on: bool) -> Builder {
        self.metrics = on;
        self
    }

    /// Plans with the costs of that profile, in place of a saved one's, as [`TransferManager::apply_profile`] does.
    #[cfg(feature = "std")]
    pub fn profile(mut self, profile: crate::Profile) -> Builder {
        self.costs = crate::std::profile::Costs::Given(Box::new(profile));
        self
    }

    /// Plans with the backends' default figures for costs, even if this machine was measured, and without the verdicts
    /// that are kept beside the profile. Call it after [`Builder::discover`], which reads the saved profile.
    #[cfg(feature = "std")]
    pub fn default_costs(mut self) -> Builder {
        self.costs = Default::default();
        self
    }

    /// Keeps the verdicts of proofs in that file. The manager uses what earlier processes found out about links between
    /// two devices, and adds what it finds out itself.
    ///
    /// Before such a link carries a transfer, the engine sends a pattern over it and compares. Where the file says that
    /// the link was proven, the engine only connects the two devices; where it says that the link moved wrong bytes,
    /// the engine does not use it. A verdict holds as long as the version of this library, the driver, and the UUIDs
    /// and slots of both devices stay the same. A device without a UUID, or whose driver does not name itself, is
    /// proven by every process, and so are imports of host memory. Transload cannot detect what the machine's firmware
    /// does to links: after a firmware change call [`TransferManager::clear_cache`] or [`TransferManager::probe`],
    /// which have them proven anew.
    ///
    /// [`Builder::discover`] keeps verdicts [beside](crate::profile::verdicts_path) the saved profile; other managers
    /// keep none unless this is called. A file that is missing, damaged or of a later version counts as none. A file
    /// that cannot be written stays as it is: no transfer fails for that. A thread of its own writes the file, and
    /// dropping the last handle of the manager waits for that thread, 5 seconds at most.
    #[cfg(feature = "std")]
    pub fn keep_verdicts(mut self, path: impl Into<std::path::PathBuf>) -> Builder {
        self.verdicts = Some(path.into());
        self
    }

    /// Makes the manager.
    ///
    /// # Errors
    /// When a backend is not accepted, or a profile that was given is not of this machine.
    pub fn build(self) -> Result<TransferManager, Error> {
        let budget = self.budget.unwrap_or_else(process_budget);
        let limits = Limits {
            staging_bytes: budget.limit_bytes(),
            lanes: self.lanes,
        };
        let signal = Arc::new(Signal::default());
        let pool = Pool::new(budget, Arc::clone(&signal));
        let mut state = State::new(pool, PlanCache::new(self.plans), limits);
        state.metrics = self.metrics;
        if !self.learning {
            state.planning.stop_learning();
        }
        state.advances = self.clock.is_none() && cfg!(threads);
        let clock = self.clock.unwrap_or_else(default_clock);
        let recorder = || Arc::new(Recorder::new(Arc::clone(&clock)));
        state.recorder = self.trace.then(recorder);
        #[cfg(feature = "std")]
        let writer = {
            let kept = self.verdicts.or_else(|| self.costs.verdicts());
            state.proofs.keep(kept.is_some());
            kept.map(crate::std::VerdictWriter::new)
        };
        let shared = Shared::new(state, signal, clock);
        #[cfg(feature = "std")]
        let mut shared = shared.with_writer(writer);
        #[cfg(feature = "std")]
        {
            shared.kinds = self.kinds;
        }
        let manager = TransferManager {
            shared: Arc::new(shared),
        };
        for backend in self.backends {
            manager.register_shared(backend)?;
        }
        #[cfg(feature = "std")]
        self.costs.apply(&manager)?;
        Ok(manager)
    }
}

impl Default for TransferManager {
    fn default() -> TransferManager {
        TransferManager::new()
    }
}

impl TransferManager {
    /// Makes a manager without backends, with the process's staging budget and the system's clock.
    pub fn new() -> TransferManager {
        match Builder::default().build() {
            Ok(manager) => manager,
            Err(_) => unreachable!("only backends can be refused, and there are none"),
        }
    }

    /// Returns a builder for a manager with other settings.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl core::fmt::Debug for Builder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Builder")
            .field("backends", &self.backends.len())
            .field("staging", &self.budget)
            .field("lanes", &self.lanes)
            .field("cached_plans", &self.plans)
            .finish_non_exhaustive()
    }
}

/// Returns the budget that all managers of the process share unless they are given another one. A child of `fork` has
/// its own: slots of the parent never come back there.
#[cfg(threads)]
fn process_budget() -> Arc<StagingBudget> {
    static PROCESS: crate::std::PerProcess<Arc<StagingBudget>> = crate::std::PerProcess::new();
    let of_default = || Arc::new(StagingBudget::new(defaults::STAGING_BUDGET_BYTES));
    Arc::clone(PROCESS.get_or_init(of_default))
}

/// Where a process has one thread, the budget belongs to that thread.
#[cfg(all(feature = "std", not(threads)))]
fn process_budget() -> Arc<StagingBudget> {
    std::thread_local! {
        static PROCESS: crate::std::PerProcess<Arc<StagingBudget>> =
            const { crate::std::PerProcess::new() };
    }
    let of_default = || Arc::new(StagingBudget::new(defaults::STAGING_BUDGET_BYTES));
    PROCESS.with(|process| Arc::clone(process.get_or_init(of_default)))
}

/// Without an operating system a program has one manager, which has the budget for itself.
#[cfg(not(feature = "std"))]
fn process_budget() -> Arc<StagingBudget> {
    Arc::new(StagingBudget::new(defaults::STAGING_BUDGET_BYTES))
}

#[cfg(all(
    feature = "std",
    any(browser, not(all(target_family = "wasm", target_os = "unknown")))
))]
fn default_clock() -> Arc<dyn Clock> {
    Arc::new(crate::SystemClock::new())
}

/// Without an operating system, and where the standard library's clock panics.
#[cfg(not(all(
    feature = "std",
    any(browser, not(all(target_family = "wasm", target_os = "unknown")))
)))]
fn default_clock() -> Arc<dyn Clock> {
    Arc::new(crate::NoClock)
}
