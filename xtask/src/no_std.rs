//! The stage that builds the lower crates for machines without an operating
//! system.

use anyhow::Result;

use crate::stage::{Session, Verdict};
use crate::targets::{Choice, Library, toolchains_for};

/// Builds the packages without their default features for each bare target.
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
        for package in PACKAGES {
            let mut cargo = toolchain.cargo(session, "build", target, Library::Alloc);
            cargo.args(["-p", package, "--lib", "--no-default-features"]);
            verdict.run(&mut cargo)?;
        }
    }
    verdict.note = TARGETS.join(", ");
    Ok(verdict)
}

/// One with 64-bit atomics, one without: the second is the harder.
const TARGETS: [&str; 2] = ["x86_64-unknown-none", "thumbv7em-none-eabihf"];

const PACKAGES: [&str; 3] = ["transload-core", "transload-hal", "transload"];
