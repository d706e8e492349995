//! The suite passes over the sim in every completion mode, and fails over backends that break promises on purpose.

mod support;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use support::machine;
use transload_hal::{
    Access, AllocError, AllocSpec, Backend, Buffer, CompletionSink, ConnectError, External,
    ExternalKind, Fence, ImportError, Inventory, LinkId, MemoryId, Op, Outcome, Part, SubmitError,
    Waited,
};
use transload_testkit::conformance::{self, Exceptions, Harness, Report, SIZES};
use transload_testkit::sim::{Completion, HostSide, Sim};
use transload_testkit::topology;

/// A sim, or a wrapper of one, and the sim's own access to the bytes.
struct Simulated<'a> {
    backend: &'a dyn Backend,
    sim: Sim,
    sizes: Vec<u64>,
}

impl Harness for Simulated<'_> {
    fn backend(&self) -> &dyn Backend {
        self.backend
    }

    fn fill(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> bool {
        match self.sim.write(buffer, offset, bytes) {
            Ok(()) => true,
            Err(_) => Plain(&self.sim).fill(buffer, offset, bytes),
        }
    }

    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> bool {
        match self.sim.read(buffer, offset, out) {
            Ok(()) => true,
            Err(_) => Plain(&self.sim).read(buffer, offset, out),
        }
    }

    fn drive(&self) {
        self.sim.step();
        self.backend.pump();
    }

    /// The time is virtual, so the limit costs no real time.
    fn patience(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn sizes(&self) -> Vec<u64> {
        self.sizes.clone()
    }
}

/// The suite's defaults, for host-addressable memory that the sim did not allocate.
struct Plain<'a>(&'a Sim);

impl Harness for Plain<'_> {
    fn backend(&self) -> &dyn Backend {
        self.0
    }
}

fn sim(completion: Completion) -> Sim {
    let builder = Sim::builder(&machine()).completion(completion);
    builder.build().unwrap()
}

fn check(sim: Sim, exceptions: &Exceptions) -> Report {
    let report = conformance::run(
        &Simulated {
            backend: &sim,
            sim: sim.clone(),
            sizes: SIZES.to_vec(),
        },
        exceptions,
    );
    assert_eq!(sim.violations(), []);
    report
}

#[test]
fn the_sim_conforms_in_every_mode_that_settles() {
    for completion in [Completion::Timed].into_iter().chain(Completion::all()) {
        if completion == Completion::Never {
            continue;
        }
        let sim = sim(completion);
        if completion == Completion::Reentrant {
            let again = sim.clone();
            sim.set_hook(move |fence: Fence, _: &Outcome| {
                assert_eq!(again.wait(fence, Duration::ZERO), Waited::Settled);
                again.pump();
                let _ = again.inventory();
            });
        }
        let report = check(sim.clone(), &Exceptions::none());
        report.assert_passed();
        assert!(report.passed() > 150, "{report}");
        assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
    }
}

#[test]
fn a_sim_that_never_settles_is_excused_from_settling_alone() {
    let reason = "in this mode no fence settles";
    let exceptions = [
        "copy/*",
        "order/*",
        "submit/*",
        "fence/exactly-once",
        "fence/not-early",
        "fence/without-wait",
        "wait/honest",
        "buffer/*",
        "transform/*",
        "hint/*",
        "visible/*",
    ];
    let exceptions = exceptions
        .into_iter()
        .fold(Exceptions::none(), |all, case| all.never(case, reason));
    let report = check(sim(Completion::Never), &exceptions);
    report.assert_passed();
    assert!(report.excepted() > 50, "{report}");
}

#[test]
fn the_devices_of_a_sim_beside_a_real_host_conform() {
    let builder = Sim::builder(&machine()).host(HostSide::Real);
    check(builder.build().unwrap(), &Exceptions::none()).assert_passed();
}

#[test]
fn the_machines_under_topologies_conform() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../topologies");
    for name in ["laptop", "workstation"] {
        let machine = topology::from_file(format!("{folder}/{name}.toml")).unwrap();
        check(Sim::new(&machine).unwrap(), &Exceptions::none()).assert_passed();
    }
}

#[test]
fn an_exception_that_excuses_nothing_fails_the_run() {
    let exceptions = Exceptions::none().known_bug("copy/sizes", "mended long ago");
    let report = check(sim(Completion::Timed), &exceptions);
    let failures: Vec<_> = report.failures().collect();
    assert_eq!(failures.len(), 1, "{report}");
    assert_eq!(failures[0].case, "exceptions/stale");
}

#[test]
fn what_is_not_offered_is_skipped_and_never_passed() {
    let report = check(sim(Completion::Timed), &Exceptions::none());
    let of = |case: &str, subject: &str| {
        let found = |entry: &&conformance::Entry| entry.case == case && entry.subject == subject;
        report.entries().iter().find(found).unwrap().verdict.clone()
    };
    for (case, subject) in [
        ("transform/sees-the-bytes", "sim:0/device"),
        ("import/host-block", "sim:0/device"),
        ("map/host-finds-the-bytes", "sim:0/device"),
    ] {
        let verdict = of(case, subject);
        assert!(
            matches!(verdict, conformance::Verdict::Skipped(_)),
            "{verdict:?}"
        );
    }
    let verdict = of("transform/sees-the-bytes", "cpu:0/pinned");
    assert_eq!(verdict, conformance::Verdict::Passed);
}

/// The promise that a [`Broken`] backend breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    SkipsTheLastByte,
    SkipsTheFirstByte,
    WritesPastTheEnd,
    SettlesEarly,
    SettlesTwice,
    NeverTells,
    CopiesNothing,
    IgnoresAfter,
    StartsWhatItRefuses,
    SaysSettledTooSoon,
    TellsFailuresAsDone,
    CopiesPitchedRowsWhole,
    AsksNoDevice,
    TellsOneFenceForEach,
    CountsTooMuch,
    ClaimsWhatItLeftOut,
    StopsWhatFollows,
}

struct Broken {
    sim: Sim,
    wrong: Wrong,
    sink: OnceLock<Arc<dyn CompletionSink>>,
}

struct Twisted {
    wrong: Wrong,
    sink: Arc<dyn CompletionSink>,
}

impl CompletionSink for Twisted {
    fn settle(&self, fence: Fence, outcome: Outcome) {
        match self.wrong {
            Wrong::SettlesTwice => {
                self.sink.settle(fence, outcome.clone());
                self.sink.settle(fence, outcome);
            }
            // The fence was reported at its submission.
            Wrong::SettlesEarly => {}
            Wrong::NeverTells => {}
            Wrong::TellsFailuresAsDone => self.sink.settle(fence, Outcome::Done),
            Wrong::ClaimsWhatItLeftOut => {
                let outcome = Outcome::Stopped { leading_bytes: 1 };
                self.sink.settle(fence, outcome);
            }
            Wrong::StopsWhatFollows => {
                let outcome = Outcome::Stopped { leading_bytes: 0 };
                self.sink.settle(fence, outcome);
            }
            _ => self.sink.settle(fence, outcome),
        }
    }
}

fn shorter(part: Part<'_>, skip: u64, by: u64) -> Part<'_> {
    let by = by.min(part.len_bytes);
    Part {
        offset: part.offset + skip.min(by),
        len_bytes: part.len_bytes - by,
        ..part
    }
}

fn longer(part: Part<'_>) -> Part<'_> {
    Part {
        len_bytes: part.len_bytes + 1,
        ..part
    }
}

impl Broken {
    fn twist<'a>(&self, op: Op<'a>) -> Op<'a> {
        match (self.wrong, op) {
            (Wrong::SkipsTheLastByte, Op::Copy { src, dst }) => Op::Copy {
                src: shorter(src, 0, 1),
                dst: shorter(dst, 0, 1),
            },
            (Wrong::SkipsTheFirstByte, Op::Copy { src, dst }) => Op::Copy {
                src: shorter(src, 1, 1),
                dst: shorter(dst, 1, 1),
            },
            (Wrong::WritesPastTheEnd, Op::Copy { src, dst }) => {
                let room = |part: &Part<'_>| part.offset + part.len_bytes < part.buffer.len();
                if room(&src) && room(&dst) {
                    Op::Copy {
                        src: longer(src),
                        dst: longer(dst),
                    }
                } else {
                    op
                }
            }
            (Wrong::CopiesPitchedRowsWhole, Op::Pitched { src, dst, .. }) => {
                let len_bytes = src.shape.extent_bytes().min(dst.shape.extent_bytes());
                let whole = |layout: transload_hal::Layout<'a>| Part {
                    buffer: layout.buffer,
                    offset: layout.offset,
                    len_bytes,
                };
                Op::Copy {
                    src: whole(src),
                    dst: whole(dst),
                }
            }
            _ => op,
        }
    }
}

// SAFETY: the backend breaks promises on purpose, over simulated memory that this cannot harm: changed operations stay
// within their buffers, and the sim refuses all others.
unsafe impl Backend for Broken {
    fn inventory(&self) -> Inventory {
        self.sim.inventory()
    }

    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
        self.sim.allocate(memory, spec)
    }

    unsafe fn import(&self, memory: MemoryId, external: External) -> Result<Buffer, ImportError> {
        // SAFETY: the caller keeps the same promise.
        unsafe { self.sim.import(memory, external) }
    }

    unsafe fn export(&self, buffer: &Buffer, kind: ExternalKind) -> Result<External, ImportError> {
        // SAFETY: the caller keeps the same promise.
        unsafe { self.sim.export(buffer, kind) }
    }

    fn connect(&self, src: MemoryId, dst: MemoryId) -> Result<Access, ConnectError> {
        self.sim.connect(src, dst)
    }

    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        let mut twisted: Vec<Op<'_>> = ops.iter().map(|&op| self.twist(op)).collect();
        let mut before = after;
        match self.wrong {
            Wrong::CopiesNothing | Wrong::ClaimsWhatItLeftOut => {
                twisted.retain(|op| !matches!(op, Op::Copy { .. }))
            }
            Wrong::IgnoresAfter => before = &[],
            Wrong::AsksNoDevice => twisted.retain(|op| !matches!(op, Op::MakeVisible { .. })),
            Wrong::StartsWhatItRefuses if ops.len() > 1 => {
                for op in ops {
                    // SAFETY: the caller keeps the same promise.
                    unsafe { self.sim.submit(via, std::slice::from_ref(op), after) }?;
                }
                twisted.clear();
            }
            _ => {}
        }
        // SAFETY: the caller keeps the same promise, for operations that stay within the same buffers.
        let fence = unsafe { self.sim.submit(via, &twisted, before) }?;
        if self.wrong == Wrong::SettlesEarly
            && let Some(sink) = self.sink.get()
        {
            sink.settle(fence, Outcome::Done);
        }
        Ok(fence)
    }

    unsafe fn submit_each(
        &self,
        via: LinkId,
        ops: &[Op<'_>],
        told: &mut dyn FnMut(Result<Fence, SubmitError>),
    ) {
        let mut first = None;
        for op in ops {
            // SAFETY: the caller keeps the same promise.
            let fence = unsafe { self.submit(Some(via), std::slice::from_ref(op), &[]) };
            told(match self.wrong {
                Wrong::TellsOneFenceForEach => fence.map(|fence| *first.get_or_insert(fence)),
                _ => fence,
            });
        }
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        let _ = self.sink.set(sink.clone());
        let wrong = self.wrong;
        self.sim.attach(Arc::new(Twisted { wrong, sink }))
    }

    fn pump(&self) {
        self.sim.pump();
    }

    fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        if self.wrong == Wrong::SaysSettledTooSoon {
            return Waited::Settled;
        }
        self.sim.wait(fence, limit)
    }

    fn progress(&self, fence: Fence) -> u64 {
        match self.wrong {
            Wrong::CountsTooMuch => u64::MAX,
            _ => self.sim.progress(fence),
        }
    }
}

/// The cases that fail over a backend that breaks this promise.
fn failing(wrong: Wrong) -> Vec<String> {
    let sim = sim(Completion::Timed);
    let broken = Broken {
        sim: sim.clone(),
        wrong,
        sink: OnceLock::new(),
    };
    let report = conformance::run(
        &Simulated {
            backend: &broken,
            sim,
            sizes: SIZES[..12].to_vec(),
        },
        &Exceptions::none(),
    );
    let mut cases: Vec<String> = report.failures().map(|entry| entry.case.clone()).collect();
    cases.sort();
    cases.dedup();
    cases
}

#[test]
fn every_broken_backend_fails_where_it_is_broken() {
    for (wrong, case) in [
        (Wrong::SkipsTheLastByte, "copy/sizes"),
        (Wrong::SkipsTheFirstByte, "copy/sizes"),
        (Wrong::WritesPastTheEnd, "copy/sizes"),
        (Wrong::SettlesEarly, "fence/not-early"),
        (Wrong::SettlesTwice, "fence/exactly-once"),
        (Wrong::NeverTells, "fence/exactly-once"),
        (Wrong::CopiesNothing, "copy/sizes"),
        (Wrong::IgnoresAfter, "order/chain"),
        (Wrong::StartsWhatItRefuses, "submit/atomic"),
        (Wrong::SaysSettledTooSoon, "wait/honest"),
        (Wrong::TellsFailuresAsDone, "transform/failure-is-told"),
        (Wrong::CopiesPitchedRowsWhole, "copy/pitched"),
        (Wrong::AsksNoDevice, "visible/waits-for-the-device"),
        (Wrong::TellsOneFenceForEach, "submit/each"),
        (Wrong::CountsTooMuch, "copy/progress"),
        (Wrong::ClaimsWhatItLeftOut, "copy/stopped"),
        (Wrong::StopsWhatFollows, "copy/stopped-before-its-start"),
    ] {
        let failing = failing(wrong);
        assert!(
            failing.iter().any(|name| name == case),
            "{wrong:?}: {failing:?}"
        );
    }
}
