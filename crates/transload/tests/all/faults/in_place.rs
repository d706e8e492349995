//! Overlapping copies change their own source, so the engine tries them only once.

use transload::hal::ErrorClass;
use transload::{Buffer, TransferError};
use transload_testkit::sim::{Call, Completion, Rule};

use crate::common::{Bench, SECOND, SLOT, Sketch, marked, modes};

const LEN: u64 = SLOT;
const SHIFT: u64 = 1000;

/// Two engines that copy within one memory.
fn bench(mode: Completion) -> (Bench, Buffer) {
    let sketch = Sketch::new()
        .device("sim:0", &["device"])
        .link("sim:0/device", "sim:0/device", "sim:0#0", "native")
        .slow_link("sim:0/device", "sim:0/device", "sim:0#1");
    let bench = Bench::new(&sketch, mode, 3);
    let buffer = bench.filled("sim:0", marked(LEN + 2 * SHIFT));
    (bench, buffer)
}

fn shift(bench: &Bench, buffer: &Buffer) -> Result<transload::Report, TransferError> {
    let src = buffer.slice(..LEN).unwrap();
    let dst = buffer.slice(SHIFT..SHIFT + LEN).unwrap();
    bench.manager.copy(src, dst).wait()
}

fn shifted() -> Vec<u8> {
    let mut model = marked(LEN + 2 * SHIFT).to_vec();
    model.copy_within(..LEN as usize, SHIFT as usize);
    model
}

#[test]
fn an_overlapping_copy_that_was_refused_goes_another_way() {
    for mode in modes() {
        let (bench, buffer) = bench(mode);
        let rule = Rule::refuse(Call::Submit, ErrorClass::Failed);
        bench.sim.add_rule(rule);
        let report = shift(&bench, &buffer).unwrap();
        assert_eq!(report.fallbacks().len(), 1, "{mode}");
        assert!(bench.read(&buffer) == shifted(), "{mode}");
    }
}

#[test]
fn an_overlapping_copy_that_has_begun_is_never_tried_again() {
    for mode in modes() {
        for bytes in [0, 1, SHIFT - 1, SHIFT + 1, LEN] {
            let (bench, buffer) = bench(mode);
            bench.sim.add_rule(Rule::fail_after(bytes));
            let error = shift(&bench, &buffer).unwrap_err();
            let TransferError::Failed(failure) = &error else {
                panic!("{mode}: {error}");
            };
            assert_eq!(failure.routes_tried, 1, "{mode}: {error}");
            assert_eq!((failure.step, failure.span.len), (Some(0), LEN), "{mode}");
            assert_eq!(failure.device.unwrap().to_string(), "sim:0", "{mode}");
            assert!(
                failure.route.contains("sim:0/device → sim:0/device"),
                "{mode}: {error}"
            );
            let used = bench.sim.engine_use();
            let operations: u64 = used.iter().map(|engine| engine.operations).sum();
            assert_eq!(operations, 1, "{mode}: tried again");
            let now = bench.read(&buffer);
            let (from, to) = (SHIFT as usize, (SHIFT + LEN) as usize);
            assert!(now[..from] == marked(SHIFT)[..], "{mode}: wrote before it");
            assert!(now[to..] == shifted()[to..], "{mode}: wrote behind it");
            let stats = bench.manager.stats();
            assert_eq!(stats.paths[0].total.failures, 1, "{mode}");

            // The link that failed rests as usual; the other link serves.
            bench
                .sim
                .write(buffer.raw(), 0, marked(LEN + 2 * SHIFT))
                .unwrap();
            shift(&bench, &buffer).unwrap();
            assert!(bench.read(&buffer) == shifted(), "{mode}");
            let slow = |bench: &Bench| bench.sim.engine_use().iter().map(|e| e.busy_ns).max();
            let before = slow(&bench);
            bench.pass(30 * SECOND);
            shift(&bench, &buffer).unwrap();
            assert_eq!(slow(&bench), before, "{mode}: the fast engine is back");
        }
    }
}
