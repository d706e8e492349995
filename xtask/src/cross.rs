//! The stages that lint the packages for other systems, and for machines without one.

use std::process::Command;

use anyhow::Result;

use crate::stage::{Session, Verdict};
use crate::targets::{Library, toolchains_for, variable};

/// Clippy over every published library and program, for one target of each other supported system. Tests are left out: some
/// of their dependencies do not exist in the browser.
pub(crate) fn stage(session: &Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    lint(session, "clippy", &SYSTEMS, &mut verdict)?;
    Ok(verdict)
}

/// The same for further targets of these systems, and the documentation of the targets that have their own.
pub(crate) fn twins(session: &Session) -> Result<Verdict> {
    provide(session, &[&TWINS, &DOCUMENTED, &BARE_TWINS])?;
    let mut verdict = Verdict::passed();
    lint(session, "clippy", &TWINS, &mut verdict)?;
    lint(session, "doc", &DOCUMENTED, &mut verdict)?;
    lint_bare(session, &BARE_TWINS, &mut verdict)?;
    Ok(verdict)
}

/// Makes sure that all of `targets` can be built for: a stage that has begun must not be skipped.
fn provide(session: &Session, targets: &[&[&str]]) -> Result<()> {
    toolchains_for(session, &targets.concat()).map(|_| ())
}

/// Has `task`, clippy or doc, look at the published packages for `systems`.
fn lint(session: &Session, task: &str, systems: &[&str], verdict: &mut Verdict) -> Result<()> {
    for (toolchain, targets) in toolchains_for(session, systems)? {
        let mut lint = toolchain.cargo(session, task, &targets, Library::Std);
        lint.args(["--lib", "--all-features"])
            .args(session.workspace.select_published());
        match task {
            "doc" => lint.env("RUSTDOCFLAGS", "-D warnings").arg("--no-deps"),
            _ => lint.args(["--bins", "--", "-D", "warnings"]),
        };
        verdict.run(&mut lint)?;
    }
    note(task, systems, verdict);
    Ok(())
}

/// Adds to the note what `task` looked at.
fn note(task: &str, targets: &[&str], verdict: &mut Verdict) {
    if !verdict.note.is_empty() {
        verdict.note.push_str("; ");
    }
    verdict.note += &format!("{task}: {}", targets.join(", "));
}

/// Lints the lower packages without their default features for a bare target, links the bare example for another one, and
/// runs it if this machine can.
///
/// The example needs only the processor. It makes a single system call, Linux's exit, so that a Linux machine can run it
/// and read the exit code.
pub(crate) fn no_std(session: &Session) -> Result<Verdict> {
    provide(session, &[&BARE, &[LINKED]])?;
    let mut verdict = Verdict::passed();
    lint_bare(session, &BARE, &mut verdict)?;
    for (toolchain, targets) in toolchains_for(session, &[LINKED])? {
        let mut link = toolchain.cargo(session, "build", &targets, Library::Alloc);
        // Only rustup delivers the target's own linker; the system's works as well.
        link.args(["-p", EXAMPLE])
            .env(variable(LINKED, "LINKER"), "ld");
        let flags = format!("target.{LINKED}.rustflags=[\"-Crelocation-model=static\"]");
        let linked = verdict.run(link.args(["--config", &flags]))?;
        note("build", &[LINKED], &mut verdict);
        if linked.success() && cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            let folder = session.workspace.target.join("cross").join(LINKED);
            verdict.run(&mut Command::new(folder.join("debug").join(EXAMPLE)))?;
            verdict.note.push_str(", run");
        }
    }
    Ok(verdict)
}

fn lint_bare(session: &Session, bare: &[&str], verdict: &mut Verdict) -> Result<()> {
    note("clippy", bare, verdict);
    for (toolchain, targets) in toolchains_for(session, bare)? {
        let mut lint = toolchain.cargo(session, "clippy", &targets, Library::Alloc);
        lint.args(LOWER.into_iter().flat_map(|package| ["-p", package]));
        verdict.run(lint.args(["--lib", "--no-default-features", "--", "-D", "warnings"]))?;
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

/// A target without 64-bit atomics.
const BARE: [&str; 1] = ["thumbv7em-none-eabihf"];

/// Another one without, and the one for which the example is linked.
const BARE_TWINS: [&str; 2] = ["riscv32imac-unknown-none-elf", LINKED];

/// The packages that need no system.
const LOWER: [&str; 3] = ["transload-core", "transload-hal", "transload"];

/// The example in `examples/no_std`.
const EXAMPLE: &str = "transload-no-std-example";

/// A target with 64-bit atomics, for which the example is linked.
const LINKED: &str = "x86_64-unknown-none";
