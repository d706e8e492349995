//! The stage that builds the lower crates for machines without an operating
//! system.

use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use crate::process::seconds;
use crate::stage::{Session, Verdict};
use crate::targets::{Choice, Library, Toolchain, toolchains_for};

/// Lints the packages without their default features for each bare target,
/// links the bare example, and runs it where this machine can.
///
/// # Errors
/// When a toolchain was installed and cannot be used.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let toolchains = match toolchains_for(session, &TARGETS)? {
        Choice::Use(toolchains) => toolchains,
        Choice::Skip(reason) => return Ok(Verdict::skipped(reason)),
    };
    let mut verdict = Verdict::passed();
    let mut notes = Vec::new();
    for &(target, toolchain) in &toolchains {
        let start = Instant::now();
        let mut cargo = toolchain.cargo(session, "clippy", target, Library::Alloc);
        for package in PACKAGES {
            cargo.args(["-p", package]);
        }
        cargo.args(["--lib", "--no-default-features", "--", "-D", "warnings"]);
        if verdict.run(&mut cargo)?.success() {
            session.support.saw(target, "linted, warnings denied");
        }
        notes.push(format!("{target} {}", seconds(start.elapsed())));
    }
    verdict.note = notes.join(", ");
    if session.workspace.member(EXAMPLE).is_some() {
        for &(target, toolchain) in toolchains.iter().filter(|(target, _)| *target == LINKED) {
            example(session, &mut verdict, target, toolchain)?;
        }
    }
    Ok(verdict)
}

/// Links the example as a program that nothing but the processor is needed
/// for. Its only contact with the world is Linux's system call to exit, so
/// that a Linux machine can run it and read the code.
fn example(
    session: &mut Session,
    verdict: &mut Verdict,
    target: &str,
    toolchain: Toolchain,
) -> Result<()> {
    let mut cargo = toolchain.cargo(session, "build", target, Library::Alloc);
    cargo.args(["-p", EXAMPLE]);
    // The target's own linker comes with rustup only; the system's does as well.
    for setting in ["linker=\"ld\"", "rustflags=[\"-Crelocation-model=static\"]"] {
        cargo.args(["--config", &format!("target.{target}.{setting}")]);
    }
    let linked = verdict.run(&mut cargo)?;
    verdict.note.push_str("; example linked");
    if linked.success() && cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        let program = session
            .workspace
            .target
            .join("cross")
            .join(target)
            .join("debug")
            .join(EXAMPLE);
        verdict.run(&mut Command::new(program))?;
        verdict.note.push_str(" and run");
        session.support.saw(LINKED, "an example linked and run");
    }
    Ok(())
}

/// One with 64-bit atomics, two without: these are the harder ones.
pub(crate) const TARGETS: [&str; 3] = [
    "x86_64-unknown-none",
    "thumbv7em-none-eabihf",
    "riscv32imac-unknown-none-elf",
];

const PACKAGES: [&str; 3] = ["transload-core", "transload-hal", "transload"];

/// The example in `examples/no_std`.
const EXAMPLE: &str = "transload-no-std-example";

/// The target for which the example is linked.
const LINKED: &str = TARGETS[0];
