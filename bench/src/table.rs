//! The results for people.

use comfy_table::{CellAlignment, Table, presets};
use transload::ByteSize;

use crate::case::{Effort, MOST_NOISE, Outcome, Verdict};
use crate::machine::Machine;

/// Prints the machine, one row for each result, and the absent baselines.
pub(crate) fn print(machine: &Machine, effort: Effort, results: &[Outcome]) {
    let Machine {
        cpu,
        cores,
        kernel,
        commit,
        ..
    } = machine;
    println!(
        "{cpu}, {cores} cores, {} {kernel}, commit {commit}",
        machine.os
    );
    if let Some(load) = machine.load {
        println!("load {load} when the run began");
    }
    let kind = if effort.quick {
        "quick: fewer sizes, "
    } else {
        ""
    };
    println!("{kind}medians of {} interleaved samples\n", effort.rounds);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "case",
        "transload",
        "fastest … slowest",
        "baselines",
        "A/A",
        "verdict",
    ]);
    for outcome in results {
        let baselines = outcome.baselines.iter();
        let baselines: Vec<String> = baselines
            .map(|(name, seconds)| format!("{name} {}", time(*seconds)))
            .collect();
        let noise = format!("{:.1} %", outcome.noise * 100.0);
        let [least, greatest] = outcome.spread_s;
        table.add_row([
            outcome.case.clone(),
            timed(outcome),
            format!("{} … {}", time(least), time(greatest)),
            baselines.join("\n"),
            noise,
            said(outcome),
        ]);
    }
    if let Some(column) = table.column_mut(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
    for (name, reason) in absent(results) {
        println!("absent: {name} ({reason})");
    }
}

fn timed(outcome: &Outcome) -> String {
    let seconds = outcome.transload_s;
    if outcome.bytes < 1 << 20 {
        return time(seconds);
    }
    let rate = outcome.bytes as f64 / seconds / 1e9;
    format!("{}  {rate:.1} GB/s", time(seconds))
}

fn said(outcome: &Outcome) -> String {
    if !outcome.verified {
        return "BYTES DIFFER".into();
    }
    let verdicts: Vec<String> = outcome
        .verdicts()
        .map(|verdict| judged(outcome, verdict))
        .collect();
    verdicts.join("\n")
}

fn judged(outcome: &Outcome, verdict: &Verdict) -> String {
    let Verdict {
        of,
        at_least,
        holds,
        ..
    } = verdict;
    let bound = if *at_least { "≥" } else { "≤" };
    let word = match holds {
        Some(true) => "holds",
        Some(false) => "MISSED",
        None => "no verdict: A/A exceeds 5 %",
    };
    debug_assert!(holds.is_some() || outcome.noise.is_nan() || outcome.noise > MOST_NOISE);
    let figure = |value| amount(value, verdict.unit);
    format!(
        "{of} {} ({bound} {})  {word}",
        figure(verdict.value),
        figure(verdict.limit)
    )
}

/// A figure in its unit.
fn amount(value: f64, unit: &str) -> String {
    match unit {
        "s" => time(value),
        "B" => ByteSize(value as u64).to_string(),
        "" => format!("{value:.3}"),
        _ => format!("{value} {unit}"),
    }
}

/// A time with three digits or so.
pub(crate) fn time(seconds: f64) -> String {
    let (value, unit) = match seconds.abs() {
        s if s < 1e-6 => (seconds * 1e9, "ns"),
        s if s < 1e-3 => (seconds * 1e6, "µs"),
        s if s < 1.0 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    match value.abs() {
        v if v < 10.0 => format!("{value:.2} {unit}"),
        v if v < 100.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

fn absent(results: &[Outcome]) -> Vec<(&String, &String)> {
    let mut absent: Vec<_> = results.iter().flat_map(|result| &result.absent).collect();
    absent.sort();
    absent.dedup();
    absent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        assert_eq!(time(4.2e-9), "4.20 ns");
        assert_eq!(time(1.25e-5), "12.5 µs");
        assert_eq!(time(0.25), "250 ms");
        assert_eq!(time(-3.0e-9), "-3.00 ns");
    }
}
