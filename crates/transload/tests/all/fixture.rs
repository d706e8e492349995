//! Shared parts of the engine's tests: small simulated machines, and bytes to move over them.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::error::Error;
use std::sync::Arc;

use transload::{AllocSpec, Buffer, Place, StagingBudget, TransferManager};
use transload_testkit::sim::{Completion, Script, Sim};
use transload_testkit::topology;

pub(crate) type Outcome = Result<(), Box<dyn Error>>;

/// One manager over one simulated machine, with a staging budget of its own.
pub(crate) struct Fixture {
    pub(crate) sim: Sim,
    pub(crate) manager: TransferManager,
}

impl Fixture {
    pub(crate) fn new(text: &str, completion: Completion, budget_bytes: u64) -> Fixture {
        let budget = Arc::new(StagingBudget::new(budget_bytes));
        Fixture::sharing(text, completion, &budget)
    }

    pub(crate) fn sharing(
        text: &str,
        completion: Completion,
        budget: &Arc<StagingBudget>,
    ) -> Fixture {
        Fixture::scripted(text, completion, budget, Script::new())
    }

    pub(crate) fn scripted(
        text: &str,
        completion: Completion,
        budget: &Arc<StagingBudget>,
        script: Script,
    ) -> Fixture {
        let sim = machine(text, completion, script);
        let manager = TransferManager::builder()
            .clock(Arc::new(sim.clock()))
            .backend(Arc::new(sim.clone()))
            .staging(Arc::clone(budget))
            .build()
            .unwrap();
        Fixture { sim, manager }
    }

    /// A fixture on the system's clock, whose transfers advance by themselves.
    pub(crate) fn advancing(text: &str, completion: Completion, budget_bytes: u64) -> Fixture {
        let budget = Arc::new(StagingBudget::new(budget_bytes));
        Fixture::advancing_on(text, completion, &budget)
    }

    /// The same on a shared budget.
    pub(crate) fn advancing_on(
        text: &str,
        completion: Completion,
        budget: &Arc<StagingBudget>,
    ) -> Fixture {
        let sim = machine(text, completion, Script::new());
        let manager = TransferManager::builder()
            .backend(Arc::new(sim.clone()))
            .staging(Arc::clone(budget))
            .build()
            .unwrap();
        Fixture { sim, manager }
    }

    /// Simulated memory with those bytes.
    pub(crate) fn filled(&self, at: &str, bytes: &[u8]) -> Buffer {
        let buffer = self.empty(at, bytes.len());
        self.sim.write(buffer.raw(), 0, bytes).unwrap();
        buffer
    }

    pub(crate) fn empty(&self, at: &str, len: usize) -> Buffer {
        let spec = AllocSpec::bytes(len as u64);
        self.manager.allocate(place(at), spec).unwrap()
    }

    /// Sees each event when it comes, as where a thread listens, until `is_over`.
    pub(crate) fn run_until(&self, mut is_over: impl FnMut() -> bool) {
        while !is_over() {
            let deadline = self.manager.turn();
            match (self.sim.next_event(), deadline) {
                (Some(event), Some(deadline)) if event <= deadline => drop(self.sim.step()),
                (_, Some(deadline)) => self.sim.run_until(deadline),
                (Some(_), None) => drop(self.sim.step()),
                (None, None) => assert!(is_over(), "nothing follows"),
            }
        }
    }

    /// The bytes as the machine holds them, read around the engine.
    pub(crate) fn bytes_of(&self, buffer: &Buffer) -> Vec<u8> {
        let mut bytes = vec![0; buffer.len() as usize];
        self.sim.read(buffer.raw(), 0, &mut bytes).unwrap();
        bytes
    }
}

fn machine(text: &str, completion: Completion, script: Script) -> Sim {
    let machine = topology::from_str(text).unwrap();
    let sim = Sim::builder(&machine);
    let sim = sim.completion(completion).script(script);
    sim.build().unwrap()
}

/// A host and `gpus` devices without links among each other, so that copies between devices are staged in pinned
/// memory.
pub(crate) fn without_peers(gpus: u32) -> String {
    let mut text = String::from(
        r#"
        schema = 1
        name = "without peers"
        [transform]
        engine = "cpu:0#2"
        latency_ns = 100
        bytes_per_second = 20_000_000_000
        [[device]]
        id = "cpu:0"
        name = "host"
        memory = [
            { kind = "pageable", memory_bytes = 8_000_000_000 },
            { kind = "pinned", memory_bytes = 8_000_000_000 },
        ]
        "#,
    );
    for gpu in 0..gpus {
        text += &format!(
            "[[device]]\nid = \"sim:{gpu}\"\nname = \"GPU\"\n\
             memory = [{{ kind = \"device\", memory_bytes = 8_000_000_000 }}]\n"
        );
    }
    let mut link = |src: &str, dst: &str, engine: &str, back: &str, rate: u64| {
        text += &format!(
            "[[link]]\nsrc = \"{src}\"\ndst = \"{dst}\"\nengine = \"{engine}\"\nclass = \"pcie\"\n\
             both = true\nback_engine = \"{back}\"\npitched = true\nlatency_ns = 1000\n\
             bytes_per_second = {rate}\n"
        );
    };
    link(
        "cpu:0/pageable",
        "cpu:0/pinned",
        "cpu:0#0",
        "cpu:0#0",
        10_000_000_000,
    );
    for gpu in 0..gpus {
        let (device, down, up) = (
            format!("sim:{gpu}/device"),
            format!("sim:{gpu}#0"),
            format!("sim:{gpu}#1"),
        );
        link("cpu:0/pinned", &device, &down, &up, 25_000_000_000);
        link("cpu:0/pageable", &device, &down, &up, 8_000_000_000);
    }
    for (memory, engine) in [("cpu:0/pageable", "cpu:0#0"), ("cpu:0/pinned", "cpu:0#0")] {
        text += &own(memory, engine);
    }
    for gpu in 0..gpus {
        text += &own(&format!("sim:{gpu}/device"), &format!("sim:{gpu}#2"));
    }
    text
}

fn own(memory: &str, engine: &str) -> String {
    format!(
        "[[link]]\nsrc = \"{memory}\"\ndst = \"{memory}\"\nengine = \"{engine}\"\n\
         class = \"local\"\npitched = true\nlatency_ns = 500\nbytes_per_second = 10_000_000_000\n"
    )
}

pub(crate) fn place(text: &str) -> Place {
    text.parse().unwrap()
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mixed = |i: usize| (i as u64 ^ (seed << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..len).map(|i| (mixed(i) >> 48) as u8).collect()
}

/// Every mode in which transfers end by themselves.
pub(crate) fn modes() -> Vec<Completion> {
    let mut modes = vec![Completion::Timed];
    modes.extend(Completion::all());
    modes.retain(|mode| *mode != Completion::Never);
    modes
}
