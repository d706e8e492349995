//! Shared parts of the engine's tests: small machines, marked bytes, guard bands.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::fmt::Write;
use std::sync::{Arc, OnceLock};

use transload::{
    AllocSpec, Buffer, DeviceId, Instant, MemoryId, Place, Region, Shape, StagingBudget,
    TransferManager,
};
use transload_core::schema::Machine;
use transload_testkit::sim::{Completion, MemoryUse, Script, Sim};
use transload_testkit::topology;

/// A second of virtual time.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// The smallest slot that the planner leases.
pub(crate) const SLOT: u64 = 64 << 10;

/// Bytes before and behind every region that no transfer may touch.
pub(crate) const BAND: u64 = 192;

/// A machine that the test describes link by link. Its processor has ordinary memory, and copies within it; the test
/// describes all else.
pub(crate) struct Sketch(String);

impl Sketch {
    pub(crate) fn new() -> Sketch {
        Sketch(String::from("schema = 1\nname = \"sketch\"\n"))
    }

    /// A device and its memories: `pageable`, or `shared+` where slots may be leased.
    pub(crate) fn device(mut self, id: &str, memories: &[&str]) -> Sketch {
        let memories: Vec<String> = memories
            .iter()
            .map(|kind| match kind.strip_suffix('+') {
                Some(kind) => {
                    format!("{{ kind = \"{kind}\", memory_bytes = 64_000_000, staging = true }}")
                }
                None => format!("{{ kind = \"{kind}\", memory_bytes = 64_000_000 }}"),
            })
            .collect();
        let memories = memories.join(", ");
        let _ = write!(
            self.0,
            "[[device]]\nid = \"{id}\"\nname = \"simulated\"\nmemory = [{memories}]\n"
        );
        self
    }

    /// A link of 1 µs and 10 GB/s.
    pub(crate) fn link(self, src: &str, dst: &str, engine: &str, access: &str) -> Sketch {
        self.link_at(src, dst, engine, access, (1_000, 10_000_000_000))
    }

    /// A slow link, which the engine uses only where no other link exists: 100 µs and 100 MB/s.
    pub(crate) fn slow_link(self, src: &str, dst: &str, engine: &str) -> Sketch {
        self.link_at(src, dst, engine, "native", (100_000, 100_000_000))
    }

    pub(crate) fn link_at(
        mut self,
        src: &str,
        dst: &str,
        engine: &str,
        access: &str,
        (latency_ns, rate): (u64, u64),
    ) -> Sketch {
        let _ = write!(
            self.0,
            "[[link]]\nsrc = \"{src}\"\ndst = \"{dst}\"\nengine = \"{engine}\"\nclass = \"pcie\"\n\
             access = \"{access}\"\npitched = true\nlatency_ns = {latency_ns}\n\
             bytes_per_second = {rate}\n"
        );
        self
    }

    /// An engine that runs checksums.
    pub(crate) fn transform(mut self) -> Sketch {
        self.0.push_str(
            "[transform]\nengine = \"cpu:0#9\"\nlatency_ns = 100\n\
             bytes_per_second = 20_000_000_000\n",
        );
        self
    }

    pub(crate) fn machine(&self) -> Machine {
        // Tables of one kind may stand anywhere in a TOML document, so the test chooses their order.
        topology::from_str(&self.0).unwrap()
    }
}

/// A processor and two devices that reach each other only through the processor's pinned memory.
pub(crate) fn two_devices() -> Sketch {
    let mut sketch = Sketch::new()
        .device("cpu:0", &["pageable", "pinned"])
        .device("sim:0", &["device"])
        .device("sim:1", &["device"])
        .link("cpu:0/pageable", "cpu:0/pageable", "cpu:0#0", "native")
        .link("cpu:0/pageable", "cpu:0/pinned", "cpu:0#0", "native")
        .link("cpu:0/pinned", "cpu:0/pageable", "cpu:0#1", "native")
        .transform();
    for device in ["sim:0", "sim:1"] {
        let memory = format!("{device}/device");
        sketch = sketch
            .link("cpu:0/pinned", &memory, &format!("{device}#0"), "native")
            .link(&memory, "cpu:0/pinned", &format!("{device}#1"), "native");
    }
    sketch
}

/// A simulated machine under a manager with a staging budget of its own.
pub(crate) struct Bench {
    pub(crate) sim: Sim,
    pub(crate) manager: TransferManager,
    pub(crate) budget: Arc<StagingBudget>,
}

impl Bench {
    /// With room for `slots` slots of the smallest size.
    pub(crate) fn new(sketch: &Sketch, completion: Completion, slots: u64) -> Bench {
        Bench::with_lanes(sketch, completion, slots, 1)
    }

    pub(crate) fn with_lanes(
        sketch: &Sketch,
        completion: Completion,
        slots: u64,
        lanes: u8,
    ) -> Bench {
        let sim = Sim::builder(&sketch.machine())
            .completion(completion)
            .script(Script::new())
            .build()
            .unwrap();
        Bench::over(sim, slots, lanes)
    }

    pub(crate) fn over(sim: Sim, slots: u64, lanes: u8) -> Bench {
        let budget = Arc::new(StagingBudget::new(slots * SLOT));
        let manager = TransferManager::builder()
            .clock(Arc::new(sim.clock()))
            .staging(Arc::clone(&budget))
            .lanes(lanes)
            .backend(Arc::new(sim.clone()))
            .build()
            .unwrap();
        Bench {
            sim,
            manager,
            budget,
        }
    }

    /// A buffer that holds `bytes`.
    pub(crate) fn filled(&self, at: &str, bytes: &[u8]) -> Buffer {
        let buffer = self.empty(at, bytes.len() as u64);
        self.sim.write(buffer.raw(), 0, bytes).unwrap();
        buffer
    }

    /// A buffer whose bytes were never written.
    pub(crate) fn empty(&self, at: &str, len: u64) -> Buffer {
        self.manager
            .allocate(place(at), AllocSpec::bytes(len))
            .unwrap()
    }

    pub(crate) fn read(&self, buffer: &Buffer) -> Vec<u8> {
        let mut bytes = vec![0; buffer.len() as usize];
        self.sim.read(buffer.raw(), 0, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn now(&self) -> u64 {
        self.sim.clock().now_ns()
    }

    /// Advances virtual time and turns the engine.
    pub(crate) fn pass(&self, ns: u64) {
        self.sim.run_until(Instant(self.now() + ns));
    }

    /// Runs all events that happen by themselves; the engine reacts to each event.
    pub(crate) fn run(&self) {
        self.manager.turn();
        while self.sim.step() {
            self.manager.turn();
        }
        self.manager.turn();
    }
}

/// A region of marked bytes between two guard bands.
pub(crate) struct Banded {
    pub(crate) buffer: Buffer,
    pub(crate) len: u64,
    before: Vec<u8>,
}

impl Banded {
    /// A region of `len` bytes that holds `inner`, or poison where that is shorter.
    pub(crate) fn new(bench: &Bench, at: &str, inner: &[u8], len: u64) -> Banded {
        let buffer = bench.empty(at, len + 2 * BAND);
        let mut before = vec![0xA7; buffer.len() as usize];
        let from = BAND as usize;
        before[from..from + inner.len()].copy_from_slice(inner);
        bench.sim.write(buffer.raw(), 0, &before).unwrap();
        Banded {
            buffer,
            len,
            before,
        }
    }

    pub(crate) fn region(&self) -> Region {
        Region::new(&self.buffer, BAND, Shape::contiguous(self.len)).unwrap()
    }

    /// Checks the bands, and returns the bytes of the region.
    pub(crate) fn inner(&self, bench: &Bench, context: &dyn std::fmt::Debug) -> Vec<u8> {
        let now = bench.read(&self.buffer);
        let (from, to) = (BAND as usize, (BAND + self.len) as usize);
        assert!(
            now[..from] == self.before[..from],
            "{context:?}: wrote before the region"
        );
        assert!(
            now[to..] == self.before[to..],
            "{context:?}: wrote behind the region"
        );
        now[from..to].to_vec()
    }

    pub(crate) fn is_unchanged(&self, bench: &Bench) -> bool {
        bench.read(&self.buffer) == self.before
    }
}

/// Marked bytes, in which neighbouring bytes, chunks and slots all differ.
pub(crate) fn marked(len: u64) -> &'static [u8] {
    static MARKS: OnceLock<Vec<u8>> = OnceLock::new();
    let marks = MARKS.get_or_init(|| {
        let mut state = 0x0123_4567_89AB_CDEFu64;
        let mut bytes = Vec::with_capacity(4 << 20);
        while bytes.len() < 4 << 20 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend_from_slice(&state.to_le_bytes());
        }
        bytes
    });
    &marks[..len as usize]
}

pub(crate) fn place(text: &str) -> Place {
    text.parse().unwrap()
}

pub(crate) fn mem(text: &str) -> MemoryId {
    text.parse().unwrap()
}

pub(crate) fn device(text: &str) -> DeviceId {
    text.parse().unwrap()
}

/// Every completion mode in which operations end.
pub(crate) fn modes() -> Vec<Completion> {
    let mut modes = vec![Completion::Timed];
    modes.extend(Completion::all());
    modes.retain(|mode| *mode != Completion::Never);
    modes
}

/// Drops all of a bench except its machine, and returns the memory that is still in use.
pub(crate) fn left_behind(bench: Bench) -> Vec<MemoryUse> {
    let Bench { sim, manager, .. } = bench;
    drop(manager);
    sim.leaks()
}

/// Waits until the thread that ends transfers has freed memory and staging and has delivered the last outcome. The
/// delivery ends a moment after the sink has freed all else.
pub(crate) fn come_to_rest(
    sim: &Sim,
    budget: &StagingBudget,
    context: &dyn std::fmt::Debug,
    mut help: impl FnMut(),
) {
    let rests = (0..10_000_000).any(|_| {
        help();
        std::thread::yield_now();
        sim.leaks().is_empty() && sim.in_flight() == 0 && budget.used_bytes() == 0
    });
    let (leaks, in_flight) = (sim.leaks(), sim.in_flight());
    assert!(
        rests,
        "{context:?}: {leaks:?}, {in_flight} in flight, {budget:?}"
    );
    assert_eq!(sim.violations(), [], "{context:?}");
}

/// Keeps the panics that a script asks for out of the output of the tests.
pub(crate) fn expect_scripted_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let payload = info.payload();
            let text = payload.downcast_ref::<&str>().copied();
            let said = text.or(payload.downcast_ref::<String>().map(String::as_str));
            if !said.is_some_and(|said| said.starts_with("simulated fault")) {
                report(info);
            }
        }));
    });
}
