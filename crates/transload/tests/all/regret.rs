//! How good the planner's choices are on simulated machines, and how exact its predictions: in virtual time, which has
//! no noise.

use std::iter;
use std::sync::Arc;

use transload::{AllocSpec, Candidate, Request, StagingBudget, TransferError};
use transload_testkit::sim::{Completion, Script};

use crate::fixture::{Fixture, Outcome};

/// The sizes in bytes. The simulated machine moves real bytes, so the larger ones are left to the benchmark.
const SIZES: [u64; 12] = [
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    2 << 20,
    (4 << 20) + 1,
    16 << 20,
    32 << 20,
    64 << 20,
];

/// The ways of one pair of memories and one size, the planner's choice first.
struct Cell {
    what: String,
    ways: Vec<Way>,
}

struct Way {
    name: String,
    predicted_ns: u64,
    ns: u64,
}

fn cells(file: &str, sizes: &[u64]) -> Result<Vec<Cell>, Box<dyn std::error::Error>> {
    let path = format!("{}/../../topologies/{file}", env!("CARGO_MANIFEST_DIR"));
    let budget = Arc::new(StagingBudget::new(64 << 20));
    let text = std::fs::read_to_string(path)?;
    let Fixture { sim, manager } =
        Fixture::scripted(&text, Completion::Timed, &budget, Script::new());
    let most = sizes[sizes.len() - 1];
    let mut cells = Vec::new();
    for src_memory in manager.memories() {
        for dst_memory in manager.memories() {
            let [src, dst] = [&src_memory, &dst_memory]
                .map(|memory| manager.allocate(memory.id.into(), AllocSpec::bytes(most)));
            let (src, dst) = (src?, dst?);
            for &len in sizes {
                let [src, dst] = [&src, &dst].map(|buffer| buffer.slice(..len));
                let request = Request::new(&src?, &dst?);
                let mut ways = Vec::new();
                let candidates = match manager.candidates(&request) {
                    // Described machines need not join all of their memories.
                    Err(TransferError::NoRoute { .. }) => continue,
                    candidates => candidates?,
                };
                for way in candidates {
                    let request = request.clone().by(&way);
                    if len == sizes[0] {
                        // Proves the links.
                        manager.submit(&request).wait()?;
                    }
                    let before = sim.clock().now_ns();
                    manager.submit(&request).wait()?;
                    ways.push(Way {
                        name: name(&way),
                        predicted_ns: way.choice().predicted_ns.unwrap_or(0),
                        ns: sim.clock().now_ns() - before,
                    });
                }
                let what = format!("{} to {}, {len} bytes", src_memory.id, dst_memory.id);
                cells.push(Cell { what, ways });
            }
        }
    }
    assert!(sim.violations().is_empty(), "{:?}", sim.violations());
    Ok(cells)
}

fn name(way: &Candidate) -> String {
    let lanes = way.choice().lanes.iter().map(|lane| {
        let route: Vec<String> = lane.route.iter().map(ToString::to_string).collect();
        format!(
            "{} {} by {}",
            lane.method,
            route.join(" "),
            lane.chunk_bytes
        )
    });
    lanes.collect::<Vec<_>>().join(" + ")
}

fn check(file: &str, sizes: &[u64]) -> Outcome {
    let cells = cells(file, sizes)?;
    assert!(cells.len() > 250, "{} cells", cells.len());
    let ways = cells
        .iter()
        .flat_map(|cell| cell.ways.iter().zip(iter::repeat(&cell.what)));
    let wrong: Vec<String> = ways
        .filter(|(way, _)| way.predicted_ns != way.ns)
        .map(|(way, what)| {
            format!(
                "{what}, {}: {} for {} ns",
                way.name, way.predicted_ns, way.ns
            )
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "{} predictions: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(40)]
    );
    let regret = |cell: &Cell| {
        let best = cell.ways.iter().map(|way| way.ns).min();
        cell.ways[0].ns as f64 / best.unwrap_or(0).max(1) as f64
    };
    let mut regrets: Vec<f64> = cells.iter().map(regret).collect();
    regrets.sort_by(f64::total_cmp);
    let logs: f64 = regrets.iter().map(|regret| regret.ln()).sum();
    let geomean = (logs / regrets.len() as f64).exp();
    let p95 = regrets[(regrets.len() - 1) * 95 / 100];
    assert!(geomean <= 1.05, "geometric mean {geomean}");
    assert!(p95 <= 1.25, "95th percentile {p95}");
    Ok(())
}

#[test]
fn the_choice_is_near_the_best_and_predictions_are_exact_on_a_workstation() -> Outcome {
    check("workstation.toml", &SIZES)
}

#[test]
fn the_choice_is_near_the_best_and_predictions_are_exact_on_a_laptop() -> Outcome {
    check("laptop.toml", &SIZES[..10])
}

#[test]
fn the_choice_is_near_the_best_and_predictions_are_exact_on_eight_gpus() -> Outcome {
    // There are many pairs.
    check("eight-gpu.toml", &SIZES[..8])
}
