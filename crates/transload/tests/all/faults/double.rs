//! Two faults in one transfer: the second strikes the detour around the first.

use transload::{Method, Request, TransferError};
use transload_testkit::sim::{Completion, Rule};

use crate::common::marked;
use crate::faults::scenarios::{DIRECT, PEER, STAGED, Scenario, ZERO_COPY};

#[test]
fn two_faults_leave_bytes_or_a_typed_error() {
    let failed: u32 = [DIRECT, ZERO_COPY, PEER, STAGED].iter().map(pairs).sum();
    assert!(failed > 0, "no pair leaves a transfer without a route");
}

/// Returns the number of fault pairs that left no route; with three routes no pair does.
fn pairs(scenario: &Scenario) -> u32 {
    let machine = scenario.machine(true);
    let (mut ok, mut failed) = (0, 0);
    for first in 1..60 {
        let mut first_struck = false;
        for second in first + 1..60 {
            let context = (scenario.name, first, second);
            let bench = scenario.bench(&machine, Completion::Timed);
            let (src, dst) = scenario.ends(&bench);
            for nth in [first, second] {
                bench.sim.add_rule(Rule::fail_after(1000).nth(nth));
            }
            let event = bench.manager.event();
            let request = Request::new(src.region(), dst.region()).then(&event);
            let result = bench.manager.submit(&request).wait();
            assert!(event.is_set(), "{context:?}");
            let struck: Vec<bool> = bench
                .sim
                .script()
                .rules()
                .iter()
                .map(|rule| rule.fired() > 0)
                .collect();
            let inner = dst.inner(&bench, &context);
            assert!(src.is_unchanged(&bench), "{context:?}");
            match &result {
                Ok(report) => {
                    assert!(inner == marked(scenario.len), "{context:?}: {report}");
                    // The engine retries a proof after one fault without a report.
                    let proven = [Method::ZeroCopy, Method::PeerToPeer].contains(&scenario.method);
                    let told = !report.fallbacks().is_empty();
                    assert!(told || proven || !struck[0], "{context:?}");
                    ok += 1;
                }
                Err(TransferError::Failed(failure)) => {
                    assert!(struck[1], "{context:?}: {failure}");
                    assert!(failure.routes_tried >= 2, "{context:?}: {failure}");
                    assert_eq!(
                        failure.device.is_some(),
                        failure.step.is_some(),
                        "{context:?}: {failure}"
                    );
                    failed += 1;
                }
                Err(error) => panic!("{context:?}: {error}"),
            }
            drop((src, dst, request));
            bench.manager.clear_cache();
            assert_eq!(bench.sim.leaks(), [], "{context:?}");
            assert_eq!(bench.budget.used_bytes(), 0, "{context:?}");
            assert_eq!(bench.sim.violations(), [], "{context:?}");
            first_struck |= struck[0];
            if !struck[1] {
                break;
            }
        }
        if !first_struck {
            break;
        }
    }
    println!(
        "{}: {ok} pairs of faults ended well, {failed} with a typed error",
        scenario.name
    );
    assert!(ok > 0, "{}", scenario.name);
    failed
}
