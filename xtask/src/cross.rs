//! The stage that lints the published packages for the other supported systems.

use std::process::Command;

use anyhow::Result;

use crate::stage::{Session, Verdict};
use crate::targets::{Choice, Library, toolchains_for};

/// Clippy over every published library and program, for each target, and the documentation of the targets that have
/// their own. Tests are left out: some of their dependencies do not exist in the browser.
///
/// # Errors
/// When a toolchain was installed and cannot be used.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let toolchains = match toolchains_for(session, &TARGETS)? {
        Choice::Use(toolchains) => toolchains,
        Choice::Skip(reason) => return Ok(Verdict::skipped(reason)),
    };
    let mut verdict = Verdict::passed();
    for (toolchain, targets) in toolchains {
        let mut lint = toolchain.cargo(session, "clippy", &targets, Library::Std);
        verdict.run(select(&mut lint, session).args(["--bins", "--", "-D", "warnings"]))?;
        let with_pages = |target: &&str| DOCUMENTED.contains(target);
        let targets: Vec<_> = targets.into_iter().filter(with_pages).collect();
        if !targets.is_empty() {
            let mut document = toolchain.cargo(session, "doc", &targets, Library::Std);
            document.env("RUSTDOCFLAGS", "-D warnings");
            verdict.run(select(&mut document, session).arg("--no-deps"))?;
        }
    }
    verdict.note = TARGETS.join(", ");
    Ok(verdict)
}

/// The published libraries, with all features.
fn select<'a>(cargo: &'a mut Command, session: &Session) -> &'a mut Command {
    cargo.args(["--lib", "--all-features"]);
    let published = session.workspace.members.iter();
    for package in published.filter(|package| package.is_published()) {
        cargo.args(["-p", &package.name]);
    }
    cargo
}

const TARGETS: [&str; 6] = [
    "aarch64-unknown-linux-gnu",
    "aarch64-apple-darwin",
    "x86_64-apple-darwin",
    "aarch64-apple-ios",
    "x86_64-pc-windows-msvc",
    "wasm32-unknown-unknown",
];

/// The targets whose documentation has items that Linux's does not have.
const DOCUMENTED: [&str; 2] = ["aarch64-apple-darwin", "x86_64-pc-windows-msvc"];
