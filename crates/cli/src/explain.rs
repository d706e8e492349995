//! `transload explain SRC DST SIZE`

use transload::{ByteSize, Choice, Explanation, Place, TransferError};

use crate::arguments::ExplainOptions;
use crate::failure::Failure;
use crate::json::{self, names, seconds};
use crate::machine::Machine;
use crate::output::{Output, grouped, time};

pub(crate) fn run(options: &ExplainOptions, output: &mut Output) -> Result<(), Failure> {
    let machine = match &options.topology {
        Some(path) => Machine::described(path)?,
        None => Machine::here(None)?,
    };
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
        style.yellow("  simulated, nothing measured")
    } else {
        String::new()
    };
    let bytes = options.size;
    output.line(format_args!(
        "{} bytes ({bytes}), {src} → {dst}{mark}\n",
        grouped(bytes.0)
    ))?;
    let mut rows = vec![row("chosen", &explanation.chosen)];
    rows.extend(
        explanation
            .rejected
            .iter()
            .map(|choice| row("rejected", choice)),
    );
    output.table(
        &["", "METHOD", "ROUTE", "CHUNK", "PREDICTED", "WHY NOT"],
        rows,
    )
}

fn row(verdict: &str, choice: &Choice) -> Vec<String> {
    let dash = || String::from("–");
    vec![
        verdict.into(),
        choice.method.to_string(),
        names(choice.route.iter().copied()).join(" → "),
        choice.chunk_bytes.map_or_else(dash, binary),
        choice.predicted_ns.map_or_else(dash, time),
        choice.reason.clone().unwrap_or_default(),
    ]
}

/// The size of a chunk, which is a power of two.
fn binary(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = |(shift, _): &(u32, &str)| bytes >> shift > 0 && bytes.trailing_zeros() >= *shift;
    match units.into_iter().find(whole) {
        Some((shift, name)) => format!("{} {name}", bytes >> shift),
        None => ByteSize(bytes).to_string(),
    }
}

fn document(explanation: Explanation, simulated: bool) -> json::Explanation {
    let Explanation {
        chosen, rejected, ..
    } = explanation;
    let rejected = rejected.into_iter().map(|choice| json::Rejected {
        method: choice.method.to_string(),
        route: names(choice.route),
        predicted_s: choice.predicted_ns.map(seconds),
        reason: choice.reason.unwrap_or_default(),
    });
    json::Explanation {
        chosen: json::Chosen {
            method: chosen.method.to_string(),
            route: names(chosen.route),
            chunk_bytes: chosen.chunk_bytes,
            predicted_s: chosen.predicted_ns.map(seconds),
        },
        rejected: rejected.collect(),
        simulated,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_print_in_the_largest_whole_unit() {
        let cases = [
            (4096, "4 KiB"),
            (8 << 20, "8 MiB"),
            (1 << 30, "1 GiB"),
            (100, "100 B"),
        ];
        for (bytes, text) in cases {
            assert_eq!(binary(bytes), text);
        }
    }
}
