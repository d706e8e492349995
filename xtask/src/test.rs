//! `cargo xtask test`: runs the stages, prints what they found.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::counts::Counts;
use crate::install::or_absent;
use crate::process::seconds;
use crate::stage::{Outcome, Session, Tier, Verdict, lock};
use crate::table::table;
use crate::workspace::Workspace;
use crate::{
    browser, checks, clients, cross, deny, doubles, habits, manifests, python, sanitizers,
    sentinels, suites, surface, versions, wine,
};

/// What to run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Also the stages that build for other targets, install tools, or compare with what is published
    #[arg(long)]
    all: bool,
    /// What `--all` adds to a run without options, alone: for after one
    #[arg(long, conflicts_with_all = ["all", "full"])]
    rest: bool,
    /// All that, and more cases per property, sentinels, a browser, a build of each package: hours
    #[arg(long)]
    full: bool,
    /// Only these stages, with commas between them; may be given several times
    #[arg(long, value_name = "STAGE", value_delimiter = ',')]
    only: Vec<Stage>,
    /// Lists the stages and runs none
    #[arg(long)]
    list: bool,
}

/// The changes that the run may make on the machine.
pub(crate) const INSTALLS: &str = "\
On Debian and its descendants, as root or with a sudo that asks for no password,
the stage tests installs Mesa's software Vulkan driver with apt-get, and takes
SwiftShader out of Debian's chromium-common (32 MB).
With --all or --rest:
  no_std, cross  install Debian's toolchain where rustup has no library for a
                 target (150 MB)
  sanitizers     install the same toolchain
  wine           installs Wine and a linker for programs of Windows (162 MB)
  clients        installs python3-venv, and NVIDIA's bindings for Python
  python         installs python3-venv, and 50 packages from PyPI (250 MB)
  deny           builds cargo-deny, once, where it is not installed
SwiftShader, packages for Python and cargo-deny go into the target directory.
With --full:
  browser        installs Chromium, its driver and a linker (132 MB), and builds
                 wasm-bindgen's runner of tests
Elsewhere these stages are skipped, and the end of the run says so.";

/// Every stage, cheap ones first, with the promise that it checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Stage {
    /// rustfmt would change nothing
    Format,
    /// every package takes lints, licence and versions from the workspace
    Manifests,
    /// no sleeps, no timed or ignored tests
    Habits,
    /// every sentinel still fits the tree that it is to break
    Patches,
    /// dependencies, their direction, licences, versions and sources are as deny.toml allows
    Deny,
    /// clippy, all targets, all features, warnings denied
    Lint,
    /// the documentation builds, warnings denied
    Docs,
    /// what the libraries show to programs is what docs/public-api says
    Surface,
    /// every package could be published, with its licences and nothing stray
    Package,
    /// unit and integration tests
    Tests,
    /// the examples in the documentation compile and run
    Doctests,
    /// core, hal and the engine build where there is no operating system
    NoStd,
    /// clippy for the other systems, the browser too, warnings denied
    Cross,
    /// the same lints for further processors and devices of these systems, and documentation for two of them
    Twins,
    /// tests of the host backend as programs of Windows, under Wine
    Wine,
    /// every interleaving of the small concurrent parts
    Loom,
    /// the single-threaded build, whose types are not Send
    Local,
    /// the binding of the CUDA driver agrees with cudarc's for the oldest CUDA and the last ones of each generation
    Versions,
    /// it agrees for the versions between, too
    Between,
    /// the stand-ins for drivers build, and pass their own tests
    Doubles,
    /// cudarc and NVIDIA's Python bindings take the double for the driver
    Clients,
    /// the wheel and the sources of the Python package build and are whole, and its tests pass
    Python,
    /// every function of the CUDA binding is called by a test, or listed with a reason
    Calls,
    /// tests of the Metal backend over its double, under AddressSanitizer and ThreadSanitizer
    Sanitizers,
    /// every package builds from what would be published
    Unpacked,
    /// tests of the library in a browser's page, and the pages of `--html` in it
    Browser,
    /// the tests again, with many more cases per property
    Properties,
    /// faults put in on purpose turn tests red
    Sentinels,
}

impl Stage {
    fn row(self) -> (Tier, fn(&Session) -> Result<Verdict>) {
        match self {
            Self::Format => (Tier::Quick, checks::format),
            Self::Manifests => (Tier::Quick, manifests::stage),
            Self::Habits => (Tier::Quick, habits::stage),
            Self::Patches => (Tier::Quick, sentinels::fit),
            Self::Deny => (Tier::All, deny::stage),
            Self::Lint => (Tier::Quick, checks::lint),
            Self::Docs => (Tier::All, checks::docs),
            Self::Surface => (Tier::All, surface::stage),
            Self::Package => (Tier::All, checks::package),
            Self::Tests => (Tier::Quick, suites::tests),
            Self::Doctests => (Tier::Quick, suites::doctests),
            Self::NoStd => (Tier::All, cross::no_std),
            Self::Cross => (Tier::All, cross::stage),
            Self::Twins => (Tier::Full, cross::twins),
            Self::Between => (Tier::Full, versions::between),
            Self::Wine => (Tier::All, wine::stage),
            Self::Loom => (Tier::All, suites::loom),
            Self::Local => (Tier::All, suites::local),
            Self::Versions => (Tier::All, versions::stage),
            Self::Doubles => (Tier::Quick, doubles::stage),
            Self::Clients => (Tier::All, clients::stage),
            Self::Python => (Tier::All, python::stage),
            Self::Calls => (Tier::All, doubles::calls),
            Self::Sanitizers => (Tier::All, sanitizers::stage),
            Self::Unpacked => (Tier::Full, checks::unpacked),
            Self::Browser => (Tier::Full, browser::stage),
            Self::Properties => (Tier::Full, suites::properties),
            Self::Sentinels => (Tier::Full, sentinels::stage),
        }
    }

    /// Where it builds: cargo makes all others of that folder wait meanwhile.
    fn folder(self) -> Folder {
        match self {
            Self::NoStd | Self::Cross | Self::Twins | Self::Browser => Folder::Cross,
            Self::Deny | Self::Wine | Self::Loom | Self::Local | Self::Sanitizers => Folder::Own,
            _ => Folder::Main,
        }
    }

    /// Its name and the promise that it checks.
    fn told(self) -> [String; 2] {
        let value = self.to_possible_value().unwrap_or_default();
        let about = value.get_help().map(ToString::to_string);
        [value.get_name().to_owned(), about.unwrap_or_default()]
    }
}

/// Runs the chosen stages to the end, even after a failure. Returns whether all of them passed or were skipped for a
/// valid reason.
pub(crate) fn run(workspace: Workspace, options: &Options) -> bool {
    if options.list {
        let row = |stage: &Stage| {
            let [name, about] = stage.told();
            let when = match stage.row().0 {
                Tier::Quick => "always",
                Tier::All => "--all",
                Tier::Full => "--full",
            };
            [name, when.into(), about]
        };
        let rows = Stage::value_variants().iter().map(row);
        print!("{}", table(["stage", "runs", "shows"], rows));
        return true;
    }
    let session = Session::new(workspace);
    checks::machine()
        .into_iter()
        .for_each(|fact| session.note_found(fact));
    let start = Instant::now();
    let results = run_all(choose(options), &session);
    summarize(&session, &results, start.elapsed())
}

/// The target folder of a stage's builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Folder {
    /// The workspace's, and that of each double, which others use, too.
    Main,
    /// That of builds for other targets.
    Cross,
    /// One that no other stage uses.
    Own,
}

/// Runs them in two lanes: those of a folder that they share in one lane, in their order, and those with a folder of their own
/// in the lane that has done these. A build leaves processors idle, at its end and where it links.
fn run_all(stages: Vec<Stage>, session: &Session) -> Vec<StageResult> {
    let of = |folder| {
        let stages = stages.iter().copied();
        let stages: VecDeque<_> = stages.filter(|stage| stage.folder() == folder).collect();
        Mutex::new(stages)
    };
    let [main, cross, own] = [Folder::Main, Folder::Cross, Folder::Own].map(of);
    let results = Mutex::new(Vec::new());
    let serve = |shared: &Mutex<VecDeque<Stage>>| {
        // The last one takes longest.
        let next = || lock(shared).pop_front().or_else(|| lock(&own).pop_back());
        while let Some(stage) = next() {
            let result = run_one(stage, session);
            lock(&results).push(result);
        }
    };
    thread::scope(|scope| {
        let lanes = [scope.spawn(|| serve(&main)), scope.spawn(|| serve(&cross))];
        for end in lanes.map(ScopedJoinHandle::join) {
            end.unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|result: &StageResult| result.stage);
    results
}

struct StageResult {
    stage: Stage,
    name: String,
    verdict: Verdict,
    elapsed: Duration,
}

/// The stages to run.
fn choose(options: &Options) -> Vec<Stage> {
    let is_chosen = |stage: &Stage| match (&options.only[..], stage.row().0) {
        (only @ [_, ..], _) => only.contains(stage),
        (_, Tier::Quick) => !options.rest,
        (_, Tier::All) => options.all || options.rest || options.full,
        (_, Tier::Full) => options.full,
    };
    let stages = Stage::value_variants().iter().copied();
    stages.filter(is_chosen).collect()
}

fn run_one(stage: Stage, session: &Session) -> StageResult {
    let [name, about] = stage.told();
    println!("== {name}: {about}");
    let start = Instant::now();
    let verdict = match or_absent(stage.row().1(session)) {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(absent)) => Verdict::skipped(absent.0),
        Err(error) => {
            let mut verdict = Verdict::passed();
            verdict.fail(format!("{error:#}"));
            verdict
        }
    };
    let elapsed = start.elapsed();
    let end = format!("{} in {}", verdict.outcome.word(), seconds(elapsed));
    let mut told = format!("   {name} {end}");
    if !verdict.remark().is_empty() {
        told += &format!(": {}", verdict.remark());
    }
    if verdict.outcome == Outcome::Failed {
        told += &format!("\n{}", verdict.transcript.trim_end());
    }
    println!("{told}");
    StageResult {
        stage,
        name,
        verdict,
        elapsed,
    }
}

/// Prints the closing tables; the very last line counts tests and stages.
fn summarize(session: &Session, results: &[StageResult], elapsed: Duration) -> bool {
    for StageResult { name, verdict, .. } in results {
        if let Outcome::Skipped(reason) = &verdict.outcome {
            session.skip(format!("stage {name}: {reason}"));
        }
    }
    println!();
    print_list("Found", &session.found());
    print_list("Installed", session.installer().installed());
    print_list("Skipped", &session.skipped());
    let row = |result: &StageResult| {
        [
            result.name.clone(),
            result.verdict.outcome.word().to_owned(),
            result.verdict.counts.all().to_string(),
            seconds(result.elapsed),
            result.verdict.remark(),
        ]
    };
    let head = ["stage", "result", "tests", "time", "note"];
    print!("{}", table(head, results.iter().map(row)));
    let verdicts = || results.iter().map(|result| &result.verdict);
    println!("{} in {}:", told_of_all(verdicts()), seconds(elapsed));
    let counts = count(verdicts());
    println!(
        "{} passed, {} failed, {} skipped",
        counts.passed, counts.failed, counts.skipped
    );
    counts.failed == 0
}

/// Tests and stages together.
fn count<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> Counts {
    let mut counts = Counts::default();
    for verdict in verdicts {
        counts += verdict.counts;
        match verdict.outcome {
            Outcome::Passed => counts.passed += 1,
            Outcome::Failed => counts.failed += 1,
            Outcome::Skipped(_) => counts.skipped += 1,
        }
    }
    counts
}

/// The number in the last line, which agrees with the table's column of tests.
fn told_of_all<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> String {
    let number = |count: u64, what: &str| {
        let more = if count == 1 { "" } else { "s" };
        format!("{count} {what}{more}")
    };
    let (stages, tests) = verdicts.fold((0, 0), |(stages, tests), verdict| {
        (stages + 1, tests + verdict.counts.all())
    });
    format!("{} and {}", number(tests, "test"), number(stages, "stage"))
}

impl Outcome {
    fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Skipped(_) => "skipped",
        }
    }
}

impl Verdict {
    /// The reason of a skip, else the note, with the tests counted.
    fn remark(&self) -> String {
        let mut parts = Vec::new();
        if let Outcome::Skipped(reason) = &self.outcome {
            parts.push(reason.clone());
        }
        if !self.note.is_empty() {
            parts.push(self.note.clone());
        }
        for (count, how) in [
            (self.counts.failed, "failed"),
            (self.counts.skipped, "skipped"),
        ] {
            if count > 0 {
                parts.push(format!("{count} tests {how}"));
            }
        }
        parts.join("; ")
    }
}

fn print_list(title: &str, lines: &[String]) {
    if lines.is_empty() {
        println!("{title}: nothing\n");
    } else {
        println!("{title}:\n  {}\n", lines.join("\n  "));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Test {
        #[command(flatten)]
        options: Options,
    }

    /// The names of the stages that a command line chooses.
    fn chosen(arguments: &[&str]) -> Result<Vec<String>, clap::Error> {
        let test = Test::try_parse_from([&["test"], arguments].concat())?;
        let stages = choose(&test.options);
        Ok(stages.iter().map(|stage| stage.told()[0].clone()).collect())
    }

    /// A longer line is broken anew, in the middle of a sentence.
    #[test]
    fn what_it_installs_fits_a_terminal_of_80() {
        for line in INSTALLS.lines() {
            assert!(line.chars().count() <= 80, "{line:?}");
        }
    }

    #[test]
    fn tests_and_stages_are_counted_together() {
        let mut green = Verdict::passed();
        green.counts = Counts {
            passed: 5,
            failed: 0,
            skipped: 1,
        };
        let mut red = Verdict::passed();
        red.fail("broken");
        let verdicts = [&green, &red, &Verdict::skipped("no tool")];
        let counts = count(verdicts.into_iter());
        let Counts {
            passed,
            failed,
            skipped,
        } = counts;
        assert_eq!([passed, failed, skipped], [6, 1, 2]);
        // The line before names both parts of that sum.
        assert_eq!(told_of_all(verdicts.into_iter()), "6 tests and 3 stages");
        assert_eq!(counts.all(), 6 + 3);
        assert_eq!(told_of_all([&red].into_iter()), "0 tests and 1 stage");
    }

    #[test]
    fn an_unknown_stage_is_refused_by_name() {
        let error = chosen(&["--only", "docs,nonsense"]).unwrap_err();
        assert!(error.to_string().contains("'nonsense'"), "{error}");
    }

    #[test]
    fn several_stages_are_named_one_by_one_or_as_a_list() {
        let one_by_one = chosen(&["--only", "docs", "--only", "no_std", "--only", "deny"]).unwrap();
        assert_eq!(one_by_one, ["deny", "docs", "no_std"]);
        assert_eq!(chosen(&["--only", "docs,no_std,deny"]).unwrap(), one_by_one);
    }

    #[test]
    fn long_stages_run_only_when_asked_for() {
        let has = |arguments: &[&str], stage: &str| {
            let chosen = chosen(arguments).unwrap();
            chosen.iter().any(|name| name == stage)
        };
        assert!(has(&[], "tests") && !has(&[], "cross"));
        assert!(has(&["--all"], "cross") && !has(&["--all"], "sentinels"));
        let mut parts = [chosen(&[]).unwrap(), chosen(&["--rest"]).unwrap()].concat();
        let mut all = chosen(&["--all"]).unwrap();
        parts.sort();
        all.sort();
        assert_eq!(parts, all);
        let full = chosen(&["--full"]).unwrap();
        assert_eq!(full.len(), Stage::value_variants().len());
        assert_eq!(chosen(&["--only", "sentinels"]).unwrap(), ["sentinels"]);
    }
}
