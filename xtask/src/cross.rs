//! The stage that lints everything for the other systems that are promised.

use anyhow::Result;

use crate::stage::{Session, Verdict};
use crate::targets::{Choice, Library, toolchains_for};

/// Clippy over every library and program, for each target. Tests are left
/// out: what they depend on does not all exist in the browser.
///
/// # Errors
/// When a toolchain was installed and cannot be used.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let toolchains = match toolchains_for(session, &TARGETS)? {
        Choice::Use(toolchains) => toolchains,
        Choice::Skip(reason) => return Ok(Verdict::skipped(reason)),
    };
    let mut verdict = Verdict::passed();
    for (target, toolchain) in toolchains {
        let mut cargo = toolchain.cargo(session, "clippy", target, Library::Std);
        cargo
            .args(["--workspace", "--lib", "--bins", "--all-features"])
            .args(["--", "-D", "warnings"]);
        verdict.run(&mut cargo)?;
    }
    verdict.note = TARGETS.join(", ");
    Ok(verdict)
}

const TARGETS: [&str; 3] = [
    "wasm32-unknown-unknown",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
];
