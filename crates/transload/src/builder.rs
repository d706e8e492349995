//! A manager that is not the default one.

use alloc::sync::Arc;
use alloc::vec::Vec;

use transload_core::{Limits, PlanCache, defaults};
use transload_hal::{Backend, Clock};

use crate::engine::shared::Shared;
use crate::engine::signal::Signal;
use crate::engine::staging::{Pool, StagingBudget};
use crate::engine::state::State;
use crate::{Error, TransferManager};

/// Makes a [`TransferManager`] that differs from the default.
pub struct Builder {
    backends: Vec<Arc<dyn Backend>>,
    clock: Option<Arc<dyn Clock>>,
    budget: Option<Arc<StagingBudget>>,
    lanes: u8,
    plans: usize,
    metrics: bool,
    #[cfg(feature = "std")]
    pub(crate) costs: crate::std::profile::Costs,
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
            #[cfg(feature = "std")]
            costs: Default::default(),
            #[cfg(feature = "std")]
            verdicts: None,
        }
    }
}

impl Builder {
    /// With a backend. They are registered in the order of these calls.
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Builder {
        self.backends.push(backend);
        self
    }

    /// With a clock of the caller's, who decides when time passes, as in a simulation. Transfers whose handle is held then
    /// advance only while a thread waits, polls or calls [`TransferManager::turn`]; the manager's own thread looks after
    /// futures and dropped transfers alone.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Builder {
        self.clock = Some(clock);
        self
    }

    /// With a staging budget of its own, or one that it shares with other managers, in place of the
    /// process's.
    pub fn staging(mut self, budget: Arc<StagingBudget>) -> Builder {
        self.budget = Some(budget);
        self
    }

    /// With at most so many links at once for one transfer, 1 to 4.
    pub fn lanes(mut self, lanes: u8) -> Builder {
        self.lanes = lanes.clamp(1, Limits::MAX_LANES);
        self
    }

    /// With a plan cache for so many pairs of memories, at least 1.
    pub fn cached_plans(mut self, plans: usize) -> Builder {
        self.plans = plans.max(1);
        self
    }

    /// With transfers counted through the `metrics` facade as they end: `transload_transfers_total`,
    /// `transload_bytes_total`, `transload_failures_total`, `transload_fallbacks_total` and
    /// `transload_seconds`, each by method. Off unless asked for, since a facade without a recorder
    /// cannot be told from one that listens, and asking it costs more than the rest of a small copy's
    /// bookkeeping.
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, on: bool) -> Builder {
        self.metrics = on;
        self
    }

    /// With the costs of that profile, in place of a saved one's.
    #[cfg(feature = "std")]
    pub fn profile(mut self, profile: crate::Profile) -> Builder {
        self.costs = crate::std::profile::Costs::Given(Box::new(profile));
        self
    }

    /// With the backends' default figures for costs, whatever was measured of this machine, and without
    /// the verdicts that are kept beside it. After [`Builder::discover`], which reads the saved profile.
    #[cfg(feature = "std")]
    pub fn default_costs(mut self) -> Builder {
        self.costs = Default::default();
        self
    }

    /// With the verdicts of proofs in that file: what earlier processes found out about links between two
    /// devices is gone by, and what this one finds out is added.
    ///
    /// Before such a link carries anybody's bytes, a pattern is sent over it and compared. Where the file
    /// says that it was proven, the two devices are only connected; where it says that the link moved
    /// wrong bytes, nothing goes over it. That holds as long as the version of this library, the driver
    /// and the UUIDs and slots of both devices are what they were: a device without a UUID, or whose
    /// driver does not name itself, is proven by every process, and so are imports of host memory. What
    /// the machine's firmware does to links is not seen: after a change there,
    /// [`TransferManager::clear_cache`] or [`TransferManager::probe`] has them proven anew.
    ///
    /// [`Builder::discover`] keeps verdicts [beside](crate::profile::verdicts_path) the saved profile;
    /// others keep none unless this is called. A file that is missing, damaged or of a later version is
    /// as good as none, and one that cannot be written stays as it is: no transfer fails for that. A
    /// thread of its own writes, and the last handle of the manager waits for it, five seconds at most.
    #[cfg(feature = "std")]
    pub fn keep_verdicts(mut self, path: impl Into<std::path::PathBuf>) -> Builder {
        self.verdicts = Some(path.into());
        self
    }

    /// The manager.
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
        state.advances = self.clock.is_none() && cfg!(threads);
        let clock = self.clock.unwrap_or_else(default_clock);
        #[cfg(feature = "std")]
        let keeper = {
            let kept = self.verdicts.or_else(|| self.costs.verdicts());
            state.kept.is_wanted = kept.is_some();
            kept.map(crate::std::Keeper::new)
        };
        let shared = Shared::new(state, signal, clock);
        #[cfg(feature = "std")]
        let shared = shared.with_keeper(keeper);
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

/// The budget that every manager of the process shares unless it is told otherwise. A child of `fork` has its own: slots of
/// the parent never come back there.
#[cfg(threads)]
fn process_budget() -> Arc<StagingBudget> {
    static PROCESS: crate::std::PerProcess<Arc<StagingBudget>> = crate::std::PerProcess::new();
    let of_default = || Arc::new(StagingBudget::new(defaults::STAGING_BUDGET_BYTES));
    Arc::clone(PROCESS.get_or_init(of_default))
}

/// Where a process has one thread, it is the thread's.
#[cfg(all(feature = "std", not(threads)))]
fn process_budget() -> Arc<StagingBudget> {
    std::thread_local! {
        static PROCESS: crate::std::PerProcess<Arc<StagingBudget>> =
            const { crate::std::PerProcess::new() };
    }
    let of_default = || Arc::new(StagingBudget::new(defaults::STAGING_BUDGET_BYTES));
    PROCESS.with(|process| Arc::clone(process.get_or_init(of_default)))
}

/// Without an operating system a program has one manager, and it has the budget.
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
