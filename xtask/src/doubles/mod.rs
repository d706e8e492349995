//! `cargo xtask doubles`: builds the stand-ins for hardware, and prints their paths.

pub(crate) mod bindings;
mod calls;
mod stage;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;

pub(crate) use self::calls::{Calls, stage as calls};
pub(crate) use self::stage::stage;
use crate::workspace::{DOUBLES, Workspace};

/// How to build the doubles.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// With optimisation
    #[arg(long)]
    release: bool,
}

/// Prints `NAME: PATH` for each double, and nothing else to standard output. The path is that of the library if clients
/// load the double, or the argument for cargo (`--config PATH`) if they link it.
///
/// # Errors
/// When one does not build.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    for double in Double::all(workspace)? {
        let path = double.build(options.profile())?;
        println!("{}: {}", double.name, path.display());
    }
    Ok(true)
}

/// A stand-in for a driver or a framework: a workspace of its own.
#[derive(Debug)]
pub(crate) struct Double {
    /// The name of its folder.
    pub(crate) name: &'static str,
    /// The file name by which clients of the real one ask a loader for it. `None` if they link it.
    library: Option<&'static str>,
    pub(crate) workspace: Workspace,
}

/// How it is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Debug,
    Release,
}

impl Double {
    /// Every folder of `doubles/`.
    ///
    /// # Errors
    /// When one is there that the table does not know, or cargo cannot read one.
    pub(crate) fn all(main: &Workspace) -> Result<Vec<Self>> {
        let mut doubles = Vec::new();
        for workspace in main.others()? {
            let Ok(folder) = workspace.root.strip_prefix(main.root.join(DOUBLES)) else {
                continue;
            };
            let known = LIBRARIES.iter().find(|(name, _)| Path::new(name) == folder);
            let (name, library) = known.with_context(|| {
                format!(
                    "the double `{}` has no file name for its library (xtask/src/doubles): give it one",
                    folder.display()
                )
            })?;
            doubles.push(Self {
                name,
                library: *library,
                workspace,
            });
        }
        Ok(doubles)
    }

    /// NVIDIA's driver.
    ///
    /// # Errors
    /// As [`Double::all`].
    pub(crate) fn cuda_driver(main: &Workspace) -> Result<Self> {
        let mut doubles = Self::all(main)?.into_iter();
        let found = doubles.find(|double| double.name == CUDA_DRIVER);
        found.with_context(|| format!("there is no {DOUBLES}/{CUDA_DRIVER}"))
    }

    /// Whether its tests record the functions of the CUDA binding that they call.
    fn counts_calls(&self) -> bool {
        self.name == CUDA_DRIVER
    }

    /// Builds the double. Returns the path for its clients: of the library, if they load it (its folder contains no
    /// other file, so that the folder can be put on a loader's path); else of the file for cargo.
    ///
    /// # Errors
    /// When it does not build.
    pub(crate) fn build(&self, profile: Profile) -> Result<PathBuf> {
        let built = self.built(profile)?;
        let Some(name) = self.library else {
            let arguments = self.workspace.arguments()?;
            let path = arguments.into_iter().nth(1).map(PathBuf::from);
            return path.with_context(|| format!("{} is neither loaded nor patched", self.name));
        };
        let Some(built) = built else {
            bail!("{} builds, and gives no shared library", self.name);
        };
        let folder = self.workspace.target.join("lib").join(profile.folder());
        let library = folder.join(name);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        // Renamed into its place: a process that has the older one loaded keeps that one whole.
        let fresh = self.workspace.target.join(format!("{name}.fresh"));
        fs::copy(&built, &fresh).with_context(|| format!("cannot copy {}", built.display()))?;
        fs::rename(&fresh, &library)
            .with_context(|| format!("cannot write {}", library.display()))?;
        Ok(library)
    }

    /// The shared library as cargo calls it, if there is one. Cargo's messages go to standard error.
    fn built(&self, profile: Profile) -> Result<Option<PathBuf>> {
        let mut cargo = self.workspace.task("build")?;
        cargo.args(["--lib", "--locked"]);
        cargo.args(["--message-format", "json-render-diagnostics"]);
        if profile == Profile::Release {
            cargo.arg("--release");
        }
        let output = cargo
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo")?;
        ensure!(output.status.success(), "{} does not build", self.name);
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(library_in(&text, &self.workspace.root))
    }
}

impl Profile {
    fn folder(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }
}

impl Options {
    fn profile(&self) -> Profile {
        if self.release {
            Profile::Release
        } else {
            Profile::Debug
        }
    }
}

/// The reason why tests of the doubles cannot run here, if they cannot.
pub(crate) fn unusable() -> Option<&'static str> {
    (!cfg!(target_os = "linux")).then_some("the doubles stand on Linux's memory files")
}

/// The shared library among cargo's messages about the package in `folder`.
fn library_in(messages: &str, folder: &Path) -> Option<PathBuf> {
    let artifacts = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
    let mut files = artifacts
        .filter(|artifact| artifact.manifest_path.parent() == Some(folder))
        .flat_map(|artifact| artifact.filenames);
    files.find(|path| path.extension() == Some(OsStr::new(std::env::consts::DLL_EXTENSION)))
}

#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    filenames: Vec<PathBuf>,
}

const CUDA_DRIVER: &str = "cuda-driver";

/// Each double with the file name that the loader searches for, which its `build.rs` makes its soname too.
const LIBRARIES: [(&str, Option<&str>); 2] = [(CUDA_DRIVER, Some("libcuda.so.1")), ("metal", None)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shared_library_of_the_package_itself_is_taken() {
        let messages = format!(
            "{}\n{}\nnot json\n{}\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/dep/Cargo.toml","filenames":["/t/libproc.so"]}"#,
            r#"{"reason":"build-finished","success":true}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/d/Cargo.toml","filenames":["/t/libcuda.rlib","/t/libcuda.so"]}"#,
        );
        let messages = messages.replace(".so", &format!(".{}", std::env::consts::DLL_EXTENSION));
        let found = library_in(&messages, Path::new("/d")).unwrap();
        assert_eq!(found.file_stem(), Some(OsStr::new("libcuda")));
        assert_eq!(library_in(&messages, Path::new("/e")), None);
    }

    #[test]
    fn every_double_of_this_tree_has_a_library_and_a_target_folder_of_its_own() {
        let main = Workspace::load().unwrap();
        let doubles = Double::all(&main).unwrap();
        assert_eq!(doubles.len(), LIBRARIES.len());
        assert_eq!(
            Double::cuda_driver(&main).unwrap().workspace.target,
            main.target.join("doubles").join("cuda-driver")
        );
    }
}
