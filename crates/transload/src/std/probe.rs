//! The probe: measures the cost of each link of a machine, and times the resulting plans.
//!
//! The probe measures links first: over each link, copies of several sizes, one after the other in rounds, so that a
//! temporary slowdown of the machine affects all of them. Before it times a size, it sends a pattern over the link into
//! poisoned memory, brings it back another way and compares. Then the medians replace the default costs, and the probe
//! times each ordered pair of memories over the way that the planner now chooses.
//!
//! Pages were touched before, and files (nameless ones of the probe's own) are in the page cache. But each copy uses
//! the next part of its memory, as the pieces of a large copy do, so that no processor cache smaller than the largest
//! size holds its bytes.

mod cell;
mod check;
mod ground;
mod rounds;
mod sample;
mod way;

use std::collections::HashSet;
use std::time::Duration;
#[cfg(not(browser))]
use std::time::Instant;

use transload_core::{LinkId, MemoryId, MemoryKind, Method, Topology, defaults};

use self::cell::Cell;
use self::check::Checks;
use self::ground::Ground;
#[cfg(browser)]
use super::browser_clock::Instant;
use super::profile::{FAULTY, MeasuredLink, Point, Profile};
use crate::TransferManager;

pub use sample::Interval;

/// The sizes and limits of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeOptions {
    /// The limit of the probe's duration by the wall clock. Measurements that were not reached by then are left out,
    /// the largest sizes first; a link that was not measured to the end keeps its default costs.
    pub budget: Duration,
    /// The sizes in bytes. The probe measures a link up to the largest piece that the planner cuts for it.
    pub sizes: Vec<u64>,
    /// The most timed copies of one size over one link, up to 1000.
    pub samples: u32,
}

/// The results of a probe.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ProbeReport {
    /// Every link, in the topology's order.
    pub links: Vec<LinkReport>,
    /// Every ordered pair of memories that users can name, in each size, by source, destination and size.
    pub pairs: Vec<PairReport>,
    /// The costs that the planner uses from now on. Save it to use them in later processes.
    pub profile: Profile,
    /// Whether a device is simulated: its times are the model's then.
    pub simulated: bool,
}

/// The results of a probe for a link.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LinkReport {
    /// The link.
    pub id: LinkId,
    /// The link moved wrong bytes. It gets no cost, and is not used any more.
    pub faulty: bool,
    /// Each size in bytes, rising, and its result.
    pub sizes: Vec<(u64, Found)>,
}

/// The results of a probe for a pair of memories.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PairReport {
    /// The source of the bytes.
    pub src: MemoryId,
    /// Their destination.
    pub dst: MemoryId,
    /// Their number.
    pub bytes: u64,
    /// How the bytes moved; `None` where they did not.
    pub method: Option<Method>,
    /// The result.
    pub found: Found,
}

/// The result of copies of one size.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Found {
    /// The bytes were right, and the copies took this time.
    Time(Interval),
    /// The bytes that arrived were not those that were sent.
    WrongBytes,
    /// Nothing could be copied, for this reason.
    Failed(String),
    /// The time was up before the size was reached.
    NotReached,
}

/// The progress of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeProgress {
    /// The current phase.
    pub phase: ProbePhase,
    /// How much of the budget has passed.
    pub elapsed: Duration,
    /// The whole budget.
    pub budget: Duration,
}

/// The parts of a probe, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbePhase {
    /// Sends a pattern over each link.
    CheckingLinks,
    /// Times each link.
    TimingLinks,
    /// Sends a pattern between each two memories.
    CheckingPairs,
    /// Times each pair of memories.
    TimingPairs,
}

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
        let mut ground = Ground::new(self, sizes.last().copied().unwrap_or(0));
        let mut cells = link_cells(&topology, &sizes);
        let samples = options.samples.clamp(1, sample::MOST);

        let mut checks = Checks::new(&topology);
        checks.links(
            &mut ground,
            &mut cells,
            &mut timer.phase(ProbePhase::CheckingLinks, watch),
        );
        rounds::run(
            &mut ground,
            &mut cells,
            samples,
            &mut timer.phase(ProbePhase::TimingLinks, watch),
        );
        let links = link_reports(&topology, cells, checks.faulty());
        let profile = Profile::new(&topology, links.iter().filter_map(measured).collect());
        self.adopt_profile(&profile);
        let faulty = profile.links().iter().filter(|link| link.faulty);
        self.keep_condemned(faulty.map(|link| link.id), FAULTY);

        let mut pairs = pair_cells(&topology, &sizes);
        checks.pairs(
            &mut ground,
            &mut pairs,
            &mut timer.phase(ProbePhase::CheckingPairs, watch),
        );
        rounds::run(
            &mut ground,
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
fn by_size(mut cells: Vec<Cell>) -> Vec<Cell> {
    cells.sort_by_key(|cell| cell.bytes);
    cells
}

fn link_cells(topology: &Topology, sizes: &[u64]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for link in topology.links() {
        let (src, dst) = (link.id.src, link.id.dst);
        let Some(room) = room(topology, src, dst) else {
            // No registered backend has this end.
            continue;
        };
        let most = room.min(defaults::max_chunk_bytes(link.class));
        let mut own: Vec<u64> = sizes.iter().map(|bytes| (*bytes).min(most)).collect();
        own.dedup();
        let cell = |bytes| Cell::new(src, dst, bytes, Some(link.id));
        cells.extend(own.into_iter().map(cell));
    }
    by_size(cells)
}

fn pair_cells(topology: &Topology, sizes: &[u64]) -> Vec<Cell> {
    let named = |kind| !matches!(kind, MemoryKind::Upload | MemoryKind::Readback);
    let memories = || {
        let memories = topology.memories().iter().map(|memory| memory.id);
        memories.filter(move |memory| named(memory.kind))
    };
    let mut cells = Vec::new();
    for (src, dst) in memories().flat_map(|src| memories().map(move |dst| (src, dst))) {
        let room = room(topology, src, dst).unwrap_or(0);
        let fitting = sizes.iter().filter(|bytes| **bytes <= room);
        cells.extend(fitting.map(|bytes| Cell::new(src, dst, *bytes, None)));
    }
    by_size(cells)
}

/// Returns the largest allocation for which both memories have room.
fn room(topology: &Topology, src: MemoryId, dst: MemoryId) -> Option<u64> {
    let of = |memory| topology.memory(memory).map(|info| info.max_alloc_bytes);
    Some(of(src)?.min(of(dst)?))
}

fn link_reports(
    topology: &Topology,
    cells: Vec<Cell>,
    faulty: &HashSet<LinkId>,
) -> Vec<LinkReport> {
    let report = |link: &transload_core::Link| LinkReport {
        id: link.id,
        faulty: faulty.contains(&link.id),
        sizes: Vec::new(),
    };
    let mut reports: Vec<LinkReport> = topology.links().iter().map(report).collect();
    for cell in cells {
        let report = reports
            .iter_mut()
            .find(|report| Some(report.id) == cell.over);
        if let Some(report) = report {
            report.sizes.push((cell.bytes, cell.found()));
        }
    }
    reports.retain(|report| !report.sizes.is_empty());
    reports
}

fn pair_report(cell: Cell) -> PairReport {
    PairReport {
        src: cell.src,
        dst: cell.dst,
        bytes: cell.bytes,
        method: cell.method,
        found: cell.found(),
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
