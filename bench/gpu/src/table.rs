//! The results for people, a line for each case.

use std::collections::BTreeSet;

use comfy_table::{Table, presets};
use serde_json::Value;

use crate::document::{Contestant, Document, Outcome};

/// Prints the device, one row for each case, and the absent contenders.
pub(crate) fn print(document: &Document) {
    for warning in &document.warnings {
        println!("{warning}");
    }
    let measured = document.devices.iter();
    let name = measured
        .filter(|device| device.ordinal == document.device)
        .map(|device| device.name.as_str());
    println!(
        "{}, CUDA {}, {} cases in {:.0} s",
        name.collect::<String>(),
        document.driver.version,
        document.results.len(),
        document.took_s
    );
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for outcome in &document.results {
        table.add_row([outcome.case.clone(), said(outcome)]);
    }
    println!("{table}");
    println!("{}", suite(&document.conformance));
    let absent = document.results.iter().flat_map(|outcome| &outcome.absent);
    let absent: BTreeSet<_> = absent.chain(&document.rivals.absent).collect();
    for (name, reason) in absent {
        println!("absent: {name} ({reason})");
    }
}

fn suite(answer: &Value) -> String {
    let counts = ["passed", "skipped", "failed"].map(|name| answer[name].as_u64());
    if let [Some(passed), Some(skipped), Some(failed)] = counts {
        return format!("conformance: {passed} passed, {skipped} skipped, {failed} failed");
    }
    let why = ["not_run", "left_out"].into_iter();
    let why = why.filter_map(|name| answer[name].as_str()).next();
    format!(
        "conformance: not run ({})",
        why.unwrap_or("only some cases were")
    )
}

fn said(outcome: &Outcome) -> String {
    let scores = outcome.contestants.iter();
    let mut parts: Vec<String> = scores.map(|of| score(of, outcome.bytes)).collect();
    parts.extend(outcome.failed.iter().map(|why| format!("FAILED: {why}")));
    parts.extend(outcome.skipped.iter().map(|why| format!("skipped: {why}")));
    parts.join(" | ")
}

fn score(contestant: &Contestant, bytes: u64) -> String {
    let name = &contestant.name;
    if let Some(why) = &contestant.failed {
        return format!("{name} FAILED: {why}");
    }
    if contestant.is_wrong() {
        return format!("{name} BYTES DIFFER");
    }
    match (contestant.median_s, contestant.bytes_per_s) {
        (Some(_), Some(rate)) if bytes >= 1 << 20 => format!("{name} {:.1} GB/s", rate / 1e9),
        (Some(median), _) => format!("{name} {:.1} µs", median * 1e6),
        (None, _) => format!("{name} –"),
    }
}
