//! The stages that run tests.

use std::env;
use std::process::Command;

use anyhow::Result;

use crate::doubles::{self, Double, Profile};
use crate::runner;
use crate::skips::Skips;
use crate::stage::{Outcome, Session, Tier, Verdict};
use crate::vulkan::Drivers;
use crate::workspace::Package;

/// Unit and integration tests of every package, with all features: over lavapipe, and with `--all` over both drivers.
///
/// # Errors
/// When cargo cannot be started.
pub(crate) fn tests(session: &mut Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let mut runner = runner::tests(&session.workspace)?;
    let skips = Skips::new(&session.workspace.target, "tests")?;
    skips.tell(&mut runner);
    let both = session.tier > Tier::Quick;
    let drivers = Drivers::provide(&mut session.installer, &session.workspace.target, both)?;
    drivers.tell(&mut runner);
    for found in drivers.found() {
        session.found(found);
    }
    session.skipped.extend(drivers.absent().iter().cloned());
    verdict.run_tests(runner.args(["--workspace", "--all-features", "--tests"]))?;
    session.skipped.extend(skips.settle(&mut verdict.counts)?);
    Ok(verdict)
}

/// The same tests with many more cases for each property. Only properties
/// that keep proptest's own number of cases follow this variable.
///
/// # Errors
/// As [`tests`].
pub(crate) fn properties(session: &mut Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let mut runner = runner::tests(&session.workspace)?;
    // The stage with the usual number of cases has already reported the skipped tests.
    let skips = Skips::new(&session.workspace.target, "properties")?;
    skips.tell(&mut runner);
    Drivers::provide(&mut session.installer, &session.workspace.target, true)?.tell(&mut runner);
    runner
        .env("PROPTEST_CASES", PROPERTY_CASES)
        .env("EXPLORE", "full")
        .args(["--workspace", "--all-features", "--tests"]);
    verdict.run_tests(&mut runner)?;
    skips.settle(&mut verdict.counts)?;
    verdict.note = format!("{PROPERTY_CASES} cases per property");
    Ok(verdict)
}

/// The examples in the documentation, those of the guide over the same adapters as [`tests`] and the double of CUDA's
/// driver.
///
/// # Errors
/// As [`tests`], and when the double does not build.
pub(crate) fn doctests(session: &mut Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let mut cargo = session.workspace.cargo();
    let skips = Skips::new(&session.workspace.target, "doctests")?;
    skips.tell(&mut cargo);
    let both = session.tier > Tier::Quick;
    Drivers::provide(&mut session.installer, &session.workspace.target, both)?.tell(&mut cargo);
    if doubles::unusable().is_none() {
        let driver = Double::cuda_driver(&session.workspace)?.build(Profile::Debug)?;
        cargo.env("TRANSLOAD_CUDA_DRIVER", driver);
    }
    cargo.args([
        "test",
        "--doc",
        "--workspace",
        "--all-features",
        "--no-fail-fast",
    ]);
    verdict.run_tests(&mut cargo)?;
    session.skipped.extend(skips.settle(&mut verdict.counts)?);
    Ok(verdict)
}

/// The unit tests in modules called `loom_tests`, built with `--cfg loom`:
/// loom tries every interleaving that its memory model allows.
///
/// # Errors
/// When cargo cannot be started.
pub(crate) fn loom(session: &mut Session) -> Result<Verdict> {
    let uses_loom = |package: &&Package| {
        let mut dependencies = package.dependencies.iter();
        dependencies.any(|dependency| dependency.name == "loom")
    };
    let packages = session.workspace.members.iter().filter(uses_loom);
    let packages: Vec<String> = packages.map(|package| package.name.clone()).collect();
    if packages.is_empty() {
        return Ok(Verdict::skipped("no loom tests"));
    }
    let mut verdict = Verdict::passed();
    for package in packages {
        let mut cargo = cargo_with_cfg(session, "loom");
        // The search runs for seconds: a slower build would not be won back.
        cargo
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        cargo.args(["test", "--release", "--lib", "--no-fail-fast"]);
        cargo.args(["-p", &package, "loom_tests::"]);
        let finished = verdict.run_tests(&mut cargo)?;
        if finished.success() && crate::counts::Counts::read(&finished.output).ran() == 0 {
            verdict.fail(&format!("{package} ran no test under --cfg loom"));
        }
    }
    Ok(verdict)
}

/// The tests of the library and the testkit in the single-threaded build,
/// where backends and buffers need not be `Send`.
///
/// # Errors
/// When cargo cannot be started.
pub(crate) fn local(session: &mut Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let mut cargo = cargo_with_cfg(session, "transload_local");
    cargo.args([
        "test",
        "-p",
        "transload",
        "-p",
        "transload-testkit",
        "--no-fail-fast",
    ]);
    verdict.run_tests(&mut cargo)?;
    if verdict.outcome == Outcome::Passed && verdict.counts.ran() == 0 {
        return Ok(Verdict::skipped("it builds; no tests for it"));
    }
    Ok(verdict)
}

/// A cargo call whose code is built with `--cfg name`, in a target folder of its own: the flag would rebuild everything
/// in the shared one.
fn cargo_with_cfg(session: &Session, name: &str) -> Command {
    let mut cargo = session.workspace.cargo();
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    cargo
        .env("RUSTFLAGS", format!("{flags} --cfg {name}").trim_start())
        .env("CARGO_TARGET_DIR", session.workspace.target.join(name));
    cargo
}

/// Sixteen times proptest's own 256: about the count at which the boundary
/// sizes meet each other in pairs.
const PROPERTY_CASES: &str = "4096";
