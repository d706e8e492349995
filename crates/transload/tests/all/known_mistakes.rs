//! Known mistakes of other transfer managers; each test states the behaviour that rules one out.

use transload::{Method, Request, TransferError};
use transload_testkit::sim::{Completion, Rule};

use crate::common::{Bench, SLOT, Sketch, marked, mem, two_devices};

/// A link for small payloads, a link for large ones, and a route through the processor whose cost lies between them.
fn with_a_crossing() -> Sketch {
    two_devices()
        .link_at(
            "sim:0/device",
            "sim:1/device",
            "sim:0#2",
            "native",
            (100, 1_000_000_000),
        )
        .link_at(
            "sim:0/device",
            "sim:1/device",
            "sim:0#3",
            "native",
            (20_000, 50_000_000_000),
        )
}

#[test]
fn a_plan_for_one_size_never_serves_another() {
    let sizes = [
        1, 4000, 19_000, 20_399, 20_400, 20_500, 64_000, 300_000, 3_000_000,
    ];
    let chosen = |bench: &Bench, len: u64| {
        let (src, dst) = (
            bench.filled("sim:0", marked(len)),
            bench.empty("sim:1", len),
        );
        let report = bench.manager.copy(&src, &dst).wait().unwrap();
        assert!(bench.read(&dst) == marked(len));
        let plan = report.plan().unwrap();
        (plan.links().collect::<Vec<_>>(), plan.chunk_bytes())
    };
    let fresh: Vec<_> = sizes
        .iter()
        .map(|len| chosen(&Bench::new(&with_a_crossing(), Completion::Timed, 3), *len))
        .collect();
    assert_ne!(fresh.first(), fresh.last(), "there is no crossing");
    // The first question must not decide the answers for the others.
    for first in 0..sizes.len() {
        let bench = Bench::new(&with_a_crossing(), Completion::Timed, 3);
        for at in (first..sizes.len())
            .chain(0..first)
            .chain((0..sizes.len()).rev())
        {
            assert_eq!(
                chosen(&bench, sizes[at]),
                fresh[at],
                "{} B after others",
                sizes[at]
            );
        }
    }
}

#[test]
fn the_last_chunk_counts_as_much_as_the_first() {
    let passes = [
        (mem("sim:0/device"), mem("cpu:0/pinned")),
        (mem("cpu:0/pinned"), mem("sim:1/device")),
    ];
    for (step, (from, to)) in passes.into_iter().enumerate() {
        for chunk in 1..=4 {
            let bench = Bench::new(&two_devices(), Completion::Timed, 3);
            let len = 3 * SLOT + 1;
            let (src, dst) = (
                bench.filled("sim:0", marked(len)),
                bench.empty("sim:1", len),
            );
            bench
                .sim
                .add_rule(Rule::fail_after(0).over(from, to).nth(chunk));
            let error = bench.manager.copy(&src, &dst).wait().unwrap_err();
            let TransferError::Failed(failure) = &error else {
                panic!("{error}");
            };
            assert_eq!(failure.step, Some(step as u8), "{error}");
            assert_eq!(failure.span.offset, (chunk - 1) * SLOT, "{error}");
            assert_eq!(
                failure.span.len,
                if chunk == 4 { 1 } else { SLOT },
                "{error}"
            );
            // No operation of the transfer is in flight when the error is returned.
            assert_eq!(bench.sim.in_flight(), 0);
            let then = bench.read(&dst);
            bench.sim.run_until_idle();
            assert!(bench.read(&dst) == then, "it wrote after it had failed");
        }
    }
}

#[test]
fn a_failing_choice_is_not_made_again() {
    let bench = Bench::new(&with_a_crossing(), Completion::Timed, 3);
    let (src, dst) = (
        bench.filled("sim:0", marked(100)),
        bench.empty("sim:1", 100),
    );
    let rule = Rule::fail_after(0).over(mem("sim:0/device"), mem("sim:1/device"));
    bench.sim.add_rule(rule);
    let copy = || {
        let report = bench.manager.copy(&src, &dst).wait().unwrap();
        let links: Vec<_> = report.plan().unwrap().links().collect();
        (links, report.fallbacks().len())
    };
    let (links, fallbacks) = copy();
    assert_eq!(fallbacks, 1);
    for _ in 0..3 {
        assert_eq!(copy(), (links.clone(), 0));
    }
}

#[test]
fn every_device_gets_what_is_meant_for_it() {
    let mut sketch = Sketch::new().device("cpu:0", &["pinned"]).link(
        "cpu:0/pinned",
        "cpu:0/pinned",
        "cpu:0#0",
        "native",
    );
    for n in 0..4 {
        let (id, memory) = (format!("sim:{n}"), format!("sim:{n}/device"));
        sketch = sketch.device(&id, &["device"]).link(
            "cpu:0/pinned",
            &memory,
            &format!("{id}#0"),
            "native",
        );
    }
    let bench = Bench::new(&sketch, Completion::Timed, 3);
    let src = bench.filled("cpu:0", marked(4000));
    let dsts: Vec<_> = (0..4)
        .map(|n| bench.empty(&format!("sim:{n}"), 1000))
        .collect();
    for (n, dst) in dsts.iter().enumerate().rev() {
        let n = n as u64;
        let part = src.slice(n * 1000..(n + 1) * 1000).unwrap();
        bench.manager.copy(part, dst).wait().unwrap();
        let used = bench.sim.engine_use();
        let own = used
            .iter()
            .find(|engine| engine.engine.to_string() == format!("sim:{n}#0"));
        assert_eq!(own.unwrap().operations, 1, "sim:{n}");
    }
    for (n, dst) in dsts.iter().enumerate() {
        assert!(
            bench.read(dst) == marked(4000)[n * 1000..(n + 1) * 1000],
            "sim:{n}"
        );
    }
}

#[test]
fn copies_of_less_than_a_microsecond_are_counted() {
    let bench = Bench::new(&with_a_crossing(), Completion::Timed, 3);
    let (src, dst) = (bench.filled("sim:0", marked(8)), bench.empty("sim:1", 8));
    for _ in 0..5 {
        bench.manager.copy(&src, &dst).wait().unwrap();
    }
    let stats = bench.manager.stats();
    let [path] = &stats.paths[..] else {
        panic!("{stats:?}");
    };
    assert_eq!(
        (path.method, path.total.transfers, path.total.bytes),
        (Method::DirectCopy, 5, 40)
    );
    assert_eq!(path.total.busy_ns, 5 * 108);
    assert_eq!(path.total.best_bytes_per_s, Some(8_000_000_000 / 108));
    bench.manager.reset_stats();
    assert_eq!(bench.manager.stats().paths, []);
}

#[test]
fn passes_of_a_staged_copy_overlap() {
    let modelled = |chunks: u64| {
        let bench = Bench::new(&two_devices(), Completion::Timed, 3);
        let len = chunks * SLOT;
        let (src, dst) = (
            bench.filled("sim:0", marked(len)),
            bench.empty("sim:1", len),
        );
        let report = bench.manager.copy(&src, &dst).wait().unwrap();
        let chunk_bytes = report.plan().unwrap().chunk_bytes();
        assert!(chunk_bytes == SLOT || chunks == 1, "{report}");
        report.elapsed().as_nanos() as u64
    };
    // A pass of one chunk at 1 µs and 10 GB/s.
    let pass = 1000 + SLOT.div_ceil(10);
    assert_eq!(modelled(1), 2 * pass);
    for chunks in [2, 5, 20] {
        assert_eq!(modelled(chunks), (chunks + 1) * pass, "{chunks} chunks");
    }
}

#[test]
fn a_copy_of_something_onto_itself_is_made_and_counted() {
    let sketch = two_devices().link("sim:0/device", "sim:0/device", "sim:0#2", "native");
    let bench = Bench::new(&sketch, Completion::Timed, 3);
    let buffer = bench.filled("sim:0", marked(1000));
    let report = bench.manager.copy(&buffer, &buffer).wait().unwrap();
    assert_eq!(report.bytes(), 1000);
    assert!(bench.read(&buffer) == marked(1000));
    let moved: u64 = bench
        .sim
        .engine_use()
        .iter()
        .map(|engine| engine.operations)
        .sum();
    assert_eq!(moved, 1, "Ok, and nothing was done");
}

#[test]
fn clones_are_one_memory_that_goes_once() {
    let bench = Bench::new(&two_devices(), Completion::Timed, 3);
    let buffer = bench.filled("sim:0", marked(100));
    let (clone, slice) = (buffer.clone(), buffer.slice(50..).unwrap());
    drop(buffer);
    assert!(bench.read(&clone) == marked(100) && bench.read(&slice) == marked(100)[50..]);
    drop(clone);
    assert_eq!(bench.sim.leaks().len(), 1);
    drop(slice);
    assert_eq!(bench.sim.leaks(), []);
}

#[test]
fn a_request_can_be_submitted_again() {
    let bench = Bench::new(&two_devices(), Completion::Timed, 3);
    let (src, dst) = (
        bench.filled("sim:0", marked(100)),
        bench.empty("sim:1", 100),
    );
    let request = Request::new(&src, &dst).verify();
    let sums: Vec<_> = (0..3)
        .map(|_| {
            bench
                .manager
                .submit(&request)
                .wait()
                .unwrap()
                .checksum()
                .unwrap()
        })
        .collect();
    assert!(sums.iter().all(|sum| *sum == sums[0]));
}
