//! `cargo xtask test`: runs the stages, prints what they found.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;

use crate::counts::Counts;
use crate::install::Installer;
use crate::process::seconds;
use crate::stage::{Outcome, Session, Stage, Tier, Verdict};
use crate::table::table;
use crate::workspace::Workspace;
use crate::{
    browser, checks, clients, cross, deny, doubles, habits, manifests, no_std, package, sanitizers,
    sentinels, suites, surface, versions, wine,
};

/// What to run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Also the stages that build for other targets, install tools, or compare with what is published
    #[arg(long)]
    all: bool,
    /// All that, and more cases per property, sentinels, a browser, a build of each package: hours
    #[arg(long)]
    full: bool,
    /// Only these stages, with commas between them; may be given several times
    #[arg(long, value_name = "STAGE", value_delimiter = ',')]
    only: Vec<String>,
    /// Lists the stages and runs none
    #[arg(long)]
    list: bool,
}

impl Options {
    fn tier(&self) -> Tier {
        match (self.full, self.all) {
            (true, _) => Tier::Full,
            (_, true) => Tier::All,
            _ => Tier::Quick,
        }
    }
}

/// The changes that the run may make on the machine.
pub(crate) const INSTALLS: &str = "\
On Debian and its descendants, as root or with a sudo that asks for no password,
the stage tests installs Mesa's software Vulkan driver with apt-get.
With --all:
  tests          takes SwiftShader out of Debian's chromium-common (32 MB)
  no_std, cross  install Debian's toolchain where rustup has no library for a
                 target (150 MB)
  sanitizers     install the same toolchain
  wine           installs Wine and a linker for programs of Windows (162 MB)
  clients        installs python3-venv, and NVIDIA's bindings for Python
  deny           builds cargo-deny, once, where it is not installed
SwiftShader, the bindings and cargo-deny go into the target directory.
With --full:
  browser        installs Chromium, its driver and a linker (132 MB), and builds
                 wasm-bindgen's runner of tests
Elsewhere these stages are skipped, and the end of the run says so.";

/// Every stage, cheap ones first.
pub(crate) const STAGES: [Stage; 25] = [
    Stage {
        name: "format",
        about: "rustfmt would change nothing",
        tier: Tier::Quick,
        run: checks::format,
    },
    Stage {
        name: "manifests",
        about: "every package takes lints, licence and versions from the workspace",
        tier: Tier::Quick,
        run: manifests::stage,
    },
    Stage {
        name: "habits",
        about: "no sleeps, no timed or ignored tests, no overlong files",
        tier: Tier::Quick,
        run: habits::stage,
    },
    Stage {
        name: "patches",
        about: "every sentinel still fits the tree that it is to break",
        tier: Tier::Quick,
        run: sentinels::fit,
    },
    Stage {
        name: "deny",
        about: "dependencies, their direction, licences, versions and sources are as deny.toml allows",
        tier: Tier::All,
        run: deny::stage,
    },
    Stage {
        name: "lint",
        about: "clippy, all targets, all features, warnings denied",
        tier: Tier::Quick,
        run: checks::lint,
    },
    Stage {
        name: "docs",
        about: "the documentation builds, warnings denied",
        tier: Tier::All,
        run: checks::docs,
    },
    Stage {
        name: "surface",
        about: "what the libraries show to programs is what docs/public-api says",
        tier: Tier::All,
        run: surface::stage,
    },
    Stage {
        name: "package",
        about: "every package could be published, with its licences and nothing stray",
        tier: Tier::All,
        run: package::stage,
    },
    Stage {
        name: "tests",
        about: "unit and integration tests",
        tier: Tier::Quick,
        run: suites::tests,
    },
    Stage {
        name: "doctests",
        about: "the examples in the documentation compile and run",
        tier: Tier::Quick,
        run: suites::doctests,
    },
    Stage {
        name: "no_std",
        about: "core, hal and the engine build where there is no operating system",
        tier: Tier::All,
        run: no_std::stage,
    },
    Stage {
        name: "cross",
        about: "clippy for the other systems, the browser too, warnings denied; documentation for two",
        tier: Tier::All,
        run: cross::stage,
    },
    Stage {
        name: "wine",
        about: "tests of the host backend as programs of Windows, under Wine",
        tier: Tier::All,
        run: wine::stage,
    },
    Stage {
        name: "loom",
        about: "every interleaving of the small concurrent parts",
        tier: Tier::All,
        run: suites::loom,
    },
    Stage {
        name: "local",
        about: "the single-threaded build, whose types are not Send",
        tier: Tier::All,
        run: suites::local,
    },
    Stage {
        name: "versions",
        about: "the binding of the CUDA driver agrees with cudarc's for every version of CUDA",
        tier: Tier::All,
        run: versions::stage,
    },
    Stage {
        name: "doubles",
        about: "the stand-ins for drivers build, and pass their own tests",
        tier: Tier::Quick,
        run: doubles::stage,
    },
    Stage {
        name: "clients",
        about: "cudarc and NVIDIA's Python bindings take the double for the driver",
        tier: Tier::All,
        run: clients::stage,
    },
    Stage {
        name: "calls",
        about: "every function of the CUDA binding is called by a test, or listed with a reason",
        tier: Tier::All,
        run: doubles::calls,
    },
    Stage {
        name: "sanitizers",
        about: "tests of the doubles, under AddressSanitizer and ThreadSanitizer",
        tier: Tier::All,
        run: sanitizers::stage,
    },
    Stage {
        name: "unpacked",
        about: "every package builds from what would be published",
        tier: Tier::Full,
        run: package::build,
    },
    Stage {
        name: "browser",
        about: "tests of the library in a browser's page",
        tier: Tier::Full,
        run: browser::stage,
    },
    Stage {
        name: "properties",
        about: "the tests again, with many more cases per property",
        tier: Tier::Full,
        run: suites::properties,
    },
    Stage {
        name: "sentinels",
        about: "faults put in on purpose turn tests red",
        tier: Tier::Full,
        run: sentinels::stage,
    },
];

/// Runs the chosen stages to the end, even after a failure. Returns whether all of them passed or were skipped for a
/// valid reason.
///
/// # Errors
/// When `--only` names no stage.
pub(crate) fn run(workspace: Workspace, options: &Options) -> Result<bool> {
    if options.list {
        let rows = STAGES.map(|stage| {
            let when = match stage.tier {
                Tier::Quick => "always",
                Tier::All => "--all",
                Tier::Full => "--full",
            };
            [stage.name.into(), when.into(), stage.about.into()]
        });
        print!("{}", table(["stage", "runs", "shows"], &rows));
        return Ok(true);
    }
    let chosen = choose(options)?;
    let mut session = Session {
        workspace,
        tier: options.tier(),
        installer: Installer::default(),
        found: checks::machine(),
        skipped: Vec::new(),
        calls: BTreeMap::new(),
    };
    let mut results = Vec::new();
    for stage in chosen {
        results.push(run_one(stage, &mut session));
    }
    Ok(summarize(&session, &results))
}

struct StageResult {
    name: &'static str,
    verdict: Verdict,
    elapsed: Duration,
}

fn choose(options: &Options) -> Result<Vec<&'static Stage>> {
    for name in &options.only {
        if !STAGES.iter().any(|stage| stage.name == name) {
            bail!("no stage is called `{name}`; `cargo xtask test --list` lists them");
        }
    }
    let tier = options.tier();
    let is_chosen = |stage: &&Stage| match &options.only[..] {
        [] => stage.tier <= tier,
        only => only.iter().any(|name| name == stage.name),
    };
    Ok(STAGES.iter().filter(is_chosen).collect())
}

fn run_one(stage: &Stage, session: &mut Session) -> StageResult {
    println!("== {}: {}", stage.name, stage.about);
    let start = Instant::now();
    let verdict = (stage.run)(session).unwrap_or_else(|error| {
        let mut verdict = Verdict::passed();
        verdict.fail(&format!("{error:#}"));
        verdict
    });
    let elapsed = start.elapsed();
    if verdict.outcome == Outcome::Failed {
        println!("{}", verdict.transcript.trim_end());
    }
    println!("   {}", told(&verdict, elapsed));
    StageResult {
        name: stage.name,
        verdict,
        elapsed,
    }
}

/// Prints the closing tables; the very last line counts tests and stages.
fn summarize(session: &Session, results: &[StageResult]) -> bool {
    println!();
    print_list("Found", &session.found);
    print_list("Installed", session.installer.installed());
    let mut skipped = session.skipped.clone();
    for result in results {
        if let Outcome::Skipped(reason) = &result.verdict.outcome {
            skipped.push(format!("stage {}: {reason}", result.name));
        }
    }
    print_list("Skipped", &skipped);
    let rows: Vec<_> = results
        .iter()
        .map(|result| {
            [
                result.name.to_owned(),
                result.verdict.outcome.word().to_owned(),
                result.verdict.counts.all().to_string(),
                seconds(result.elapsed),
                result.verdict.remark(),
            ]
        })
        .collect();
    print!(
        "{}",
        table(["stage", "result", "tests", "time", "note"], &rows)
    );
    let total: Duration = results.iter().map(|result| result.elapsed).sum();
    let verdicts = || results.iter().map(|result| &result.verdict);
    println!("{} in {}:", told_of_all(verdicts()), seconds(total));
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

fn told(verdict: &Verdict, elapsed: Duration) -> String {
    let end = format!("{} in {}", verdict.outcome.word(), seconds(elapsed));
    let remark = verdict.remark();
    if remark.is_empty() {
        end
    } else {
        format!("{end}: {remark}")
    }
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
        if self.counts.failed > 0 {
            parts.push(format!("{} tests failed", self.counts.failed));
        }
        if self.counts.skipped > 0 {
            parts.push(format!("{} tests skipped", self.counts.skipped));
        }
        parts.join("; ")
    }
}

fn print_list(title: &str, lines: &[String]) {
    if lines.is_empty() {
        println!("{title}: nothing\n");
        return;
    }
    println!("{title}:");
    for line in lines {
        println!("  {line}");
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(
            counts,
            Counts {
                passed: 6,
                failed: 1,
                skipped: 2
            }
        );
        // The line before names both parts of that sum.
        assert_eq!(told_of_all(verdicts.into_iter()), "6 tests and 3 stages");
        assert_eq!(counts.all(), 6 + 3);
        assert_eq!(told_of_all([&red].into_iter()), "0 tests and 1 stage");
    }

    #[test]
    fn stages_have_names_of_their_own() {
        for (index, stage) in STAGES.iter().enumerate() {
            assert!(STAGES[..index].iter().all(|other| other.name != stage.name));
        }
    }

    #[test]
    fn an_unknown_stage_is_refused_by_name() {
        let options = Options {
            all: false,
            full: false,
            only: vec!["nonsense".into()],
            list: false,
        };
        let Err(error) = choose(&options) else {
            panic!("it was taken")
        };
        assert!(error.to_string().contains("`nonsense`"));
    }

    #[test]
    fn several_stages_are_named_one_by_one_or_as_a_list() {
        #[derive(clap::Parser)]
        struct Test {
            #[command(flatten)]
            options: Options,
        }
        let chosen = |arguments: &[&str]| {
            let arguments = [&["test"], arguments].concat();
            let test = <Test as clap::Parser>::try_parse_from(arguments).unwrap();
            choose(&test.options).map(|stages| stages.iter().map(|it| it.name).collect::<Vec<_>>())
        };
        let one_by_one = chosen(&["--only", "docs", "--only", "deny"]).unwrap();
        assert_eq!(one_by_one, ["deny", "docs"]);
        assert_eq!(chosen(&["--only", "docs,deny"]).unwrap(), one_by_one);
        let error = chosen(&["--only", "docs,nonsense"]).unwrap_err();
        assert!(error.to_string().contains("`nonsense`"), "{error}");
    }

    #[test]
    fn long_stages_run_only_when_asked_for() {
        let names = |all, full, only: &[&str]| -> Vec<&str> {
            let only = only.iter().map(|&name| name.to_owned()).collect();
            let options = Options {
                all,
                full,
                only,
                list: false,
            };
            let chosen = choose(&options).unwrap();
            chosen.iter().map(|stage| stage.name).collect()
        };
        assert!(names(false, false, &[]).contains(&"tests"));
        assert!(!names(false, false, &[]).contains(&"cross"));
        assert!(names(true, false, &[]).contains(&"cross"));
        assert!(!names(true, false, &[]).contains(&"sentinels"));
        assert_eq!(names(false, true, &[]).len(), STAGES.len());
        assert_eq!(names(false, false, &["sentinels"]), ["sentinels"]);
    }
}
