//! The figures of `docs/cost-model.md` are those of the planner.

use std::error::Error;

use transload::model::StepKind;
use transload::{BackendId, ByteSize, Method, Topology};
use transload_core::{Limits, Name, PlanKey, PlanSet, plan};
use transload_testkit::topology;

use crate::fixture::Outcome;

const PAGE: &str = include_str!("../../../../docs/cost-model.md");
const SIZE: u64 = 64 << 20;

/// What stands between two marks of the page.
fn between(begin: &str, end: &str) -> Result<&'static str, String> {
    let found = PAGE
        .split_once(begin)
        .and_then(|(_, rest)| rest.split_once(end));
    found.map(|(text, _)| text).ok_or(format!("no {begin}"))
}

/// The rows of the table with that header.
fn rows(header: &str) -> Result<Vec<Vec<&'static str>>, String> {
    let rows = between(header, "\n\n")?.lines().skip(2);
    let cells = |row: &'static str| row.split('|').map(|cell| cell.trim().trim_matches('`'));
    Ok(rows
        .map(|row| cells(row).filter(|cell| !cell.is_empty()).collect())
        .collect())
}

fn number(text: &str) -> Result<u64, std::num::ParseIntError> {
    text.replace(',', "").parse()
}

/// The plans from the processor to the device of the page's machine, with slots of at most so many bytes.
fn plans(slot_bytes: u64) -> Result<PlanSet, Box<dyn Error>> {
    let machine = topology::from_str(between("```toml\n", "```")?)?;
    let mut inventory = machine.inventory(BackendId(Name::constant("example")))?;
    for memory in &mut inventory.memories {
        memory.max_alloc_bytes = memory.max_alloc_bytes.min(slot_bytes);
    }
    let mut topology = Topology::new();
    topology.add(inventory)?;
    let key = PlanKey::copy("cpu:0/pageable".parse()?, "sim:0/device".parse()?);
    Ok(plan(&topology, &key, &Limits::default(), &|_| None)?)
}

#[test]
fn the_ways_cross_where_the_page_says() -> Outcome {
    let plans = plans(u64::MAX)?;
    let table = rows("| bytes | `DirectCopy` | `HostStaged` | chosen |")?;
    assert!(table.len() > 3);
    for row in table {
        let bytes = number(row[0])?;
        let estimate = |method| {
            let mut ways = plans.alternatives(bytes);
            let way = ways.find(|way| way.method == method);
            way.map(|way| way.estimate_ns(bytes))
        };
        let shown = (
            Some(number(row[1])?),
            Some(number(row[2])?),
            row[3].to_owned(),
        );
        let [direct, staged] = [Method::DirectCopy, Method::HostStaged].map(estimate);
        let chosen = plans.choose(bytes).method.to_string();
        assert_eq!((direct, staged, chosen), shown, "{bytes} bytes");
    }
    let direct = plans
        .alternatives(SIZE)
        .find(|way| way.method == Method::DirectCopy);
    let shown = number(between("`D` moves 64 MiB in ", " ns,")?)?;
    assert_eq!(direct.map(|way| way.estimate_ns(SIZE)), Some(shown));
    let shown = number(between("so 256 KiB win from ", " bytes on")?)?;
    let range = plans.ranges().iter().find(|(from, _)| *from == shown);
    assert_eq!(range.map(|(_, way)| way.chunk_bytes()), Some(256 << 10));
    assert_eq!(plans.choose(shown - 1).chunk_bytes(), 128 << 10);
    Ok(())
}

#[test]
fn chunks_cost_what_the_page_says() -> Outcome {
    let table = rows("| chunk | `H` | `B` | `Σ t` | `p` | fixed `Σ t - p` | 64 MiB |")?;
    assert!(table.len() > 3);
    for row in table {
        let ByteSize(chunk) = row[0].parse()?;
        let ways = plans(chunk)?.candidates(SIZE);
        let way = ways
            .iter()
            .find(|way| way.method == Method::HostStaged && way.chunk_bytes() == chunk)
            .ok_or(format!("no chunk of {}", row[0]))?;
        let steps = way.lanes[0].steps.iter();
        let copies = steps.filter(|step| matches!(step.kind, StepKind::Copy { .. }));
        let mut figures: Vec<u64> = copies.map(|step| step.cost.at(chunk)).collect();
        let one_ns = way.estimate_ns(chunk);
        let period_ns = way.estimate_ns(2 * chunk) - one_ns;
        figures.extend([one_ns, period_ns, one_ns - period_ns, way.estimate_ns(SIZE)]);
        let shown: Result<Vec<u64>, _> = row[1..].iter().map(|cell| number(cell)).collect();
        assert_eq!(figures, shown?, "{}", row[0]);
    }
    Ok(())
}
