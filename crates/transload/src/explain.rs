//! Explains which way a transfer would go.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use transload_core::flight::{Load, predict};
use transload_core::{
    ByteSize, Correction, LinkClass, LinkId, MemoryId, Method, Name, Nanoseconds, Plan, PlanKey,
    PlanSet, Reason, Route, Topology,
};

/// One way that was considered.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Choice {
    /// The method under which users see it.
    pub method: Method,
    /// The memories that bytes would visit, over the first of the lanes. Those within another machine are told by it: they
    /// need not be places here.
    pub route: Vec<MemoryId>,
    /// The size of a chunk of the first lane in bytes; `None` for ways that have no plan.
    pub chunk_bytes: Option<u64>,
    /// The routes that carry the payload at the same time, each a share of it. Most plans have one
    /// lane; ways that have no plan have none.
    pub lanes: Vec<LaneChoice>,
    /// The predicted time in nanoseconds on an otherwise idle machine; `None` for ways that cannot be taken.
    pub predicted_ns: Option<u64>,
    /// How long each resource is busy in that time, the busiest first: that one bounds the time. Empty for ways that have no
    /// plan.
    pub loads: Vec<Load>,
    /// Whether the prediction rests on costs that were measured on this machine, for all links of the way; otherwise
    /// some are default figures.
    pub measured: bool,
    /// Whether the prediction is corrected, because copies over the route took another time than
    /// its links' costs say: in a probe, or without a profile in earlier transfers.
    pub corrected: bool,
    /// How its links came to be trusted, for the least trusted one; `None` where none needs a proof, and for ways that
    /// cannot be taken.
    pub proof: Option<Proof>,
    /// Why the way was not chosen; `None` for the chosen one.
    pub reason: Option<Reason>,
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
#[non_exhaustive]
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
    /// Its part of the payload in bytes, rounded. Up to `chunk_bytes` it moves in one piece.
    pub bytes: u64,
    /// Whether the costs of its links were measured on this machine.
    pub measured: bool,
}

/// A way that a request could go, to be measured: [`Request::by`](crate::Request::by) takes it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// What [`Explanation`] says of the way. Its `reason` is `None`.
    choice: Choice,
    pub(crate) key: PlanKey,
    pub(crate) plan: Arc<Plan>,
    /// The manager that knows the plan's links.
    pub(crate) manager: usize,
}

impl Candidate {
    pub(crate) fn new(
        key: PlanKey,
        plan: Arc<Plan>,
        manager: usize,
        bytes: u64,
        topology: &Topology,
    ) -> Candidate {
        Candidate {
            choice: choice(&plan, bytes, topology),
            key,
            plan,
            manager,
        }
    }

    /// Returns the links of all its lanes.
    #[cfg(feature = "std")]
    pub(crate) fn links(&self) -> Vec<LinkId> {
        self.plan.links().collect()
    }

    /// Returns whether all bytes take one route.
    #[cfg(feature = "std")]
    pub(crate) fn is_one_lane(&self) -> bool {
        self.plan.lanes.len() == 1
    }

    /// Returns its routes, chunks and predicted time.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }
}

/// The way that a transfer would go, and the ways that were rejected.
///
/// Its text has at most 100 columns: the chosen way, then the other ways, those of one reason together.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
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
        let is_chosen = |route: &Route| {
            let mut lanes = chosen.lanes.iter();
            lanes.any(|lane| lane.route.as_ref() == Some(route))
        };
        let rejected = plans.rejected(bytes).into_iter().map(|rejected| {
            let route = rejected.route.as_ref();
            Choice {
                method: rejected.method,
                route: route.map_or_else(|| alloc::vec![key.src], |route| visits(route, topology)),
                chunk_bytes: None,
                lanes: Vec::new(),
                predicted_ns: rejected.estimate_ns,
                loads: Vec::new(),
                measured: route.is_some_and(|route| is_measured(route, topology)),
                corrected: route.is_some_and(|route| is_corrected(route, bytes, topology)),
                proof: route
                    .filter(|_| rejected.estimate_ns.is_some())
                    .and_then(|route| least(route.links().iter().map(|link| link.id), proof)),
                reason: Some(match rejected.reason {
                    Reason::Dominated { by: Some(by) } if is_chosen(&by) => Reason::NeverFaster,
                    reason => reason,
                }),
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
                loads: Vec::new(),
                measured: false,
                corrected: false,
                proof: None,
                reason: Some(Reason::Lacking {
                    why: lack.reason.clone(),
                }),
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

fn is_corrected(route: &Route, bytes: u64, topology: &Topology) -> bool {
    let links: Vec<LinkId> = route.links().iter().map(|link| link.id).collect();
    let correction = topology.correction(&links);
    correction.is_some_and(|correction| correction.at(bytes) != Correction::ONE)
}

fn is_measured(route: &Route, topology: &Topology) -> bool {
    let mut links = route.links().iter();
    links.all(|link| topology.is_measured(link.id))
}

/// Returns the memories that bytes visit, also within other machines.
fn visits(route: &Route, topology: &Topology) -> Vec<MemoryId> {
    let mut visits: Vec<MemoryId> = route.memories().take(1).collect();
    for link in route.links() {
        let (src, dst) = (link.id.src, link.id.dst);
        let passage = |memory| topology.memory(memory).map(|memory| &memory.passage);
        if link.class == LinkClass::Network && src.device.node != dst.device.node {
            visits.extend(passage(src).into_iter().flat_map(|passage| &passage.out_of));
            visits.extend(passage(dst).into_iter().flat_map(|passage| &passage.into));
        }
        visits.push(dst);
    }
    visits
}

pub(crate) fn choice(plan: &Arc<Plan>, bytes: u64, topology: &Topology) -> Choice {
    let total: u64 = plan.lanes.iter().map(|lane| u64::from(lane.share)).sum();
    let lanes: Vec<LaneChoice> = plan
        .lanes
        .iter()
        .map(|lane| {
            let route = lane.route.as_ref();
            let share = f64::from(lane.share) / total.max(1) as f64;
            LaneChoice {
                method: route.map_or(plan.method, Route::method),
                route: route.map_or_else(Vec::new, |route| visits(route, topology)),
                chunk_bytes: lane.chunk_bytes,
                to_a_slot: match plan.lanes.len() {
                    1 => lane.to_a_slot(bytes),
                    // Parts of a payload that is worth dividing are many chunks long.
                    _ => u64::from(!lane.rings.is_empty()),
                },
                share,
                bytes: match plan.lanes.len() {
                    1 => bytes,
                    _ => (share * bytes as f64) as u64,
                },
                measured: route.is_some_and(|route| is_measured(route, topology)),
            }
        })
        .collect();
    let (predicted_ns, loads) = match predict(plan, bytes) {
        Ok(predicted) => (Some(predicted.ns), predicted.loads),
        Err(_) => (None, Vec::new()),
    };
    Choice {
        method: plan.method,
        route: lanes
            .first()
            .map_or_else(Vec::new, |lane| lane.route.clone()),
        chunk_bytes: Some(plan.chunk_bytes()),
        measured: lanes.iter().all(|lane| lane.measured),
        corrected: plan.uncorrected_ns(bytes) != plan.estimate_ns(bytes),
        lanes,
        predicted_ns,
        loads,
        proof: None,
        reason: None,
    }
}

/// A route as it is displayed.
struct Visits<'a>(&'a [MemoryId]);

impl fmt::Display for Visits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.steps().enumerate() {
            write!(f, "{}{step}", if i == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

impl Visits<'_> {
    /// Returns the memories, all but the first behind an arrow.
    fn steps(&self) -> impl Iterator<Item = String> {
        let first = self.0.iter().take(1).map(ToString::to_string);
        first.chain(self.0.iter().skip(1).map(|memory| format!("→ {memory}")))
    }
}

impl LaneChoice {
    fn row(&self) -> Row<'_> {
        (
            self.method.to_string(),
            format!("{:.1} %", self.share * 100.0),
            Visits(&self.route),
            self.details(),
        )
    }

    /// Returns what else there is to say of it.
    fn details(&self) -> Vec<String> {
        let mut details = Vec::new();
        if self.bytes > self.chunk_bytes {
            details.push(format!("in chunks of {}", ByteSize(self.chunk_bytes)));
        }
        if self.to_a_slot > 1 {
            let count = self.to_a_slot;
            details.push(format!("up to {count} transfers of this size share a slot"));
        }
        details
    }
}

impl Choice {
    /// Returns what else there is to say of it, for a choice that is not divided.
    fn details(&self) -> Vec<String> {
        let mut details = match &self.lanes[..] {
            [lane] => lane.details(),
            _ => Vec::new(),
        };
        if self.proof == Some(Proof::Kept) {
            details.push("proven by an earlier process".into());
        }
        details
    }

    /// Returns its rows in an explanation: one for each lane of a divided payload.
    fn rows(&self) -> Vec<Row<'_>> {
        if let [_, _, ..] = self.lanes[..] {
            let lanes = self.lanes.iter();
            return lanes.map(LaneChoice::row).collect();
        }
        let time = self.predicted_ns.map(|ns| Nanoseconds(ns).to_string());
        alloc::vec![(
            self.method.to_string(),
            time.unwrap_or_else(|| "–".into()),
            Visits(&self.route),
            self.details(),
        )]
    }
}

/// Method, time or share, route, and details.
type Row<'a> = (String, String, Visits<'a>, Vec<String>);

impl fmt::Display for LaneChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {}", self.method, Visits(&self.route))?;
        let mut details = self.details().into_iter();
        details.try_for_each(|detail| write!(f, ", {detail}"))
    }
}

/// In one line; a choice of several lanes has one more line for each lane.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.method.fmt(f)?;
        let is_split = self.lanes.len() > 1;
        match is_split {
            true => write!(f, "  over {} routes at once", self.lanes.len())?,
            false => write!(f, "  {}", Visits(&self.route))?,
        }
        if let Some(ns) = self.predicted_ns {
            write!(f, "  {}", Nanoseconds(ns))?;
        }
        let details = self.details();
        let mut details = details.iter();
        details.try_for_each(|detail| write!(f, ", {detail}"))?;
        if let Some(reason) = &self.reason {
            write!(f, ", {reason}")?;
        }
        let mut lanes = self.lanes.iter().filter(|_| is_split);
        lanes.try_for_each(|lane| write!(f, "\n  {:.1} %  {lane}", lane.share * 100.0))
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ByteSize(self.bytes).fmt(f)?;
        if let [src, .., dst] = self.chosen.route[..] {
            write!(f, ", {src} → {dst}")?;
        }
        if self.simulated {
            f.write_str(" (simulated)")?;
        }
        let mut groups = alloc::vec![(self.verdict(), self.chosen.rows())];
        for rejected in &self.rejected {
            let reason = rejected.reason.as_ref().map(ToString::to_string);
            let heading = format!("rejected: {}", reason.unwrap_or_default());
            match groups.iter_mut().find(|(of, _)| *of == heading) {
                Some((_, rows)) => rows.extend(rejected.rows()),
                None => groups.push((heading, rejected.rows())),
            }
        }
        let rows = || groups.iter().flat_map(|(_, rows)| rows);
        let width = |text: &String| text.chars().count();
        let methods = rows().map(|row| width(&row.0)).max().unwrap_or(0);
        let figures = rows().map(|row| width(&row.1)).max().unwrap_or(0);
        for (heading, rows) in &groups {
            f.write_str("\n\n")?;
            wrapped(f, heading.split(' '), 0, 4)?;
            for (method, figure, route, details) in rows {
                let indent = methods + figures + 6;
                write!(f, "\n  {method:methods$}  {figure:>figures$}  ")?;
                wrapped(f, route.steps(), indent, indent)?;
                if !details.is_empty() {
                    write!(f, "\n{:indent$}{}", "", details.join(", "))?;
                }
            }
        }
        f.write_str("\n\npredicted from ")?;
        self.write_basis(f)
    }
}

impl Explanation {
    fn verdict(&self) -> String {
        let time = self.chosen.predicted_ns.map(Nanoseconds);
        match (self.chosen.lanes.len(), time) {
            (lanes @ 2.., Some(time)) => format!("chosen: over {lanes} routes at once, {time}"),
            _ => "chosen".into(),
        }
    }

    /// Writes the costs that the predictions rest on.
    fn write_basis(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways = core::iter::once(&self.chosen).chain(&self.rejected);
        let predicted = ways.filter(|way| way.predicted_ns.is_some());
        let (measured, default): (Vec<&Choice>, Vec<&Choice>) =
            predicted.partition(|way| way.measured);
        let visited = default.iter().flat_map(|way| &way.route);
        let others: BTreeSet<Name> = visited
            .filter_map(|memory| memory.device.node.name())
            .collect();
        let others: Vec<String> = others.iter().map(ToString::to_string).collect();
        let told = match &others[..] {
            [] => String::new(),
            [other] => format!(", and what {other} told of itself"),
            others => format!(", and what {} told of themselves", others.join(" and ")),
        };
        if measured.is_empty() {
            let mut ways = core::iter::once(&self.chosen).chain(&self.rejected);
            let corrected = match ways.any(|way| way.corrected) {
                true => ", corrected by what transfers took",
                false => "",
            };
            return write!(f, "default costs{told}{corrected}");
        }
        f.write_str("measured costs")?;
        if !default.is_empty() {
            let comma = if told.is_empty() { "" } else { "," };
            write!(f, ", and from default costs{told}{comma} over")?;
        }
        default.iter().try_for_each(|way| {
            f.write_str("\n  ")?;
            wrapped(f, Visits(&way.route).steps(), 2, 4)
        })
    }
}

/// Writes words in lines of at most [`COLUMNS`], from a column on. All lines but the first begin at `indent`.
fn wrapped<W: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    words: impl Iterator<Item = W>,
    begin: usize,
    indent: usize,
) -> fmt::Result {
    let mut column = begin;
    for word in words {
        let word = word.to_string();
        let width = word.chars().count();
        if column > begin && column + 1 + width > COLUMNS {
            write!(f, "\n{:indent$}", "")?;
            column = indent;
        } else if column > begin {
            f.write_str(" ")?;
            column += 1;
        }
        f.write_str(&word)?;
        column += width;
    }
    Ok(())
}

/// As wide as code is, and as terminals are that show two texts beside each other.
const COLUMNS: usize = 100;
