//! The stages that lint the packages for other systems, and for machines without one.

use std::process::Command;

use anyhow::Result;

use crate::stage::{Session, Verdict};
use crate::targets::{Library, toolchains_for, variable};

/// Clippy over every published library and program, for one target of each other supported system, and the documentation
/// of the targets that have their own. Tests are left out: some of their dependencies do not exist in the browser.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    lint(session, &SYSTEMS)
}

/// The same for further targets of these systems.
pub(crate) fn twins(session: &mut Session) -> Result<Verdict> {
    let mut verdict = lint(session, &TWINS)?;
    lint_bare(session, &BARE_TWINS, &mut verdict)?;
    Ok(verdict)
}

fn lint(session: &mut Session, systems: &[&'static str]) -> Result<Verdict> {
    let toolchains = toolchains_for(session, systems)?;
    let mut verdict = Verdict::passed();
    let select = |cargo: &mut Command| {
        cargo.args(["--lib", "--all-features"]);
        cargo.args(session.workspace.select_published());
    };
    for (toolchain, mut targets) in toolchains {
        let mut lint = toolchain.cargo(session, "clippy", &targets, Library::Std);
        select(&mut lint);
        verdict.run(lint.args(["--bins", "--", "-D", "warnings"]))?;
        targets.retain(|target| DOCUMENTED.contains(target));
        if !targets.is_empty() {
            let mut document = toolchain.cargo(session, "doc", &targets, Library::Std);
            select(&mut document);
            document.env("RUSTDOCFLAGS", "-D warnings");
            verdict.run(document.arg("--no-deps"))?;
        }
    }
    verdict.note = systems.join(", ");
    Ok(verdict)
}

/// Lints the lower packages without their default features for each bare target, links the bare example, and runs it if
/// this machine can.
///
/// The example needs only the processor. It makes a single system call, Linux's exit, so that a Linux machine can run it
/// and read the exit code.
pub(crate) fn no_std(session: &mut Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    lint_bare(session, &BARE, &mut verdict)?;
    Ok(verdict)
}

fn lint_bare(session: &mut Session, bare: &[&'static str], verdict: &mut Verdict) -> Result<()> {
    let note = [&verdict.note[..], &bare.join(", ")].join(" ");
    verdict.note = note.trim_start().to_owned();
    for (toolchain, targets) in toolchains_for(session, bare)? {
        let mut lint = toolchain.cargo(session, "clippy", &targets, Library::Alloc);
        lint.args(LOWER.into_iter().flat_map(|package| ["-p", package]));
        verdict.run(lint.args(["--lib", "--no-default-features", "--", "-D", "warnings"]))?;
        if !targets.contains(&LINKED) {
            continue;
        }
        let mut link = toolchain.cargo(session, "build", &[LINKED], Library::Alloc);
        // Only rustup delivers the target's own linker; the system's works as well.
        link.args(["-p", EXAMPLE])
            .env(variable(LINKED, "LINKER"), "ld");
        let flags = format!("target.{LINKED}.rustflags=[\"-Crelocation-model=static\"]");
        let linked = verdict.run(link.args(["--config", &flags]))?;
        if linked.success() && cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            let folder = session.workspace.target.join("cross").join(LINKED);
            verdict.run(&mut Command::new(folder.join("debug").join(EXAMPLE)))?;
            verdict.note.push_str("; example linked and run");
        }
    }
    Ok(())
}

const SYSTEMS: [&str; 3] = [
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
    "wasm32-unknown-unknown",
];

/// Targets whose code is that of Linux here or of one of [`SYSTEMS`], but for the processor, which another one of these has, and
/// for what iOS lacks.
const TWINS: [&str; 3] = [
    "aarch64-unknown-linux-gnu",
    "x86_64-apple-darwin",
    "aarch64-apple-ios",
];

/// The targets whose documentation has items that Linux's does not have.
const DOCUMENTED: [&str; 2] = ["aarch64-apple-darwin", "x86_64-pc-windows-msvc"];

/// One target with 64-bit atomics, and one without.
const BARE: [&str; 2] = ["x86_64-unknown-none", "thumbv7em-none-eabihf"];

/// Another one without.
const BARE_TWINS: [&str; 1] = ["riscv32imac-unknown-none-elf"];

/// The packages that need no system.
const LOWER: [&str; 3] = ["transload-core", "transload-hal", "transload"];

/// The example in `examples/no_std`.
const EXAMPLE: &str = "transload-no-std-example";

/// The target for which the example is linked.
const LINKED: &str = BARE[0];
