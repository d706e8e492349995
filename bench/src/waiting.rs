//! `waiting`: programs that do other work while copies are in flight, and the cost that threads cause each other.
//!
//! | cases | question |
//! |---|---|
//! | `loop-*` | how much later a loop of `is_over` and a sleep ends than a `wait` |
//! | `overlap-*` | whether a copy advances while the submitting thread does its own work |
//! | `submit-*` | how long `copy` takes before it returns |
//! | `threads-*` | what threads that wait for other transfers cost a copy |
//! | `batch-*` | how long a large batch holds up another thread |
//! | `idle-host` | how often an idle process wakes up |
//! | `growth-*` | what many transfers that wait or have ended cost a copy, and what a long chain costs |
//! | `stall-*` | how late other transfers are told while one operation does not end |

mod batch;
mod beside;
mod chain;
mod endpoints;
mod growth;
mod idle;
// Only Linux binds all threads of a process to one processor.
#[cfg(target_os = "linux")]
mod overlap;
mod pause;
mod polling;
mod stall;
mod submit;
mod threads;

use anyhow::Result;

use crate::case::{Case, Effort, Outcome};
use endpoints::{DEVICES, Endpoints, Sort};
use growth::Others;

/// Long enough for at least five sleeps of 5 ms on an idle machine with two cores; the quick run takes a quarter.
const HEAP: usize = 512 << 20;
const FILE: usize = 256 << 20;
const DEVICE: usize = 256 << 20;
const QUICK_PART: usize = 4;

const SUBMITTED: [(&str, usize); 5] = [
    ("4KiB", 4 << 10),
    ("1MiB", 1 << 20),
    ("16MiB", 16 << 20),
    ("256MiB", 256 << 20),
    ("1GiB", 1 << 30),
];
const THREADS: [usize; 3] = [10, 100, 1000];
const BATCHES: [usize; 3] = [1000, 10_000, 100_000];

type OfEndpoints = fn(&str, Endpoints, Effort) -> Result<Outcome>;

pub(crate) fn cases(effort: Effort) -> Vec<Case> {
    let mut cases = by_memory("loop", polling::run, effort);
    #[cfg(target_os = "linux")]
    cases.extend(by_memory("overlap", overlap::run, effort));
    for (word, sort) in [("heap", Sort::Heap), ("guest", Sort::Adapter)] {
        for &(size, len) in some(&SUBMITTED, effort) {
            let name = format!("waiting/submit-{size}-{word}");
            cases.push(of_endpoints(name, vec![(sort, len, None)], submit::run));
        }
    }
    for count in THREADS {
        let name = format!("waiting/threads-{count}");
        cases.push(Case::where_possible(name, move |name, effort| {
            threads::run(name, count, effort)
        }));
    }
    for &count in some(&BATCHES, effort) {
        let name = format!("waiting/batch-{count}");
        cases.push(Case::where_possible(name, move |name, effort| {
            batch::run(name, count, effort)
        }));
    }
    for &count in some(&growth::COUNTS, effort) {
        for (word, others) in [("wait", Others::Wait), ("ended", Others::Ended)] {
            let name = format!("waiting/growth-{word}-{count}");
            cases.push(Case::where_possible(name, move |name, effort| {
                growth::run(name, count, others, effort)
            }));
        }
        let name = format!("waiting/growth-slots-{count}");
        cases.push(Case::where_possible(name, move |name, _| {
            growth::queue(name, count)
        }));
    }
    for &count in some(&chain::COUNTS, effort) {
        let name = format!("waiting/growth-chain-{count}");
        cases.push(Case::where_possible(name, move |name, effort| {
            chain::run(name, count, effort)
        }));
    }
    cases.push(Case::where_possible(
        "waiting/idle-host".into(),
        |name, _| idle::run(name),
    ));
    cases.extend(stall::cases());
    cases
}

/// A case for each sort of memory. Each device has an outcome of its own.
fn by_memory(word: &str, run: OfEndpoints, effort: Effort) -> Vec<Case> {
    let name = |memory| format!("waiting/{word}-{memory}");
    let part = if effort.quick { QUICK_PART } else { 1 };
    let [heap, file, device] = [HEAP, FILE, DEVICE].map(|len| len / part);
    let devices = DEVICES.map(|(sort, name)| (sort, device, Some(name)));
    vec![
        of_endpoints(name("heap"), vec![(Sort::Heap, heap, None)], run),
        of_endpoints(name("file"), vec![(Sort::File, file, None)], run),
        of_endpoints(name("device"), devices.into(), run),
    ]
}

/// A case with an outcome for each of those ends that this machine has.
fn of_endpoints(
    name: String,
    endpoints: Vec<(Sort, usize, Option<&'static str>)>,
    run: OfEndpoints,
) -> Case {
    Case::where_possible(name, move |name, effort| {
        let mut outcomes = Vec::new();
        for (sort, len, part) in &endpoints {
            let Some(endpoints) = Endpoints::new(*sort, *len)? else {
                continue;
            };
            let name = match part {
                Some(part) => format!("{name}/{part}"),
                None => name.to_owned(),
            };
            outcomes.push(run(&name, endpoints, effort)?);
        }
        Ok(outcomes)
    })
}

/// The quick run leaves out the largest one of each sort.
fn some<T>(all: &[T], effort: Effort) -> &[T] {
    &all[..all.len() - usize::from(effort.quick)]
}
