//! Paths that failed, how long the engine avoids them, and the effect of proofs.

use crate::common;
use transload::hal::ErrorClass;
use transload::{AllocSpec, FailedTask, Method, Request, TransferError, TransferFailure};
use transload_core::schema::Machine;
use transload_testkit::sim::{Call, Completion, OpKind, Rule, Sim};

use crate::common::{Banded, Bench, SECOND, SLOT, Sketch, marked, mem, place, two_devices};

const LEN: u64 = 2 * SLOT + 1;

/// Two devices with a link between them, and a route through the processor.
fn joined(access: &str) -> Sketch {
    two_devices()
        .link("sim:0/device", "sim:1/device", "sim:0#2", access)
        .link("cpu:0/pageable", "sim:0/device", "sim:0#0", "native")
        .link("cpu:0/pageable", "sim:1/device", "sim:1#0", "native")
        .link("sim:1/device", "cpu:0/pageable", "sim:1#1", "native")
}

struct Pair {
    bench: Bench,
    src: Banded,
    dst: Banded,
}

impl Pair {
    fn new(machine: &Machine) -> Pair {
        let bench = Bench::over(Sim::new(machine).unwrap(), 3, 1);
        let src = Banded::new(&bench, "sim:0", marked(LEN), LEN);
        let dst = Banded::new(&bench, "sim:1", &[], LEN);
        Pair { bench, src, dst }
    }

    fn request(&self) -> Request {
        Request::new(self.src.region(), self.dst.region())
    }

    /// Copies over poison. Returns the method and the number of routes that failed before.
    fn copy(&self) -> (Method, usize) {
        let poison = vec![0xEE; self.dst.len as usize];
        let raw = self.dst.buffer.raw();
        self.bench.sim.write(raw, common::BAND, &poison).unwrap();
        let report = self.bench.manager.submit(&self.request()).wait().unwrap();
        let inner = self.dst.inner(&self.bench, &report);
        assert!(inner == marked(LEN), "wrong bytes after {report}");
        (report.method(), report.fallbacks().len())
    }

    fn add_rule(&self, rule: Rule) {
        let link = (mem("sim:0/device"), mem("sim:1/device"));
        self.bench.sim.add_rule(rule.over(link.0, link.1));
    }

    /// Has the ways by the processor fail, at the operation number `nth` that brings bytes there.
    fn fail_staged(&self, nth: u64) {
        let link = (mem("sim:0/device"), mem("cpu:0/pinned"));
        let rule = Rule::fail_after(0).nth(nth).always();
        self.bench.sim.add_rule(rule.over(link.0, link.1));
    }

    fn failure(&self, request: &Request) -> (Box<TransferFailure>, String) {
        let error = self.bench.manager.submit(request).wait().unwrap_err();
        let told = error.to_string();
        match error {
            TransferError::Failed(failure) => {
                assert_eq!(failure.routes_tried as usize, 1 + failure.others.len());
                (failure, told)
            }
            other => panic!("{other}"),
        }
    }

    fn struck(&self) -> u64 {
        self.bench
            .sim
            .script()
            .rules()
            .iter()
            .map(Rule::fired)
            .sum()
    }
}

#[test]
fn a_link_that_fails_rests_for_30_s_doubling_to_300() {
    let pair = Pair::new(&joined("native").machine());
    pair.add_rule(Rule::fail_after(100).always());
    for (failures, seconds) in (1..).zip([30, 60, 120, 240, 300, 300, 300]) {
        let before = pair.bench.now();
        assert_eq!(pair.copy(), (Method::HostStaged, 1), "failure {failures}");
        let after = pair.bench.now();
        assert_eq!(pair.struck(), failures);
        // The engine does not try the link while it rests, however often it copies.
        assert_eq!(
            pair.copy(),
            (Method::HostStaged, 0),
            "right after failure {failures}"
        );
        let rested = before + seconds * SECOND;
        pair.bench.pass(rested - pair.bench.now() - 1_000_000);
        assert_eq!(
            pair.copy(),
            (Method::HostStaged, 0),
            "too early after {failures}"
        );
        assert_eq!(pair.struck(), failures);
        let released = after + seconds * SECOND;
        pair.bench.pass(released.saturating_sub(pair.bench.now()));
    }
}

#[test]
fn operands_that_a_link_does_not_take_leave_it_to_others() {
    let pair = Pair::new(&joined("native").machine());
    pair.add_rule(Rule::refuse(Call::Submit, ErrorClass::Unsupported));
    assert_eq!(pair.copy(), (Method::HostStaged, 1));
    assert_eq!(pair.copy(), (Method::DirectCopy, 0), "the next one");
}

#[test]
fn a_success_after_the_rest_makes_up_for_the_failures() {
    let pair = Pair::new(&joined("native").machine());
    pair.add_rule(Rule::refuse(Call::Submit, ErrorClass::Failed).times(2));
    for seconds in [30, 60] {
        assert_eq!(pair.copy(), (Method::HostStaged, 1));
        pair.bench.pass(seconds * SECOND);
    }
    assert_eq!(pair.copy(), (Method::DirectCopy, 0));
    pair.add_rule(Rule::refuse(Call::Submit, ErrorClass::Failed));
    assert_eq!(pair.copy(), (Method::HostStaged, 1));
    pair.bench.pass(30 * SECOND);
    assert_eq!(
        pair.copy(),
        (Method::DirectCopy, 0),
        "30 s again, and not 120"
    );
}

#[test]
fn without_another_route_the_error_says_what_rests() {
    let machine = Sketch::new()
        .device("sim:0", &["device"])
        .device("sim:1", &["device"])
        .link("sim:0/device", "sim:1/device", "sim:0#2", "native")
        .machine();
    let pair = Pair::new(&machine);
    pair.add_rule(Rule::fail_after(0));
    let error = pair
        .bench
        .manager
        .submit(&pair.request())
        .wait()
        .unwrap_err();
    let TransferError::Failed(failure) = &error else {
        panic!("{error}");
    };
    assert_eq!(failure.step, Some(0));
    assert_eq!((failure.span.offset, failure.span.len), (0, LEN));
    assert_eq!(failure.routes_tried, 1);
    assert!(
        failure.route.contains("sim:0/device → sim:1/device"),
        "{error}"
    );
    assert!(failure.fault.message.contains("simulated fault"), "{error}");
    let refused = pair
        .bench
        .manager
        .submit(&pair.request())
        .wait()
        .unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, TransferError::NoRoute { .. }), "{text}");
    assert!(
        text.contains("quarantine") && text.contains("simulated fault"),
        "{text}"
    );
    assert_eq!(pair.struck(), 1);
    pair.bench.pass(30 * SECOND);
    assert_eq!(pair.copy(), (Method::DirectCopy, 0));
}

#[test]
fn exhaustion_passes_and_bars_nothing() {
    let pair = Pair::new(&joined("native").machine());
    pair.add_rule(Rule::refuse(Call::Submit, ErrorClass::Exhausted));
    assert_eq!(pair.copy(), (Method::HostStaged, 1));
    assert_eq!(pair.copy(), (Method::DirectCopy, 0));
}

#[test]
fn clear_cache_lifts_every_bar() {
    let pair = Pair::new(&joined("native").machine());
    pair.add_rule(Rule::fail_after(0));
    assert_eq!(pair.copy(), (Method::HostStaged, 1));
    pair.bench.manager.clear_cache();
    assert_eq!(pair.copy(), (Method::DirectCopy, 0));
}

#[test]
fn prepared_copies_follow_bars_and_forgetting() {
    let pair = Pair::new(&joined("native").machine());
    let prepared = pair.bench.manager.prepare(&pair.request()).unwrap();
    let post = || {
        let report = prepared.post().wait().unwrap();
        (report.method(), report.fallbacks().len())
    };
    assert_eq!(post(), (Method::DirectCopy, 0));
    pair.add_rule(Rule::fail_after(7));
    assert_eq!(post(), (Method::HostStaged, 1));
    assert_eq!(post(), (Method::HostStaged, 0), "while it rests");
    pair.bench.pass(30 * SECOND);
    assert_eq!(post(), (Method::DirectCopy, 0), "the first one after it");
    pair.bench.manager.clear_cache();
    assert_eq!(post(), (Method::DirectCopy, 0));
    pair.add_rule(Rule::fail_after(7).times(2));
    assert_eq!(post(), (Method::HostStaged, 1));
    pair.bench.manager.clear_cache();
    assert_eq!(post(), (Method::HostStaged, 1));
    assert!(pair.dst.inner(&pair.bench, &()) == marked(LEN));
}

#[test]
fn a_failure_of_one_step_bars_its_link_and_no_other() {
    let sketch = two_devices()
        .device("cpu:7", &["shared+"])
        .slow_link("sim:0/device", "cpu:7/shared", "sim:0#4")
        .slow_link("cpu:7/shared", "sim:1/device", "sim:1#4");
    let pair = Pair::new(&sketch.machine());
    let second = (mem("cpu:0/pinned"), mem("sim:1/device"));
    let rule = Rule::fail_after(0).over(second.0, second.1).nth(2);
    pair.bench.sim.add_rule(rule);
    let report = pair.bench.manager.submit(&pair.request()).wait().unwrap();
    assert_eq!(report.fallbacks().len(), 1);
    let explanation = pair.bench.manager.explain(&pair.request()).unwrap();
    let text = explanation.to_string();
    assert!(text.contains("cpu:7/shared"), "{text}");
    // The failure does not bar the first step's link.
    let pinned = pair.bench.empty("cpu:0/pinned", LEN);
    let src = pair.src.region();
    let report = pair.bench.manager.copy(src, &pinned).wait().unwrap();
    assert_eq!(
        (report.method(), report.fallbacks()),
        (Method::DirectCopy, &[][..])
    );
    let dst = pair.dst.region();
    let refused = pair.bench.manager.copy(&pinned, dst).wait();
    assert!(
        refused.is_err(),
        "the second step's link rests: {refused:?}"
    );
}

#[test]
fn bytes_that_went_another_way_prove_nothing() {
    let pair = Pair::new(&joined("peer").machine());
    // The proof's own copy over the link fails; later the link moves wrong bytes.
    pair.add_rule(Rule::fail_after(0));
    pair.add_rule(Rule::corrupt(3).nth(1).always());
    assert_eq!(pair.copy(), (Method::HostStaged, 1));
    pair.bench.pass(30 * SECOND);
    assert_eq!(pair.copy(), (Method::HostStaged, 1), "found out by a proof");
    pair.bench.pass(1000 * SECOND);
    assert_eq!(
        pair.copy(),
        (Method::HostStaged, 0),
        "and never trusted again"
    );
}

#[test]
fn a_proof_that_met_a_passing_fault_is_tried_again() {
    for rule in [
        Rule::refuse(Call::Connect, ErrorClass::Exhausted),
        Rule::refuse(Call::Allocate, ErrorClass::Exhausted),
        Rule::fail_after(5).over(mem("sim:0/device"), mem("sim:1/device")),
        Rule::refuse(Call::Submit, ErrorClass::Failed)
            .over(mem("cpu:0/pageable"), mem("sim:0/device")),
    ] {
        let pair = Pair::new(&joined("peer").machine());
        pair.bench.sim.add_rule(rule.clone());
        let (method, fallbacks) = pair.copy();
        assert!(fallbacks <= 1, "{rule:?}");
        assert!(method == Method::HostStaged || fallbacks == 0, "{rule:?}");
        pair.bench.pass(30 * SECOND);
        assert_eq!(pair.copy(), (Method::PeerToPeer, 0), "{rule:?}");
    }
}

#[test]
fn a_link_that_lied_is_trusted_only_after_somebody_says_so() {
    let pair = Pair::new(&joined("peer").machine());
    pair.add_rule(Rule::corrupt(40_000));
    assert_eq!(pair.copy(), (Method::HostStaged, 1));
    pair.bench.pass(100_000 * SECOND);
    assert_eq!(pair.copy(), (Method::HostStaged, 0));
    pair.bench.manager.clear_cache();
    assert_eq!(pair.copy(), (Method::PeerToPeer, 0), "proven this time");
}

#[test]
fn a_proof_is_made_once_and_for_all_who_wait() {
    let pair = Pair::new(&joined("peer").machine());
    let other = (
        pair.bench.empty("sim:0", LEN),
        pair.bench.empty("sim:1", LEN),
    );
    let first = pair.bench.manager.submit(&pair.request());
    let second = pair.bench.manager.copy(&other.0, &other.1);
    for transfer in [first, second] {
        assert_eq!(transfer.wait().unwrap().method(), Method::PeerToPeer);
    }
    assert_eq!(pair.copy().0, Method::PeerToPeer);
    let used = pair.bench.sim.engine_use();
    let crossed = used
        .iter()
        .find(|engine| engine.engine.to_string() == "sim:0#2");
    assert_eq!(
        crossed.unwrap().operations,
        1 + 3,
        "one pattern and three copies"
    );
    // The statistics leave out the engine's own copies.
    let total: u64 = pair
        .bench
        .manager
        .stats()
        .paths
        .iter()
        .map(|path| path.total.transfers)
        .sum();
    assert_eq!(total, 3);
}

#[test]
fn verification_finds_a_lying_link_and_goes_another_way() {
    let pair = Pair::new(&joined("native").machine());
    pair.add_rule(Rule::corrupt(LEN - 1).always());
    let request = pair.request().verify();
    let report = pair.bench.manager.submit(&request).wait().unwrap();
    assert_eq!(
        (report.method(), report.fallbacks().len()),
        (Method::HostStaged, 1)
    );
    assert!(
        report.fallbacks()[0].fault.to_string().contains("differ"),
        "{report}"
    );
    assert!(pair.dst.inner(&pair.bench, &report) == marked(LEN));
    // The engine does not try the link while it rests, verified or not.
    assert_eq!(pair.copy(), (Method::HostStaged, 0));
}

#[test]
fn a_lost_device_is_said_to_be_lost_and_the_others_go_on() {
    let pair = Pair::new(&joined("native").machine());
    let (host, other) = (
        pair.bench.filled("cpu:0", marked(LEN)),
        pair.bench.empty("sim:0", LEN),
    );
    pair.bench.sim.lose_device(common::device("sim:1"));
    let error = pair
        .bench
        .manager
        .submit(&pair.request())
        .wait()
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Lost, "{error}");
    let error = pair
        .bench
        .manager
        .allocate(place("sim:1"), AllocSpec::bytes(1))
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Lost, "{error}");
    assert!(error.to_string().contains("sim:1"), "{error}");
    pair.bench.manager.copy(&host, &other).wait().unwrap();
    assert!(pair.bench.read(&other) == marked(LEN));
    let Pair { bench, src, dst } = pair;
    drop((src, dst, host, other));
    bench.manager.clear_cache();
    assert_eq!(bench.sim.leaks(), []);
    assert_eq!(bench.budget.used_bytes(), 0);
}

/// `Completion::Timed` is the mode of `Sim::new`; the times above depend on it.
#[test]
fn time_passes_only_when_it_is_told_to() {
    assert_eq!(Completion::default(), Completion::Timed);
    let pair = Pair::new(&joined("native").machine());
    assert_eq!(pair.bench.now(), 0);
    pair.bench.pass(7);
    assert_eq!(pair.bench.now(), 7);
}

#[test]
fn an_error_leads_with_the_route_that_failed_first_and_tells_the_later_ones_after_it() {
    let pair = Pair::new(&joined("native").machine());
    pair.add_rule(Rule::fail_after(100).with_class(ErrorClass::Exhausted));
    pair.fail_staged(1);
    let (failure, told) = pair.failure(&pair.request());
    assert_eq!(failure.task, FailedTask::Copy);
    assert_eq!(failure.fault.class, ErrorClass::Exhausted, "{told}");
    assert_eq!((failure.leading_bytes, failure.len_bytes), (0, LEN));
    let direct = "DirectCopy sim:0/device → sim:1/device";
    assert_eq!(failure.route, direct);
    let (route, fault) = &failure.others[0];
    assert!(route.contains("cpu:0/pinned"), "{told}");
    assert_eq!(fault.class, ErrorClass::Failed, "{told}");
    let [first, tried] = [direct, "; also tried: "].map(|part| told.find(part).unwrap());
    assert!(first < tried && told[tried..].contains(route), "{told}");
    assert_eq!(told.matches(&*failure.fault.message).count(), 1, "{told}");
}

#[test]
fn a_route_that_does_not_take_the_bytes_is_not_why_a_transfer_failed() {
    let pair = Pair::new(&joined("native").machine());
    pair.add_rule(Rule::refuse(Call::Submit, ErrorClass::Unsupported));
    pair.fail_staged(1);
    let (failure, told) = pair.failure(&pair.request());
    assert_eq!(failure.fault.class, ErrorClass::Failed, "{told}");
    assert_eq!(failure.others[0].1.class, ErrorClass::Unsupported, "{told}");
    assert!(failure.others[0].0.starts_with("DirectCopy"), "{told}");
}

#[test]
fn an_error_tells_how_many_leading_bytes_had_arrived_when_the_first_route_failed() {
    let pair = Pair::new(&two_devices().machine());
    pair.fail_staged(3);
    let (failure, told) = pair.failure(&pair.request());
    assert_eq!(failure.leading_bytes, 2 * SLOT, "{told}");
    let arrived = format!("; {} of {LEN} bytes had arrived", 2 * SLOT);
    assert!(told.contains(&arrived), "{told}");
}

#[test]
fn a_check_that_fails_is_told_as_the_check_and_not_as_the_copy() {
    for (nth, task) in [
        (1, FailedTask::ReadSource),
        (4, FailedTask::ReadDestination),
    ] {
        let pair = Pair::new(&joined("native").machine());
        // A copy that failed and took another way has nothing to do with it.
        pair.add_rule(Rule::fail_after(0));
        let check = Rule::fail_after(0)
            .kind(OpKind::Transform)
            .nth(nth)
            .always();
        pair.bench
            .sim
            .add_rule(check.with_class(ErrorClass::Exhausted));
        let (failure, told) = pair.failure(&pair.request().verify());
        assert_eq!(
            (failure.task, failure.fault.class),
            (task, ErrorClass::Exhausted),
            "{told}"
        );
        assert_eq!(failure.leading_bytes, LEN, "{told}");
        let start = format!("all {LEN} bytes were copied, and could not be verified: ");
        assert!(told.starts_with(&start), "{told}");
    }
}
