//! The stages that run the tests of the main workspace.

use std::env;
use std::process::Command;

use anyhow::Result;

use crate::cargo::Package;
use crate::doubles::{self, Double, Profile};
use crate::install::or_absent;
use crate::runner;
use crate::stage::{Session, Verdict};
use crate::vulkan::Drivers;

/// Unit and integration tests of every package, with all features.
pub(crate) fn tests(session: &Session) -> Result<Verdict> {
    all_tests(session, &[])
}

/// The same tests with many more cases for each property that keeps proptest's own number of cases.
pub(crate) fn properties(session: &Session) -> Result<Verdict> {
    let more = [("PROPTEST_CASES", PROPERTY_CASES), ("EXPLORE", "full")];
    let mut verdict = all_tests(session, &more)?;
    verdict.note = format!("{PROPERTY_CASES} cases per property");
    Ok(verdict)
}

fn all_tests(session: &Session, variables: &[(&str, &str)]) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let mut tests = runner::tests(&session.workspace)?;
    tests.envs(variables.iter().copied());
    tests.args(["--workspace", "--all-features", "--tests"]);
    drivers(session)?.tell(&mut tests);
    let packages = ["iproute2", "libucx0", "nftables"];
    if let Err(absent) = or_absent(session.installer().require(&packages))? {
        session.skip(absent.to_string());
    }
    session.run_tests(&mut verdict, &mut tests)?;
    Ok(verdict)
}

/// Both of Vulkan's drivers, told in the closing summary.
pub(crate) fn drivers(session: &Session) -> Result<Drivers> {
    let target = &session.workspace.target;
    let drivers = Drivers::provide(&mut session.installer(), target)?;
    for found in drivers.found() {
        session.note_found(found);
    }
    for absent in drivers.absent() {
        session.skip(absent);
    }
    Ok(drivers)
}

/// The examples in the documentation, those of the guide over the same adapters as [`tests`] and the double of CUDA's
/// driver.
pub(crate) fn doctests(session: &Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let mut cargo = session.workspace.task("test")?;
    cargo.args(["--doc", "--workspace", "--all-features", "--no-fail-fast"]);
    drivers(session)?.tell(&mut cargo);
    if doubles::must_be_usable().is_ok() {
        let driver = Double::cuda_driver(&session.workspace)?.build(Profile::Debug)?;
        cargo.env("TRANSLOAD_CUDA_DRIVER", driver);
    }
    session.run_tests(&mut verdict, &mut cargo)?;
    Ok(verdict)
}

/// The unit tests in modules `loom_tests`, with `--cfg loom`, which tries every interleaving that its model allows.
pub(crate) fn loom(session: &Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let has_loom = |package: &&Package| package.dependencies.iter().any(|of| of.name == "loom");
    for package in session.workspace.members.iter().filter(has_loom) {
        let mut cargo = test_with_cfg(session, "loom");
        // The search runs for seconds: a slower build would not be won back, and one without optimisation would lose more.
        cargo
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            .args(["--release", "--lib", "-p", &package.name, "loom_tests::"]);
        verdict.run_tests(&mut cargo)?;
    }
    if verdict.transcript.is_empty() {
        verdict.fail("no package has loom tests");
    }
    Ok(verdict)
}

/// The single-threaded build, where backends and buffers need not be `Send`: the tests of what is different there, the
/// conformance suite, and random operations.
pub(crate) fn local(session: &Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let mut cargo = test_with_cfg(session, "transload_local");
    cargo.args(["-p", "transload", "-p", "transload-testkit", "--tests"]);
    verdict.run_tests(cargo.args(["--", "local::", "conform", "model"]))?;
    Ok(verdict)
}

/// `cargo test` of code built with `--cfg name`, in a target folder of its own: the flag rebuilds everything.
fn test_with_cfg(session: &Session, name: &str) -> Command {
    let mut cargo = session.workspace.cargo();
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    cargo
        .env("RUSTFLAGS", format!("{flags} --cfg {name}").trim_start())
        .env("CARGO_TARGET_DIR", session.workspace.target.join(name))
        .args(["test", "--no-fail-fast"]);
    cargo
}

/// Sixteen times proptest's own 256: about the count at which the boundary
/// sizes meet each other in pairs.
const PROPERTY_CASES: &str = "4096";
