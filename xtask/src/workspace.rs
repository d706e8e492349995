//! The path of the project and its packages, from cargo.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::doubles::bindings;
use crate::files;
use crate::process::output_of;

/// The project on disk: its root folder, its target folder, its packages.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    /// Folder of the workspace manifest.
    pub(crate) root: PathBuf,
    /// Cargo's target folder (`CARGO_TARGET_DIR` counts).
    pub(crate) target: PathBuf,
    /// The workspace's members, in cargo's order.
    pub(crate) members: Vec<Package>,
    /// The path of the main workspace, if this is the double of Metal: its bindings are patched.
    pub(crate) patched_for: Option<PathBuf>,
}

/// A package, as cargo describes it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) features: BTreeMap<String, Vec<String>>,
    /// The registries that may have it; `None` is all of them.
    publish: Option<Vec<String>>,
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
    target_directory: PathBuf,
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

impl Workspace {
    /// Asks cargo about the project that this program was started from.
    pub(crate) fn load() -> Result<Self> {
        let package = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = package.parent();
        Self::at(root.context("the xtask package has no folder above it")?)
    }

    fn at(root: &Path) -> Result<Self> {
        let metadata = Metadata::read(root, &["--no-deps"])?;
        Ok(Self {
            root: root.to_path_buf(),
            target: metadata.target_directory,
            members: metadata.packages,
            patched_for: None,
        })
    }

    /// The other workspaces of the tree, sorted: the stand-ins for hardware, and checks whose features exclude each
    /// other, which share no build with the published packages. Each has a target folder of its own below this one's.
    pub(crate) fn others(&self) -> Result<Vec<Self>> {
        let mut folders = files::entries(&self.root.join(DOUBLES))?;
        folders.push(self.root.join(VERSIONS));
        folders.retain(|folder| folder.join("Cargo.toml").is_file());
        folders.sort();
        folders.iter().map(|folder| self.other(folder)).collect()
    }

    /// The workspace in `folder`, with its target folder below this one's.
    pub(crate) fn other(&self, folder: &Path) -> Result<Self> {
        let mut other = Self::at(folder)?;
        other.target = self.target.join(self.relative(folder));
        if self.relative(folder) == Path::new(METAL) {
            other.patched_for = Some(self.root.clone());
        }
        Ok(other)
    }

    /// A cargo call that runs in the root folder.
    pub(crate) fn cargo(&self) -> Command {
        self.call(cargo())
    }

    /// The same for a cargo task that resolves dependencies, with the arguments that this workspace needs.
    pub(crate) fn task(&self, name: &str) -> Result<Command> {
        let mut cargo = self.cargo();
        cargo.arg(name).args(self.arguments()?);
        Ok(cargo)
    }

    /// The arguments after every task that resolves dependencies.
    ///
    /// # Errors
    /// When patched sources that it names are not there and cannot be made.
    pub(crate) fn arguments(&self) -> Result<Vec<OsString>> {
        match &self.patched_for {
            Some(main) => Ok(bindings::arguments(main, &self.target)?.into()),
            None => Ok(Vec::new()),
        }
    }

    /// The same of `program`, which builds with cargo.
    pub(crate) fn call(&self, program: impl AsRef<OsStr>) -> Command {
        let mut call = call_in(&self.root, program);
        call.env("CARGO_TARGET_DIR", &self.target);
        call
    }

    /// `path` relative to the root folder.
    pub(crate) fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }

    /// The members that a registry may have.
    pub(crate) fn published(&self) -> impl Iterator<Item = &Package> {
        let members = self.members.iter();
        members.filter(|member| member.publish.is_none())
    }

    /// The arguments that select these members.
    pub(crate) fn select_published(&self) -> impl Iterator<Item = &str> {
        self.published().flat_map(|member| ["-p", &member.name])
    }
}

/// A call of the cargo that started this program, in `folder`, without the variables that `cargo run` set for this
/// program alone.
pub(crate) fn cargo_in(folder: &Path) -> Command {
    call_in(folder, cargo())
}

fn cargo() -> OsString {
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

/// The folder of the workspaces that stand in for hardware.
pub(crate) const DOUBLES: &str = "doubles";

/// The double of Metal, whose bindings are patched.
pub(crate) const METAL: &str = "doubles/metal";

/// The workspace that compares our binding of the CUDA driver with another one.
pub(crate) const VERSIONS: &str = "crates/backends/cuda/versions";

#[cfg(test)]
mod tests {
    use super::*;

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
