//! The predicted time of a pipeline equals the time of the simulated machine, to the nanosecond.

use std::fmt::Write;

use std::time::Duration;

use crate::fixture::{Fixture, bytes, place, without_peers};
use proptest::prelude::*;
use transload::{Method, Nanoseconds, Report, Request};
use transload_testkit::sim::Completion;

/// A machine with random costs, two devices of which may have a direct link.
#[derive(Clone, Debug)]
struct Figures {
    /// Latency in nanoseconds and bytes per second: device 0 to staging, staging to device 1, and the
    /// link between the devices.
    up: (u64, u64),
    down: (u64, u64),
    direct: Option<(u64, u64)>,
    /// One engine makes both passes, and cannot overlap them.
    one_engine: bool,
    /// A second piece of the first link's curve.
    knee: Option<(u64, u64, u64)>,
}

impl Figures {
    fn machine(&self) -> String {
        let mut text = String::from(
            "schema = 1\nname = \"random\"\n\
             [[device]]\nid = \"cpu:0\"\nname = \"host\"\n\
             memory = [{ kind = \"pinned\", memory_bytes = 8_000_000_000 }]\n",
        );
        for gpu in 0..2 {
            text += &format!(
                "[[device]]\nid = \"sim:{gpu}\"\nname = \"GPU\"\n\
                 memory = [{{ kind = \"device\", memory_bytes = 8_000_000_000 }}]\n"
            );
        }
        let (first, second) = (
            "sim:0#0",
            if self.one_engine {
                "sim:0#0"
            } else {
                "sim:1#0"
            },
        );
        let up = match self.knee {
            None => figures(self.up),
            Some((from, latency, rate)) => format!(
                "curve = [{{ from_bytes = 0, latency_ns = {}, bytes_per_second = {} }}, \
                 {{ from_bytes = {from}, latency_ns = {latency}, bytes_per_second = {rate} }}]\n",
                self.up.0, self.up.1
            ),
        };
        link(&mut text, ("sim:0/device", "cpu:0/pinned"), first, &up);
        let down = figures(self.down);
        link(&mut text, ("cpu:0/pinned", "sim:1/device"), second, &down);
        if let Some(direct) = self.direct {
            let direct = figures(direct);
            link(
                &mut text,
                ("sim:0/device", "sim:1/device"),
                "sim:0#1",
                &direct,
            );
        }
        text
    }
}

fn figures((latency, rate): (u64, u64)) -> String {
    format!("latency_ns = {latency}\nbytes_per_second = {rate}\n")
}

fn link(text: &mut String, (src, dst): (&str, &str), engine: &str, figures: &str) {
    let _ = write!(
        text,
        "[[link]]\nsrc = \"{src}\"\ndst = \"{dst}\"\nengine = \"{engine}\"\nclass = \"pcie\"\n{figures}"
    );
}

fn cost() -> impl Strategy<Value = (u64, u64)> {
    (
        prop_oneof![Just(0), 1..20_000u64],
        100_000_000..40_000_000_000u64,
    )
}

fn any_figures() -> impl Strategy<Value = Figures> {
    let knee = (1..200_000u64, 0..20_000u64, 100_000_000..40_000_000_000u64);
    (
        cost(),
        cost(),
        prop::option::of(cost()),
        any::<bool>(),
        prop::option::of(knee),
    )
        .prop_map(|(up, down, direct, one_engine, knee)| Figures {
            up,
            down,
            direct,
            one_engine,
            knee,
        })
}

/// Sizes around multiples of chunks, which are powers of two from 64 KiB on.
fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..100u64,
        (16..20u32, 1..9u64, 0..3u64).prop_map(|(log2, n, around)| (n << log2) + around - 1),
        1..2_000_000u64,
    ]
}

/// The prediction, the time in the report, the time on the clock, and the method.
fn both_times(fixture: &Fixture, len: u64) -> (u64, u64, u64, Method) {
    let (src, dst) = (
        fixture.empty("sim:0", len as usize),
        fixture.empty("sim:1", len as usize),
    );
    fixture
        .sim
        .write(src.raw(), 0, &bytes(len as usize, 1))
        .unwrap();
    let explained = fixture
        .manager
        .explain_places(place("sim:0"), place("sim:1"), len)
        .unwrap();
    let before = fixture.sim.clock().now_ns();
    let report = fixture
        .manager
        .submit(&Request::new(&src, &dst))
        .wait()
        .unwrap();
    let passed = fixture.sim.clock().now_ns() - before;
    assert!(fixture.bytes_of(&dst) == fixture.bytes_of(&src));
    assert_eq!(report.method(), explained.chosen.method);
    let predicted = explained.chosen.predicted_ns.unwrap();
    let took = report.elapsed().as_nanos() as u64;
    (predicted, took, passed, report.method())
}

proptest! {
    #[test]
    fn the_predicted_time_is_the_simulated_one(
        machine in any_figures(),
        lens in prop::collection::vec(size(), 1..4),
        // The budget ranges from one slot to more slots than any ring has, in quarters of the smallest slot.
        budget in 4..60u64,
        at_once in any::<bool>(),
    ) {
        let completion = if at_once { Completion::Pumped } else { Completion::Timed };
        let fixture = Fixture::new(&machine.machine(), completion, budget << 14);
        for len in lens {
            let (predicted, took, passed, method) = both_times(&fixture, len);
            prop_assert_eq!((took, passed), (predicted, predicted), "{} bytes, {}", len, method);
        }
        prop_assert!(fixture.sim.violations().is_empty());
    }
}

#[test]
fn both_ways_of_copying_are_predicted() {
    // Checks that the property above covers both staged and direct plans.
    let staged = Figures {
        up: (1000, 20_000_000_000),
        down: (1500, 25_000_000_000),
        direct: None,
        one_engine: false,
        knee: None,
    };
    let direct = Figures {
        direct: Some((10, 30_000_000_000)),
        ..staged.clone()
    };
    for (figures, method) in [(staged, Method::HostStaged), (direct, Method::DirectCopy)] {
        let fixture = Fixture::new(&figures.machine(), Completion::Timed, 1 << 20);
        for len in [
            (64 << 10) - 1,
            64 << 10,
            (64 << 10) + 1,
            3 << 20,
            (3 << 20) + 1,
        ] {
            let (predicted, took, passed, taken) = both_times(&fixture, len);
            assert_eq!((took, passed), (predicted, predicted));
            assert_eq!(taken, method);
        }
    }
}

#[test]
fn the_time_of_verification_is_told_apart() {
    let fixture = Fixture::new(&without_peers(2), Completion::Timed, 64 << 20);
    let src = fixture.filled("sim:0", &bytes(3 << 20, 1));
    let report = |verify: bool| {
        let dst = fixture.empty("sim:1", 3 << 20);
        let request = Request::new(&src, &dst);
        let request = if verify { request.verify() } else { request };
        fixture.manager.submit(&request).wait().unwrap()
    };
    let (plain, verified) = (report(false), report(true));
    assert_eq!(plain.checking(), Duration::ZERO);
    assert!(verified.checking() > Duration::ZERO);
    // By the model's clock.
    let copying = |report: &Report| report.elapsed() - report.checking();
    assert_eq!(copying(&verified), copying(&plain));
    assert_eq!(verified.bytes_per_second(), plain.bytes_per_second());
    let time = Nanoseconds(verified.checking().as_nanos() as u64);
    let told = format!("  verified in {time} xxh3-64:");
    assert!(verified.to_string().contains(&told), "{verified}");
}
