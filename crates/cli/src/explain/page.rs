//! The page of `--measure --html`: what was predicted of each way, and what it took.

use transload::probe::{Found, MeasuredWay};
use transload::{ByteSize, Explanation, Nanoseconds};

use super::{HEADER, row};
use crate::machine::Machine;
use crate::markup::{put, px};
use crate::page::{begin, end, heading, picture, round, table};
use crate::scale::Scale;

/// Draws the page. `notes` and `json` are those of the command's other outputs.
pub(super) fn draw(
    explanation: &Explanation,
    ways: &[MeasuredWay],
    machine: &Machine,
    notes: &[String],
    json: &str,
) -> String {
    let bytes = explanation.bytes;
    let route = &explanation.chosen.route;
    let ends = route.first().zip(route.last());
    let ends = ends.map_or_else(String::new, |(src, dst)| format!("{src} → {dst}"));
    let facts = [("Copy", format!("{}, {ends}", ByteSize(bytes)))];
    let mut page = begin("Ways of a copy", machine, &facts, notes);
    heading(
        &mut page,
        "Time by way",
        "The way of the planner first, then the others, the fastest first. Dot and line: the median and its interval. Diamond: the \
         prediction. The upright is the median of the planner's way. The axis is logarithmic.",
    );
    let rows = { ways.iter().enumerate() }.map(|(at, way)| row(at, way, ways, bytes));
    let rows: Vec<Vec<String>> = rows.collect();
    let height = TOP + STEP * ways.len() as f64 + 30.0;
    picture(
        &mut page,
        "Predicted and measured times by way",
        [WIDTH, height],
        |svg| {
            times(svg, ways, &rows, height - 24.0);
        },
    );
    table(&mut page, &HEADER, &rows);
    let rejected = explanation.rejected.iter().map(|choice| {
        let visits: Vec<String> = choice.route.iter().map(ToString::to_string).collect();
        let time = choice.predicted_ns.map(|ns| Nanoseconds(ns).to_string());
        let reason = choice.reason.as_ref().map(ToString::to_string);
        let (method, route) = (choice.method.to_string(), visits.join(" → "));
        vec![
            method,
            time.unwrap_or_default(),
            route,
            reason.unwrap_or_default(),
        ]
    });
    heading(
        &mut page,
        "Rejected by the planner",
        "The other routes, and why the planner does not take them.",
    );
    let header = ["Method", "Predicted", "Route", "Why"];
    table(&mut page, &header, &rejected.collect::<Vec<_>>());
    end(page, json)
}

const WIDTH: f64 = 800.0;
const TOP: f64 = 26.0;
/// From each way to the next.
const STEP: f64 = 44.0;

fn times(svg: &mut String, ways: &[MeasuredWay], rows: &[Vec<String>], bottom: f64) {
    let values = ways.iter().flat_map(|way| {
        let interval = match &way.found {
            Found::Time(time) => vec![time.low_ns, time.median_ns, time.high_ns],
            _ => Vec::new(),
        };
        way.choice.predicted_ns.into_iter().chain(interval)
    });
    let scale = Scale::over(values.map(|ns| ns as f64), [24.0, WIDTH - 40.0]);
    let x = |ns: u64| px(scale.at(ns as f64));
    let fine = scale.ticks(true);
    for tick in if fine.len() > 9 {
        scale.ticks(false)
    } else {
        fine
    } {
        let at = px(scale.at(tick));
        put!(svg, r#"<path class="rule" d="M{} {}V{}"/>"#; at, TOP, bottom);
        let text = round(Nanoseconds(tick as u64));
        put!(svg, r#"<text class="dim mid" x="{}" y="{}">{}</text>"#; at, bottom + 16.0, text);
    }
    if let Some(ns) = ways.first().and_then(MeasuredWay::median_ns) {
        put!(svg, r#"<path class="switch" d="M{} {}V{}"/>"#; x(ns), TOP, bottom);
    }
    for (index, (way, cells)) in ways.iter().zip(rows).enumerate() {
        let y = TOP + STEP * index as f64;
        let [margin, measured, _, chunk, method, route] = &cells[..] else {
            unreachable!("a row has a cell for each heading");
        };
        let chunk = if chunk.is_empty() {
            String::new()
        } else {
            format!(", chunks of {chunk}")
        };
        put!(svg, r#"<rect class="back" x="0" y="{}" width="{}" height="18"/>"#; y + 1.0, WIDTH);
        put!(svg, r#"<text x="4" y="{}"><tspan class="strong">{} · {}</tspan>  {}{}: {}</text>"#;
            y + 14.0, measured, margin, method, chunk, route);
        let y = y + 30.0;
        if let Found::Time(time) = &way.found {
            let [low, middle, high] = [time.low_ns, time.median_ns, time.high_ns].map(x);
            put!(svg, r#"<path class="bar {}" d="M{} {}v10m0 -5H{}m0 -5v10"/>"#; method, low, y - 5.0, high);
            put!(svg, r#"<circle class="dot {}" cx="{}" cy="{}" r="5"/>"#; method, middle, y);
        }
        if let Some(ns) = way.choice.predicted_ns {
            put!(svg, r#"<path class="guess" d="M{} {}l5 5l-5 5l-5 -5z"/>"#; x(ns), y - 5.0);
        }
    }
}
