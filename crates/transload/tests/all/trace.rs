//! What a trace says of transfers, read as a viewer reads it.

use std::collections::BTreeMap;
use std::sync::Arc;
#[cfg(not(transload_local))]
use std::thread;
use std::time::Duration;

use serde_json::Value;
use transload::{Buffer, OnFailure, Priority, Request, StagingBudget, Trace, TransferManager};
use transload_testkit::sim::{Completion, Rule, Sim};
use transload_testkit::topology;

use super::fixture::{Fixture, bytes, without_peers};

const LEN: u64 = 8 << 20;

fn traced(completion: Completion) -> Fixture {
    let machine = topology::from_str(&without_peers(1)).unwrap();
    let sim = Sim::builder(&machine).completion(completion).build();
    let sim = sim.unwrap();
    let manager = TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .backend(Arc::new(sim.clone()))
        .staging(Arc::new(StagingBudget::new(256 << 20)))
        .trace(true)
        .build()
        .unwrap();
    Fixture { sim, manager }
}

/// A slice of the viewer, in nanoseconds.
#[derive(Clone, Debug)]
struct Slice {
    name: String,
    begin: u64,
    end: u64,
    args: Value,
}

impl Slice {
    fn arg(&self, name: &str) -> u64 {
        self.args[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name} of {self:?}"))
    }

    fn holds(&self, inner: &Slice) -> bool {
        self.begin <= inner.begin && inner.end <= self.end
    }
}

/// The slices of a trace by group and row.
type Rows = BTreeMap<(String, String), Vec<Slice>>;

/// Reads a trace, and checks what holds for each: every slice is in a row with a name, and slices of one row lie beside
/// or within each other.
fn read(trace: &Trace) -> Rows {
    let document: Value = serde_json::from_str(&trace.to_string()).unwrap();
    assert_eq!(document["otherData"]["left_out"], trace.left_out());
    let events = document["traceEvents"].as_array().unwrap();
    let named = |kind: &str| -> BTreeMap<(u64, u64), String> {
        let named = events.iter().filter(|event| event["name"] == kind);
        let name = |event: &Value| {
            let at = [&event["pid"], &event["tid"]].map(|number| number.as_u64().unwrap());
            (
                at.into(),
                event["args"]["name"].as_str().unwrap().to_owned(),
            )
        };
        named.map(name).collect()
    };
    let (groups, names) = (named("process_name"), named("thread_name"));
    let mut rows = Rows::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let [pid, tid] = [&event["pid"], &event["tid"]].map(|number| number.as_u64().unwrap());
        let ns = |time: &Value| (time.as_f64().unwrap() * 1000.0).round() as u64;
        let begin = ns(&event["ts"]);
        let row = (groups[&(pid, 0)].clone(), names[&(pid, tid)].clone());
        rows.entry(row).or_default().push(Slice {
            name: event["name"].as_str().unwrap().into(),
            begin,
            end: begin + ns(&event["dur"]),
            args: event["args"].clone(),
        });
    }
    for (row, slices) in &rows {
        let mut outer: Vec<&Slice> = Vec::new();
        for slice in slices {
            outer.retain(|outer| outer.end > slice.begin || outer.holds(slice));
            if row.0 == "engines" {
                assert!(
                    outer.iter().all(|outer| outer.end <= slice.begin),
                    "{row:?}"
                );
            }
            let within = |outer: &&Slice| outer.holds(slice) || outer.end <= slice.begin;
            assert!(outer.iter().all(within), "{row:?}: {slice:?} in {outer:?}");
            outer.push(slice);
        }
    }
    rows
}

fn of<'a>(rows: &'a Rows, group: &str) -> impl Iterator<Item = (&'a str, &'a [Slice])> {
    let rows = rows.iter().filter(move |((of, _), _)| of == group);
    rows.map(|((_, row), slices)| (row.as_str(), slices.as_slice()))
}

fn named<'a>(rows: &'a Rows, group: &str, name: &str) -> Vec<&'a Slice> {
    let slices = of(rows, group).flat_map(|(_, slices)| slices);
    slices.filter(|slice| slice.name == name).collect()
}

fn ends(fixture: &Fixture) -> (Buffer, Buffer) {
    let src = fixture.filled("cpu:0/pageable", &bytes(LEN as usize, 1));
    (src, fixture.empty("sim:0", LEN as usize))
}

#[test]
fn every_byte_of_a_staged_copy_is_in_a_slot_between_its_two_engines() {
    let fixture = traced(Completion::Timed);
    let (src, dst) = ends(&fixture);
    let report = fixture.manager.copy(&src, &dst).wait().unwrap();
    let trace = fixture.manager.take_trace();
    let rows = read(&trace);

    let [transfer] = named(&rows, "transfers", "cpu:0/pageable → sim:0/device")[..] else {
        panic!("{rows:#?}")
    };
    assert_eq!(transfer.arg("bytes"), LEN);
    let elapsed = report.waited() + report.elapsed();
    assert_eq!(
        u128::from(transfer.end - transfer.begin),
        elapsed.as_nanos()
    );

    let moved = |name: &str| -> u64 {
        let slices = named(&rows, "engines", name);
        assert!(slices.iter().all(|slice| transfer.holds(slice)));
        slices.iter().map(|slice| slice.arg("bytes")).sum()
    };
    assert_eq!(moved("cpu:0/pageable → cpu:0/pinned"), LEN);
    assert_eq!(moved("cpu:0/pinned → sim:0/device"), LEN);

    let engine = |name: &str| {
        let slices = named(&rows, "engines", name).into_iter();
        Duration::from_nanos(slices.map(|slice| slice.end - slice.begin).sum())
    };
    let hops = trace.hops();
    assert_eq!(hops.len(), 2);
    for hop in hops {
        let slices = engine(&format!("{} → {}", hop.src, hop.dst));
        // An engine is shown to do one operation after the other.
        assert!(
            hop.bytes == LEN && hop.busy >= slices && hop.busy <= elapsed,
            "{hop:?}"
        );
    }

    let chunks = named(&rows, "staging slots", "chunk");
    assert_eq!(
        chunks.iter().map(|chunk| chunk.arg("bytes")).sum::<u64>(),
        LEN
    );
    for chunk in &chunks {
        let of_chunk = of(&rows, "engines").flat_map(|(_, slices)| slices);
        let of_chunk = of_chunk.filter(|slice| slice.arg("offset") == chunk.arg("offset"));
        let of_chunk: Vec<_> = of_chunk.collect();
        assert_eq!(of_chunk.len(), 2);
        assert!(of_chunk.iter().all(|slice| chunk.holds(slice)), "{chunk:?}");
    }
    for (row, slices) in of(&rows, "staging slots") {
        assert!(
            row.starts_with("cpu:0/pinned: place 0, lane 0, ring 0, slot "),
            "{row}"
        );
        let mut chunks = slices.iter().filter(|slice| slice.name == "chunk");
        let mut free = 0;
        assert!(chunks.all(|chunk| chunk.begin >= core::mem::replace(&mut free, chunk.end)));
        let lease = &slices[0];
        assert!(lease.name == "lease" && slices.iter().all(|slice| lease.holds(slice)));
    }
    assert!(!named(&rows, "threads", "turn").is_empty());
    assert!(fixture.manager.take_trace().is_empty());
}

#[test]
fn slices_nest_however_backends_complete_and_transfers_meet() {
    for completion in Completion::all() {
        let never = matches!(completion, Completion::Never);
        let fixture = traced(completion);
        let (src, dst) = ends(&fixture);
        let (other, third) = ends(&fixture);
        let requests = [(&src, &dst), (&other, &third), (&dst, &other)];
        let requests = requests.map(|(src, dst)| Request::new(src, dst).priority(Priority::High));
        let batch = fixture
            .manager
            .copy_batch(&requests, OnFailure::GoOn)
            .unwrap();
        let _ = fixture.manager.turn();
        let early = read(&fixture.manager.take_trace());
        assert!(of(&early, "threads").count() > 0);
        if never {
            let operations: Vec<_> = of(&early, "engines")
                .flat_map(|(_, slices)| slices)
                .collect();
            assert!(!operations.is_empty());
            assert!(
                operations
                    .iter()
                    .all(|slice| slice.args["unfinished"] == true)
            );
            core::mem::forget(batch);
            continue;
        }
        batch
            .wait()
            .into_iter()
            .for_each(|result| drop(result.unwrap()));
        let rows = read(&fixture.manager.take_trace());
        let transfers = of(&rows, "transfers").chain(of(&early, "transfers"));
        let whole = transfers
            .flat_map(|(_, slices)| slices)
            .filter(|slice| slice.args["done"] == true);
        assert_eq!(whole.count(), 3);
    }
}

#[test]
fn an_operation_that_failed_and_the_way_after_it_are_there() {
    let fixture = traced(Completion::Timed);
    let (src, dst) = ends(&fixture);
    let memory = |name: &str| name.parse().unwrap();
    fixture
        .sim
        .add_rule(Rule::fail_after(0).over(memory("cpu:0/pageable"), memory("cpu:0/pinned")));
    let report = fixture.manager.copy(&src, &dst).wait().unwrap();
    assert_eq!(report.fallbacks().len(), 1);
    let rows = read(&fixture.manager.take_trace());
    let all = || of(&rows, "engines").flat_map(|(_, slices)| slices);
    assert!(all().any(|slice| slice.args["done"] == false));
    assert!(
        all().any(
            |slice| slice.name == "cpu:0/pageable → sim:0/device" && slice.args["done"] == true
        )
    );
    let whole = of(&rows, "transfers").flat_map(|(_, slices)| slices);
    assert!(whole.filter(|slice| slice.args["done"] == true).count() == 1);
}

#[cfg(not(transload_local))]
#[test]
fn real_copies_of_many_threads_are_in_the_rows_of_these_threads() {
    let manager = TransferManager::builder()
        .host()
        .trace(true)
        .build()
        .unwrap();
    let place = "cpu:0/shared".parse::<transload::Place>().unwrap();
    thread::scope(|scope| {
        for number in 0..3u8 {
            let manager = &manager;
            let copies = move || {
                for len in [4096, 1 << 20, 20 << 20] {
                    let src = manager.adopt(vec![number; len]).unwrap();
                    let dst = manager.allocate(place, transload::AllocSpec::bytes(len as u64));
                    let report = manager
                        .submit(&Request::new(&src, dst.unwrap()).verify())
                        .wait();
                    assert!(report.unwrap().checksum().is_some());
                }
            };
            let name = format!("{number}: \"<b>\\\u{1}");
            thread::Builder::new()
                .name(name)
                .spawn_scoped(scope, copies)
                .unwrap();
        }
    });
    let rows = read(&manager.take_trace());
    for number in 0..3u8 {
        let name = format!("{number}: \"<b>\\\u{1}");
        let slices = &rows[&("threads".into(), name)];
        assert!(
            slices.iter().any(|slice| slice.name == "submit: host"),
            "{slices:?}"
        );
    }
    let copies = of(&rows, "transfers").flat_map(|(_, slices)| slices);
    let copies = copies.filter(|slice| slice.name == "cpu:0/pageable → cpu:0/shared");
    assert_eq!(copies.count(), 9);
}

#[test]
fn a_full_trace_says_what_it_left_out_and_a_manager_without_one_records_nothing() {
    let copy = |manager: &TransferManager, times: u32| {
        let src = manager.adopt(vec![1u8; 64]).unwrap();
        let dst = manager.adopt(vec![0u8; 64]).unwrap();
        (0..times).for_each(|_| drop(manager.copy(&src, &dst).wait().unwrap()));
        manager.take_trace()
    };
    let builder = || TransferManager::builder().host();
    let none = copy(&builder().build().unwrap(), 1);
    assert!(none.is_empty() && read(&none).is_empty());

    let manager = builder().trace(true).build().unwrap();
    let full = copy(&manager, 25_000);
    assert!(full.left_out() > 0);
    read(&full);
    let next = copy(&manager, 1);
    assert_eq!(
        (
            next.left_out(),
            named(&read(&next), "transfers", "cpu:0/pageable → cpu:0/pageable").len()
        ),
        (0, 1)
    );
}
