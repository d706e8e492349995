//! The sim compared with a naive model: for random submissions, the time at which each fence settles and the final
//! value of every byte.

mod support;

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use support::{Log, copy, machine, mem};
use transload_hal::{AllocSpec, Backend, Fence, Outcome};
use transload_testkit::sim::{Completion, Sim};

const PLACES: [&str; 4] = [
    "cpu:0/pageable",
    "cpu:0/pinned",
    "sim:0/device",
    "sim:1/device",
];
/// Each memory holds blocks of that length; a submission copies one block to another.
const BLOCK: u64 = 50;
const BLOCKS: usize = 3;

/// The engine of a copy in the test machine; `None` if no link exists.
fn engine(src: usize, dst: usize) -> Option<(&'static str, u8)> {
    Some(match (src, dst) {
        (0 | 1, 0 | 1) => ("cpu:0", 0),
        (0 | 1, gpu) => (PLACES[gpu], 0),
        (gpu, 0 | 1) => (PLACES[gpu], 1),
        (a, b) if a == b => (PLACES[a], 2),
        _ => return None,
    })
}

#[derive(Clone, Debug)]
struct Copy {
    src: (usize, usize),
    dst: (usize, usize),
    len: u64,
    pause_ns: u64,
}

fn copies() -> impl Strategy<Value = Vec<Copy>> {
    let place = || (0..PLACES.len(), 0..BLOCKS);
    let one =
        (place(), place(), 0..=BLOCK, 0..3000u64).prop_map(|(src, dst, len, pause_ns)| Copy {
            src,
            dst,
            len,
            pause_ns,
        });
    let possible = |copy: &Copy| copy.src != copy.dst && engine(copy.src.0, copy.dst.0).is_some();
    proptest::collection::vec(one.prop_filter("no link", possible), 1..24)
}

proptest! {
    #[test]
    fn times_and_bytes_are_those_of_the_model(copies in copies()) {
        let sim = Sim::builder(&machine()).completion(Completion::Timed).build().unwrap();
        let log = Arc::new(Log::default());
        sim.attach(log.clone());
        let mut buffers = Vec::new();
        let mut model: HashMap<(usize, usize), Vec<u8>> = HashMap::new();
        for (place, name) in PLACES.iter().enumerate() {
            for block in 0..BLOCKS {
                let buffer = sim.allocate(mem(name), &AllocSpec::bytes(BLOCK)).unwrap();
                let bytes: Vec<u8> = (0..BLOCK).map(|i| (place * 80 + block * 20) as u8 ^ i as u8).collect();
                sim.write(&buffer, 0, &bytes).unwrap();
                model.insert((place, block), bytes);
                buffers.push(buffer);
            }
        }
        let mut free_at: HashMap<(&str, u8), u64> = HashMap::new();
        // For each submission: its copy, its fence, its end.
        let mut before: Vec<(Copy, Fence, u64)> = Vec::new();
        let mut wanted = Vec::new();
        let mut now = 0;
        for copied in copies {
            now += copied.pause_ns;
            sim.run_until(transload_hal::Instant(now));
            let conflicts = |other: &Copy| {
                other.dst == copied.src || other.dst == copied.dst || other.src == copied.dst
            };
            let waits: Vec<_> = before.iter().filter(|(other, ..)| conflicts(other)).collect();
            let after: Vec<Fence> = waits.iter().map(|(_, fence, _)| *fence).collect();
            let ready = waits.iter().map(|(.., end)| *end).max().unwrap_or(0).max(now);
            let busy = free_at.entry(engine(copied.src.0, copied.dst.0).unwrap()).or_default();
            let end = ready.max(*busy) + 1000 + copied.len;
            *busy = end;
            let view = |(place, block): (usize, usize)| {
                buffers[place * BLOCKS + block].slice(0, copied.len).unwrap()
            };
            let fence = copy(&sim, &view(copied.src), &view(copied.dst), &after).unwrap();
            wanted.push((end, fence));
            // Conflicting copies take effect in the order of submission.
            let len = copied.len as usize;
            let bytes = model[&copied.src][..len].to_vec();
            model.get_mut(&copied.dst).unwrap()[..len].copy_from_slice(&bytes);
            before.push((copied, fence, end));
        }
        sim.run_until_idle();
        // The order of ends is the order of reports; fences with equal ends are reported in the order of submission.
        wanted.sort_by_key(|(end, fence)| (*end, fence.number()));
        let fences: Vec<Fence> = wanted.iter().map(|(_, fence)| *fence).collect();
        prop_assert_eq!(log.fences(), fences);
        prop_assert!(log.outcomes().iter().all(|(_, outcome)| *outcome == Outcome::Done));
        let last = wanted.last().map_or(0, |(end, _)| *end).max(now);
        prop_assert_eq!(sim.clock().now_ns(), last);
        for ((place, block), bytes) in model {
            let mut seen = vec![0; BLOCK as usize];
            sim.read(&buffers[place * BLOCKS + block], 0, &mut seen).unwrap();
            prop_assert_eq!(seen, bytes);
        }
        prop_assert_eq!(sim.violations(), []);
    }
}
