//! What new memory costs once, as a probe found it.

use transload::probe::{FreshMemory, Interval, ProbeReport};
use transload::{ByteSize, Nanoseconds};

use crate::failure::Failure;
use crate::json::{self, seconds};
use crate::output::Output;

pub(super) fn print(found: &ProbeReport, output: &mut Output) -> Result<(), Failure> {
    let Some(first) = found.fresh.first() else {
        return Ok(());
    };
    let of = format!("NEW MEMORY, {}", ByteSize(first.bytes));
    output.table(&[&of, "ALLOCATION", "FIRST USE"], rows(found))?;
    output.line("")
}

/// A row for each kind of new memory: its name, the time of the allocation, and by how much the first copy takes longer
/// than the second one.
pub(super) fn rows(found: &ProbeReport) -> Vec<Vec<String>> {
    let row = |fresh: &FreshMemory| {
        let time = |of: &Interval| Nanoseconds(of.median_ns).to_string();
        vec![
            fresh.memory.to_string(),
            time(&fresh.allocation),
            time(&fresh.first_use),
        ]
    };
    found.fresh.iter().map(row).collect()
}

pub(super) fn document(fresh: &FreshMemory) -> json::FreshMemory {
    json::FreshMemory {
        memory: fresh.memory.to_string(),
        bytes: fresh.bytes,
        allocation_s: seconds(fresh.allocation.median_ns),
        first_use_s: seconds(fresh.first_use.median_ns),
    }
}
