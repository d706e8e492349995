//! The project on disk: its folders and its packages.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::{self, Metadata, Package, call_in};
use crate::doubles::bindings::{self, METAL};
use crate::files;

/// A workspace: its root folder, its target folder, its packages.
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
    /// other. Each but the double of Metal has a target folder of its own below this one's.
    pub(crate) fn others(&self) -> Result<Vec<Self>> {
        let mut folders = files::entries(&self.root.join(DOUBLES))?;
        folders.push(self.root.join(VERSIONS));
        self.found(folders)
    }

    /// The workspaces of adapters for frameworks, sorted. `cargo xtask integrations` builds them: frameworks take minutes.
    pub(crate) fn integrations(&self) -> Result<Vec<Self>> {
        self.found(files::entries(&self.root.join(INTEGRATIONS))?)
    }

    /// The Python package's workspace.
    pub(crate) fn python(&self) -> Result<Self> {
        self.other(&self.root.join("python"))
    }

    /// The workspaces that no quick stage builds: adapters for frameworks, and the Python package.
    pub(crate) fn apart(&self) -> Result<Vec<Self>> {
        let mut apart = self.integrations()?;
        apart.push(self.python()?);
        Ok(apart)
    }

    /// The workspaces of those folders that are one.
    fn found(&self, mut folders: Vec<PathBuf>) -> Result<Vec<Self>> {
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
            // It builds many packages of this one in the same way, and leaves nothing there that a loader would find.
            other.target.clone_from(&self.target);
        }
        Ok(other)
    }

    /// A cargo call that runs in the root folder.
    pub(crate) fn cargo(&self) -> Command {
        self.call(cargo::program())
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

/// The folder of the workspaces that stand in for hardware.
pub(crate) const DOUBLES: &str = "doubles";

/// The folder of the adapters for frameworks.
const INTEGRATIONS: &str = "integrations";

/// The workspace that compares our binding of the CUDA driver with another one.
pub(crate) const VERSIONS: &str = "crates/backends/cuda/versions";
