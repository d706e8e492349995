//! Calls of cargo, and what it says of packages.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::files;
use crate::process::output_of;

/// A package, as cargo describes it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) features: BTreeMap<String, Vec<String>>,
    /// The registries that may have it; `None` is all of them.
    pub(crate) publish: Option<Vec<String>>,
}

/// One line of a package's dependency tables.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
}

/// What `cargo metadata` writes.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) target_directory: PathBuf,
}

impl Metadata {
    /// Runs `cargo metadata` in `folder`, with further arguments.
    ///
    /// # Errors
    /// When cargo cannot be run or cannot read a manifest.
    pub(crate) fn read(folder: &Path, arguments: &[&str]) -> Result<Self> {
        let mut cargo = cargo_in(folder);
        cargo.args(["metadata", "--format-version", "1"]);
        let text = output_of(cargo.args(arguments))?;
        serde_json::from_str(&text).context("cargo metadata wrote something unexpected")
    }
}

/// A call of the cargo that started this program, in `folder`, without the variables that `cargo run` set for this
/// program alone.
pub(crate) fn cargo_in(folder: &Path) -> Command {
    call_in(folder, program())
}

/// That cargo.
pub(crate) fn program() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A call of `program` in `folder`, without the variables by which cargo describes this package: the packages that the
/// program is about to build would take them for their own.
pub(crate) fn call_in(folder: &Path, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder);
    let of_package = |name: &str| {
        let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];
        let names = ["CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE", "OUT_DIR"];
        prefixes.iter().any(|prefix| name.starts_with(prefix)) || names.contains(&name)
    };
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(of_package) {
            command.env_remove(name);
        }
    }
    command
}

/// The version of `package` in the lockfile of the workspace in `folder`.
///
/// # Errors
/// When the lockfile cannot be read, or does not have the package.
pub(crate) fn locked_version(folder: &Path, package: &str) -> Result<String> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Locked>,
    }
    #[derive(Deserialize)]
    struct Locked {
        name: String,
        version: String,
    }
    let path = folder.join("Cargo.lock");
    let lock: Lock = toml::from_str(&files::read(&path)?)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let mut packages = lock.package.into_iter();
    let found = packages.find(|locked| locked.name == package);
    let found = found.with_context(|| format!("{} has no {package}", path.display()))?;
    Ok(found.version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn the_runner_is_of_the_version_that_is_locked() {
        let folder = tempfile::tempdir().unwrap();
        let lock = "[[package]]\nname = \"wasm-bindgen-macro\"\nversion = \"1.0.0\"\n\n\
                    [[package]]\nname = \"wasm-bindgen\"\nversion = \"0.2.7\"\n";
        files::write(&folder.path().join("Cargo.lock"), lock).unwrap();
        let version = |package| locked_version(folder.path(), package).ok();
        assert_eq!(version("wasm-bindgen").as_deref(), Some("0.2.7"));
        assert_eq!(version("other"), None);
        assert!(locked_version(&Workspace::load().unwrap().root, "wasm-bindgen").is_ok());
    }
}
