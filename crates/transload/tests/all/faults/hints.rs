//! Hints that are refused, that fail, or whose backend panics.

use transload::hal::{Advice, ErrorClass};
use transload::{Error, Request};
use transload_testkit::sim::{Call, Completion, OpKind, Rule};

use crate::common::{
    Bench, SLOT, device, expect_scripted_panics, marked, modes, place, two_devices,
};

#[test]
fn hints_pass_on_what_the_backend_said_and_keep_the_order() {
    expect_scripted_panics();
    for mode in modes() {
        for rule in [
            Rule::refuse(Call::Submit, ErrorClass::Failed).kind(OpKind::Hint),
            Rule::fail_after(0).kind(OpKind::Hint),
            Rule::panic_in(Call::Submit).kind(OpKind::Hint),
        ] {
            let bench = Bench::new(&two_devices(), mode, 3);
            let (src, dst) = (
                bench.filled("sim:0", marked(SLOT)),
                bench.empty("sim:1", SLOT),
            );
            bench.sim.add_rule(rule.clone());
            let before = bench.manager.copy(&src, &dst);
            let error = bench.manager.prefetch(&dst, place("sim:1")).unwrap_err();
            assert!(
                before.is_over(),
                "{mode}: hinted at bytes that were not there"
            );
            assert!(matches!(error, Error::Hint { .. }), "{mode}: {error}");
            assert!(
                error.to_string().contains("simulated fault"),
                "{mode}: {error}"
            );
            // The failed hint delays no other work, and the next hint is accepted.
            bench.manager.copy(&src, &dst).wait().unwrap();
            bench.manager.prefetch(&dst, place("sim:1")).unwrap();
            drop((src, dst, before));
            bench.manager.clear_cache();
            assert_eq!(bench.sim.leaks(), [], "{mode}");
        }
    }
}

#[test]
fn a_hint_that_the_memory_cannot_follow_is_left_undone() {
    let bench = Bench::new(&two_devices(), Completion::Timed, 3);
    let buffer = bench.filled("sim:0", marked(100));
    let refuse = Rule::refuse(Call::Submit, ErrorClass::Unsupported);
    bench.sim.add_rule(refuse.kind(OpKind::Hint).always());
    bench.manager.prefetch(&buffer, place("sim:1")).unwrap();
    bench.manager.advise(&buffer, Advice::WillNeed).unwrap();
}

#[test]
fn a_hint_to_a_lost_device_is_lost() {
    let bench = Bench::new(&two_devices(), Completion::Timed, 3);
    let buffer = bench.filled("sim:0", marked(100));
    bench.sim.lose_device(device("sim:0"));
    let error = bench.manager.prefetch(&buffer, place("sim:0")).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Lost, "{error}");
}

/// The engine then no longer knows the state of the hint's operation, so it never frees the memory that the operation
/// may touch.
#[test]
fn a_hint_whose_backend_panics_while_it_is_awaited_leaks_its_bytes() {
    expect_scripted_panics();
    let bench = Bench::new(&two_devices(), Completion::Timed, 3);
    let buffer = bench.filled("sim:0", marked(100));
    bench.sim.add_rule(Rule::never_answer().kind(OpKind::Hint));
    bench.sim.add_rule(Rule::panic_in(Call::Wait));
    let error = bench.manager.prefetch(&buffer, place("sim:0")).unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
    let other = bench.manager.copy(&buffer, &buffer).wait();
    assert!(other.is_err(), "the backend was given up");
    drop(Request::new(&buffer, &buffer));
    drop(buffer);
    assert_eq!(
        bench.sim.leaks().len(),
        1,
        "freed under an operation of unknown state"
    );
}
