//! Why a transfer would go the way that it would.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use transload_core::flight::predict_ns;
use transload_core::{ByteSize, MemoryId, Method, Plan, PlanKey, PlanSet};

/// One way that was considered.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// How it would be called.
    pub method: Method,
    /// The memories that bytes would visit.
    pub route: Vec<MemoryId>,
    /// The size of a chunk in bytes; `None` for ways that have no plan.
    pub chunk_bytes: Option<u64>,
    /// How long it would take, in nanoseconds, on a machine with nothing else to do; `None` for ways
    /// that cannot be taken.
    pub predicted_ns: Option<u64>,
    /// Why it was not chosen; `None` for the one that was.
    pub reason: Option<String>,
}

/// The way that a transfer would go, and those that it would not.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The payload in bytes.
    pub bytes: u64,
    /// The way.
    pub chosen: Choice,
    /// The others, the best first.
    pub rejected: Vec<Choice>,
    /// Whether a simulated device is on the way: then its figures are modelled, not measured.
    pub simulated: bool,
}

impl Explanation {
    pub(crate) fn new(plans: &PlanSet, key: &PlanKey, bytes: u64, simulated: bool) -> Explanation {
        let chosen = plans.choose(bytes);
        let rejected = plans.rejected(bytes).into_iter().map(|rejected| {
            let route = rejected.route.as_ref();
            Choice {
                method: rejected.method,
                route: route
                    .map_or_else(|| alloc::vec![key.src], |route| route.memories().collect()),
                chunk_bytes: None,
                predicted_ns: rejected.estimate_ns,
                reason: Some(rejected.reason.to_string()),
            }
        });
        Explanation {
            bytes,
            chosen: choice(chosen, bytes),
            rejected: rejected.collect(),
            simulated,
        }
    }
}

fn choice(plan: &Arc<Plan>, bytes: u64) -> Choice {
    let route = plan.lanes.first().and_then(|lane| lane.route.as_ref());
    Choice {
        method: plan.method,
        route: route.map_or_else(Vec::new, |route| route.memories().collect()),
        chunk_bytes: Some(plan.chunk_bytes()),
        predicted_ns: predict_ns(plan, bytes).ok(),
        reason: None,
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.method)?;
        for (i, memory) in self.route.iter().enumerate() {
            write!(f, "{}{memory}", if i == 0 { "  " } else { " → " })?;
        }
        if let Some(ns) = self.predicted_ns {
            write!(f, "  {:.3} ms", ns as f64 / 1e6)?;
        }
        if let Some(bytes) = self.chunk_bytes {
            write!(f, "  in chunks of {} KiB", bytes >> 10)?;
        }
        if let Some(reason) = &self.reason {
            write!(f, "  ({reason})")?;
        }
        Ok(())
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let simulated = if self.simulated { "  (simulated)" } else { "" };
        writeln!(f, "{}{simulated}", ByteSize(self.bytes))?;
        writeln!(f, "chosen    {}", self.chosen)?;
        for rejected in &self.rejected {
            writeln!(f, "rejected  {rejected}")?;
        }
        Ok(())
    }
}
