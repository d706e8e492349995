//! `transload explain SRC DST SIZE`

mod page;
mod why;

use std::time::Duration;

use transload::probe::{Found, Interval, MeasuredWay};
use transload::{
    AllocSpec, ByteSize, Choice, Explanation, Nanoseconds, Place, Proof, Request, TransferError,
};

use crate::arguments::ExplainOptions;
use crate::failure::Failure;
use crate::json::{self, names, seconds};
use crate::machine::{Asked, Machine};
use crate::output::{Output, Style};
use crate::output_file::{OutputFile, spares};
use crate::shown::Shown;

pub(crate) fn run(
    options: &ExplainOptions,
    asked: Asked<'_>,
    output: &mut Output,
) -> Result<(), Failure> {
    asked.nodes.spare(options.topology.as_deref())?;
    let html = options.html.as_deref();
    let read = [
        ("the topology", options.topology.as_deref()),
        ("the profile", asked.costs.path()),
    ];
    spares("--html", html, read)?;
    let html_file = html
        .map(|path| OutputFile::text("--html", path))
        .transpose()?;
    let machine = match &options.topology {
        Some(path) => Machine::described(path, asked.costs)?,
        None => Machine::here(None, asked)?,
    };
    machine.note(output);
    let (src, dst): (Place, Place) = (options.src, options.dst);
    let explained = machine.manager.explain_places(src, dst, options.size.0);
    let mut explanation = explained.map_err(|error| match error {
        TransferError::Place(source) => machine.absent(source),
        other => Failure::Library(other.into()),
    })?;
    // On a described machine the processors' memories are as simulated as everything else.
    explanation.simulated |= options.topology.is_some();
    let sizes = machine.manager.explain_sizes(src, dst);
    let sizes = sizes.map_err(transload::Error::from)?;
    let mut ways = std::iter::once(&explanation.chosen).chain(&explanation.rejected);
    let hint = match (machine.costs.path(), options.topology.is_some()) {
        (Some(path), _) if ways.any(|way| way.measured) => {
            format!("measured costs: {}", path.display())
        }
        (Some(path), _) => format!(
            "{} has no costs of these links: `transload probe` measures them",
            path.display()
        ),
        (None, true) => "default costs: those of the description".into(),
        (None, false) => "`transload probe` measures the costs of this machine".into(),
    };
    let json = output.is_json();
    if !json {
        let style = output.style();
        for line in explanation.to_string().lines() {
            let line = &*Shown(line).to_string();
            match line.starts_with("chosen") || line.starts_with("rejected") {
                true => output.line(style.bold(line))?,
                false => output.line(line)?,
            }
        }
    }
    output.remark(&hint, Style::dim)?;
    if !json {
        why::print(&explanation, &sizes, output)?;
    }
    let measure = options.measure.then(|| measured(&machine, options));
    let ways = measure.transpose()?;
    if let (Some(ways), false) = (&ways, json) {
        print_measured(ways, options.size.0, output)?;
    }
    let document = document(&explanation, &sizes, ways.as_deref());
    if let (Some(file), Some(path), Some(ways)) = (html_file, html, &ways) {
        let text = output.document(&document)?;
        file.fill(&page::draw(
            &explanation,
            ways,
            &machine,
            output.notes(),
            &text,
        ))?;
        if !json {
            output.line(format_args!("\nPage in {}.", Shown(path.display())))?;
        }
    }
    match json {
        true => output.json(&document),
        false => Ok(()),
    }
}

/// How long the ways run against each other at most.
const BUDGET: Duration = Duration::from_secs(10);

/// Runs the ways between two buffers that are made for it.
fn measured(machine: &Machine, options: &ExplainOptions) -> Result<Vec<MeasuredWay>, Failure> {
    let manager = &machine.manager;
    let bytes = options.size.0;
    let make = |place| manager.allocate(place, AllocSpec::bytes(bytes));
    let (src, dst) = (make(options.src)?, make(options.dst)?);
    let request = Request::new(&src, &dst);
    let ways = manager.measure(&request, BUDGET);
    let ways = ways.map_err(transload::Error::from)?;
    let wrong = ways.iter().filter(|way| way.found == Found::WrongBytes);
    let wrong: Vec<String> = wrong.map(|way| way.choice.to_string()).collect();
    match wrong.is_empty() {
        true => Ok(ways),
        false => Err(Failure::WrongBytes(wrong)),
    }
}

const HEADER: [&str; 6] = [
    "MARGIN",
    "MEASURED",
    "PREDICTED",
    "CHUNK",
    "METHOD",
    "ROUTE",
];

/// The cells of a measured way, in the order of [`HEADER`].
fn row(at: usize, way: &MeasuredWay, ways: &[MeasuredWay], bytes: u64) -> Vec<String> {
    let chosen_ns = ways.first().and_then(MeasuredWay::median_ns);
    let time = |ns: Option<u64>| ns.map_or_else(|| "–".into(), |ns| Nanoseconds(ns).to_string());
    let margin = match (at, way.median_ns().zip(chosen_ns)) {
        (0, _) => "chosen".into(),
        (_, Some((ns, chosen_ns))) => {
            let margin = (ns as f64 / chosen_ns.max(1) as f64 - 1.0) * 100.0;
            format!("{margin:+.0} %")
        }
        _ => String::new(),
    };
    let measured = match &way.found {
        Found::Time(found) => {
            let spread = (found.spread() * 100.0).ceil().min(999.0);
            format!("{} ±{spread:.0} %", Nanoseconds(found.median_ns))
        }
        Found::Failed(_) => "failed".into(),
        _ => "–".into(),
    };
    vec![
        margin,
        measured,
        time(way.choice.predicted_ns),
        { way.choice.chunk_bytes.filter(|chunk| *chunk < bytes) }
            .map_or_else(String::new, |chunk| ByteSize(chunk).to_string()),
        way.choice.method.to_string(),
        visits(&way.choice),
    ]
}

/// The memories that bytes visit over the first lane, and how many lanes there are beside it.
fn visits(choice: &Choice) -> String {
    let visits: Vec<String> = choice.route.iter().map(ToString::to_string).collect();
    let lanes = match choice.lanes.len() {
        0 | 1 => String::new(),
        lanes => format!(" and {} more", lanes - 1),
    };
    visits.join(" → ") + &lanes
}

fn print_measured(ways: &[MeasuredWay], bytes: u64, output: &mut Output) -> Result<(), Failure> {
    let rows = ways.iter().enumerate();
    let rows = rows.map(|(at, way)| row(at, way, ways, bytes));
    output.line("")?;
    output.table(&HEADER, rows.collect())?;
    for way in ways {
        if let Found::Failed(reason) = &way.found {
            let (method, reason) = (&way.choice.method, Shown(reason));
            output.line(format_args!("\nfailed: {method}: {reason}"))?;
        }
    }
    Ok(())
}

fn document(
    explanation: &Explanation,
    sizes: &[(u64, Choice)],
    measured: Option<&[MeasuredWay]>,
) -> json::Explanation {
    let Explanation {
        chosen,
        rejected,
        simulated,
        ..
    } = explanation.clone();
    let rejected = rejected.into_iter().map(|choice| json::Rejected {
        method: choice.method.to_string(),
        route: names(choice.route),
        predicted_s: choice.predicted_ns.map(seconds),
        measured: choice.measured,
        proof: choice.proof.map(Proof::as_str),
        reason: choice
            .reason
            .map_or_else(String::new, |why| why.to_string()),
    });
    let lanes = chosen.lanes.into_iter().map(|lane| json::Lane {
        method: lane.method.to_string(),
        route: names(lane.route),
        chunk_bytes: lane.chunk_bytes,
        to_a_slot: lane.to_a_slot,
        share: lane.share,
        measured: lane.measured,
    });
    json::Explanation {
        chosen: json::Chosen {
            method: chosen.method.to_string(),
            route: names(chosen.route),
            chunk_bytes: chosen.chunk_bytes,
            lanes: lanes.collect(),
            predicted_s: chosen.predicted_ns.map(seconds),
            loads: chosen.loads.iter().map(why::load).collect(),
            proof: chosen.proof.map(Proof::as_str),
        },
        rejected: rejected.collect(),
        sizes: sizes.iter().map(why::size_range).collect(),
        simulated,
        measured: measured.map(|ways| ways.iter().map(measured_way).collect()),
    }
}

fn measured_way(way: &MeasuredWay) -> json::MeasuredWay {
    let (interval, failure) = match &way.found {
        Found::Time(found) => (Some(found), None),
        Found::Failed(reason) => (None, Some(reason.clone())),
        _ => (None, None),
    };
    json::MeasuredWay {
        method: way.choice.method.to_string(),
        route: names(way.choice.route.clone()),
        chunk_bytes: way.choice.chunk_bytes,
        lanes: way.choice.lanes.len(),
        predicted_s: way.choice.predicted_ns.map(seconds),
        seconds: interval.map(|found| seconds(found.median_ns)),
        spread: interval.map(Interval::spread),
        samples: interval.map_or(0, |found| found.samples),
        failure,
    }
}
