//! `transload explain SRC DST SIZE`

use transload::{Explanation, Place, Proof, TransferError};

use crate::arguments::ExplainOptions;
use crate::costs::Wanted;
use crate::failure::Failure;
use crate::json::{self, names, seconds};
use crate::machine::Machine;
use crate::output::Output;

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
    let mut explanation = explained.map_err(|error| match error {
        TransferError::Place(source) => machine.absent(source),
        other => Failure::Library(other.into()),
    })?;
    // On a described machine the processors' memories are as simulated as everything else.
    explanation.simulated |= options.topology.is_some();
    let hint = match (machine.costs.path(), options.topology.is_some()) {
        (Some(path), _) => format!("measured costs: {}", path.display()),
        (None, true) => "default costs: those of the description".into(),
        (None, false) => "`transload probe` measures the costs of this machine".into(),
    };
    if output.is_json() {
        output.note(&hint);
        return output.json(&document(explanation));
    }
    let style = output.style();
    for line in explanation.to_string().lines() {
        match line.starts_with("chosen") || line.starts_with("rejected") {
            true => output.line(style.bold(line))?,
            false => output.line(line)?,
        }
    }
    output.line(style.dim(&hint))
}

fn document(explanation: Explanation) -> json::Explanation {
    let Explanation {
        chosen,
        rejected,
        simulated,
        ..
    } = explanation;
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
            proof: chosen.proof.map(Proof::as_str),
        },
        rejected: rejected.collect(),
        simulated,
    }
}
