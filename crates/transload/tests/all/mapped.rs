//! Device memory that the host sees through a mapping: the engine asks the device before the host touches the memory.

use transload::hal::ErrorClass;
use transload::{GuardError, Method, Region, Request, Shape};
use transload_testkit::sim::{Call, Completion, OpKind, Rule};

use crate::common::{Banded, Bench, SECOND, SLOT, Sketch, marked, mem, modes};

const LEN: u64 = 3 * SLOT + 5;

/// A device whose memory the processor's engine reaches in one pass; the device's own engine is slower and stages.
fn unified() -> Sketch {
    Sketch::new()
        .device("cpu:0", &["pageable", "pinned+"])
        .device("sim:0", &["mapped", "device"])
        .link("cpu:0/pageable", "cpu:0/pageable", "cpu:0#0", "native")
        .link("cpu:0/pageable", "sim:0/mapped", "cpu:0#0", "native")
        .link("sim:0/mapped", "cpu:0/pageable", "cpu:0#0", "native")
        .link("cpu:0/pageable", "cpu:0/pinned", "cpu:0#0", "native")
        .link("cpu:0/pinned", "cpu:0/pageable", "cpu:0#0", "native")
        .link("sim:0/mapped", "sim:0/device", "sim:0#0", "native")
        .slow_link("cpu:0/pinned", "sim:0/mapped", "sim:0#0")
        .slow_link("sim:0/mapped", "cpu:0/pinned", "sim:0#0")
        .transform()
}

#[test]
fn the_device_is_asked_before_the_processor_touches_its_memory() {
    for (src, dst) in [("cpu:0", "sim:0/mapped"), ("sim:0/mapped", "cpu:0")] {
        let bench = Bench::new(&unified(), Completion::Timed, 8);
        let from = bench.filled(src, marked(LEN));
        let to = Banded::new(&bench, dst, &[], LEN);
        let asked = Rule::delay_ns(SECOND)
            .kind(OpKind::Hint)
            .in_memory(mem("sim:0/mapped"));
        bench.sim.add_rule(asked);
        let begun = bench.now();
        let report = bench.manager.copy(&from, to.region()).wait().unwrap();
        assert_eq!(report.method(), Method::DirectCopy, "{report}");
        assert!(
            bench.now() - begun >= SECOND,
            "{src} → {dst}: it did not wait"
        );
        assert!(to.inner(&bench, &report) == marked(LEN));
    }
}

#[test]
fn the_devices_own_engine_need_not_ask() {
    let bench = Bench::new(&unified(), Completion::Timed, 8);
    let from = bench.filled("sim:0/mapped", marked(LEN));
    let to = bench.empty("sim:0/device", LEN);
    let request = Request::new(&from, &to);
    let plan = bench.manager.explain(&request).unwrap();
    bench.sim.add_rule(Rule::fail_after(0).kind(OpKind::Hint));
    let report = bench.manager.submit(&request).wait().unwrap();
    assert!(report.fallbacks().is_empty(), "{plan}: {report}");
    assert!(bench.read(&to) == marked(LEN));
}

#[test]
fn a_device_that_does_not_answer_well_is_gone_around() {
    for mode in modes() {
        for rule in [
            Rule::fail_after(0).kind(OpKind::Hint),
            Rule::refuse(Call::Submit, ErrorClass::Failed).kind(OpKind::Hint),
        ] {
            let bench = Bench::new(&unified(), mode, 8);
            let from = bench.filled("cpu:0", marked(LEN));
            let to = Banded::new(&bench, "sim:0/mapped", &[], LEN);
            bench.sim.add_rule(rule);
            let transfer = bench.manager.copy(&from, to.region());
            bench.run();
            let report = transfer.wait().unwrap();
            assert_eq!(report.method(), Method::HostStaged, "{mode}: {report}");
            assert!(to.inner(&bench, &report) == marked(LEN), "{mode}");
        }
    }
}

#[test]
fn it_is_verified_and_pitched_like_any_other_memory() {
    let bench = Bench::new(&unified(), Completion::Timed, 8);
    let (row, rows, pitch) = (100, 40, 128);
    let from = bench.filled("cpu:0", marked(row * rows));
    let to = bench.filled("sim:0/mapped", &vec![7; (pitch * rows) as usize]);
    let shape = Shape::pitched(row, rows, pitch).unwrap();
    let region = Region::new(&to, 0, shape).unwrap();
    let report = bench
        .manager
        .submit(&Request::new(&from, region).verify())
        .wait()
        .unwrap();
    assert!(report.checksum().is_some(), "{report}");
    let found = bench.read(&to);
    for (at, wanted) in marked(row * rows).chunks(row as usize).enumerate() {
        let found = &found[at * pitch as usize..][..pitch as usize];
        assert!(found[..row as usize] == *wanted, "row {at}");
        assert!(
            found[row as usize..].iter().all(|byte| *byte == 7),
            "row {at}"
        );
    }
}

#[test]
fn nobody_gets_to_look_at_it_in_place() {
    let bench = Bench::new(&unified(), Completion::Timed, 8);
    let buffer = bench.filled("sim:0/mapped", marked(100));
    let memory = mem("sim:0/mapped");
    assert_eq!(
        buffer.read().unwrap_err(),
        GuardError::NotExclusive { memory }
    );
    assert_eq!(
        buffer.write().unwrap_err(),
        GuardError::NotExclusive { memory }
    );
}

/// The device's engine writes whole words. In a word that a transfer covers in part, it writes the other bytes back as
/// it found them.
#[test]
fn transfers_that_write_bytes_of_one_word_go_one_after_the_other() {
    for (second_at, waits) in [(5, true), (7, true), (8, false)] {
        let bench = Bench::new(&unified(), Completion::Timed, 8);
        let to = bench.empty("sim:0/mapped", LEN);
        let first = bench.filled("cpu:0", marked(5));
        let second = bench.filled("cpu:0", marked(LEN - second_at));
        let event = bench.manager.event();
        let behind = to.slice(0..5).unwrap();
        let held = Request::new(&first, behind).after(&event);
        let held = bench.manager.submit(&held);
        let rest = to.slice(second_at..LEN).unwrap();
        let free = bench.manager.copy(&second, rest);
        bench.run();
        assert_eq!(free.is_over(), !waits, "at {second_at}");
        event.set();
        held.wait().unwrap();
        free.wait().unwrap();
        let found = bench.read(&to);
        assert!(found[..5] == *marked(5));
        assert!(found[second_at as usize..] == *marked(LEN - second_at));
    }
}
