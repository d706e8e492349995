//! Shared parts of the tests of kept verdicts: two cards with a link between them, and processes that run one after the
//! other and keep their verdicts in one file.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use transload::{Builder, Choice, Method, Request, StagingBudget, TransferManager};
use transload_core::schema::Machine;
use transload_testkit::sim::{Rule, Script, Sim};

use crate::common::{Banded, Bench, SLOT, Sketch, marked, mem, place, two_devices};

pub(crate) const LEN: u64 = SLOT + 1;
pub(crate) const LEFT: &str = "0000000a-0000-0000-0000-000000000000";
pub(crate) const RIGHT: &str = "0000000b-0000-0000-0000-000000000000";
pub(crate) const DRIVER: &str = "simulated 1.0";

/// A folder that is deleted at the end of the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let name = format!("transload-verdicts-{name}-{}", std::process::id());
        Folder(std::env::temp_dir().join(name))
    }

    /// The path of the file of verdicts.
    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("profile.verdicts.toml")
    }

    /// The text of the file.
    pub(crate) fn text(&self) -> String {
        fs::read_to_string(self.file()).unwrap()
    }

    /// The number of kept verdicts.
    pub(crate) fn kept(&self) -> usize {
        match self.file().exists() {
            true => self.text().matches("[[link]]").count(),
            false => 0,
        }
    }

    pub(crate) fn holding(&self, bytes: &[u8]) {
        fs::create_dir_all(&self.0).unwrap();
        fs::write(self.file(), bytes).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Two cards with links of that access between them in both directions, and a route through the processor.
pub(crate) fn sketch(access: &str) -> Sketch {
    two_devices()
        .link("sim:0/device", "sim:1/device", "sim:0#2", access)
        .link("sim:1/device", "sim:0/device", "sim:1#2", access)
        .link("cpu:0/pageable", "sim:0/device", "sim:0#0", "native")
        .link("cpu:0/pageable", "sim:1/device", "sim:1#0", "native")
        .link("sim:0/device", "cpu:0/pageable", "sim:0#1", "native")
        .link("sim:1/device", "cpu:0/pageable", "sim:1#1", "native")
}

/// The same with a UUID and a driver on each card.
pub(crate) fn cards(
    sketch: &Sketch,
    uuids: [Option<&str>; 2],
    drivers: [Option<&str>; 2],
) -> Machine {
    let mut machine = sketch.machine();
    for (card, id) in ["sim:0", "sim:1"].into_iter().enumerate() {
        let mut devices = machine.devices.iter_mut();
        let device = devices.find(|device| device.id == id).unwrap();
        device.uuid = uuids[card].map(Into::into);
        device.driver = drivers[card].map(Into::into);
    }
    machine
}

/// The machine of most tests.
pub(crate) fn machine() -> Machine {
    cards(
        &sketch("peer"),
        [Some(LEFT), Some(RIGHT)],
        [Some(DRIVER); 2],
    )
}

/// Stands for a process: a manager of its own over a machine of its own.
pub(crate) struct Process {
    pub(crate) bench: Bench,
    src: Banded,
    dst: Banded,
}

/// The route of a copy: its method, the number of routes that failed before, and the number of operations on the link
/// between the cards.
pub(crate) type Went = (Method, usize, u64);

/// Over the link, which an earlier process proved.
pub(crate) const UNPROVEN_NO_MORE: Went = (Method::PeerToPeer, 0, 1);
/// Over the link, after the proof by a pattern.
pub(crate) const PROVEN_FIRST: Went = (Method::PeerToPeer, 0, 2);
/// Around the link, without a try of it.
pub(crate) const ROUND_IT: Went = (Method::HostStaged, 0, 0);
/// Around the link, after it changed a pattern.
pub(crate) const FOUND_OUT: Went = (Method::HostStaged, 1, 1);

impl Process {
    /// A process that keeps its verdicts in that file.
    pub(crate) fn keeping(file: &Path, machine: &Machine, rules: Vec<Rule>) -> Process {
        Process::new(machine, rules, |builder| builder.keep_verdicts(file))
    }

    pub(crate) fn new(
        machine: &Machine,
        rules: Vec<Rule>,
        built: impl FnOnce(Builder) -> Builder,
    ) -> Process {
        let script = rules.into_iter().fold(Script::new(), Script::with);
        let sim = Sim::builder(machine).script(script).build().unwrap();
        let budget = Arc::new(StagingBudget::new(3 * SLOT));
        let builder = TransferManager::builder()
            .clock(Arc::new(sim.clock()))
            .staging(Arc::clone(&budget))
            .lanes(1)
            .backend(Arc::new(sim.clone()));
        let manager = built(builder).build().unwrap();
        Process::over(Bench {
            sim,
            manager,
            budget,
        })
    }

    pub(crate) fn over(bench: Bench) -> Process {
        let src = Banded::new(&bench, "sim:0", marked(LEN), LEN);
        let dst = Banded::new(&bench, "sim:1", &[], LEN);
        Process { bench, src, dst }
    }

    /// Copies from the first card to the second one, over poison.
    pub(crate) fn copy(&self) -> Went {
        self.submit(&self.request())
    }

    pub(crate) fn request(&self) -> Request {
        Request::new(self.src.region(), self.dst.region())
    }

    pub(crate) fn submit(&self, request: &Request) -> Went {
        let poison = vec![0xEE; LEN as usize];
        let raw = self.dst.buffer.raw();
        self.bench
            .sim
            .write(raw, super::common::BAND, &poison)
            .unwrap();
        let before = self.crossed();
        let report = self.bench.manager.submit(request).wait().unwrap();
        let inner = self.dst.inner(&self.bench, &report);
        assert!(inner == marked(LEN), "wrong bytes after {report}");
        let crossed = self.crossed() - before;
        (report.method(), report.fallbacks().len(), crossed)
    }

    /// The number of operations on the link.
    pub(crate) fn crossed(&self) -> u64 {
        let used = self.bench.sim.engine_use();
        let link = used
            .iter()
            .find(|used| used.engine.to_string() == "sim:0#2");
        link.map_or(0, |used| used.operations)
    }

    /// The number of operations of all engines.
    pub(crate) fn operations(&self) -> u64 {
        let used = self.bench.sim.engine_use();
        used.iter().map(|used| used.operations).sum()
    }

    /// The routes from card to card that `explain` lists, the chosen one first.
    pub(crate) fn ways(&self) -> Vec<Choice> {
        let explained = self
            .bench
            .manager
            .explain_places(place("sim:0"), place("sim:1"), LEN)
            .unwrap();
        let mut ways = vec![explained.chosen];
        ways.extend(explained.rejected);
        ways
    }

    /// The report of `explain` about the link between the cards.
    pub(crate) fn told(&self) -> Choice {
        let direct = [mem("sim:0/device"), mem("sim:1/device")];
        let mut ways = self.ways().into_iter();
        ways.find(|way| way.route == direct).unwrap()
    }
}

/// The link between the cards changes a byte of each payload.
pub(crate) fn lies() -> Rule {
    Rule::corrupt(40_000)
        .over(mem("sim:0/device"), mem("sim:1/device"))
        .always()
}
