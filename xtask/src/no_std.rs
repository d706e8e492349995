//! The stage that builds the lower crates for machines without an operating
//! system.

use std::process::Command;

use anyhow::Result;

use crate::stage::{Session, Verdict};
use crate::targets::{Choice, Library, Toolchain, toolchains_for};

/// Lints the packages without their default features for each bare target, links the bare example, and runs it if this
/// machine can.
///
/// # Errors
/// When a toolchain was installed and cannot be used.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let toolchains = match toolchains_for(session, &TARGETS)? {
        Choice::Use(toolchains) => toolchains,
        Choice::Skip(reason) => return Ok(Verdict::skipped(reason)),
    };
    let mut verdict = Verdict::passed();
    for (toolchain, targets) in &toolchains {
        let mut lint = toolchain.cargo(session, "clippy", targets, Library::Alloc);
        for package in PACKAGES {
            lint.args(["-p", package]);
        }
        verdict.run(lint.args(["--lib", "--no-default-features", "--", "-D", "warnings"]))?;
    }
    verdict.note = TARGETS.join(", ");
    if session.workspace.member(EXAMPLE).is_some() {
        for (toolchain, targets) in toolchains {
            if targets.contains(&LINKED) {
                example(session, &mut verdict, toolchain)?;
            }
        }
    }
    Ok(verdict)
}

/// Links the example as a program that needs only the processor. It makes a single system call, Linux's exit, so that a
/// Linux machine can run it and read the exit code.
fn example(session: &mut Session, verdict: &mut Verdict, toolchain: Toolchain) -> Result<()> {
    let mut cargo = toolchain.cargo(session, "build", &[LINKED], Library::Alloc);
    cargo.args(["-p", EXAMPLE]);
    // Only rustup delivers the target's own linker; the system's works as well.
    for setting in ["linker=\"ld\"", "rustflags=[\"-Crelocation-model=static\"]"] {
        cargo.args(["--config", &format!("target.{LINKED}.{setting}")]);
    }
    let linked = verdict.run(&mut cargo)?;
    verdict.note.push_str("; example linked");
    if linked.success() && cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        let program = session
            .workspace
            .target
            .join("cross")
            .join(LINKED)
            .join("debug")
            .join(EXAMPLE);
        verdict.run(&mut Command::new(program))?;
        verdict.note.push_str(" and run");
    }
    Ok(())
}

/// One target with 64-bit atomics, and two without, which are the harder ones.
const TARGETS: [&str; 3] = [
    "x86_64-unknown-none",
    "thumbv7em-none-eabihf",
    "riscv32imac-unknown-none-elf",
];

const PACKAGES: [&str; 3] = ["transload-core", "transload-hal", "transload"];

/// The example in `examples/no_std`.
const EXAMPLE: &str = "transload-no-std-example";

/// The target for which the example is linked.
const LINKED: &str = TARGETS[0];
