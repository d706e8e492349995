//! `planner/regret`: every pair of memories, by the planner's choice and by the ways that it did not choose.
//!
//! The candidates of a cell are the ways that the manager lists with default costs and with those of a probe. All of
//! them run in turn, of large copies the likely ones. The best is chosen by one half of the rounds and timed by the
//! other, so that luck in one half is no merit in the other. The regret of a choice is its time over the time of the
//! best; where the two differ by no more than two runs of the choice itself, it is 1.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use transload::probe::ProbeOptions;
use transload::{
    AllocSpec, Buffer, Candidate, MemoryId, MemoryKind, Method, Request, TransferManager,
};

use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{POISON, Random};
use crate::series::Series;

/// The sizes of both efforts, in bytes.
const SIZES: [u64; 12] = [
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    128 << 20,
    256 << 20,
];
const QUICK_SIZES: [u64; 3] = [4 << 10, 1 << 20, 16 << 20];

/// When the cells, which follow one another in an order of chance, have taken this long, the others are left out.
const LIMIT: Duration = Duration::from_secs(490);
const QUICK_LIMIT: Duration = Duration::from_secs(60);

/// The least duration of a sample, and of the copies before it, at most eight; short copies are repeated to fill it.
const SAMPLE: Duration = Duration::from_micros(200);
const WARM_UP: Duration = Duration::from_millis(4);

/// Returns how many copies of so many seconds fill the duration.
fn turns(duration: Duration, seconds: f64) -> u32 {
    (duration.as_secs_f64() / seconds).clamp(1.0, 1e4) as u32
}

/// Copies of at least this many bytes take long, and still larger ones have few rounds. Of their candidates only those
/// run whose predicted time is at most this many times the least one.
const LARGE: u64 = 16 << 20;
const UNLIKELY: f64 = 2.0;

/// A candidate takes part in the rounds unless each of its first copies took this many times as long as the fastest
/// first copy of any.
const HOPELESS: f64 = 1.4;

/// The figures of all cells, in the document of `--json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) cells: usize,
    /// The cells for which no time was left.
    pub(crate) left_out: usize,
    pub(crate) regret_geomean: f64,
    pub(crate) regret_p95: f64,
    pub(crate) regret_worst: f64,
    pub(crate) defaults_regret_geomean: f64,
    pub(crate) defaults_regret_p95: f64,
    pub(crate) prediction_error_median: f64,
    pub(crate) prediction_error_p90: f64,
    pub(crate) pairs: Vec<Cell>,
}

/// One pair of memories, and one size.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    src: String,
    dst: String,
    bytes: u64,
    /// The choice with the costs of a probe.
    chosen: String,
    chosen_s: f64,
    predicted_s: Option<f64>,
    /// The choice with default costs.
    defaults: String,
    best: String,
    best_s: f64,
    /// By how much two runs of the choice differed, as a fraction.
    noise: f64,
    regret: f64,
    defaults_regret: f64,
    candidates: usize,
    /// The ways that took part in the rounds: name, prediction and median, in seconds.
    timed: Vec<(String, Option<f64>, f64)>,
}

pub(super) fn run(effort: Effort) -> Result<Outcome> {
    let bench = Bench::new(effort)?;
    let defaults = bench.candidates()?;
    let options = match effort.quick {
        true => ProbeOptions::quick(),
        false => ProbeOptions::full(),
    };
    bench.manager.probe(&options);
    let profiled = bench.candidates()?;
    let mut keys: Vec<Key> = profiled.keys().copied().collect();
    keys.sort_unstable();
    let mut order: Vec<usize> = (0..keys.len()).collect();
    Random(1).shuffle(&mut order);
    let limit = if effort.quick { QUICK_LIMIT } else { LIMIT };
    let begin = Instant::now();
    let mut cells = Vec::new();
    for key in order.into_iter().map(|at| keys[at]) {
        if begin.elapsed() >= limit {
            break;
        }
        let before = defaults.get(&key).and_then(|ways| ways.first());
        cells.push(bench.cell(key, &profiled[&key], before, effort)?);
    }
    let left_out = keys.len() - cells.len();
    if left_out > 0 {
        eprintln!("  {left_out} of {} cells had no time", keys.len());
    }
    cells.sort_by(|a, b| b.regret.total_cmp(&a.regret));
    let summary = Summary::of(cells, left_out).context("the machine has pairs of memories")?;
    let mut outcome = Outcome::new(
        "planner/regret",
        &Series::from_iter([summary.regret_geomean]),
    );
    outcome.verified = true;
    outcome.samples = summary.cells;
    let regret = |of: &str, value, limit| Verdict::at_most(of, value, limit, "");
    outcome.verdict = Some(regret(
        "regret, geometric mean",
        summary.regret_geomean,
        1.05,
    ));
    outcome.further = vec![
        regret("regret, 95th percentile", summary.regret_p95, 1.25),
        regret("with default costs", summary.defaults_regret_geomean, 1.15),
        regret(
            "the same, 95th percentile",
            summary.defaults_regret_p95,
            1.6,
        ),
        regret(
            "error of predictions, median",
            summary.prediction_error_median,
            0.15,
        ),
    ];
    outcome.regret = Some(summary);
    Ok(outcome)
}

/// A manager of all memories, with two buffers in each.
struct Bench {
    manager: TransferManager,
    memories: Vec<(MemoryId, [Buffer; 2])>,
    sizes: &'static [u64],
}

type Key = (usize, usize, u64);

impl Bench {
    fn new(effort: Effort) -> Result<Bench> {
        let manager = super::machine::manager()?;
        let sizes = match effort.quick {
            true => &QUICK_SIZES[..],
            false => &SIZES[..],
        };
        let most = sizes.last().copied().context("there are sizes")?;
        let mut bytes = vec![0; most as usize];
        Random(most).fill(&mut bytes);
        let mut memories = Vec::new();
        for memory in manager.memories() {
            if matches!(
                memory.id.kind,
                MemoryKind::Upload | MemoryKind::Readback | MemoryKind::Disk
            ) {
                continue;
            }
            let made = || manager.allocate(memory.id.into(), AllocSpec::bytes(most));
            let buffers = [made()?, made()?];
            manager.copy_from_slice(&bytes, &buffers[0])?;
            manager.copy_from_slice(&bytes, &buffers[1])?;
            memories.push((memory.id, buffers));
        }
        Ok(Bench {
            manager,
            memories,
            sizes,
        })
    }

    fn request(&self, (src, dst, bytes): Key) -> Result<Request> {
        let src = self.memories[src].1[0].slice(..bytes)?;
        let dst = self.memories[dst].1[1].slice(..bytes)?;
        Ok(Request::new(&src, &dst))
    }

    /// Returns the ways of each cell.
    fn candidates(&self) -> Result<HashMap<Key, Vec<Candidate>>> {
        let mut all = HashMap::new();
        for src in 0..self.memories.len() {
            for dst in 0..self.memories.len() {
                for bytes in self.sizes {
                    let key = (src, dst, *bytes);
                    all.insert(key, self.manager.candidates(&self.request(key)?)?);
                }
            }
        }
        Ok(all)
    }

    fn cell(
        &self,
        key: Key,
        ways: &[Candidate],
        before: Option<&Candidate>,
        effort: Effort,
    ) -> Result<Cell> {
        let before = before.unwrap_or(&ways[0]);
        let is_large = key.2 >= LARGE;
        let predicted = |way: &Candidate| way.choice().predicted_ns.map(|ns| ns as f64 / 1e9);
        let least = { ways.iter().filter_map(predicted) }.fold(f64::INFINITY, f64::min);
        let is_likely =
            |way: &Candidate| predicted(way).is_none_or(|time| time <= UNLIKELY * least);
        let kept = ways.iter().enumerate();
        let kept = kept.filter(|(at, way)| *at == 0 || !is_large || is_likely(way));
        let mut all: Vec<&Candidate> = kept.map(|(_, way)| way).collect();
        let defaults = all.iter().position(|way| name(way) == name(before));
        let defaults = defaults.unwrap_or_else(|| {
            all.push(before);
            all.len() - 1
        });
        // A second run of the choice tells the noise.
        all.push(&ways[0]);
        let again = all.len() - 1;
        let request = self.request(key)?;
        let requests: Vec<Request> = all.iter().map(|way| request.clone().by(way)).collect();
        let mut firsts = Vec::with_capacity(all.len());
        for request in &requests {
            let mut first = self.verify(request, !is_large)?;
            for _ in 0..if is_large { 1 } else { 2 } {
                first = first.min(self.time(request, 1)?);
            }
            firsts.push(first);
        }
        let fastest = firsts.iter().copied().fold(f64::INFINITY, f64::min);
        let taking_part: Vec<usize> = (0..all.len())
            .filter(|at| [0, defaults, again].contains(at) || firsts[*at] <= HOPELESS * fastest)
            .collect();
        let rounds = match key.2 {
            len if len <= SMALL => effort.rounds.min(16),
            len if len <= LARGE => 8,
            _ => 4,
        };
        let mut series = vec![Series::default(); all.len()];
        let mut order = taking_part.clone();
        let mut random = Random(key.2 | 1);
        for _ in 0..rounds {
            random.shuffle(&mut order);
            for &at in &order {
                // The ways before it have filled the caches and taken the staging slots. A probe times a way thus too.
                let is_staged = all[at].choice().method == Method::HostStaged;
                if key.2 <= LARGE || is_staged {
                    self.time(&requests[at], turns(WARM_UP, firsts[at]).min(8))?;
                }
                let turns = turns(SAMPLE, firsts[at]);
                series[at].push(self.time(&requests[at], turns)?);
            }
        }
        let medians = |at: usize| series[at].halves().map(|half| half.median());
        let best = { taking_part.iter().copied() }
            .filter(|at| *at != again)
            .min_by(|a, b| medians(*a)[0].total_cmp(&medians(*b)[0]))
            .context("some way takes part")?;
        let noise = series[0].difference(&series[again]);
        let regret = |at: usize| {
            let over = medians(at)[1] / medians(best)[1];
            if over <= 1.0 + noise { 1.0 } else { over }
        };
        let timed = taking_part.iter().filter(|at| **at != again);
        let timed = timed.map(|at| (name(all[*at]), predicted(all[*at]), series[*at].median()));
        Ok(Cell {
            src: self.memories[key.0].0.to_string(),
            dst: self.memories[key.1].0.to_string(),
            bytes: key.2,
            chosen: name(&ways[0]),
            chosen_s: series[0].median(),
            predicted_s: predicted(&ways[0]),
            defaults: name(before),
            best: name(all[best]),
            best_s: series[best].median(),
            noise,
            regret: regret(0),
            defaults_regret: regret(defaults),
            candidates: ways.len(),
            timed: timed.collect(),
        })
    }

    fn time(&self, request: &Request, turns: u32) -> Result<f64> {
        let begin = Instant::now();
        for _ in 0..turns {
            self.manager.submit(request).wait()?;
        }
        Ok(begin.elapsed().as_secs_f64() / f64::from(turns))
    }

    /// Poisons the first and the last bytes of the destination, copies, and compares these bytes by another way. With
    /// `all`, the engine compares the checksums of all bytes too. Returns how long the copy took, in seconds.
    fn verify(&self, request: &Request, all: bool) -> Result<f64> {
        let (src, dst) = (request.src(), request.dst());
        let bytes = src.buffer().len().min(MOST_VERIFIED);
        let ends = |buffer: &Buffer| -> Result<[Buffer; 2]> {
            let len = buffer.len();
            Ok([buffer.slice(..bytes)?, buffer.slice(len - bytes..)?])
        };
        let poison = vec![POISON; bytes as usize];
        for end in ends(dst.buffer())? {
            self.manager.copy_from_slice(&poison, &end)?;
        }
        let request = match all {
            true => request.clone().verify(),
            false => request.clone(),
        };
        let took = self.time(&request, 1)?;
        for (src, dst) in ends(src.buffer())?.iter().zip(ends(dst.buffer())?) {
            let [sent, arrived] = [src, &dst].map(|end| self.manager.read_to_vec(end));
            anyhow::ensure!(sent? == arrived?, "wrong bytes arrived: {request:?}");
        }
        Ok(took)
    }
}

/// Copies up to this many bytes take so little time that they have more rounds.
const SMALL: u64 = 1 << 20;

/// At most so many bytes are compared at either end of a copy.
const MOST_VERIFIED: u64 = 4 << 20;

/// A way in one line, without its figures.
fn name(way: &Candidate) -> String {
    let lanes = way.choice().lanes.iter().map(|lane| {
        let route: Vec<String> = lane.route.iter().map(ToString::to_string).collect();
        let chunk = lane.chunk_bytes.min(lane.bytes.next_power_of_two());
        format!("{} {} by {chunk}", lane.method, route.join(" "))
    });
    lanes.collect::<Vec<_>>().join(" + ")
}

impl Summary {
    fn of(pairs: Vec<Cell>, left_out: usize) -> Option<Summary> {
        let of = |figure: &dyn Fn(&Cell) -> f64| {
            let mut all: Vec<f64> = pairs.iter().map(figure).collect();
            all.sort_by(f64::total_cmp);
            all
        };
        let part = |sorted: &[f64], part: f64| {
            let last = sorted.len().checked_sub(1)?;
            sorted.get((last as f64 * part).round() as usize).copied()
        };
        let geomean = |all: &[f64]| {
            let logs: f64 = all.iter().map(|value| value.ln()).sum();
            (logs / all.len() as f64).exp()
        };
        let (regret, defaults) = (of(&|cell| cell.regret), of(&|cell| cell.defaults_regret));
        let error = of(&|cell| {
            let predicted = cell.predicted_s.unwrap_or(f64::INFINITY);
            (predicted - cell.chosen_s).abs() / cell.chosen_s
        });
        Some(Summary {
            cells: pairs.len(),
            left_out,
            regret_geomean: geomean(&regret),
            regret_p95: part(&regret, 0.95)?,
            regret_worst: part(&regret, 1.0)?,
            defaults_regret_geomean: geomean(&defaults),
            defaults_regret_p95: part(&defaults, 0.95)?,
            prediction_error_median: part(&error, 0.5)?,
            prediction_error_p90: part(&error, 0.9)?,
            pairs,
        })
    }
}
