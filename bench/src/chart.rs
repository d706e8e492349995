//! `--chart`: a picture of committed results, for the project's first page.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::case::MOST_NOISE;
use crate::markup::put;
use crate::series::Series;

/// The copy, the way that programs use today, the case, and the two contenders whose times are divided.
const ROWS: &str = "\
file of 256 MiB to the adapter, cached|fs::read, then write_buffer|file-wgpu/256MiB/warm|transload|tutorial
file of 256 MiB to the adapter, from disk|fs::read, then write_buffer|file-wgpu/256MiB/cold|transload|tutorial
128 MiB of the heap to the adapter|write_buffer|host-wgpu/128MiB|transload|write_buffer
128 MiB of the heap to the adapter|a staging buffer, kept and reused|host-wgpu/128MiB|transload|reused staging
128 MiB of the adapter to the heap|wgpu's DownloadBuffer|wgpu-host/128MiB|transload|DownloadBuffer
frame of 1920 × 1080 to the heap|a new staging buffer for each frame|texture/1920x1080|transload|tutorial
128 MiB within the heap|memcpy, in one thread|host-host/128MiB|transload|1 × plain
1 MiB within the heap|memcpy, in one thread|host-host/1MiB|transload|1 × plain
128 MiB from an odd address to the adapter|write_buffer|host-wgpu/128MiB|transload, misaligned|write_buffer
4 KiB within the heap|memcpy, in one thread|host-host/4KiB|transload|1 × plain";

/// A file of results, in the fields that the picture needs.
#[derive(Deserialize)]
struct Document {
    machine: BTreeMap<String, serde_json::Value>,
    results: Vec<Measured>,
}

#[derive(Deserialize)]
struct Measured {
    case: String,
    transload_s: f64,
    spread_s: [f64; 2],
    baselines: BTreeMap<String, Option<f64>>,
    noise: Option<f64>,
}

/// The time of a copy as a part of today's: the median of the runs, and the fastest and the slowest sample of any.
#[derive(Debug, PartialEq)]
struct Part {
    median: f64,
    /// Results have the spread of Transload's main time alone.
    spread: Option<[f64; 2]>,
}

/// Draws the results in `folder`, whose name begins with their date, into `file`.
///
/// # Errors
/// When a result cannot be read, or a row has none.
pub(crate) fn draw(file: &Path, folder: &Path) -> Result<()> {
    let cannot = |what: &str, path: &Path| format!("cannot {what} {}", path.display());
    let entries = fs::read_dir(folder).with_context(|| cannot("read", folder))?;
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort();
    let mut documents: Vec<Document> = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).with_context(|| cannot("read", &path))?;
        documents.push(serde_json::from_str(&text).with_context(|| cannot("use", &path))?);
    }
    let machine = documents.first().map(|document| &document.machine);
    let machine = machine.with_context(|| cannot("find results in", folder))?;
    let of = |field: &str| machine.get(field).map_or("?".into(), ToString::to_string);
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let caption = format!(
        "{}: {}, {} cores, Linux; adapter: lavapipe, which is software. This run had no GPU.",
        name.get(..10).unwrap_or(&name),
        of("cpu").trim_matches('"'),
        of("cores"),
    );
    let all: Vec<&Measured> = documents.iter().flat_map(|of| &of.results).collect();
    fs::write(file, picture(&all, &caption)?).with_context(|| cannot("write", file))
}

/// Leaves out runs without a verdict: their two runs of one baseline differ too much.
fn part(case: &str, contender: &str, baseline: &str, all: &[&Measured]) -> Result<Part> {
    let mut parts = Vec::new();
    let mut spread = [f64::INFINITY, 0.0_f64];
    for run in all.iter().filter(|run| run.case == case) {
        let time_of = |name: &str| match name {
            "transload" => Some(run.transload_s),
            name => run.baselines.get(name).copied().flatten(),
        };
        let is_quiet = run.noise.is_some_and(|noise| noise <= MOST_NOISE);
        if let Some((time, today)) = time_of(contender).zip(time_of(baseline))
            && is_quiet
        {
            parts.push(time / today);
            let [fastest, slowest] = run.spread_s;
            spread = [
                spread[0].min(fastest / today),
                spread[1].max(slowest / today),
            ];
        }
    }
    ensure!(
        !parts.is_empty(),
        "no run of {case} with little noise has `{contender}` and `{baseline}`"
    );
    Ok(Part {
        median: Series::from_iter(parts).median(),
        spread: (contender == "transload").then_some(spread),
    })
}

/// The first row, the distance from each to the next, and the end of the last of ten.
const TOP: f64 = 84.0;
const STEP: f64 = 36.0;
const BOTTOM: f64 = TOP + 10.0 * STEP;
/// The place of equal times, and the length of a factor of 10.
const EQUAL: f64 = 530.0;
const DECADE: f64 = 160.0;

const LEGEND: &str = "Bars: median of the runs. Thin lines: fastest and slowest sample. Runs too noisy for a verdict are left out.";
/// The colours are the card's own, so that text is legible on any page.
const HEAD: &str = r#"<svg xmlns="http://www.w3.org/2000/svg" width="800" height="490" viewBox="0 0 800 490" role="img">
<title>Copy times of Transload, relative to the usual ways</title>
<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 11px; fill: #59636e }
.title { font-size: 16px; font-weight: 600 } .figure { font-weight: 600; text-anchor: end } .tick { text-anchor: middle }
.card { fill: #ffffff; stroke: #d1d9e0 } .grid { stroke: #d1d9e0 } .equal { stroke: #59636e }
.spread { stroke: #1f2328; fill: none } .faster { fill: #2da44e } .slower { fill: #d1730b }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .small { fill: #9198a1 } .card { fill: #0d1117; stroke: #3d444d }
.grid { stroke: #3d444d } .equal { stroke: #9198a1 } .spread { stroke: #e6edf3 } }
</style>
<rect class="card" x="0.5" y="0.5" width="799" height="489" rx="8"/>
<text class="title" x="20" y="30">Copy time of Transload, relative to the usual way</text>
<text class="small" x="20" y="50">To the left, green: faster. To the right, orange: slower.</text>
"#;

/// Horizontal bars on a logarithmic scale: to the left where Transload takes less time.
fn picture(all: &[&Measured], caption: &str) -> Result<String> {
    let x = |part: f64| EQUAL + DECADE * part.log10();
    let mut svg = HEAD.to_owned();
    let text = |svg: &mut String, class: &str, x: f64, y: f64, text: &str| {
        let x = format!("{x:.1}");
        put!(svg, r#"<text class="{}" x="{}" y="{}">{}</text>"#; class, x, y, text);
    };
    for part in [0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0] {
        let (class, label) = match part {
            1.0 => ("equal", "same".into()),
            ..1.0 => ("grid", format!("1/{}", 1.0 / part)),
            _ => ("grid", format!("{part} ×")),
        };
        let (at, top) = (x(part), TOP - 6.0);
        text(&mut svg, "small tick", at, TOP - 12.0, &label);
        let path = format!("M{at:.1} {top}V{BOTTOM}");
        put!(&mut svg, r#"<path class="{}" d="{}"/>"#; class, path);
    }
    for (index, row) in ROWS.lines().enumerate() {
        let fields: Vec<&str> = row.split('|').collect();
        let [copy, today, case, contender, baseline] = fields[..] else {
            unreachable!("each line of the table has five fields");
        };
        let Part { median, spread } = part(case, contender, baseline, all)?;
        let y = TOP + STEP * index as f64;
        text(&mut svg, "copy", 20.0, y + 13.0, copy);
        let usual = format!("usual: {today}");
        text(&mut svg, "small", 20.0, y + 27.0, &usual);
        let class = ["faster", "slower"][usize::from(median > 1.0)];
        let (from, to, top) = (x(median).min(EQUAL), x(median).max(EQUAL), y + 7.0);
        let (from, width) = (format!("{from:.1}"), format!("{:.1}", to - from));
        put!(&mut svg, r#"<rect class="{}" x="{}" y="{}" width="{}" height="16"/>"#; class, from, top, width);
        if let Some([least, most]) = spread.map(|spread| spread.map(x)) {
            let top = y + 11.0;
            let path = format!("M{least:.1} {top}v8m0 -4H{most:.1}m0 -4v8");
            put!(&mut svg, r#"<path class="spread" d="{}"/>"#; path);
        }
        text(&mut svg, "figure", 780.0, y + 20.0, &format!("{median:.2}"));
    }
    text(&mut svg, "small", 20.0, BOTTOM + 18.0, caption);
    text(&mut svg, "small", 20.0, BOTTOM + 34.0, LEGEND);
    Ok(svg + "</svg>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_a_verdict_is_not_in_the_picture() -> Result<()> {
        let run = |seconds: f64, noise| Measured {
            case: "case".into(),
            transload_s: seconds,
            spread_s: [seconds / 2.0, seconds * 2.0],
            baselines: [("today".to_owned(), Some(2.0))].into(),
            noise,
        };
        let runs = [
            run(1.0, Some(0.05)),
            run(3.0, Some(0.01)),
            run(100.0, Some(0.051)),
            run(100.0, None),
        ];
        let runs: Vec<&Measured> = runs.iter().collect();
        let wanted = Part {
            median: 1.0,
            spread: Some([0.25, 3.0]),
        };
        assert_eq!(part("case", "transload", "today", &runs)?, wanted);
        assert!(part("case", "transload", "today", &runs[2..]).is_err());
        Ok(())
    }
}
