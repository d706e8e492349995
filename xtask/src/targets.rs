//! The toolchain for a target that is not this machine.
//!
//! Two ways: the target's standard library is installed through rustup; or
//! Debian's own toolchain, which ships the library's sources, builds it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::checks::first_line;
use crate::install::Provision;
use crate::stage::Session;
use crate::workspace::forget_outer_cargo;

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

/// The result of [`toolchains_for`].
#[derive(Debug)]
pub(crate) enum Choice {
    /// Each target once, beside the way to build for it.
    Use(Vec<(Toolchain, Vec<&'static str>)>),
    /// At least one target cannot be built for here, for this reason.
    Skip(String),
}

/// Finds a toolchain for each of `targets`, and installs one where that is
/// allowed.
///
/// # Errors
/// When installing was tried and what it gave is not usable.
pub(crate) fn toolchains_for(session: &mut Session, targets: &[&'static str]) -> Result<Choice> {
    let mut toolchains: Vec<(Toolchain, Vec<&'static str>)> = Vec::new();
    for &target in targets {
        match toolchain_for(session, target)? {
            Err(reason) => return Ok(Choice::Skip(reason)),
            Ok(toolchain) => match toolchains.iter_mut().find(|(other, _)| *other == toolchain) {
                Some((_, targets)) => targets.push(target),
                None => toolchains.push((toolchain, vec![target])),
            },
        }
    }
    Ok(Choice::Use(toolchains))
}

/// The toolchain for one target, or the reason why there is none.
fn toolchain_for(session: &mut Session, target: &str) -> Result<Result<Toolchain, String>> {
    if is_installed(target) {
        session.found(format!("standard library for {target} (rustup)"));
        return Ok(Ok(Toolchain::Installed));
    }
    Ok(match provide_debian(session)? {
        Provision::Unavailable(reason) => Err(format!(
            "no standard library for {target}: `rustup target add {target}`, or: {reason}"
        )),
        Provision::Ready => Ok(Toolchain::Debian),
    })
}

/// Installs Debian's toolchain, where it is missing and this run may.
///
/// # Errors
/// When installing was tried and what it gave is not usable.
pub(crate) fn provide_debian(session: &mut Session) -> Result<Provision> {
    let provision = session.installer.require(&DEBIAN_PACKAGES)?;
    if provision == Provision::Ready {
        let mut cargo = debian_toolchain(session, &session.workspace.root);
        let version = first_line(cargo.arg("--version"));
        ensure!(
            version.is_some(),
            "the packages {} are installed, but {DEBIAN_CARGO} does not run",
            DEBIAN_PACKAGES.join(", ")
        );
        session.found(format!("{} (Debian)", version.unwrap_or_default()));
    }
    Ok(provision)
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
            .arg(task);
        for target in targets {
            cargo.args(["--target", target]);
        }
        if self == Self::Debian {
            cargo.arg(match library {
                Library::Alloc => "-Zbuild-std=core,alloc",
                Library::Std => "-Zbuild-std=std,panic_abort",
            });
        }
        cargo
    }
}

fn is_installed(target: &str) -> bool {
    let list = Command::new("rustup")
        .args(["target", "list", "--installed"])
        .output();
    list.is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .any(|line| line == target)
    })
}

/// Debian's cargo in `folder`, separate from rustup's: with the usual cargo home on the path it would pick rustup's
/// clippy, and with rustup's library path its compiler.
pub(crate) fn debian_toolchain(session: &Session, folder: &Path) -> Command {
    let mut cargo = Command::new(DEBIAN_CARGO);
    cargo.current_dir(folder);
    forget_outer_cargo(&mut cargo);
    for name in [
        "CARGO",
        "RUSTC",
        "RUSTDOC",
        "RUSTUP_TOOLCHAIN",
        "RUSTFLAGS",
        "LD_LIBRARY_PATH",
    ] {
        cargo.env_remove(name);
    }
    cargo
        .env("PATH", "/usr/bin:/bin")
        .env("CARGO_HOME", cargo_home(session))
        // Building the standard library is an unstable feature of cargo.
        .env("RUSTC_BOOTSTRAP", "1");
    cargo
}

fn cargo_home(session: &Session) -> PathBuf {
    session.workspace.target.join("cross-cargo-home")
}

const DEBIAN_CARGO: &str = "/usr/bin/cargo";

/// Where Debian's toolchain keeps the sources of the standard library.
pub(crate) const DEBIAN_SOURCES: &str = "/usr/lib/rustlib/src";

/// Debian's newest toolchain, its clippy, and the standard library's sources.
const DEBIAN_PACKAGES: [&str; 4] = ["rustc-web", "cargo-web", "rust-web-src", "rust-web-clippy"];
