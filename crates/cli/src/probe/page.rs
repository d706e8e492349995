//! The page of `--html`: heat maps, curves and the machine's links.

use std::collections::BTreeMap;

use transload::probe::{Found, Interval, PairReport, ProbeReport};
use transload::{ByteRate, ByteSize, Choice, MemoryId, Method, Nanoseconds};

use super::matrix::{Figure, SURE, is_doubtful};
use super::{fresh, ring};
use crate::json::Advice;
use crate::machine::Machine;
use crate::markup::{put, px};
use crate::page::{begin, digits, end, folded, heading, picture, round, table};
use crate::scale::Scale;

/// Draws the page. `facts`, `notes` and `advice` are told at its beginning, `json` is the object that `--json` prints.
pub(super) fn draw(
    found: &ProbeReport,
    machine: &Machine,
    facts: &[(&str, String)],
    notes: &[String],
    advice: &[Advice],
    json: &str,
) -> String {
    let pairs = Pairs::new(found, machine);
    let mut page = begin("Probe of a machine", machine, facts, notes);
    if !advice.is_empty() {
        heading(&mut page, "Advice", "What holds copies up, and its remedy.");
        let row = |advice: &Advice| {
            let Advice {
                about,
                found,
                remedy,
            } = advice.clone();
            vec![about, found, remedy]
        };
        let rows: Vec<_> = advice.iter().map(row).collect();
        table(&mut page, &["About", "Found", "Remedy"], &rows);
    }
    if let (Some(least), Some(most)) = (pairs.sizes.first(), pairs.sizes.last()) {
        pairs.heat(&mut page, *most, Figure::Rates);
        pairs.heat(&mut page, *least, Figure::Times);
        pairs.curves(&mut page);
        pairs.small_curves(&mut page);
        pairs.figures(&mut page);
    }
    if let Some(first) = found.fresh.first() {
        let about = format!(
            "What {} cost once: the allocation, which pins or registers where that is done, and the time by which the first \
             copy into them takes longer than the second one.",
            ByteSize(first.bytes)
        );
        heading(&mut page, "New memory", &about);
        table(
            &mut page,
            &["Memory", "Allocation", "First use"],
            &fresh::rows(found),
        );
    }
    ring::draw(&mut page, &machine.manager.topology(), found);
    end(page, json)
}

type Pair = (MemoryId, MemoryId);

/// The results by pair, in the order of memories.
struct Pairs<'a> {
    memories: Vec<MemoryId>,
    sizes: Vec<u64>,
    found: BTreeMap<Pair, Vec<&'a PairReport>>,
    /// From which size on which way is planned.
    ways: BTreeMap<Pair, Vec<(u64, Choice)>>,
    /// All sizes and all rates, between 0 and 1.
    scales: [Scale; 2],
}

impl<'a> Pairs<'a> {
    fn new(report: &'a ProbeReport, machine: &Machine) -> Pairs<'a> {
        let (mut memories, mut sizes, mut found) = (Vec::new(), Vec::new(), BTreeMap::new());
        for pair in &report.pairs {
            memories.extend([pair.src, pair.dst]);
            sizes.push(pair.bytes);
            let of_pair: &mut Vec<_> = found.entry((pair.src, pair.dst)).or_default();
            of_pair.push(pair);
        }
        memories.sort();
        memories.dedup();
        sizes.sort_unstable();
        sizes.dedup();
        let ways = found.keys().filter_map(|(src, dst)| {
            let ways = { &machine.manager }.explain_sizes((*src).into(), (*dst).into());
            Some(((*src, *dst), ways.ok()?))
        });
        let rates = { report.pairs.iter() }
            .filter_map(|pair| Some(Figure::Rates.value(pair.bytes, time(pair)?)));
        let bytes = sizes.iter().map(|bytes| *bytes as f64);
        Pairs {
            scales: [
                Scale::over(bytes, [0.0, 1.0]),
                Scale::over(rates, [0.0, 1.0]),
            ],
            ways: ways.collect(),
            memories,
            sizes,
            found,
        }
    }

    fn of(&self, pair: Pair) -> &[&'a PairReport] {
        self.found.get(&pair).map_or(&[], Vec::as_slice)
    }

    /// One size of all pairs, a cell for each. The map is a table, so that its figures can be read aloud and copied.
    fn heat(&self, page: &mut String, bytes: u64, shown: Figure) {
        let all = self.found.values().flatten();
        let all = all
            .filter(|pair| pair.bytes == bytes)
            .filter_map(|pair| time(pair));
        let scale = Scale::over(all.map(|time| shown.value(bytes, time)), [0.0, 100.0]);
        let size = ByteSize(bytes);
        let (title, class, unit) = match shown {
            Figure::Rates => (format!("Bandwidth at {size}"), "grid", "GB/s"),
            Figure::Times => (
                format!("Latency: time of {size}"),
                "grid time",
                "the median time",
            ),
        };
        let told = format!(
            "From row to column: {unit}, and the method. The stronger the colour, the more, on a logarithmic scale. Hatched \
             below and marked !: do not trust it. Hatched without a figure: not measured."
        );
        heading(page, &title, &told);
        self.grid(page, class, |page, pair, edge| {
            let report = self.of(pair).iter().find(|report| report.bytes == bytes);
            let name = format!("{} → {}, {size}", pair.0, pair.1);
            let (class, style, told, figure, word) = match report.and_then(|report| time(report)) {
                None => {
                    let word = report.map_or("no way", |report| missing(&report.found));
                    match word == WRONG {
                        true => ("wrong", String::new(), word.into(), "✕".into(), word),
                        false => ("none", String::new(), word.into(), "–".into(), word),
                    }
                }
                Some(time) => {
                    let value = shown.value(bytes, time);
                    let part = scale.at(value);
                    let figure = match shown {
                        Figure::Rates => digits(value),
                        Figure::Times => Nanoseconds(time.median_ns).to_string(),
                    };
                    let (class, mark) = match (part > 62.0, is_doubtful(time)) {
                        (true, true) => ("heat deep doubt", " !"),
                        (true, false) => ("heat deep", ""),
                        (false, true) => ("heat doubt", " !"),
                        (false, false) => ("heat", ""),
                    };
                    let method = report.and_then(|report| report.method);
                    let word = method.map_or("", |method| method.as_str());
                    let told = format!("{}, {word}", figures(bytes, time));
                    (
                        class,
                        format!("--t:{part:.0}%"),
                        told,
                        figure + mark,
                        method.map_or("", short),
                    )
                }
            };
            put!(page, r#"<td class="{}{}" style="{}" title="{}: {}">"#; edge, class, style, name, told);
            put!(page, "<b>{}</b><small>{}</small></td>"; figure, word);
        });
    }

    /// The rates of all pairs by size, in one picture with its axes.
    fn curves(&self, page: &mut String) {
        let told = "All pairs, both axes logarithmic. Colour and dashes tell the method at the largest size.";
        heading(page, "Bandwidth by size", told);
        let [left, right, top, bottom] = [64.0, 620.0, 34.0, 250.0];
        let [x, y] = self.scales;
        let (x, y) = (x.between([left, right]), y.between([bottom, top]));
        picture(
            page,
            "The bandwidth of all pairs by size",
            [640.0, 280.0],
            |svg| {
                let is_used = |method: &Method| {
                    let mut reports = self.found.values().flatten();
                    reports.any(|report| report.method == Some(*method))
                };
                for (at, method) in Method::ALL.into_iter().filter(is_used).enumerate() {
                    let from = left + 116.0 * at as f64;
                    put!(svg, r#"<path class="curve {}" d="M{} 12h24"/>"#; method, from);
                    put!(svg, r#"<text x="{}" y="16">{}</text>"#; from + 29.0, method);
                }
                for tick in y.ticks(false) {
                    let at = px(y.at(tick));
                    put!(svg, r#"<path class="rule" d="M{} {}H{}"/>"#; left, at, right);
                    let text = round(ByteRate(tick * 1e9));
                    put!(svg, r#"<text class="dim end" x="{}" y="{}">{}</text>"#; left - 6.0, at + 4.0, text);
                }
                for bytes in &self.sizes {
                    let at = px(x.at(*bytes as f64));
                    put!(svg, r#"<path class="rule" d="M{} {}V{}"/>"#; at, top, bottom);
                    let size = ByteSize(*bytes);
                    put!(svg, r#"<text class="dim mid" x="{}" y="{}">{}</text>"#; at, bottom + 18.0, size);
                }
                for pair in self.found.values() {
                    curve(svg, pair, x, y, "curve faint");
                }
            },
        );
    }

    /// The rates of each pair, in the same places as in the heat maps.
    fn small_curves(&self, page: &mut String) {
        put!(page, "<p>{}</p>";
            "Each pair on the same axes; the lines are powers of ten. A dashed upright marks the size from which on the planner takes another route, a mark at the foot another chunk size. An empty dot is not to be trusted.");
        let [x, y] = self.scales;
        let (x, y) = (x.between([5.0, 79.0]), y.between([48.0, 6.0]));
        let [least, most] = [self.sizes[0], self.sizes[self.sizes.len() - 1]];
        self.grid(page, "grid curves", |page, pair, edge| {
            let reports = self.of(pair);
            let is_timed = reports.iter().any(|report| time(report).is_some());
            let class = if is_timed { "" } else { "none" };
            put!(page, r#"<td class="{}{}"><svg viewBox="0 0 84 54" role="img">"#; edge, class);
            put!(page, "<title>{} → {}: {}</title>"; pair.0, pair.1, self.plans(pair));
            for tick in y.ticks(false) {
                put!(page, r#"<path class="rule" d="M0 {}h84"/>"#; px(y.at(tick)));
            }
            let ways = self.ways.get(&pair).map_or(&[][..], Vec::as_slice);
            for (before, (from, way)) in ways.iter().zip(ways.iter().skip(1)) {
                let at = px(x.at(*from as f64));
                match is_same_route(&before.1, way) {
                    _ if !(least + 1..=most).contains(from) => {}
                    true => put!(page, r#"<path class="cut" d="M{} 49v5"/>"#; at),
                    false => put!(page, r#"<path class="switch" d="M{} 0v54"/>"#; at),
                }
            }
            curve(page, reports, x, y, "curve");
            for (report, time) in timed(reports) {
                let class = if is_doubtful(time) { "open" } else { "dot" };
                let method = report.method.map_or("", |method| method.as_str());
                let (x, y) = (
                    x.at(report.bytes as f64),
                    y.at(Figure::Rates.value(report.bytes, time)),
                );
                put!(page, r#"<circle class="{} {}" cx="{}" cy="{}" r="2"/>"#; class, method, px(x), px(y));
            }
            *page += "</svg></td>\n";
        });
    }

    /// All figures, and the ways with their sizes.
    fn figures(&self, page: &mut String) {
        let sizes: Vec<String> = self
            .sizes
            .iter()
            .map(|bytes| ByteSize(*bytes).to_string())
            .collect();
        let mut header = vec!["From → to"];
        header.extend(sizes.iter().map(String::as_str));
        header.push("Plans");
        let row = |(pair, reports): (&Pair, &Vec<&PairReport>)| {
            let mut row = vec![format!("{} → {}", pair.0, pair.1)];
            row.extend(self.sizes.iter().map(|bytes| {
                let report = reports.iter().find(|report| report.bytes == *bytes);
                match report.map(|report| &report.found) {
                    Some(Found::Time(time)) => figures(*bytes, time),
                    found => found.map_or("no way", missing).into(),
                }
            }));
            row.push(self.plans(*pair));
            row
        };
        let rows: Vec<_> = self.found.iter().map(row).collect();
        folded(
            page,
            "All figures and the planner's choices",
            &header,
            &rows,
        );
    }

    /// A table with the memories as rows and columns, grouped by device. `cell` writes a `td` with the class that it is
    /// given before its own.
    fn grid(&self, page: &mut String, class: &str, cell: impl Fn(&mut String, Pair, &str)) {
        let edge =
            |at: usize| match at > 0 && self.memories[at - 1].device == self.memories[at].device {
                true => "",
                false => "first ",
            };
        let dense = if self.memories.len() > 16 {
            " dense"
        } else {
            ""
        };
        put!(page, r#"<div class="wide"><table class="{}{}"><thead><tr><td></td>"#; class, dense);
        for group in self
            .memories
            .chunk_by(|one, next| one.device == next.device)
        {
            let (count, device) = (group.len(), group[0].device);
            put!(page, r#"<th class="first device" scope="colgroup" colspan="{}">{}</th>"#; count, device);
        }
        *page += "</tr><tr><td></td>\n";
        for (at, memory) in self.memories.iter().enumerate() {
            put!(page, r#"<th class="{}" scope="col">{}</th>"#; edge(at), memory.kind);
        }
        *page += "</tr></thead><tbody>\n";
        for (row, src) in self.memories.iter().enumerate() {
            put!(page, r#"<tr class="{}"><th scope="row">{}</th>"#; edge(row), src);
            for (column, dst) in self.memories.iter().enumerate() {
                cell(page, (*src, *dst), edge(column));
            }
            *page += "</tr>\n";
        }
        *page += "</tbody></table></div>\n";
    }

    /// The planned ways of a pair, with the sizes from which on they are taken.
    fn plans(&self, pair: Pair) -> String {
        let told = self
            .ways
            .get(&pair)
            .into_iter()
            .flatten()
            .map(|(from, way)| {
                let mut told = format!("from {}: {}", ByteSize(*from), way.method);
                let is_staged = way.method == Method::HostStaged || way.lanes.len() > 1;
                if let [_, over @ .., _] = &way.route[..]
                    && !over.is_empty()
                {
                    let over: Vec<String> = over.iter().map(MemoryId::to_string).collect();
                    told += &format!(" over {}", over.join(", "));
                }
                if way.lanes.len() > 1 {
                    told += &format!(" in {} lanes", way.lanes.len());
                }
                if let Some(chunk) = way.chunk_bytes.filter(|_| is_staged) {
                    told += &format!(", chunks of {}", ByteSize(chunk));
                }
                told
            });
        told.collect::<Vec<_>>().join("; ")
    }
}

impl Figure {
    /// GB/s or seconds.
    fn value(self, bytes: u64, time: &Interval) -> f64 {
        match self {
            Figure::Rates => bytes as f64 / time.median_ns as f64,
            Figure::Times => time.median_ns as f64 / 1e9,
        }
    }
}

/// A line through the rates of a pair, in the style of its last method.
fn curve(svg: &mut String, reports: &[&PairReport], x: Scale, y: Scale, class: &str) {
    let point = |(report, time): (&PairReport, &Interval)| {
        let rate = Figure::Rates.value(report.bytes, time);
        format!("{} {}", px(x.at(report.bytes as f64)), px(y.at(rate)))
    };
    let points: Vec<String> = timed(reports).map(point).collect();
    if let Some((
        PairReport {
            method: Some(method),
            ..
        },
        _,
    )) = timed(reports).last()
    {
        put!(svg, r#"<path class="{} {}" d="M{}"/>"#; class, method, points.join("L"));
    }
}

fn timed<'a>(reports: &[&'a PairReport]) -> impl Iterator<Item = (&'a PairReport, &'a Interval)> {
    reports
        .iter()
        .filter_map(|report| Some((*report, time(report)?)))
}

fn is_same_route(one: &Choice, other: &Choice) -> bool {
    let lanes = one.lanes.iter().zip(&other.lanes);
    one.lanes.len() == other.lanes.len() && { lanes }
        .all(|(one, other)| (one.method, &one.route) == (other.method, &other.route))
}

fn time(report: &PairReport) -> Option<&Interval> {
    match &report.found {
        Found::Time(time) => Some(time),
        _ => None,
    }
}

const WRONG: &str = "wrong bytes";

/// Why there is no time.
fn missing(found: &Found) -> &'static str {
    match found {
        Found::WrongBytes => WRONG,
        Found::NotReached => "not reached",
        _ => "no way",
    }
}

/// A rate and a time, with their interval.
fn figures(bytes: u64, time: &Interval) -> String {
    let rate = ByteRate(bytes as f64 / time.median_ns.max(1) as f64 * 1e9);
    let spread = match time.confidence >= SURE {
        true => format!("{:.0}%", (time.spread() * 100.0).ceil().min(999.0)),
        false => "?".into(),
    };
    let doubt = if is_doubtful(time) { "!" } else { "" };
    format!("{rate} ±{spread}{doubt} ({})", Nanoseconds(time.median_ns))
}

/// A method in few letters.
fn short(method: Method) -> &'static str {
    match method {
        Method::DirectCopy => "direct",
        Method::ZeroCopy => "zero-copy",
        Method::HostStaged => "staged",
        Method::PeerToPeer => "peer",
        Method::UnifiedMemory => "unified",
    }
}
