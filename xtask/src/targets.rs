//! The toolchain for a target that is not this machine.
//!
//! Two ways: the target's standard library is installed through rustup; or
//! Debian's own toolchain, which ships the library's sources, builds it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::call_in;
use crate::install::{Absent, or_absent};
use crate::process::{first_line, output_of};
use crate::stage::Session;

/// A way to build for a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Toolchain {
    /// The toolchain in use, with the target installed.
    Installed,
    /// Debian's toolchain, which builds the standard library, too.
    Debian,
}

/// The part of the standard library that the code needs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Library {
    /// `core` and `alloc`.
    Alloc,
    /// All of it.
    Std,
}

/// Finds a toolchain for each of `targets`, and installs one where that is allowed. Returns each target once, beside
/// the way to build for it.
///
/// # Errors
/// [`Absent`] when a target cannot be built for here. Another error when installing was tried and what it gave is not
/// usable.
pub(crate) fn toolchains_for<'a>(
    session: &Session,
    targets: &[&'a str],
) -> Result<Vec<(Toolchain, Vec<&'a str>)>> {
    let installed = output_of(Command::new("rustup").args(["target", "list", "--installed"]));
    let installed = installed.unwrap_or_default();
    let (ready, others): (Vec<&str>, Vec<&str>) = targets
        .iter()
        .partition(|target| installed.lines().any(|line| line == **target));
    for target in &ready {
        session.note_found(format!("standard library for {target} (rustup)"));
    }
    if let Some(target) = others.first()
        && let Err(reason) = or_absent(provide_debian(session))?
    {
        bail!(Absent(format!(
            "no standard library for {target}: `rustup target add {target}`, or: {reason}"
        )));
    }
    let toolchains = [(Toolchain::Installed, ready), (Toolchain::Debian, others)];
    let used = |(_, targets): &(_, Vec<_>)| !targets.is_empty();
    Ok(toolchains.into_iter().filter(used).collect())
}

/// Installs Debian's toolchain, where it is missing and this run may.
pub(crate) fn provide_debian(session: &Session) -> Result<()> {
    session.installer().require(&DEBIAN_PACKAGES)?;
    let mut cargo = debian_toolchain(session, &session.workspace.root);
    let version = first_line(cargo.arg("--version")).with_context(|| {
        let packages = DEBIAN_PACKAGES.join(", ");
        format!("the packages {packages} are installed, but {DEBIAN_CARGO} does not run")
    })?;
    session.note_found(format!("{version} (Debian)"));
    Ok(())
}

impl Toolchain {
    /// `cargo TASK --target TARGET ...`, with the arguments for building the library.
    pub(crate) fn cargo(
        self,
        session: &Session,
        task: &str,
        targets: &[&str],
        library: Library,
    ) -> Command {
        let mut cargo = match self {
            Self::Installed => session.workspace.cargo(),
            Self::Debian => debian_toolchain(session, &session.workspace.root),
        };
        cargo
            .env("CARGO_TARGET_DIR", session.workspace.target.join("cross"))
            .arg(task)
            .args(targets.iter().flat_map(|target| ["--target", target]));
        if self == Self::Debian {
            cargo.arg(match library {
                Library::Alloc => "-Zbuild-std=core,alloc",
                Library::Std => "-Zbuild-std=std,panic_abort",
            });
        }
        cargo
    }
}

/// Debian's cargo in `folder`, separate from rustup's: with the usual cargo home on the path it would pick rustup's
/// clippy, and with rustup's library path its compiler.
pub(crate) fn debian_toolchain(session: &Session, folder: &Path) -> Command {
    let mut cargo = call_in(folder, DEBIAN_CARGO);
    let of_rustup = ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"];
    for name in of_rustup
        .into_iter()
        .chain(["RUSTFLAGS", "LD_LIBRARY_PATH"])
    {
        cargo.env_remove(name);
    }
    let home = session.workspace.target.join("cross-cargo-home");
    cargo.env("PATH", "/usr/bin:/bin").env("CARGO_HOME", home);
    // Building the standard library is an unstable feature of cargo.
    cargo.env("RUSTC_BOOTSTRAP", "1");
    cargo
}

/// Cargo's name of the environment variable for a setting of a target.
pub(crate) fn variable(target: &str, setting: &str) -> String {
    let target = target.to_uppercase().replace('-', "_");
    format!("CARGO_TARGET_{target}_{setting}")
}

const DEBIAN_CARGO: &str = "/usr/bin/cargo";

/// Where Debian's toolchain keeps the sources of the standard library.
pub(crate) const DEBIAN_SOURCES: &str = "/usr/lib/rustlib/src";

/// Debian's newest toolchain, its clippy, and the standard library's sources.
const DEBIAN_PACKAGES: [&str; 4] = ["rustc-web", "cargo-web", "rust-web-src", "rust-web-clippy"];
