//! The probe: measures the cost of each link of a machine, and times the resulting plans.
//!
//! The probe measures links first: over each link, copies of several sizes, one after the other in rounds, so that a
//! temporary slowdown of the machine affects all of them. Before it times a size, it sends a pattern over the link into
//! poisoned memory, brings it back another way and compares. Then the medians replace the default costs, and the probe
//! times each ordered pair of memories over the way that the planner now chooses.
//!
//! Pages were touched before, and files (nameless ones of the probe's own) are in the page cache. Copies of up to 1 MiB
//! use the same bytes again and again: that is what a small copy costs. Each larger one uses the next part of its memory,
//! as the pieces of a large copy do. The planner prices the chunks of a stream by the largest sizes
//! ([`Curve::in_stream`](transload_core::Curve::in_stream)).

mod check;
mod measurement;
mod report;
mod rounds;
mod sample;
mod way;
mod workspace;

use std::collections::HashSet;
use std::time::Duration;
#[cfg(not(browser))]
use std::time::Instant;

use transload_core::{LinkId, MemoryId, MemoryKind, Topology, defaults};

use self::check::Checks;
use self::measurement::Measurement;
use self::workspace::Workspace;
#[cfg(browser)]
use super::browser_clock::Instant;
use super::profile::{FAULTY, MeasuredLink, Point, Profile};
use crate::TransferManager;

pub use report::{
    Found, LinkReport, PairReport, ProbeOptions, ProbePhase, ProbeProgress, ProbeReport,
};
pub use sample::Interval;

impl ProbeOptions {
    /// 10 seconds, up to 16 MiB.
    pub fn quick() -> ProbeOptions {
        ProbeOptions {
            budget: Duration::from_secs(10),
            sizes: vec![4 << 10, 64 << 10, 1 << 20, 16 << 20],
            samples: sample::MOST,
        }
    }

    /// 60 seconds, up to 64 MiB.
    pub fn full() -> ProbeOptions {
        ProbeOptions {
            budget: Duration::from_secs(60),
            sizes: vec![256, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20],
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
        self.probe_watched(options, &mut |_| {})
    }

    /// As [`TransferManager::probe`], and calls `watch` between copies, outside the timed part.
    pub fn probe_watched(
        &self,
        options: &ProbeOptions,
        watch: &mut dyn FnMut(ProbeProgress),
    ) -> ProbeReport {
        let timer = Timer {
            started: Instant::now(),
            budget: options.budget,
        };
        if self.shared.is_forked() {
            return ProbeReport::empty();
        }
        self.distrust_peers();
        let topology = self.topology();
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
        let profile = Profile::new(&topology, links.iter().filter_map(measured).collect());
        self.adopt_profile(&profile);
        let faulty = profile.links().iter().filter(|link| link.faulty);
        self.keep_condemned(faulty.map(|link| link.id), FAULTY);

        let mut pairs = pair_cells(&topology, &sizes);
        checks.pairs(
            &mut workspace,
            &mut pairs,
            &mut timer.phase(ProbePhase::CheckingPairs, watch),
        );
        rounds::run(
            &mut workspace,
            &mut pairs,
            samples,
            &mut timer.phase(ProbePhase::TimingPairs, watch),
        );
        ProbeReport {
            links,
            pairs: pairs.into_iter().map(pair_report).collect(),
            profile,
            simulated: topology.devices().iter().any(|device| device.simulated),
        }
    }

    /// Returns whether the engine has found out that the link moves wrong bytes.
    fn is_condemned(&self, link: LinkId) -> bool {
        let now = self.now();
        self.shared.state.with(|state| {
            let bar = state.planning.quarantine().barred(link, now);
            bar.is_some_and(|bar| bar.until.is_none())
        })
    }
}

/// The time limit of a probe.
struct Timer {
    started: Instant,
    budget: Duration,
}

impl Timer {
    /// Returns a function that reports the progress of the phase and returns whether it may go on.
    fn phase(
        &self,
        phase: ProbePhase,
        watch: &mut (dyn FnMut(ProbeProgress) + '_),
    ) -> impl FnMut() -> bool {
        // A phase uses the time that an earlier one leaves. Checks end by themselves, on most machines in a tenth of
        // this, and a few rounds are worth more than many of the smaller sizes.
        let share = match phase {
            ProbePhase::CheckingLinks => 50,
            ProbePhase::TimingLinks => 65,
            ProbePhase::CheckingPairs => 90,
            ProbePhase::TimingPairs => 100,
        };
        let until = self.budget * share / 100;
        move || {
            let elapsed = self.started.elapsed();
            watch(ProbeProgress {
                phase,
                elapsed,
                budget: self.budget,
            });
            elapsed < until
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
    let named = |kind| !matches!(kind, MemoryKind::Upload | MemoryKind::Readback);
    let memories = || {
        let memories = topology.memories().iter().map(|memory| memory.id);
        memories.filter(move |memory| named(memory.kind))
    };
    let mut measurements = Vec::new();
    for (src, dst) in memories().flat_map(|src| memories().map(move |dst| (src, dst))) {
        let room = room(topology, src, dst).unwrap_or(0);
        let fitting = sizes.iter().filter(|bytes| **bytes <= room);
        measurements.extend(fitting.map(|bytes| Measurement::new(src, dst, *bytes, None)));
    }
    by_size(measurements)
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
