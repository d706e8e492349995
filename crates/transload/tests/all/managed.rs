//! Memory that host and device share, over a simulated machine: work that other code gave to a device is over before
//! the host touches the memory.

use transload::hal::ErrorClass;
use transload::{Advice, GuardError, Method};
use transload_testkit::sim::{Call, Completion, OpKind, Rule};

use crate::common::{Banded, Bench, SECOND, SLOT, Sketch, marked, mem, place};

const LEN: u64 = 3 * SLOT + 5;

fn unified() -> Sketch {
    Sketch::new()
        .device("cpu:0", &["pageable", "pinned+"])
        .device("sim:0", &["device", "managed"])
        .link("cpu:0/pageable", "cpu:0/pageable", "cpu:0#0", "native")
        .link("cpu:0/pageable", "sim:0/managed", "cpu:0#0", "managed")
        .link("sim:0/managed", "cpu:0/pageable", "cpu:0#0", "managed")
        .link("sim:0/managed", "sim:0/device", "sim:0#2", "managed")
        .link("sim:0/device", "sim:0/managed", "sim:0#2", "managed")
}

fn slow_to_answer(bench: &Bench) {
    let answer = Rule::delay_ns(SECOND)
        .kind(OpKind::Hint)
        .in_memory(mem("sim:0/managed"));
    bench.sim.add_rule(answer);
}

#[test]
fn a_copy_by_the_host_asks_the_device_first_and_is_called_unified() {
    for (src, dst) in [("cpu:0", "sim:0/managed"), ("sim:0/managed", "cpu:0")] {
        let bench = Bench::new(&unified(), Completion::Timed, 8);
        let from = bench.filled(src, marked(LEN));
        let to = Banded::new(&bench, dst, &[], LEN);
        slow_to_answer(&bench);
        let begun = bench.now();
        let report = bench.manager.copy(&from, to.region()).wait().unwrap();
        assert_eq!(report.method(), Method::UnifiedMemory, "{report}");
        assert!(bench.now() - begun >= SECOND, "{src} → {dst}");
        assert!(to.inner(&bench, &report) == marked(LEN));
    }
}

#[test]
fn a_copy_by_the_device_asks_nobody_and_is_called_unified_too() {
    for (src, dst) in [
        ("sim:0/device", "sim:0/managed"),
        ("sim:0/managed", "sim:0/device"),
    ] {
        let bench = Bench::new(&unified(), Completion::Timed, 8);
        let from = bench.filled(src, marked(LEN));
        let to = Banded::new(&bench, dst, &[], LEN);
        slow_to_answer(&bench);
        let report = bench.manager.copy(&from, to.region()).wait().unwrap();
        assert_eq!(report.method(), Method::UnifiedMemory, "{report}");
        assert!(bench.now() < SECOND, "{src} → {dst}");
        assert!(to.inner(&bench, &report) == marked(LEN));
    }
}

#[test]
fn a_guard_is_given_when_the_device_has_answered() {
    let bench = Bench::new(&unified(), Completion::Timed, 8);
    let buffer = bench.filled("sim:0/managed", marked(LEN));
    slow_to_answer(&bench);
    let begun = bench.now();
    assert!(*buffer.read().unwrap() == *marked(LEN));
    assert!(bench.now() - begun >= SECOND);
    slow_to_answer(&bench);
    let begun = bench.now();
    buffer.write().unwrap()[0] ^= 1;
    assert!(bench.now() - begun >= SECOND);
    assert_eq!(bench.read(&buffer)[0], marked(1)[0] ^ 1);
}

#[test]
fn a_guard_is_refused_where_the_device_does_not_answer_and_the_buffer_stays_usable() {
    let bench = Bench::new(&unified(), Completion::Timed, 8);
    let buffer = bench.filled("sim:0/managed", marked(LEN));
    let memory = mem("sim:0/managed");
    for rule in [
        Rule::fail_after(0).kind(OpKind::Hint),
        Rule::refuse(Call::Submit, ErrorClass::Failed).kind(OpKind::Hint),
    ] {
        bench.sim.add_rule(rule);
        let error = buffer.read().err().unwrap();
        assert_eq!(error.class(), ErrorClass::Failed);
        let GuardError::NotVisible {
            memory: told,
            fault,
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!(told, memory, "{fault}");
        // The guard keeps no place in the order.
        drop(buffer.write().unwrap());
    }
    assert!(*buffer.read().unwrap() == *marked(LEN));
}

#[test]
fn advice_changes_nothing_and_is_about_devices_that_are_here() {
    let bench = Bench::new(&unified(), Completion::Timed, 8);
    let buffer = bench.filled("sim:0/managed", marked(LEN));
    let [here, gone] = ["sim:0", "sim:7"].map(|id| id.parse().unwrap());
    let all = [
        Advice::MostlyRead,
        Advice::NotMostlyRead,
        Advice::KeptAt(here),
        Advice::KeptAnywhere,
        Advice::UsedBy(here),
        Advice::NotUsedBy(here),
        Advice::Sequential,
    ];
    for advice in all {
        bench.manager.advise(&buffer, advice).unwrap();
    }
    for advice in [
        Advice::KeptAt(gone),
        Advice::UsedBy(gone),
        Advice::NotUsedBy(gone),
    ] {
        let error = bench.manager.advise(&buffer, advice).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Unsupported, "{error}");
    }
    bench.sim.add_rule(Rule::fail_after(0).kind(OpKind::Hint));
    let error = bench
        .manager
        .advise(&buffer, Advice::MostlyRead)
        .unwrap_err();
    assert!(
        error.to_string().contains("the hint for sim:0/managed"),
        "{error}"
    );
    bench.manager.prefetch(&buffer, place("sim:0")).unwrap();
    assert!(bench.read(&buffer) == marked(LEN));
}
