//! Why a way was chosen: what bounds its time, and at which sizes another way wins.

use transload::model::{Load, Resource};
use transload::{ByteSize, Choice, Explanation, Nanoseconds};

use super::visits;
use crate::failure::Failure;
use crate::json::{self, names, seconds};
use crate::output::{Output, grouped};

const BUSY: [&str; 3] = ["BUSY", "TIME", "RESOURCE"];
const SIZES: [&str; 4] = ["FROM BYTES", "CHUNK", "METHOD", "ROUTE"];

pub(super) fn print(
    explanation: &Explanation,
    sizes: &[(u64, Choice)],
    output: &mut Output,
) -> Result<(), Failure> {
    let Choice {
        predicted_ns,
        loads,
        ..
    } = &explanation.chosen;
    // The steps of one chunk say least: an engine that is as busy bounds larger payloads too.
    let is_near = |load: &&Load| {
        loads
            .first()
            .is_some_and(|first| load.ns >= first.ns / 100 * 99)
    };
    let near = loads.iter().filter(is_near);
    let busiest = { near.clone() }.find(|load| load.of != Resource::Chunk);
    let busiest = busiest.or(near.clone().next());
    if let (Some(whole_ns), Some(busiest)) = (predicted_ns, busiest) {
        let bound = output.style().bold(&format!("bound by {}", busiest.of));
        output.line(format_args!("\n{bound}"))?;
        let rows = loads.iter().map(|load| {
            let part = load.ns as f64 / (*whole_ns).max(1) as f64 * 100.0;
            let time = Nanoseconds(load.ns).to_string();
            vec![format!("{part:.1} %"), time, load.of.to_string()]
        });
        output.table(&BUSY, rows.collect())?;
    }
    let rows = sizes.iter().map(|(from, choice)| {
        let chunk = choice.chunk_bytes.map(|bytes| ByteSize(bytes).to_string());
        vec![
            grouped(*from),
            chunk.unwrap_or_default(),
            choice.method.to_string(),
            visits(choice),
        ]
    });
    output.line("")?;
    output.table(&SIZES, rows.collect())
}

pub(super) fn load(load: &Load) -> json::Load {
    let (kind, name) = match load.of {
        Resource::Engine(engine) => ("engine", Some(engine.to_string())),
        Resource::Host => ("host", None),
        Resource::Slots(memory) => ("slots", Some(memory.to_string())),
        Resource::Chunk => ("chunk", None),
        _ => ("other", Some(load.of.to_string())),
    };
    json::Load {
        kind,
        name,
        seconds: seconds(load.ns),
    }
}

pub(super) fn size_range((from_bytes, choice): &(u64, Choice)) -> json::SizeRange {
    json::SizeRange {
        from_bytes: *from_bytes,
        method: choice.method.to_string(),
        route: names(choice.route.clone()),
        chunk_bytes: choice.chunk_bytes,
        lanes: choice.lanes.len(),
        predicted_s: choice.predicted_ns.map(seconds),
    }
}
