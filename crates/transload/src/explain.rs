//! Explains which way a transfer would go.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use transload_core::flight::predict_ns;
use transload_core::{
    BinarySize, ByteSize, LinkId, MemoryId, Method, Nanoseconds, Plan, PlanKey, PlanSet, Route,
    Topology,
};

/// One way that was considered.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The method under which users see it.
    pub method: Method,
    /// The memories that bytes would visit, over the first of the lanes.
    pub route: Vec<MemoryId>,
    /// The size of a chunk of the first lane in bytes; `None` for ways that have no plan.
    pub chunk_bytes: Option<u64>,
    /// The routes that carry the payload at the same time, each a share of it. Most plans have one
    /// lane; ways that have no plan have none.
    pub lanes: Vec<LaneChoice>,
    /// The predicted time in nanoseconds on an otherwise idle machine; `None` for ways that cannot be taken.
    pub predicted_ns: Option<u64>,
    /// Whether the prediction rests on costs that were measured on this machine, for all links of the way; otherwise
    /// some are default figures.
    pub measured: bool,
    /// How its links came to be trusted, for the least trusted one; `None` where none needs a proof, and for ways that
    /// cannot be taken.
    pub proof: Option<Proof>,
    /// Why the way was not chosen; `None` for the chosen one.
    pub reason: Option<String>,
}

/// How a link came to be trusted that needs a proof before it carries a transfer: a link between devices, or one over
/// imported memory. From the least trusted to the most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Proof {
    /// The first transfer over it waits for its proof.
    ToCome,
    /// An earlier process has proven it, under the same driver and between the same devices
    /// (`Builder::keep_verdicts`).
    Kept,
    /// This manager has proven it.
    Made,
}

impl Proof {
    /// Returns `to come`, `kept` or `made`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Proof::ToCome => "to come",
            Proof::Kept => "kept",
            Proof::Made => "made",
        }
    }
}

/// One of the routes that a plan uses at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneChoice {
    /// The method of the route alone.
    pub method: Method,
    /// The memories that its bytes visit.
    pub route: Vec<MemoryId>,
    /// The size of its chunks in bytes.
    pub chunk_bytes: u64,
    /// The most transfers like this one that share a staging slot: 1 where each has slots to itself, 0 where nothing is
    /// staged.
    pub to_a_slot: u64,
    /// Its part of the payload: the shares of all lanes add up to 1.
    pub share: f64,
    /// Whether the costs of its links were measured on this machine.
    pub measured: bool,
}

/// The way that a transfer would go, and the ways that were rejected.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The payload in bytes.
    pub bytes: u64,
    /// The way.
    pub chosen: Choice,
    /// The other ways, the best first.
    pub rejected: Vec<Choice>,
    /// Whether a simulated device is on the way: its figures are modelled then, not measured.
    pub simulated: bool,
}

impl Explanation {
    pub(crate) fn new(
        plans: &PlanSet,
        key: &PlanKey,
        bytes: u64,
        topology: &Topology,
        proof: &dyn Fn(LinkId) -> Option<Proof>,
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
                proof: route
                    .filter(|_| rejected.estimate_ns.is_some())
                    .and_then(|route| least(route.links().iter().map(|link| link.id), proof)),
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
                proof: None,
                reason: Some(lack.reason.to_string()),
            });
        Explanation {
            bytes,
            chosen: Choice {
                proof: least(chosen.links(), proof),
                ..choice(chosen, bytes, topology)
            },
            rejected: rejected.chain(lacking).collect(),
            simulated: is_simulated(key.src) || is_simulated(key.dst),
        }
    }
}

/// Returns how the least trusted of the links came to be trusted.
fn least(
    links: impl Iterator<Item = LinkId>,
    proof: &dyn Fn(LinkId) -> Option<Proof>,
) -> Option<Proof> {
    links.filter_map(proof).min()
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
                to_a_slot: match plan.lanes.len() {
                    1 => lane.to_a_slot(bytes),
                    // Parts of a payload that is worth dividing are many chunks long.
                    _ => u64::from(!lane.rings.is_empty()),
                },
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
        proof: None,
        reason: None,
    }
}

/// A route as it is displayed after its method.
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

/// A plan of several lanes has one more line for each lane.
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
        if let [LaneChoice { to_a_slot, .. }] = self.lanes[..]
            && to_a_slot > 1
        {
            write!(f, "  (up to {to_a_slot} share a slot)")?;
        }
        if self.proof == Some(Proof::Kept) {
            f.write_str("  (proven by an earlier process)")?;
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
