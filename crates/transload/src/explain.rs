//! Why a transfer would go the way that it would.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use transload_core::flight::predict_ns;
use transload_core::{
    BinarySize, ByteSize, MemoryId, Method, Nanoseconds, Plan, PlanKey, PlanSet, Route, Topology,
};

/// One way that was considered.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// How it would be called.
    pub method: Method,
    /// The memories that bytes would visit, over the first of the lanes.
    pub route: Vec<MemoryId>,
    /// The size of a chunk of the first lane in bytes; `None` for ways that have no plan.
    pub chunk_bytes: Option<u64>,
    /// The routes that carry the payload at the same time, each a share of it. Most plans have one
    /// lane; ways that have no plan have none.
    pub lanes: Vec<LaneChoice>,
    /// How long it would take, in nanoseconds, on a machine with nothing else to do; `None` for ways
    /// that cannot be taken.
    pub predicted_ns: Option<u64>,
    /// Whether that rests on costs that were measured on this machine, for all links of the way; else
    /// some are default figures.
    pub measured: bool,
    /// Why it was not chosen; `None` for the one that was.
    pub reason: Option<String>,
}

/// One of the routes that a plan takes at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneChoice {
    /// How the route would be called alone.
    pub method: Method,
    /// The memories that its bytes visit.
    pub route: Vec<MemoryId>,
    /// The size of its chunks in bytes.
    pub chunk_bytes: u64,
    /// Its part of the payload, of 1; with all lanes it adds up to that.
    pub share: f64,
    /// Whether the costs of its links were measured on this machine.
    pub measured: bool,
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
    pub(crate) fn new(
        plans: &PlanSet,
        key: &PlanKey,
        bytes: u64,
        topology: &Topology,
    ) -> Explanation {
        let is_simulated = |memory: MemoryId| {
            let device = topology.device(memory.device);
            device.is_some_and(|device| device.simulated)
        };
        let chosen = plans.choose(bytes);
        let rejected = plans.rejected(bytes).into_iter().map(|rejected| {
            let route = rejected.route.as_ref();
            Choice {
                method: rejected.method,
                route: route
                    .map_or_else(|| alloc::vec![key.src], |route| route.memories().collect()),
                chunk_bytes: None,
                lanes: Vec::new(),
                predicted_ns: rejected.estimate_ns,
                measured: route.is_some_and(|route| is_measured(route, topology)),
                reason: Some(rejected.reason.to_string()),
            }
        });
        let lacking = topology
            .lacks()
            .iter()
            .filter(|lack| lack.src == key.src && lack.dst == key.dst)
            .map(|lack| Choice {
                method: Method::of_access(lack.access),
                route: alloc::vec![lack.src, lack.dst],
                chunk_bytes: None,
                lanes: Vec::new(),
                predicted_ns: None,
                measured: false,
                reason: Some(lack.reason.to_string()),
            });
        Explanation {
            bytes,
            chosen: choice(chosen, bytes, topology),
            rejected: rejected.chain(lacking).collect(),
            simulated: is_simulated(key.src) || is_simulated(key.dst),
        }
    }
}

fn is_measured(route: &Route, topology: &Topology) -> bool {
    let mut links = route.links().iter();
    links.all(|link| topology.is_measured(link.id))
}

fn choice(plan: &Arc<Plan>, bytes: u64, topology: &Topology) -> Choice {
    let total: u64 = plan.lanes.iter().map(|lane| u64::from(lane.share)).sum();
    let lanes: Vec<LaneChoice> = plan
        .lanes
        .iter()
        .map(|lane| {
            let route = lane.route.as_ref();
            LaneChoice {
                method: route.map_or(plan.method, Route::method),
                route: route.map_or_else(Vec::new, |route| route.memories().collect()),
                chunk_bytes: lane.chunk_bytes,
                share: f64::from(lane.share) / total.max(1) as f64,
                measured: route.is_some_and(|route| is_measured(route, topology)),
            }
        })
        .collect();
    Choice {
        method: plan.method,
        route: lanes
            .first()
            .map_or_else(Vec::new, |lane| lane.route.clone()),
        chunk_bytes: Some(plan.chunk_bytes()),
        measured: lanes.iter().all(|lane| lane.measured),
        lanes,
        predicted_ns: predict_ns(plan, bytes).ok(),
        reason: None,
    }
}

/// A route as it is printed behind its method.
struct Visits<'a>(&'a [MemoryId]);

impl fmt::Display for Visits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, memory) in self.0.iter().enumerate() {
            write!(f, "{}{memory}", if i == 0 { "  " } else { " → " })?;
        }
        Ok(())
    }
}

impl fmt::Display for LaneChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chunk = BinarySize(self.chunk_bytes);
        write!(
            f,
            "{}{}  in chunks of {chunk}",
            self.method,
            Visits(&self.route)
        )
    }
}

/// A plan of several lanes has a line for each below its own.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.method.fmt(f)?;
        let is_split = self.lanes.len() > 1;
        if is_split {
            write!(f, "  over {} routes at once", self.lanes.len())?;
        } else {
            Visits(&self.route).fmt(f)?;
        }
        if let Some(ns) = self.predicted_ns {
            let by_default = if self.measured {
                ""
            } else {
                " (default costs)"
            };
            write!(f, "  {}{by_default}", Nanoseconds(ns))?;
        }
        if let Some(bytes) = self.chunk_bytes.filter(|_| !is_split) {
            write!(f, "  in chunks of {}", BinarySize(bytes))?;
        }
        if let Some(reason) = &self.reason {
            write!(f, "  ({reason})")?;
        }
        if is_split {
            for lane in &self.lanes {
                write!(f, "\n          {:.1} %  {lane}", lane.share * 100.0)?;
            }
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
