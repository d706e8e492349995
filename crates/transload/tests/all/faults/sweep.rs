//! Faults that report themselves: refusals, failures, wrong bytes, loss of devices and memory.

use transload::hal::ErrorClass;
use transload::{Report, Request, TransferError, TransferManager};
use transload_core::schema::Machine;
use transload_testkit::sim::{Call, Completion, Rule};

use crate::common::{Banded, Bench, SECOND, expect_scripted_panics, marked, modes};
use crate::faults::scenarios::{DIRECT, PEER, STAGED, STAGED_TWICE, Scenario, ZERO_COPY};

#[test]
fn direct_plans_survive_every_fault() {
    sweep(&DIRECT);
}

#[test]
fn zero_copy_plans_survive_every_fault() {
    sweep(&ZERO_COPY);
}

#[test]
fn peer_plans_survive_every_fault() {
    sweep(&PEER);
}

#[test]
fn staged_plans_survive_every_fault() {
    sweep(&STAGED);
}

#[test]
fn plans_staged_twice_survive_every_fault() {
    sweep(&STAGED_TWICE);
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    Refuse(ErrorClass),
    FailAfter(u64, ErrorClass),
    Delay,
    Corrupt,
    LoseDevice,
    OutOfMemory,
    RefuseAllocation(ErrorClass),
    RefuseConnection(ErrorClass),
    PanicIn(Call),
}

impl Fault {
    /// Faults that strike in every mode, with and without verification.
    const EVERYWHERE: [Fault; 7] = [
        Fault::Refuse(ErrorClass::Failed),
        Fault::FailAfter(1000, ErrorClass::Failed),
        Fault::Delay,
        Fault::Corrupt,
        Fault::LoseDevice,
        Fault::OutOfMemory,
        Fault::PanicIn(Call::Submit),
    ];

    /// Variants of these faults, for which the mode makes no difference.
    const SHADES: [Fault; 10] = [
        Fault::Refuse(ErrorClass::Unsupported),
        Fault::Refuse(ErrorClass::Exhausted),
        Fault::Refuse(ErrorClass::Lost),
        Fault::Refuse(ErrorClass::Caller),
        Fault::FailAfter(0, ErrorClass::Failed),
        Fault::FailAfter(u64::MAX, ErrorClass::Exhausted),
        Fault::RefuseAllocation(ErrorClass::Failed),
        Fault::RefuseAllocation(ErrorClass::Caller),
        Fault::RefuseConnection(ErrorClass::Unsupported),
        Fault::PanicIn(Call::Allocate),
    ];

    fn rule(self) -> Rule {
        match self {
            Fault::Refuse(class) => Rule::refuse(Call::Submit, class),
            Fault::FailAfter(bytes, class) => Rule::fail_after(bytes).with_class(class),
            Fault::Delay => Rule::delay_ns(3_000_000),
            Fault::Corrupt => Rule::corrupt(70_001),
            Fault::LoseDevice => Rule::lose_device(),
            Fault::OutOfMemory => Rule::out_of_memory(),
            Fault::RefuseAllocation(class) => Rule::refuse(Call::Allocate, class),
            Fault::RefuseConnection(class) => Rule::refuse(Call::Connect, class),
            Fault::PanicIn(call) => Rule::panic_in(call),
        }
    }

    /// The engine believes a memory that answers `Done` and stores other bytes, unless the path needed a proof or the
    /// request asked for a verification.
    fn needs_verification(self) -> bool {
        self == Fault::Corrupt
    }
}

#[derive(Debug)]
#[allow(dead_code, reason = "printed when an assertion fails")]
struct Case {
    scenario: &'static str,
    mode: Completion,
    detour: bool,
    verify: bool,
    fault: Fault,
    nth: u64,
}

/// The most operations, calls or allocations of a transfer here; a larger number means a loop.
const MOST: u64 = 200;

fn sweep(scenario: &Scenario) {
    expect_scripted_panics();
    check_scenario(scenario);
    let (mut ok, mut failed) = (0, 0);
    for detour in [false, true] {
        let machine = scenario.machine(detour);
        for mode in modes() {
            for verify in [false, true] {
                for fault in Fault::EVERYWHERE {
                    if fault.needs_verification() && !verify {
                        continue;
                    }
                    let case = Case {
                        scenario: scenario.name,
                        mode,
                        detour,
                        verify,
                        fault,
                        nth: 0,
                    };
                    at_every_step(scenario, &machine, case, (&mut ok, &mut failed));
                }
            }
        }
        for fault in Fault::SHADES {
            let case = Case {
                scenario: scenario.name,
                mode: Completion::Timed,
                detour,
                verify: false,
                fault,
                nth: 0,
            };
            at_every_step(scenario, &machine, case, (&mut ok, &mut failed));
        }
    }
    let combinations = ok + failed;
    println!(
        "{}: {combinations} combinations of fault, step, mode and routes; {ok} ended well, \
         {failed} with a typed error",
        scenario.name
    );
    assert!(
        ok > 100 && failed > 100,
        "the sweep does not reach both ends"
    );
}

/// Makes the fault strike at the first step, then at the second, and so on, until it finds no step to strike.
fn at_every_step(
    scenario: &Scenario,
    machine: &Machine,
    mut case: Case,
    (ok, failed): (&mut u32, &mut u32),
) {
    for nth in 1.. {
        assert!(nth < MOST, "the transfer never ends");
        case.nth = nth;
        match strike(scenario, machine, &case) {
            Some(Ok(())) => *ok += 1,
            Some(Err(())) => *failed += 1,
            None => return,
        }
    }
}

/// Without a fault the engine takes the plan that names the scenario, and makes no detour.
fn check_scenario(scenario: &Scenario) {
    for detour in [false, true] {
        let bench = scenario.bench(&scenario.machine(detour), Completion::Timed);
        let (src, dst) = scenario.ends(&bench);
        let report = bench
            .manager
            .copy(src.region(), dst.region())
            .wait()
            .unwrap();
        assert_eq!(report.method(), scenario.method, "{}", scenario.name);
        let plan = report.plan().unwrap();
        let steps: usize = plan
            .lanes
            .iter()
            .map(|lane| lane.steps.len())
            .max()
            .unwrap();
        assert_eq!(steps, scenario.steps, "{plan}");
        let used = bench.sim.engine_use();
        let chunks = used.iter().map(|engine| engine.operations).max();
        assert!(
            chunks >= Some(scenario.chunks),
            "{}: {chunks:?}",
            scenario.name
        );
    }
}

/// Runs one combination. Returns `None` when the fault did not strike, else whether the transfer succeeded.
fn strike(scenario: &Scenario, machine: &Machine, case: &Case) -> Option<Result<(), ()>> {
    let bench = scenario.bench(machine, case.mode);
    let (src, dst) = scenario.ends(&bench);
    if case.mode == Completion::Reentrant {
        let manager = bench.manager.clone();
        bench.sim.set_hook(move |_, _: &_| look_around(&manager));
    }
    bench.sim.add_rule(case.fault.rule().nth(case.nth));
    let mut request = Request::new(src.region(), dst.region());
    if case.verify {
        request = request.verify();
    }
    let result = bench.manager.submit(&request).wait();
    let struck = bench.sim.script().rules()[0].fired() > 0;
    assert!(src.is_unchanged(&bench), "{case:?}: the source changed");
    let inner = dst.inner(&bench, case);
    let outcome = match &result {
        Ok(report) => {
            assert!(
                inner == marked(scenario.len),
                "{case:?}: Ok, and wrong bytes"
            );
            check_report(report, scenario, case, struck);
            Ok(())
        }
        Err(error) => {
            assert!(struck, "{case:?}: {error}");
            check_error(error, scenario, case);
            Err(())
        }
    };
    check_statistics(&bench.manager, &result, case);
    if struck {
        go_on(&bench, &src, &dst, &request, case);
    }
    clean_up(bench, (src, dst, request), case);
    struck.then_some(outcome)
}

/// The calls of a careless callback.
fn look_around(manager: &TransferManager) {
    manager.turn();
    let _ = manager.stats();
    let _ = format!("{manager:?}");
}

fn check_report(report: &Report, scenario: &Scenario, case: &Case, struck: bool) {
    assert_eq!(report.bytes(), scenario.len, "{case:?}");
    assert_eq!(report.checksum().is_some(), case.verify, "{case:?}");
    let used = report.plan().unwrap();
    for fallback in report.fallbacks() {
        assert!(
            fallback.plan.links().ne(used.links()) || case.verify,
            "{case:?}"
        );
        let said = fallback.fault.to_string();
        assert!(
            said.contains("simulated")
                || said.contains("panic")
                || said.contains("differ")
                || said.contains("changed"),
            "{case:?}: {said}"
        );
    }
    if !struck || case.fault == Fault::Delay {
        assert_eq!(report.fallbacks(), [], "{case:?}");
        assert_eq!(report.method(), scenario.method, "{case:?}");
    }
}

fn check_error(error: &TransferError, scenario: &Scenario, case: &Case) {
    match error {
        TransferError::Failed(failure) => {
            assert_eq!(failure.backend.to_string(), "sim", "{case:?}");
            let text = error.to_string();
            assert!(
                text.contains('→') || failure.route.contains("DirectCopy"),
                "{case:?}: {text}"
            );
            assert!(
                failure.span.offset + failure.span.len <= scenario.len,
                "{case:?}: {text}"
            );
            assert!(failure.routes_tried >= 1, "{case:?}");
            match failure.step {
                Some(step) => {
                    assert!(failure.device.is_some(), "{case:?}: {text}");
                    assert!(usize::from(step) < 4, "{case:?}: {text}");
                    assert!(failure.span.len > 0, "{case:?}: {text}");
                }
                None => assert!(text.contains("before its first step"), "{case:?}: {text}"),
            }
            if let Fault::Refuse(class) | Fault::FailAfter(_, class) = case.fault {
                let class = if failure.step.is_some() {
                    class
                } else {
                    failure.fault.class
                };
                assert_eq!(error.class(), class, "{case:?}: {text}");
            }
        }
        TransferError::Differs { .. } => {
            assert!(case.fault == Fault::Corrupt, "{case:?}: {error}");
        }
        other => panic!("{case:?}: {other}"),
    }
    let survivable = !matches!(
        case.fault,
        Fault::LoseDevice | Fault::Refuse(ErrorClass::Caller)
    );
    assert!(
        !(case.detour && survivable),
        "{case:?}: there was another route; {error}"
    );
}

fn check_statistics(
    manager: &TransferManager,
    result: &Result<Report, TransferError>,
    case: &Case,
) {
    let stats = manager.stats();
    let sum = |of: fn(&transload::stats::Figures) -> u64| -> u64 {
        stats.paths.iter().map(|path| of(&path.total)).sum()
    };
    assert_eq!(
        sum(|path| path.transfers),
        u64::from(result.is_ok()),
        "{case:?}"
    );
    assert_eq!(
        sum(|path| path.failures),
        u64::from(result.is_err()),
        "{case:?}"
    );
    let fallbacks = sum(|path| path.fallbacks);
    match result {
        Ok(report) => {
            assert_eq!(fallbacks, report.fallbacks().len() as u64, "{case:?}");
            assert_eq!(stats.paths[0].method, report.method(), "{case:?}");
            assert_eq!(stats.paths[0].total.bytes, report.bytes(), "{case:?}");
        }
        Err(_) => assert!(fallbacks >= 1, "{case:?}"),
    }
}

/// Makes the same copy once more: at once if another route is left, else when the quarantine is over; never over a lost
/// device.
fn go_on(bench: &Bench, src: &Banded, dst: &Banded, request: &Request, case: &Case) {
    if case.fault == Fault::LoseDevice {
        let again = bench.manager.submit(request).wait();
        // In a proof or a verification, the copy may not need the lost device.
        if let Err(error) = again {
            assert!(
                matches!(error.class(), ErrorClass::Lost | ErrorClass::Unsupported),
                "{case:?}: {error}"
            );
        }
        return;
    }
    if !case.detour {
        bench.pass(30 * SECOND);
        if case.fault == Fault::Corrupt {
            // Wrong bytes in a proof condemn a link until a caller clears the cache.
            bench.manager.clear_cache();
        }
    }
    let again = bench.manager.submit(request).wait();
    let again = again.unwrap_or_else(|error| panic!("{case:?}, once more: {error}"));
    assert_eq!(again.fallbacks(), [], "{case:?}, once more");
    assert!(src.is_unchanged(bench), "{case:?}, once more");
    assert!(
        dst.inner(bench, case) == marked(dst.len),
        "{case:?}, once more: wrong bytes"
    );
}

fn clean_up(bench: Bench, ends: (Banded, Banded, Request), case: &Case) {
    drop(ends);
    bench.sim.set_hook(|_, _: &_| {});
    bench.manager.clear_cache();
    assert_eq!(bench.budget.used_bytes(), 0, "{case:?}: staging was lost");
    assert!(
        bench.budget.peak_bytes() <= bench.budget.limit_bytes(),
        "{case:?}"
    );
    assert_eq!(bench.sim.violations(), [], "{case:?}");
    assert_eq!(bench.sim.leaks(), [], "{case:?}");
}
