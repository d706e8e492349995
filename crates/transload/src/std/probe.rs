//! The probe: measures the cost of each link of a machine, and times the resulting plans.
//!
//! The probe measures links first: over each link, copies of several sizes, one after the other in rounds, so that a
//! temporary slowdown of the machine affects all of them. Before it times a size, it sends a pattern over the link into
//! poisoned memory, brings it back another way and compares. Then the medians replace the default costs, and the probe
//! times each ordered pair of memories over the way that the planner now chooses. In between it times new memory: what
//! occurs once, such as registration and first touch, is in no link's cost.
//!
//! Pages were touched before, and files (nameless ones of the probe's own) are in the page cache. A time is the mean of
//! copies that follow others of the same bytes by the same way, so that caches and staging slots are as that way leaves
//! them. The planner prices the chunks of a stream by the largest sizes ([`Curve::part_of`](transload_core::Curve::part_of)).

mod check;
mod fresh;
mod measurement;
mod report;
mod rivals;
mod rounds;
mod sample;
mod way;
mod workspace;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
#[cfg(not(browser))]
use std::time::Instant;

use transload_core::{
    Compared, LinkId, MemoryId, MemoryInfo, MemoryKind, PlanKey, Topology, defaults,
};

use self::check::Checks;
use self::measurement::{Measurement, State};
use self::workspace::Workspace;
#[cfg(browser)]
use super::browser_clock::Instant;
use super::profile::{FAULTY, MeasuredLink, MeasuredRoute, Point, Profile};
use crate::TransferManager;

pub use fresh::FreshMemory;
pub use report::{
    Found, LinkReport, PairReport, ProbeOptions, ProbePhase, ProbeProgress, ProbeReport,
};
pub use rivals::MeasuredWay;
pub use sample::Interval;

impl ProbeOptions {
    /// 10 seconds, up to 16 MiB.
    pub fn quick() -> ProbeOptions {
        ProbeOptions {
            budget: Duration::from_secs(10),
            sizes: vec![4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20],
            samples: sample::MOST,
        }
    }

    /// 60 seconds, up to 64 MiB.
    pub fn full() -> ProbeOptions {
        ProbeOptions {
            budget: Duration::from_secs(60),
            sizes: vec![
                256,
                4 << 10,
                64 << 10,
                256 << 10,
                1 << 20,
                4 << 20,
                16 << 20,
                64 << 20,
            ],
            samples: sample::MOST,
        }
    }
}

impl Default for ProbeOptions {
    fn default() -> ProbeOptions {
        ProbeOptions::full()
    }
}

impl ProbeReport {
    fn empty() -> ProbeReport {
        ProbeReport {
            links: Vec::new(),
            pairs: Vec::new(),
            fresh: Vec::new(),
            profile: Profile::new(&Topology::new(), Vec::new()),
            simulated: false,
        }
    }

    /// Returns the links that moved wrong bytes.
    pub fn faulty(&self) -> impl Iterator<Item = LinkId> + '_ {
        let faulty = self.links.iter().filter(|link| link.faulty);
        faulty.map(|link| link.id)
    }

    /// Returns the pairs between which wrong bytes arrived, although none of their links is known to be faulty.
    pub fn wrong_pairs(&self) -> impl Iterator<Item = &PairReport> {
        let pairs = self.pairs.iter();
        pairs.filter(|pair| pair.found == Found::WrongBytes)
    }
}

impl TransferManager {
    /// Measures every link of this machine, plans with the results from then on, and times every ordered pair of
    /// memories. Blocks for the budget, or until every size has its samples. Other transfers at the same time disturb
    /// the results. The probe's copies count in [`TransferManager::stats`].
    ///
    /// Links between devices are proven anew. Where verdicts are kept
    /// ([`Builder::keep_verdicts`](crate::Builder::keep_verdicts)), the new verdicts replace the old ones. The probe
    /// writes nothing else: [`Profile::save`] does. Links that moved wrong bytes are not used any more, until
    /// [`TransferManager::clear_cache`].
    ///
    /// In the browser, where no call may block, the probe measures only links between memories of the host. In a child
    /// of `fork` it returns an empty report for the parent's manager.
    pub fn probe(&self, options: &ProbeOptions) -> ProbeReport {
        self.probe_watched(options, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`TransferManager::probe`], and calls `watch` between copies, outside the timed part. After a break the rest is left
    /// out, as if the budget were over.
    pub fn probe_watched(
        &self,
        options: &ProbeOptions,
        watch: &mut dyn FnMut(ProbeProgress) -> ControlFlow<()>,
    ) -> ProbeReport {
        let timer = Timer {
            started: Instant::now(),
            budget: options.budget,
            is_stopped: Cell::new(false),
        };
        if self.shared.is_forked() {
            return ProbeReport::empty();
        }
        let topology = self.topology();
        self.distrust_peers();
        let sizes = sizes(options);
        let mut workspace = Workspace::new(self, sizes.last().copied().unwrap_or(0));
        let mut measurements = link_cells(&topology, &sizes);
        let samples = options.samples.clamp(1, sample::MOST);

        let mut checks = Checks::new(&topology);
        checks.links(
            &mut workspace,
            &mut measurements,
            &mut timer.phase(ProbePhase::CheckingLinks, watch),
        );
        rounds::run(
            &mut workspace,
            &mut measurements,
            samples,
            &mut timer.phase(ProbePhase::TimingLinks, watch),
        );
        let links = link_reports(&topology, measurements, checks.faulty());
        let mut profile = Profile::new(&topology, links.iter().filter_map(measured).collect());
        // What was known stays where nothing was measured.
        let adopt = |profile: &Profile| match profile.links() {
            [] => {}
            _ => self.adopt_profile(profile),
        };
        adopt(&profile);
        let faulty = profile.links().iter().filter(|link| link.faulty);
        self.keep_condemned(faulty.map(|link| link.id), FAULTY);

        let fresh = {
            let mut may_go_on = timer.phase(ProbePhase::TimingFreshMemory, watch);
            fresh::time(self, &topology, &mut may_go_on)
        };

        let mut pairs = pair_cells(&topology, &sizes);
        checks.pairs(
            &mut workspace,
            &mut pairs,
            &mut timer.phase(ProbePhase::CheckingPairs, watch),
        );
        self.expect_times(&mut pairs, &profile);
        rounds::run(
            &mut workspace,
            &mut pairs,
            samples,
            &mut timer.phase(ProbePhase::TimingPairs, watch),
        );
        profile = profile.with_routes(corrections(&pairs));
        adopt(&profile);
        pairs.retain(|pair| !pair.is_rival);
        ProbeReport {
            links,
            pairs: pairs.into_iter().map(pair_report).collect(),
            fresh,
            profile,
            simulated: topology.devices().iter().any(|device| device.simulated),
        }
    }

    /// Notes what the planner expects of each pair, and adds its best rivals by other routes.
    fn expect_times(&self, pairs: &mut Vec<Measurement>, profile: &Profile) {
        let mut rivals = Vec::new();
        // A link without measurements may never answer.
        let known = { profile.links().iter() }.filter(|link| !link.points.is_empty());
        let known: HashSet<LinkId> = known.map(|link| link.id).collect();
        for pair in pairs.iter_mut().filter(|pair| pair.state == State::Right) {
            let key = PlanKey::copy(pair.src, pair.dst);
            let mut ways = self.ways(key, pair.bytes).unwrap_or_default().into_iter();
            let Some(chosen) = ways.next() else { continue };
            let ns = chosen.choice().predicted_ns.unwrap_or(u64::MAX);
            let mut routes = vec![chosen.links()];
            for way in ways {
                let is_near = way
                    .choice()
                    .predicted_ns
                    .is_some_and(|rival| rival / 3 * 2 <= ns);
                let links = way.links();
                let is_new = routes.len() <= RIVALS && !routes.contains(&links);
                if is_near && is_new && links.iter().all(|link| known.contains(link)) {
                    routes.push(links);
                    let mut rival = Measurement::new(pair.src, pair.dst, pair.bytes, None);
                    (rival.state, rival.is_rival) = (State::Right, true);
                    rival.expected = Some(Arc::new(way));
                    rivals.push(rival);
                }
            }
            // A correction goes with the links' costs that the profile has.
            if routes[0].iter().all(|link| known.contains(link)) {
                pair.expected = Some(Arc::new(chosen));
            }
        }
        pairs.append(&mut rivals);
        pairs.sort_by_key(|pair| pair.bytes);
    }

    /// Returns whether the engine has found out that the link moves wrong bytes.
    fn is_condemned(&self, link: LinkId) -> bool {
        let now = self.now();
        let state = &self.shared.state;
        state.with(|state| state.planning.is_condemned(link, now))
    }
}

/// At most so many ways that were not chosen are timed for each pair and size.
const RIVALS: usize = 2;

/// Fewer times have no interval of 95 %. Their range counts, and a quarter beyond it.
const LEAST_TIMES: usize = 6;

/// Returns the routes whose times differ from the predicted ones by more than the interval of the median.
fn corrections(pairs: &[Measurement]) -> Vec<MeasuredRoute> {
    let mut routes: BTreeMap<Vec<LinkId>, Vec<Compared>> = BTreeMap::new();
    for pair in pairs {
        let Some(way) = pair.expected.as_ref().filter(|way| way.is_one_lane()) else {
            continue;
        };
        let found = Interval::of(&pair.times);
        if let (Some(found), Some(predicted_ns)) = (found, way.choice().predicted_ns) {
            let (low_ns, high_ns) = match pair.times.len() < LEAST_TIMES {
                true => (
                    found.low_ns / 4 * 3,
                    found.high_ns.saturating_add(found.high_ns / 4),
                ),
                false => (found.low_ns, found.high_ns),
            };
            let is_right = (low_ns..=high_ns).contains(&predicted_ns);
            let ns = if is_right {
                predicted_ns
            } else {
                found.median_ns
            };
            let compared = Compared::new(pair.bytes, predicted_ns, ns);
            routes.entry(way.links()).or_default().push(compared);
        }
    }
    // Small copies tell nothing about large ones: at a size without times the prediction stands.
    let sizes: BTreeSet<u64> = pairs.iter().map(|pair| pair.bytes).collect();
    for points in routes.values_mut() {
        let is_missing = |bytes: &&u64| points.iter().all(|point| point.bytes != **bytes);
        let missing: Vec<u64> = sizes.iter().filter(is_missing).copied().collect();
        points.extend(missing.into_iter().map(|bytes| Compared::new(bytes, 1, 1)));
        points.sort_by_key(|point| point.bytes);
    }
    routes.retain(|_, points| points.iter().any(|point| point.ns != point.predicted_ns));
    let routes = routes.into_iter();
    routes
        .map(|(links, points)| MeasuredRoute::new(links, points))
        .collect()
}

/// The time limit of a probe.
struct Timer {
    started: Instant,
    budget: Duration,
    is_stopped: Cell<bool>,
}

impl Timer {
    /// Returns a function that reports the progress of the phase and returns whether it may go on.
    fn phase(
        &self,
        phase: ProbePhase,
        watch: &mut (dyn FnMut(ProbeProgress) -> ControlFlow<()> + '_),
    ) -> impl FnMut() -> bool {
        // A phase uses the time that an earlier one leaves. Checks end by themselves, on most machines in a tenth of
        // this, and a few rounds are worth more than many of the smaller sizes.
        let share = match phase {
            ProbePhase::CheckingLinks => 40,
            ProbePhase::TimingLinks => 50,
            ProbePhase::TimingFreshMemory => 60,
            ProbePhase::CheckingPairs => 75,
            ProbePhase::TimingPairs => 100,
        };
        let until = self.budget * share / 100;
        move || {
            let elapsed = self.started.elapsed();
            let progress = ProbeProgress {
                phase,
                elapsed,
                budget: self.budget,
            };
            if !self.is_stopped.get() && watch(progress).is_break() {
                self.is_stopped.set(true);
            }
            elapsed < until && !self.is_stopped.get()
        }
    }
}

/// Returns the sizes, rising, each once.
fn sizes(options: &ProbeOptions) -> Vec<u64> {
    let mut sizes = options.sizes.clone();
    sizes.retain(|bytes| *bytes > 0);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Orders the smaller sizes of all links first: when the time is up, each link has some.
fn by_size(mut measurements: Vec<Measurement>) -> Vec<Measurement> {
    measurements.sort_by_key(|measurement| measurement.bytes);
    measurements
}

fn link_cells(topology: &Topology, sizes: &[u64]) -> Vec<Measurement> {
    let mut measurements = Vec::new();
    for link in topology.links() {
        let (src, dst) = (link.id.src, link.id.dst);
        let Some(room) = room(topology, src, dst) else {
            // No registered backend has this end.
            continue;
        };
        let most = room.min(defaults::max_chunk_bytes(link.class));
        let mut own: Vec<u64> = sizes.iter().map(|bytes| (*bytes).min(most)).collect();
        own.dedup();
        let measurement = |bytes| Measurement::new(src, dst, bytes, Some(link.id));
        measurements.extend(own.into_iter().map(measurement));
    }
    by_size(measurements)
}

fn pair_cells(topology: &Topology, sizes: &[u64]) -> Vec<Measurement> {
    let memories = || named(topology).map(|memory| memory.id);
    let mut measurements = Vec::new();
    for (src, dst) in memories().flat_map(|src| memories().map(move |dst| (src, dst))) {
        let room = room(topology, src, dst).unwrap_or(0);
        let fitting = sizes.iter().filter(|bytes| **bytes <= room);
        measurements.extend(fitting.map(|bytes| Measurement::new(src, dst, *bytes, None)));
    }
    by_size(measurements)
}

/// Returns the memories that users can name as an end of a copy.
fn named(topology: &Topology) -> impl Iterator<Item = &MemoryInfo> {
    let is_named = |kind| !matches!(kind, MemoryKind::Upload | MemoryKind::Readback);
    let memories = topology.memories().iter();
    memories.filter(move |memory| is_named(memory.id.kind))
}

/// Returns the largest allocation for which both memories have room.
fn room(topology: &Topology, src: MemoryId, dst: MemoryId) -> Option<u64> {
    let of = |memory| topology.memory(memory).map(|info| info.max_alloc_bytes);
    Some(of(src)?.min(of(dst)?))
}

fn link_reports(
    topology: &Topology,
    measurements: Vec<Measurement>,
    faulty: &HashSet<LinkId>,
) -> Vec<LinkReport> {
    let report = |link: &transload_core::Link| LinkReport {
        id: link.id,
        faulty: faulty.contains(&link.id),
        sizes: Vec::new(),
    };
    let mut reports: Vec<LinkReport> = topology.links().iter().map(report).collect();
    for measurement in measurements {
        let report = reports
            .iter_mut()
            .find(|report| Some(report.id) == measurement.over);
        if let Some(report) = report {
            report.sizes.push((measurement.bytes, measurement.found()));
        }
    }
    reports.retain(|report| !report.sizes.is_empty());
    reports
}

fn pair_report(measurement: Measurement) -> PairReport {
    PairReport {
        src: measurement.src,
        dst: measurement.dst,
        bytes: measurement.bytes,
        method: measurement.method,
        found: measurement.found(),
    }
}

/// Returns a profile's record of a link; `None` where nothing was measured.
fn measured(link: &LinkReport) -> Option<MeasuredLink> {
    let point = |(bytes, found): &(u64, Found)| match found {
        Found::Time(interval) => Some(Point {
            bytes: *bytes,
            ns: interval.median_ns,
            low_ns: interval.low_ns,
            high_ns: interval.high_ns,
            samples: interval.samples,
        }),
        _ => None,
    };
    // Small copies alone tell nothing about large ones, so a link is measured to the end or not at all.
    let reached = || {
        link.sizes
            .iter()
            .all(|(_, found)| *found != Found::NotReached)
    };
    let points: Vec<Point> = match !link.faulty && reached() {
        true => link.sizes.iter().filter_map(point).collect(),
        false => Vec::new(),
    };
    (link.faulty || !points.is_empty()).then_some(MeasuredLink {
        id: link.id,
        points,
        faulty: link.faulty,
    })
}
