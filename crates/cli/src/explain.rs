//! `transload explain SRC DST SIZE`

use std::path::Path;

use transload::{BinarySize, Choice, Explanation, LaneChoice, Place, Proof, TransferError};

use crate::arguments::ExplainOptions;
use crate::costs::Wanted;
use crate::failure::Failure;
use crate::json::{self, names, seconds};
use crate::machine::Machine;
use crate::output::{Output, grouped, time};

pub(crate) fn run(
    options: &ExplainOptions,
    wanted: Wanted<'_>,
    output: &mut Output,
) -> Result<(), Failure> {
    let machine = match &options.topology {
        Some(path) => Machine::described(path, wanted)?,
        None => Machine::here(None, wanted)?,
    };
    machine.costs.note(output);
    let (src, dst): (Place, Place) = (options.src, options.dst);
    let explained = machine.manager.explain_places(src, dst, options.size.0);
    let explanation = explained.map_err(|error| match error {
        TransferError::Place(source) => machine.absent(source),
        other => Failure::Library(other.into()),
    })?;
    // On a described machine the processors' memories are as simulated as everything else.
    let simulated = explanation.simulated || options.topology.is_some();
    if output.is_json() {
        return output.json(&document(explanation, simulated));
    }
    let style = output.style();
    let mark = if simulated {
        style.yellow("  simulated")
    } else {
        String::new()
    };
    let bytes = options.size;
    output.line(format_args!(
        "{} bytes ({bytes}), {src} → {dst}{mark}\n",
        grouped(bytes.0)
    ))?;
    let mut rows = chosen(&explanation.chosen, bytes.0);
    rows.extend(explanation.rejected.iter().map(rejected));
    output.table(
        &["", "METHOD", "ROUTE", "CHUNK", "PREDICTED", "WHY NOT"],
        rows,
    )?;
    let basis = basis(
        &explanation,
        machine.costs.path(),
        options.topology.is_some(),
    );
    output.line(format_args!("\n{}", output.style().dim(&basis)))?;
    if explanation.chosen.proof == Some(Proof::Kept) {
        let proven =
            "An earlier process has proven the chosen way; no pattern is sent over it again.";
        output.line(output.style().dim(proven))?;
    }
    if let [LaneChoice { to_a_slot, .. }] = explanation.chosen.lanes[..]
        && to_a_slot > 1
    {
        let shared = format!("Up to {to_a_slot} transfers of this size share a staging slot.");
        output.line(output.style().dim(&shared))?;
    }
    Ok(())
}

/// The costs on which the predictions are based.
fn basis(explanation: &Explanation, profile: Option<&Path>, described: bool) -> String {
    let mut ways = std::iter::once(&explanation.chosen).chain(&explanation.rejected);
    let counted = ways.clone().filter(|way| way.predicted_ns.is_some());
    let (measured, all) = (counted.clone().filter(|way| way.measured), counted);
    let (measured, all) = (measured.count(), all.count());
    let from = profile.map_or_else(String::new, |path| format!(" ({})", path.display()));
    if measured == all && all > 0 {
        return format!("PREDICTED rests on measured costs{from}.");
    }
    if measured > 0 {
        let default: Vec<String> = ways
            .by_ref()
            .filter(|way| way.predicted_ns.is_some() && !way.measured)
            .map(|way| names(way.route.iter().copied()).join(" → "))
            .collect();
        return format!(
            "PREDICTED rests on measured costs{from}, but on default figures for {}.",
            default.join(", ")
        );
    }
    match described {
        true => "PREDICTED rests on the figures of the description.".into(),
        false => {
            "PREDICTED rests on default figures; `transload probe` measures this machine.".into()
        }
    }
}

/// A row for each route that the plan takes at the same time.
fn chosen(choice: &Choice, bytes: u64) -> Vec<Vec<String>> {
    let row = |lane: &LaneChoice| {
        let verdict = match choice.lanes.len() {
            1 => "chosen".into(),
            _ => format!("chosen for {:.1} %", lane.share * 100.0),
        };
        vec![
            verdict,
            lane.method.to_string(),
            names(lane.route.iter().copied()).join(" → "),
            chunk(lane, bytes),
            predicted(choice),
            String::new(),
        ]
    };
    choice.lanes.iter().map(row).collect()
}

/// The size of a lane's chunks, where there is more than one.
fn chunk(lane: &LaneChoice, bytes: u64) -> String {
    if lane.share * bytes as f64 > lane.chunk_bytes as f64 {
        BinarySize(lane.chunk_bytes).to_string()
    } else {
        String::from("–")
    }
}

fn rejected(choice: &Choice) -> Vec<String> {
    vec![
        "rejected".into(),
        choice.method.to_string(),
        names(choice.route.iter().copied()).join(" → "),
        String::from("–"),
        predicted(choice),
        choice.reason.clone().unwrap_or_default(),
    ]
}

fn predicted(choice: &Choice) -> String {
    choice.predicted_ns.map_or_else(|| String::from("–"), time)
}

fn document(explanation: Explanation, simulated: bool) -> json::Explanation {
    let Explanation {
        chosen, rejected, ..
    } = explanation;
    let rejected = rejected.into_iter().map(|choice| json::Rejected {
        method: choice.method.to_string(),
        route: names(choice.route),
        predicted_s: choice.predicted_ns.map(seconds),
        measured: choice.measured,
        proof: choice.proof.map(Proof::as_str),
        reason: choice.reason.unwrap_or_default(),
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
            proof: chosen.proof.map(Proof::as_str),
        },
        rejected: rejected.collect(),
        simulated,
    }
}
