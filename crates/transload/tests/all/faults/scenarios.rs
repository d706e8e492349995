//! The machines for the fault tests: one for each sort of plan.

use transload::Method;
use transload_core::schema::Machine;
use transload_testkit::sim::{Completion, Sim};

use crate::common::{Banded, Bench, SLOT, Sketch, marked, two_devices};

/// A pair of memories that one sort of plan joins, and a slower one on request.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) method: Method,
    pub(crate) src: &'static str,
    pub(crate) dst: &'static str,
    pub(crate) len: u64,
    /// The number of copies that move each byte.
    pub(crate) steps: usize,
    /// The least number of chunks of the transfer.
    pub(crate) chunks: u64,
    lanes: u8,
    /// Slots of the smallest size that the staging budget holds.
    slots: u64,
    sketch: fn(bool) -> Sketch,
}

impl Scenario {
    /// The machine, with a second route on request.
    pub(crate) fn machine(&self, detour: bool) -> Machine {
        (self.sketch)(detour).machine()
    }

    pub(crate) fn bench(&self, machine: &Machine, completion: Completion) -> Bench {
        let sim = Sim::builder(machine)
            .completion(completion)
            .build()
            .unwrap();
        Bench::over(sim, self.slots, self.lanes)
    }

    pub(crate) fn ends(&self, bench: &Bench) -> (Banded, Banded) {
        let src = Banded::new(bench, self.src, marked(self.len), self.len);
        let dst = Banded::new(bench, self.dst, &[], self.len);
        (src, dst)
    }
}

pub(crate) const DIRECT: Scenario = Scenario {
    name: "direct, over two engines",
    method: Method::DirectCopy,
    src: "cpu:0/pageable",
    dst: "sim:0/device",
    len: TWO_LANES,
    steps: 1,
    chunks: 2,
    lanes: 2,
    // Three of the size of the slots through which the engine checksums such a payload.
    slots: 12,
    sketch: |detour| upload("native", detour),
};

pub(crate) const ZERO_COPY: Scenario = Scenario {
    name: "zero-copy",
    method: Method::ZeroCopy,
    len: 3 * SLOT + 3,
    chunks: 1,
    lanes: 1,
    slots: 3,
    sketch: |detour| upload("import", detour),
    ..DIRECT
};

pub(crate) const PEER: Scenario = Scenario {
    name: "peer",
    method: Method::PeerToPeer,
    src: "sim:0/device",
    dst: "sim:1/device",
    sketch: peers,
    ..ZERO_COPY
};

pub(crate) const STAGED: Scenario = Scenario {
    name: "staged over one memory",
    method: Method::HostStaged,
    src: "sim:0/device",
    dst: "sim:1/device",
    len: 3 * SLOT + 3,
    steps: 2,
    chunks: 4,
    lanes: 1,
    slots: 3,
    sketch: |detour| with_detour(two_devices(), detour),
};

pub(crate) const STAGED_TWICE: Scenario = Scenario {
    name: "staged over two memories",
    steps: 3,
    slots: 6,
    sketch: |detour| with_detour(two_sockets(), detour),
    ..STAGED
};

/// The planner divides no less than 1 MiB between two engines.
const TWO_LANES: u64 = (1 << 20) + 3 * SLOT + 1;

fn upload(access: &str, detour: bool) -> Sketch {
    let memories: &[&str] = if detour {
        &["pageable", "pinned", "shared+"]
    } else {
        &["pageable", "pinned"]
    };
    let sketch = Sketch::new()
        .device("cpu:0", memories)
        .device("sim:0", &["device"])
        .link("cpu:0/pageable", "cpu:0/pageable", "cpu:0#0", "native")
        .link("cpu:0/pageable", "sim:0/device", "sim:0#0", access)
        // If several lanes are allowed, both engines work.
        .link("cpu:0/pageable", "sim:0/device", "sim:0#2", access)
        .link("sim:0/device", "cpu:0/pinned", "sim:0#1", "native")
        .link("cpu:0/pinned", "cpu:0/pageable", "cpu:0#1", "native")
        .transform();
    if !detour {
        return sketch;
    }
    sketch
        .slow_link("cpu:0/pageable", "cpu:0/shared", "cpu:0#4")
        .slow_link("cpu:0/shared", "sim:0/device", "sim:0#4")
        .slow_link("sim:0/device", "cpu:0/shared", "sim:0#5")
}

fn peers(detour: bool) -> Sketch {
    let sketch = Sketch::new()
        .device("cpu:0", &["pageable", "pinned"])
        .device("sim:0", &["device"])
        .device("sim:1", &["device"])
        .link("cpu:0/pageable", "cpu:0/pageable", "cpu:0#0", "native")
        .link("sim:0/device", "sim:1/device", "sim:0#0", "peer")
        .link("sim:0/device", "sim:1/device", "sim:0#2", "peer")
        .link("cpu:0/pageable", "sim:0/device", "sim:0#1", "native")
        .link("cpu:0/pageable", "sim:1/device", "sim:1#1", "native")
        .link("sim:1/device", "cpu:0/pageable", "sim:1#3", "native")
        .link("sim:0/device", "cpu:0/pinned", "sim:0#3", "native")
        .link("sim:1/device", "cpu:0/pinned", "sim:1#3", "native")
        .transform();
    with_detour(sketch, detour)
}

fn two_sockets() -> Sketch {
    Sketch::new()
        .device("cpu:0", &["pageable", "pinned"])
        .device("cpu:1", &["pinned"])
        .device("sim:0", &["device"])
        .device("sim:1", &["device"])
        .link("cpu:0/pageable", "cpu:0/pageable", "cpu:0#0", "native")
        .link("sim:0/device", "cpu:0/pinned", "sim:0#1", "native")
        .link("cpu:0/pinned", "cpu:1/pinned", "cpu:0#1", "native")
        .link("cpu:1/pinned", "sim:1/device", "sim:1#0", "native")
        .link("sim:1/device", "cpu:1/pinned", "sim:1#1", "native")
        .transform()
}

fn with_detour(sketch: Sketch, detour: bool) -> Sketch {
    if !detour {
        return sketch;
    }
    // A second processor's memory, so that the sketch's own devices stay as they are.
    sketch
        .device("cpu:7", &["shared+"])
        .slow_link("sim:0/device", "cpu:7/shared", "sim:0#4")
        .slow_link("cpu:7/shared", "sim:1/device", "sim:1#4")
        .slow_link("sim:1/device", "cpu:7/shared", "sim:1#5")
}
