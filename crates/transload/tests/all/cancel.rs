//! Transfers that are cancelled, timed out or dropped at every point of a staged pipeline.

use std::time::Duration;

use transload::{Buffer, Cancelled, Method, Request, Transfer, TransferError};
use transload_core::schema::Machine;
use transload_testkit::sim::{Completion, Sim};

use crate::common::{Banded, Bench, SLOT, Sketch, marked, modes, two_devices};

/// Four chunks through three slots.
const LEN: u64 = 3 * SLOT + 3;

/// More events than the pipeline has.
const MOST: usize = 100;

struct Pipeline {
    bench: Bench,
    src: Banded,
    dst: Banded,
    len: u64,
}

impl Pipeline {
    fn new(machine: &Machine, mode: Completion) -> Pipeline {
        Pipeline::between(machine, mode, ["sim:0", "sim:1"], LEN)
    }

    fn between(machine: &Machine, mode: Completion, ends: [&str; 2], len: u64) -> Pipeline {
        let sim = Sim::builder(machine).completion(mode).build().unwrap();
        let bench = Bench::over(sim, 3, 2);
        let src = Banded::new(&bench, ends[0], marked(len), len);
        let dst = Banded::new(&bench, ends[1], &[], len);
        Pipeline {
            bench,
            src,
            dst,
            len,
        }
    }

    fn request(&self) -> Request {
        Request::new(self.src.region(), self.dst.region())
    }

    fn submit(&self) -> Transfer {
        self.bench.manager.submit(&self.request())
    }

    /// Runs `events` events. Returns false when there are fewer.
    fn advance(&self, events: usize) -> bool {
        (0..events).all(|_| {
            let stepped = self.bench.sim.step();
            self.bench.manager.turn();
            stepped
        })
    }

    fn leads(&self, leading: u64, context: &dyn std::fmt::Debug) {
        let inner = self.dst.inner(&self.bench, context);
        let leading = leading as usize;
        assert!(
            inner[..leading] == marked(self.len)[..leading],
            "{context:?}: {leading} leading bytes are not there"
        );
    }

    /// Asserts that the engine goes on and that no resource stays behind.
    fn finish(self, context: &dyn std::fmt::Debug) {
        let report = self.submit().wait();
        assert!(report.is_ok(), "{context:?}: {report:?}");
        self.leads(self.len, context);
        assert!(self.src.is_unchanged(&self.bench), "{context:?}");
        let Pipeline {
            bench, src, dst, ..
        } = self;
        drop((src, dst));
        bench.manager.clear_cache();
        assert_eq!(bench.budget.used_bytes(), 0, "{context:?}");
        assert_eq!(bench.sim.violations(), [], "{context:?}");
        assert_eq!(bench.sim.leaks(), [], "{context:?}");
    }
}

#[test]
fn cancel_tells_the_truth_at_every_point() {
    let machine = two_devices().machine();
    let (mut stopped, mut finished) = (0, 0);
    for mode in modes() {
        for events in 0..MOST {
            let context = (mode, events);
            let pipeline = Pipeline::new(&machine, mode);
            let event = pipeline.bench.manager.event();
            let transfer = pipeline
                .bench
                .manager
                .submit(&pipeline.request().then(&event));
            let more = pipeline.advance(events);
            match transfer.cancel() {
                Cancelled::NotStarted => panic!("{context:?}: operations were submitted"),
                Cancelled::Stopped { leading_bytes } => {
                    assert!(leading_bytes < LEN, "{context:?}: nothing was left to stop");
                    pipeline.leads(leading_bytes, &context);
                    stopped += 1;
                }
                Cancelled::Finished(result) => {
                    assert!(result.is_ok(), "{context:?}: {result:?}");
                    pipeline.leads(LEN, &context);
                    finished += 1;
                }
            }
            assert!(event.is_set(), "{context:?}: it is over");
            assert_eq!(pipeline.bench.sim.in_flight(), 0, "{context:?}: not quiet");
            pipeline.finish(&context);
            if !more {
                break;
            }
        }
    }
    println!("{stopped} points at which a transfer stopped, {finished} at which it had finished");
    assert!(stopped > 20 && finished >= modes().len());
}

#[test]
fn what_was_copied_counts_while_it_is_verified() {
    let machine = two_devices().machine();
    let (mut copying, mut checking) = (0, 0);
    for events in 0..MOST {
        let pipeline = Pipeline::new(&machine, Completion::Timed);
        let transfer = pipeline.bench.manager.submit(&pipeline.request().verify());
        let more = pipeline.advance(events);
        match transfer.cancel() {
            Cancelled::Stopped { leading_bytes } => {
                pipeline.leads(leading_bytes, &events);
                match leading_bytes {
                    LEN => checking += 1,
                    _ => copying += 1,
                }
            }
            Cancelled::Finished(result) => assert!(result.is_ok(), "{events}"),
            Cancelled::NotStarted => panic!("{events}: operations were submitted"),
        }
        pipeline.finish(&events);
        if !more {
            break;
        }
    }
    assert!(copying > 2 && checking > 5, "{copying} {checking}");
}

/// Bytes that the second lane has moved do not count as leading while the first lane lacks a byte.
#[test]
fn lanes_lead_only_as_far_as_there_is_no_gap() {
    const LEN: u64 = (7 << 19) + 1;
    let sketch = Sketch::new()
        .device("cpu:0", &["pageable"])
        .device("sim:0", &["device"])
        .link("cpu:0/pageable", "sim:0/device", "sim:0#0", "native")
        .link("cpu:0/pageable", "sim:0/device", "sim:0#1", "native");
    let machine = sketch.machine();
    let mut gaps = 0;
    for mode in modes() {
        for events in 0..MOST {
            let context = (mode, events);
            let pipeline = Pipeline::between(&machine, mode, ["cpu:0", "sim:0"], LEN);
            let transfer = pipeline.submit();
            let more = pipeline.advance(events);
            let moved = transfer.progress().map_or(LEN, |(moved, _)| moved);
            match transfer.cancel() {
                Cancelled::Stopped { leading_bytes } => {
                    pipeline.leads(leading_bytes, &context);
                    gaps += usize::from(leading_bytes < moved);
                }
                Cancelled::Finished(result) => assert!(result.is_ok(), "{context:?}"),
                Cancelled::NotStarted => panic!("{context:?}: operations were submitted"),
            }
            pipeline.finish(&context);
            if !more {
                break;
            }
        }
    }
    assert!(gaps > 0, "the lanes never left a gap");
}

#[test]
fn leading_bytes_grow_from_nothing_to_everything() {
    let machine = two_devices().machine();
    let mut seen = Vec::new();
    for events in 0..MOST {
        let pipeline = Pipeline::new(&machine, Completion::Timed);
        let transfer = pipeline.submit();
        let more = pipeline.advance(events);
        if let Cancelled::Stopped { leading_bytes } = transfer.cancel() {
            seen.push(leading_bytes);
        }
        if !more {
            break;
        }
    }
    assert!(seen.is_sorted(), "{seen:?}");
    seen.dedup();
    assert_eq!(seen, [0, SLOT, 2 * SLOT, 3 * SLOT]);
}

#[test]
fn a_deadline_tells_the_truth_at_every_point() {
    let machine = two_devices().machine();
    let whole = {
        let pipeline = Pipeline::new(&machine, Completion::Timed);
        pipeline.submit().wait().unwrap().elapsed().as_nanos() as u64
    };
    let (mut late, mut in_time) = (0, 0);
    for mode in modes() {
        for part in 0..=24 {
            let pipeline = Pipeline::new(&machine, mode);
            let deadline = pipeline.bench.manager.now().plus_ns(whole * part / 20);
            let context = (mode, part);
            let result = pipeline
                .bench
                .manager
                .submit(&pipeline.request().deadline(deadline))
                .wait();
            match result {
                Ok(_) => {
                    pipeline.leads(LEN, &context);
                    in_time += 1;
                }
                Err(TransferError::Deadline { leading_bytes }) => {
                    assert!(pipeline.bench.now() >= deadline.0, "{context:?}: too early");
                    assert!(leading_bytes < LEN, "{context:?}");
                    pipeline.leads(leading_bytes, &context);
                    late += 1;
                }
                Err(error) => panic!("{context:?}: {error}"),
            }
            // Operations that are still in flight come before this in the order.
            pipeline.finish(&context);
        }
    }
    println!("{late} deadlines passed, {in_time} were kept");
    assert!(late > 40 && in_time > 10);
}

#[test]
fn a_deadline_that_passed_before_the_submission_starts_nothing() {
    let machine = two_devices().machine();
    let pipeline = Pipeline::new(&machine, Completion::Timed);
    pipeline.bench.pass(1000);
    let request = pipeline.request().deadline(transload::Instant(999));
    let error = pipeline.bench.manager.submit(&request).wait().unwrap_err();
    assert_eq!(error, TransferError::Deadline { leading_bytes: 0 });
    let operations: u64 = pipeline
        .bench
        .sim
        .engine_use()
        .iter()
        .map(|e| e.operations)
        .sum();
    assert_eq!(operations, 0);
    drop(request);
    pipeline.finish(&());
}

#[test]
fn a_deadline_ends_what_waits_for_an_event() {
    let machine = two_devices().machine();
    let pipeline = Pipeline::new(&machine, Completion::Timed);
    let event = pipeline.bench.manager.event();
    let deadline = pipeline.bench.manager.now().plus_ns(5000);
    let request = pipeline.request().after(&event).deadline(deadline);
    let transfer = pipeline.bench.manager.submit(&request);
    assert_eq!(pipeline.bench.manager.turn(), Some(deadline));
    pipeline.bench.pass(4999);
    pipeline.bench.manager.turn();
    assert!(!transfer.is_over());
    pipeline.bench.pass(1);
    assert_eq!(pipeline.bench.manager.turn(), None);
    assert!(transfer.is_over());
    let error = transfer.wait().unwrap_err();
    assert_eq!(error, TransferError::Deadline { leading_bytes: 0 });
    event.set();
    drop(request);
    assert_eq!(
        pipeline.bench.sim.in_flight(),
        0,
        "the event let nothing go"
    );
    pipeline.finish(&());
}

#[test]
fn wait_timeout_changes_nothing_at_any_point() {
    let machine = two_devices().machine();
    for mode in modes() {
        let pipeline = Pipeline::new(&machine, mode);
        let mut transfer = pipeline.submit();
        let mut waits = 0;
        let result = loop {
            let (done, all) = transfer.progress().unwrap();
            assert!(done <= all && all == LEN);
            pipeline.leads(0, &mode);
            match transfer.wait_timeout(Duration::from_nanos(700)) {
                Some(result) => break result,
                None => waits += 1,
            }
            assert!(waits < 1000, "{mode}: it never ends");
        };
        assert_eq!(result.unwrap().method(), Method::HostStaged);
        assert!(waits > 10 || mode == Completion::AtOnce, "{mode}: {waits}");
        pipeline.leads(LEN, &mode);
        pipeline.finish(&mode);
    }
}

#[test]
fn a_dropped_transfer_completes_from_every_point() {
    let machine = two_devices().machine();
    for mode in modes() {
        for events in 0..MOST {
            let context = (mode, events);
            let pipeline = Pipeline::new(&machine, mode);
            let event = pipeline.bench.manager.event();
            let transfer = pipeline
                .bench
                .manager
                .submit(&pipeline.request().then(&event));
            let more = pipeline.advance(events);
            drop(transfer);
            let ended = turn_until(&pipeline.bench, || event.is_set());
            assert!(ended, "{context:?}: it never ends");
            pipeline.leads(LEN, &context);
            assert_eq!(pipeline.bench.manager.stats().paths[0].total.transfers, 1);
            pipeline.finish(&context);
            if !more {
                break;
            }
        }
    }
}

#[test]
fn what_waits_can_be_cancelled_without_a_trace() {
    let machine = two_devices().machine();
    // A transfer behind an event.
    let pipeline = Pipeline::new(&machine, Completion::Timed);
    let event = pipeline.bench.manager.event();
    let waiting = pipeline
        .bench
        .manager
        .submit(&pipeline.request().after(&event));
    assert_eq!(waiting.cancel(), Cancelled::NotStarted);
    event.set();
    pipeline.bench.run();
    assert!(pipeline.dst.is_unchanged(&pipeline.bench));
    pipeline.finish(&"event");

    // A transfer behind another one that touches the same bytes. The other transfer goes on, as does the next in order.
    let pipeline = Pipeline::new(&machine, Completion::Timed);
    let first = pipeline.submit();
    let second = pipeline.submit();
    let third = pipeline.submit();
    assert_eq!(second.cancel(), Cancelled::NotStarted);
    assert!(first.wait().is_ok());
    assert!(third.wait().is_ok());
    pipeline.finish(&"order");

    // A transfer behind another one that has all of the staging budget.
    let pipeline = Pipeline::new(&machine, Completion::Timed);
    let other: [Buffer; 2] = ["sim:0", "sim:1"].map(|at| pipeline.bench.empty(at, LEN));
    let first = pipeline.submit();
    let second = pipeline.bench.manager.copy(&other[0], &other[1]);
    let third = pipeline.bench.manager.copy(&other[1], &other[0]);
    assert_eq!(second.cancel(), Cancelled::NotStarted);
    assert!(first.wait().is_ok() && third.wait().is_ok());
    drop(other);
    pipeline.finish(&"staging");
}

#[test]
fn a_transfer_that_waits_for_a_proof_can_be_cancelled_and_timed_out() {
    let sketch = two_devices()
        .link("sim:0/device", "sim:1/device", "sim:0#2", "peer")
        .link("cpu:0/pageable", "sim:0/device", "sim:0#0", "native")
        .link("cpu:0/pageable", "sim:1/device", "sim:1#0", "native")
        .link("sim:1/device", "cpu:0/pageable", "sim:1#1", "native");
    let machine = sketch.machine();
    for events in 0..MOST {
        let pipeline = Pipeline::new(&machine, Completion::Timed);
        let deadline = pipeline.bench.manager.now().plus_ns(1);
        let timed = pipeline
            .bench
            .manager
            .submit(&pipeline.request().deadline(deadline));
        let cancelled = pipeline.submit();
        let more = pipeline.advance(events);
        match cancelled.cancel() {
            Cancelled::NotStarted => {}
            Cancelled::Stopped { leading_bytes } => pipeline.leads(leading_bytes, &events),
            Cancelled::Finished(result) => drop(result.unwrap()),
        }
        match timed.wait() {
            Err(TransferError::Deadline { leading_bytes: 0 }) => {}
            other => panic!("{events}: {other:?}"),
        }
        let report = pipeline.submit().wait().unwrap();
        assert_eq!(
            report.method(),
            Method::PeerToPeer,
            "{events}: the proof went on"
        );
        pipeline.finish(&events);
        if !more {
            break;
        }
    }
}

#[test]
fn cancelling_what_is_over_gives_its_result() {
    let machine = two_devices().machine();
    let pipeline = Pipeline::new(&machine, Completion::Timed);
    let transfer = pipeline.submit();
    pipeline.bench.run();
    assert!(transfer.is_over());
    let Cancelled::Finished(Ok(report)) = transfer.cancel() else {
        panic!("it had finished");
    };
    assert_eq!(report.bytes(), LEN);
    let refused = pipeline.bench.manager.copy(
        pipeline.src.buffer.slice(..10).unwrap(),
        pipeline.dst.buffer.slice(..11).unwrap(),
    );
    assert!(matches!(
        refused.cancel(),
        Cancelled::Finished(Err(TransferError::LengthMismatch { .. }))
    ));
    pipeline.finish(&());
}

#[test]
fn cancelling_what_told_its_result_says_so() {
    let pipeline = Pipeline::new(&two_devices().machine(), Completion::AtOnce);
    let mut transfer = pipeline.submit();
    while transfer.wait_timeout(Duration::ZERO).is_none() {
        pipeline.advance(1);
    }
    // The transfer moved every byte, so it does not count as never started.
    match transfer.cancel() {
        Cancelled::Finished(Err(TransferError::ResultTaken)) => {}
        other => panic!("{other:?}"),
    }
}

/// Turns the engine until `holds` returns true. The manager's own thread may be working on a detached transfer, and the
/// test cannot wait for that thread.
fn turn_until(bench: &Bench, holds: impl Fn() -> bool) -> bool {
    (0..1_000_000).any(|_| {
        bench.manager.turn();
        let stepped = bench.sim.step();
        if !stepped {
            std::thread::yield_now();
        }
        holds()
    })
}
