//! The path of the project and its packages, from cargo.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::doubles::bindings;

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

/// One member of the workspace.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    /// The registries that may have it; `None` is all of them.
    publish: Option<Vec<String>>,
}

/// One line of a member's dependency tables.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
}

impl Package {
    /// Whether a registry may have it.
    pub(crate) fn is_published(&self) -> bool {
        self.publish.is_none()
    }
}

impl Workspace {
    /// Asks cargo about the project that this program was started from.
    ///
    /// # Errors
    /// When cargo cannot be run or cannot read a manifest.
    pub(crate) fn load() -> Result<Self> {
        let package = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = package
            .parent()
            .context("the xtask package has no folder above it")?;
        Self::at(root)
    }

    /// Asks cargo about the project at `root`.
    ///
    /// # Errors
    /// As [`Workspace::load`].
    pub(crate) fn at(root: &Path) -> Result<Self> {
        let output = cargo_in(root)
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo metadata")?;
        ensure!(output.status.success(), "cargo metadata failed");
        let metadata: Metadata = serde_json::from_slice(&output.stdout)
            .context("cargo metadata wrote something unexpected")?;
        Ok(Self {
            root: root.to_path_buf(),
            target: metadata.target_directory,
            members: metadata.packages,
            patched_for: None,
        })
    }

    /// The other workspaces of the tree, sorted: the stand-ins for hardware, and checks whose features exclude each
    /// other, which share no build with the published packages. Each has a target folder of its own below this one's.
    ///
    /// # Errors
    /// As [`Workspace::load`].
    pub(crate) fn others(&self) -> Result<Vec<Self>> {
        let mut folders = Vec::new();
        for entry in fs::read_dir(self.root.join(DOUBLES)).context("cannot list the doubles")? {
            folders.push(entry?.path());
        }
        folders.push(self.root.join(VERSIONS));
        folders.retain(|folder| folder.join("Cargo.toml").is_file());
        folders.sort();
        folders.iter().map(|folder| self.other(folder)).collect()
    }

    /// The workspace in `folder`, with its target folder below this one's.
    ///
    /// # Errors
    /// As [`Workspace::load`].
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
    ///
    /// # Errors
    /// As [`Workspace::arguments`].
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

    /// The member called `name`.
    pub(crate) fn member(&self, name: &str) -> Option<&Package> {
        self.members.iter().find(|package| package.name == name)
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

/// The same of `program`.
fn call_in(folder: &Path, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder);
    forget_outer_cargo(&mut command);
    command
}

/// Removes from `command` the variables by which cargo describes this package: the packages that it is about to build
/// would take them for their own.
pub(crate) fn forget_outer_cargo(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        let of_package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"]
            .iter()
            .any(|prefix| text.starts_with(prefix));
        if of_package
            || matches!(
                text,
                "CARGO_CRATE_NAME" | "CARGO_PRIMARY_PACKAGE" | "OUT_DIR"
            )
        {
            command.env_remove(&name);
        }
    }
}

/// The folder of the workspaces that stand in for hardware.
pub(crate) const DOUBLES: &str = "doubles";

/// The double of Metal, whose bindings are patched.
pub(crate) const METAL: &str = "doubles/metal";

/// The workspace that compares our binding of the CUDA driver with another one.
pub(crate) const VERSIONS: &str = "crates/backends/cuda/versions";

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
}
