//! `--chart`: a picture of committed results, for the project's first page.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::case::MOST_NOISE;
use crate::markup::put;
use crate::series::Series;

/// What the picture shows of one machine, whose folders of results are named `DATE-MACHINE`, with further words behind:
/// the machine, its heading, and its rows. A row is the copy, the way that programs use today, the case, and the two
/// contenders whose times are divided.
const MACHINES: [(&str, &str, &str); 2] = [
    (
        "h200",
        "NVIDIA H200, 16 cores of a Xeon",
        "\
1 GiB of ordinary memory to the GPU|cuMemcpyHtoD, the driver's own copy|up/1GiB|transload|cuMemcpyHtoD
1 GiB of ordinary memory to the GPU|PyTorch, pin_memory().to(\"cuda\")|up/1GiB|transload|torch pin_memory().to
256 MiB of the GPU to ordinary memory|cuMemcpyDtoH, the driver's own copy|down/256MiB|transload|cuMemcpyDtoH
64 MiB of tensors in a cached file to the GPU|safetensors, load_file|load/64MiB|transload|safetensors load_file
10,000 blocks of 64 KiB, pinned, to the GPU|cuMemcpyBatchAsync|blocks-up/10000x64KiB|transload, one list|cuMemcpyBatchAsync
1 MiB of ordinary memory to the GPU|cuMemcpyHtoD|up/1MiB|transload|cuMemcpyHtoD
4 KiB of pinned memory to the GPU|the driver's call, and a wait|latency-up/4KiB|transload|raw call and wait, pinned
64 × 64 KiB to another process, over TLS|a stream of rustls|nodes/rate-64KiB|transload|plain",
    ),
    (
        "epyc-2-cores",
        "2 cores of an EPYC, no GPU: the adapter is software",
        "\
model of 600 MB, cached, to the adapter|safetensors, then write_buffer|models/adapter-large|transload|safetensors, write_buffer
file of 256 MiB, cached, to the adapter|fs::read, then write_buffer|file-wgpu/256MiB/warm|transload|tutorial
128 MiB of the heap to the adapter|wgpu's StagingBelt|host-wgpu/128MiB|transload|StagingBelt
128 MiB of the adapter to the heap|wgpu's DownloadBuffer|wgpu-host/128MiB|transload|DownloadBuffer
frame of 1920 × 1080 to the heap|a new staging buffer for each frame|texture/1920x1080|transload|tutorial
128 MiB within the heap|memcpy, in one thread|host-host/128MiB|transload|1 × plain
4 KiB within the heap|memcpy, in one thread|host-host/4KiB|transload|1 × plain",
    ),
];

/// A file of results of either program of benchmarks, in the fields that the picture needs.
#[derive(Deserialize)]
struct Document {
    results: Vec<Written>,
}

/// A case of these benchmarks; of those for a GPU, which write `contestants`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Gpu {
        case: String,
        contestants: Vec<Contestant>,
    },
    Here {
        case: String,
        transload_s: f64,
        spread_s: [f64; 2],
        baselines: BTreeMap<String, Option<f64>>,
        noise: Option<f64>,
    },
    /// A case without times.
    Other {},
}

#[derive(Deserialize)]
struct Contestant {
    name: String,
    median_s: Option<f64>,
    spread_s: Option<[f64; 2]>,
}

/// The times of one case in one run.
struct Run {
    case: String,
    medians: BTreeMap<String, f64>,
    spreads: BTreeMap<String, [f64; 2]>,
    /// By how much two runs of one baseline differed, where one ran twice.
    noise: Option<f64>,
}

impl Written {
    fn run(self) -> Option<Run> {
        match self {
            Written::Other {} => None,
            Written::Here {
                case,
                transload_s,
                spread_s,
                baselines,
                noise,
            } => {
                let others = baselines.into_iter();
                let others = others.filter_map(|(name, median)| Some((name, median?)));
                Some(Run {
                    case,
                    medians: others.chain([("transload".into(), transload_s)]).collect(),
                    spreads: [("transload".into(), spread_s)].into(),
                    noise: Some(noise.unwrap_or(f64::INFINITY)),
                })
            }
            Written::Gpu { case, contestants } => {
                let of =
                    |contestant: &Contestant| Some((contestant.name.clone(), contestant.median_s?));
                let medians: BTreeMap<String, f64> = contestants.iter().filter_map(of).collect();
                let again = |(name, median): (&String, &f64)| {
                    let again = medians.get(&format!("{name}, again"))?;
                    Some((median - again).abs() / median.min(*again))
                };
                let noise = medians.iter().find_map(again);
                let spreads = contestants.into_iter();
                let spreads = spreads
                    .filter_map(|of| Some((of.name, of.spread_s?)))
                    .collect();
                Some(Run {
                    case,
                    medians,
                    spreads,
                    noise,
                })
            }
        }
    }
}

/// How many times as fast as today's way a copy is: the median of the runs, and the slowest and the fastest sample of
/// any.
#[derive(Debug, PartialEq)]
struct Speed {
    median: f64,
    /// Results have the spread of some contenders alone.
    spread: Option<[f64; 2]>,
}

/// Draws the newest results of each case in `folder`, whose folders' names begin with their dates, into `file`.
///
/// # Errors
/// When a result cannot be read, or a row has none.
pub(crate) fn draw(file: &Path, folder: &Path) -> Result<()> {
    let cannot = |what: &str, path: &Path| format!("cannot {what} {}", path.display());
    let mut pictured = Vec::new();
    for (machine, heading, rows) in MACHINES {
        let mut runs = Vec::new();
        for path in entries(folder)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let Some((date, rest)) = name.split_at_checked("2026-11-21-".len()) else {
                continue;
            };
            if !rest.starts_with(machine) {
                continue;
            }
            let mut all = Vec::new();
            for path in entries(&path)? {
                let text = fs::read_to_string(&path).with_context(|| cannot("read", &path))?;
                let document: Document =
                    serde_json::from_str(&text).with_context(|| cannot("use", &path))?;
                all.extend(document.results.into_iter().filter_map(Written::run));
            }
            runs.push((date.trim_end_matches('-').to_owned(), all));
        }
        // The newest first.
        runs.reverse();
        pictured.push(Machine::new(heading, rows, &runs)?);
    }
    fs::write(file, picture(&pictured)).with_context(|| cannot("write", file))
}

/// The paths in `folder`, sorted.
fn entries(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let read = || format!("cannot read {}", folder.display());
    let entries = fs::read_dir(folder).with_context(read)?;
    let mut paths: Vec<_> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    paths.sort();
    Ok(paths)
}

/// A machine in the picture.
struct Machine {
    heading: String,
    /// The copy, today's way, and the speed.
    rows: Vec<(&'static str, &'static str, Speed)>,
}

impl Machine {
    /// Takes each row from the newest of `runs` that has it. The heading tells from when they are.
    fn new(heading: &str, rows: &'static str, runs: &[(String, Vec<Run>)]) -> Result<Self> {
        let mut shown = Vec::new();
        let mut dates = Vec::new();
        for row in rows.lines() {
            let fields: Vec<&str> = row.split('|').collect();
            let [copy, today, case, contender, baseline] = fields[..] else {
                unreachable!("each line of the table has five fields");
            };
            let of = |(date, all): &(String, Vec<Run>)| {
                Some((date.clone(), speed(case, contender, baseline, all)?))
            };
            let newest = runs.iter().find_map(of);
            let (date, speed) = newest.with_context(|| {
                format!("no run of {case} with little noise has `{contender}` and `{baseline}`")
            })?;
            dates.push(date);
            shown.push((copy, today, speed));
        }
        dates.sort();
        dates.dedup();
        Ok(Self {
            heading: format!("{heading} ({})", dates.join(", ")),
            rows: shown,
        })
    }
}

/// Leaves out runs without a verdict: their two runs of one baseline differ too much.
fn speed(case: &str, contender: &str, baseline: &str, all: &[Run]) -> Option<Speed> {
    let mut speeds = Vec::new();
    let mut spread: Option<[f64; 2]> = None;
    let is_quiet = |run: &&Run| run.noise.is_none_or(|noise| noise <= MOST_NOISE);
    for run in all.iter().filter(|run| run.case == case).filter(is_quiet) {
        let median = |name: &str| run.medians.get(name).copied();
        let Some((time, today)) = median(contender).zip(median(baseline)) else {
            continue;
        };
        speeds.push(today / time);
        if let Some([fastest, slowest]) = run.spreads.get(contender) {
            let [least, most] = spread.unwrap_or([f64::INFINITY, 0.0]);
            spread = Some([least.min(today / slowest), most.max(today / fastest)]);
        }
    }
    let median = Series::from_iter(speeds).median();
    (!median.is_nan()).then_some(Speed { median, spread })
}

/// The first heading, the distance from a row to the next, and that from the last row of a machine to the next heading.
const TOP: f64 = 98.0;
const STEP: f64 = 34.0;
const GAP: f64 = 20.0;
/// The place of equal times, and the length of a factor of 10.
const EQUAL: f64 = 505.0;
const DECADE: f64 = 170.0;

const LEGEND: &str = "Thin lines: slowest and fastest sample. Runs in which one way differs from itself by more than 5 % are left out.";
/// The colours are the card's own, so that text is legible on any page.
const STYLE: &str = r#"<title>How fast Transload is, beside the usual way</title>
<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 11px; fill: #59636e }
.heading { font-weight: 600; stroke: #ffffff; stroke-width: 6px; paint-order: stroke }
.title { font-size: 16px; font-weight: 600 } .figure { font-weight: 600; text-anchor: end } .tick { text-anchor: middle }
.card { fill: #ffffff; stroke: #d1d9e0 } .grid { stroke: #d1d9e0 } .equal { stroke: #59636e }
.spread { stroke: #1f2328; fill: none } .faster { fill: #2da44e } .slower { fill: #d1730b }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .small { fill: #9198a1 } .heading { stroke: #0d1117 } .card { fill: #0d1117; stroke: #3d444d }
.grid { stroke: #3d444d } .equal { stroke: #9198a1 } .spread { stroke: #e6edf3 } }
</style>"#;

/// Horizontal bars on a logarithmic scale: to the right where Transload is faster.
fn picture(machines: &[Machine]) -> String {
    let x = |speed: f64| EQUAL + DECADE * speed.log10();
    let rows: usize = machines.iter().map(|machine| machine.rows.len() + 1).sum();
    let bottom = TOP + STEP * rows as f64 + GAP * (machines.len() - 1) as f64 - STEP / 2.0;
    let height = bottom + 32.0;
    let mut svg = String::new();
    put!(&mut svg, r#"<svg xmlns="http://www.w3.org/2000/svg" width="800" height="{}" viewBox="0 0 800 {}" role="img">"#; height, height);
    svg += STYLE;
    put!(&mut svg, r#"
<rect class="card" x="0.5" y="0.5" width="799" height="{}" rx="8"/>"#; height - 1.0);
    let text = |svg: &mut String, class: &str, x: f64, y: f64, text: &str| {
        let x = format!("{x:.1}");
        put!(svg, r#"<text class="{}" x="{}" y="{}">{}</text>"#; class, x, y, text);
    };
    text(
        &mut svg,
        "title",
        20.0,
        30.0,
        "How fast Transload is, beside the usual way",
    );
    let sides = "Green, to the right: Transload is faster. Orange, to the left: slower.";
    text(&mut svg, "small", 20.0, 50.0, sides);
    for (speed, label) in TICKS {
        let class = if speed == 1.0 { "equal" } else { "grid" };
        text(&mut svg, "small tick", x(speed), TOP - 24.0, label);
        let path = format!("M{:.1} {}V{bottom}", x(speed), TOP - 18.0);
        put!(&mut svg, r#"<path class="{}" d="{}"/>"#; class, path);
    }
    let mut y = TOP;
    for machine in machines {
        text(&mut svg, "heading", 20.0, y, &machine.heading);
        y += STEP / 2.0;
        for (copy, today, Speed { median, spread }) in &machine.rows {
            text(&mut svg, "copy", 20.0, y + 10.0, copy);
            text(
                &mut svg,
                "small",
                20.0,
                y + 24.0,
                &format!("usual: {today}"),
            );
            let class = ["faster", "slower"][usize::from(*median < 1.0)];
            let (from, to, top) = (x(*median).min(EQUAL), x(*median).max(EQUAL), y + 6.0);
            let (from, width) = (format!("{from:.1}"), format!("{:.1}", to - from));
            put!(&mut svg, r#"<rect class="{}" x="{}" y="{}" width="{}" height="14"/>"#; class, from, top, width);
            if let Some([least, most]) = spread.map(|spread| spread.map(x)) {
                let path = format!("M{least:.1} {}v8m0 -4H{most:.1}m0 -4v8", y + 9.0);
                put!(&mut svg, r#"<path class="spread" d="{}"/>"#; path);
            }
            let digits = if *median < 1.0 { 2 } else { 1 };
            text(
                &mut svg,
                "figure",
                780.0,
                y + 18.0,
                &format!("{median:.digits$} ×"),
            );
            y += STEP;
        }
        y += STEP / 2.0 + GAP;
    }
    text(&mut svg, "small", 20.0, bottom + 16.0, LEGEND);
    svg + "</svg>\n"
}

/// The lines of the scale.
const TICKS: [(f64, &str); 7] = [
    (0.1, "1/10"),
    (0.25, "1/4"),
    (0.5, "1/2"),
    (1.0, "same"),
    (2.0, "2 ×"),
    (4.0, "4 ×"),
    (10.0, "10 ×"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_a_verdict_is_not_in_the_picture() {
        let run = |seconds: f64, noise| Run {
            case: "case".into(),
            medians: [("transload".into(), seconds), ("today".into(), 2.0)].into(),
            spreads: [("transload".into(), [seconds / 2.0, seconds * 2.0])].into(),
            noise,
        };
        let mut runs = vec![
            run(1.0, Some(0.05)),
            run(4.0, Some(0.01)),
            run(100.0, Some(0.051)),
        ];
        let wanted = Speed {
            median: 1.25,
            spread: Some([0.25, 4.0]),
        };
        assert_eq!(speed("case", "transload", "today", &runs), Some(wanted));
        runs.drain(..2);
        assert_eq!(speed("case", "transload", "today", &runs), None);
    }

    #[test]
    fn a_row_is_of_the_newest_run_that_has_both_of_its_contenders() -> Result<()> {
        let run = |json: &str| -> Result<Vec<Run>> {
            let document: Document = serde_json::from_str(json)?;
            let runs = document.results.into_iter();
            Ok(runs.filter_map(Written::run).collect())
        };
        let here = r#"{ "results": [{ "case": "up", "transload_s": 1.0, "spread_s": [1.0, 1.0],
            "baselines": { "today": 2.0 }, "noise": 0.01 }] }"#;
        let gpu = r#"{ "results": [
            { "case": "up", "contestants": [
                { "name": "transload", "median_s": 1.0, "spread_s": [1.0, 2.0] },
                { "name": "today", "median_s": 3.0 }, { "name": "today, again", "median_s": 3.1 }] },
            { "case": "down", "skipped": "no time", "contestants": [{ "name": "transload", "median_s": null }] },
            { "case": "peers", "skipped": "there is one device" }] }"#;
        let runs = [("2".to_owned(), run(gpu)?), ("1".to_owned(), run(here)?)];
        let machine = Machine::new("H", "up|x|up|transload|today", &runs)?;
        assert_eq!(machine.heading, "H (2)");
        assert_eq!(machine.rows[0].2.median, 3.0);
        assert_eq!(
            Machine::new("H", "up|x|up|transload|today", &runs[1..])?.rows[0]
                .2
                .median,
            2.0
        );
        assert!(Machine::new("H", "down|x|down|transload|today", &runs).is_err());
        Ok(())
    }
}
