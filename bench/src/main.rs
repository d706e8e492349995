//! The benchmarks of Transload: `cargo xtask bench`.
//!
//! Every case runs against its baselines in one process and in turn, so that other load on the
//! machine affects all of them alike. One baseline takes part twice: the difference between the two
//! is the noise of the run, and if it exceeds 5 % no verdict is given. Bytes are verified outside
//! the timed region, over poisoned destinations.
//!
//! The limits of an output line are in [`case::Verdict`]; the program ends with failure when one of them is missed.

#![deny(unsafe_code)]
#![cfg_attr(
    target_family = "wasm",
    allow(
        clippy::arc_with_non_send_sync,
        reason = "where there is one thread, backends need be neither Send nor Sync"
    )
)]

// As `waiting`.
#[cfg(not(any(target_family = "wasm", transload_local)))]
mod blocks;
mod case;
mod chart;
mod contest;
mod copies;
// Only Linux has the double of the driver.
#[cfg(all(target_os = "linux", not(transload_local)))]
mod cuda;
mod machine;
#[path = "../../crates/cli/src/markup.rs"]
#[allow(dead_code, reason = "the program's pages use the rest")]
mod markup;
// Beside adapters.
#[cfg(not(any(target_family = "wasm", transload_local)))]
mod models;
// Where the backend is.
#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(transload_local)
))]
mod nodes;
mod overhead;
mod planner;
mod process;
#[cfg(not(any(target_family = "wasm", transload_local)))]
mod quiet;
mod raw;
mod series;
mod staging;
mod table;
// Waiting threads, next to each other.
#[cfg(not(any(target_family = "wasm", transload_local)))]
mod waiting;
#[cfg(not(any(target_family = "wasm", transload_local)))]
mod way;
// The same condition as for the backend: not in the browser, nor in a build whose types stay on one thread.
#[cfg(not(any(target_family = "wasm", transload_local)))]
mod wgpu;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use clap::Parser;
use serde::Serialize;

use case::{Case, Effort, Outcome};
use machine::Machine;

/// Measures Transload against its baselines and its promises.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench")]
struct Arguments {
    /// Fewer sizes and fewer repetitions, for about 3 minutes
    #[arg(long)]
    quick: bool,
    /// Samples of each contender; on a busy machine more of them bring the noise down
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(15..))]
    rounds: Option<u16>,
    /// Only the cases that fit; `*` stands for any characters
    #[arg(long, value_name = "GLOB", default_value = "*")]
    case: String,
    /// One JSON document in place of the table
    #[arg(long)]
    json: bool,
    /// Only names the cases, one on each line
    #[arg(long)]
    list: bool,
    /// Only draws the newest results in the folder, `bench/results`, into the file, as SVG
    #[arg(long, num_args = 2, value_names = ["FILE", "FOLDER"])]
    chart: Option<Vec<PathBuf>>,
    /// Answers another process of this program, which asks over the standard input; see `run`
    #[arg(long, hide = true, value_name = "WORD")]
    serve: Option<String>,
}

/// The document that `--json` prints.
#[derive(Serialize)]
struct Document {
    schema: u32,
    quick: bool,
    machine: Machine,
    results: Vec<Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    planner: Option<planner::Figures>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether no verdict was a failure.
fn run(arguments: &Arguments) -> Result<bool> {
    match arguments.serve.as_deref() {
        None => {}
        Some("post") => return overhead::features::serve().map(|()| true),
        #[cfg(all(
            any(target_arch = "x86_64", target_arch = "aarch64"),
            not(transload_local)
        ))]
        Some("node") => return nodes::serve().map(|()| true),
        #[cfg(all(
            any(target_arch = "x86_64", target_arch = "aarch64"),
            not(transload_local)
        ))]
        Some("plain") => return nodes::plain::serve().map(|()| true),
        Some(word) => bail!("this program does not serve `{word}`"),
    }
    if let Some([file, folder]) = arguments.chart.as_deref() {
        chart::draw(file, folder)?;
        return Ok(true);
    }
    let effort = Effort::new(arguments.quick, arguments.rounds);
    let mut cases = cases(effort);
    cases.retain(|case| fits(&arguments.case, &case.name));
    ensure!(
        !cases.is_empty(),
        "no case fits `{}`; --list names them",
        arguments.case
    );
    if arguments.list {
        for case in &cases {
            println!("{}", case.name);
        }
        return Ok(true);
    }
    let machine = Machine::describe();
    let mut results = Vec::new();
    for case in cases {
        eprintln!("{} …", case.name);
        results.extend((case.run)(effort)?);
    }
    let missed = results.iter().any(Outcome::misses);
    if arguments.json {
        let document = Document {
            schema: 1,
            quick: arguments.quick,
            machine,
            planner: planner::Figures::of(&results),
            results,
        };
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        table::print(&machine, effort, &results);
    }
    Ok(!missed)
}

fn cases(effort: Effort) -> Vec<Case> {
    let mut cases = copies::cases(effort);
    cases.extend(overhead::cases(effort));
    cases.extend(staging::cases());
    cases.extend(planner::cases());
    #[cfg(all(target_os = "linux", not(transload_local)))]
    cases.extend(cuda::cases(effort));
    #[cfg(not(any(target_family = "wasm", transload_local)))]
    cases.extend(wgpu::cases(effort));
    #[cfg(not(any(target_family = "wasm", transload_local)))]
    cases.extend(waiting::cases(effort));
    #[cfg(not(any(target_family = "wasm", transload_local)))]
    cases.extend(blocks::cases());
    #[cfg(not(any(target_family = "wasm", transload_local)))]
    cases.extend(models::cases());
    #[cfg(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        not(transload_local)
    ))]
    cases.extend(nodes::cases(effort));
    cases
}

/// Whether `text` matches `pattern`, where `*` stands for any characters.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else {
        return pattern == text;
    };
    text.strip_prefix(head).is_some_and(|rest| {
        let mut starts = (0..=rest.len()).filter(|at| rest.is_char_boundary(*at));
        starts.any(|at| fits(tail, &rest[at..]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        assert!(fits("*", "host-host/64B"));
        assert!(fits("host-*/64B", "host-host/64B"));
        assert!(fits("a*b*c", "abbc"));
        assert!(!fits("host-host", "host-host/64B"));
        assert!(!fits("a*b", "abc"));
    }

    #[test]
    fn the_document_has_the_fields_that_programs_rely_on() -> Result<()> {
        let series = series::Series::from_iter([1.0, 2.0, 3.0]);
        let mut outcome = Outcome::new("host-host/64B", &series);
        outcome.baselines.insert("memcpy".into(), 1.5);
        let results = vec![outcome, Outcome::new("planner/cold", &series)];
        let document = Document {
            schema: 1,
            quick: true,
            machine: Machine::describe(),
            planner: planner::Figures::of(&results),
            results,
        };
        let json = serde_json::to_value(&document)?;
        assert_eq!(json["schema"], 1);
        assert_eq!(json["planner"], serde_json::json!({ "cold_plan_us": 2e6 }));
        for field in ["cpu", "cores", "commit", "kernel"] {
            assert!(!json["machine"][field].is_null(), "{field}");
        }
        let result = &json["results"][0];
        assert_eq!(result["case"], "host-host/64B");
        assert_eq!(result["transload_s"], 2.0);
        assert_eq!(result["spread_s"], serde_json::json!([1.0, 3.0]));
        assert_eq!(result["baselines"]["memcpy"], 1.5);
        for field in ["src", "dst", "bytes", "noise", "verified"] {
            assert!(result.get(field).is_some(), "{field}");
        }
        Ok(())
    }

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let names: Vec<String> = cases(Effort::new(false, None))
            .into_iter()
            .map(|case| case.name)
            .collect();
        let mut once = names.clone();
        once.sort();
        once.dedup();
        assert_eq!(names.len(), once.len());
    }
}
