//! The stand-ins for hardware: `cargo xtask doubles` builds them and prints their paths, and a stage runs their tests.

pub(crate) mod bindings;
mod calls;

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

pub(crate) use self::calls::stage as calls;
use crate::counts::Counts;
use crate::files;
use crate::install::Absent;
use crate::process;
use crate::runner;
use crate::stage::{Calls, Session, Verdict};
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
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    let profile = if options.release {
        Profile::Release
    } else {
        Profile::Debug
    };
    for double in Double::all(workspace)? {
        let path = double.build(profile)?;
        println!("{}: {}", double.name, path.display());
    }
    Ok(true)
}

/// Builds each double, and runs its tests.
pub(crate) fn stage(session: &Session) -> Result<Verdict> {
    must_be_usable()?;
    let mut verdict = Verdict::passed();
    let mut notes = Vec::new();
    for double in Double::all(&session.workspace)? {
        double.build(Profile::Debug)?;
        let mut tests = runner::tests(&double.workspace)?;
        // Only the double of CUDA records the functions that are called.
        let calls = Calls::new(&double.workspace, "doubles")?;
        calls.tell(&mut tests);
        session.run_tests(&mut verdict, tests.arg("--tests"))?;
        let mut examples = double.workspace.task("test")?;
        // A double need not have any.
        let finished = verdict.run(examples.args(["--doc", "--locked", "--no-fail-fast"]))?;
        verdict.counts += Counts::read(&finished.output);
        if double.name == CUDA_DRIVER {
            session.calls().insert("doubles", calls);
        }
        notes.push(double.name);
    }
    verdict.note = notes.join(", ");
    Ok(verdict)
}

/// Refuses systems on which the doubles cannot run.
///
/// # Errors
/// [`Absent`].
pub(crate) fn must_be_usable() -> Result<()> {
    if !cfg!(target_os = "linux") {
        bail!(Absent("the doubles stand on Linux's memory files".into()));
    }
    Ok(())
}

/// A stand-in for a driver or a framework: a workspace of its own.
#[derive(Debug)]
pub(crate) struct Double {
    /// The name of its folder.
    name: &'static str,
    library: Option<Library>,
    pub(crate) workspace: Workspace,
}

/// The library of a double that clients load.
#[derive(Debug, Clone, Copy)]
struct Library {
    /// Its name for cargo.
    target: &'static str,
    /// The file name by which clients of the real one ask a loader for it; its `build.rs` makes it the soname, too.
    file: &'static str,
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
            let known = KNOWN.iter().find(|(name, _)| Path::new(name) == folder);
            let &(name, library) = known.with_context(|| {
                let name = folder.display();
                format!("the double `{name}` is not in the table of xtask/src/doubles: add it")
            })?;
            doubles.push(Self {
                name,
                library,
                workspace,
            });
        }
        Ok(doubles)
    }

    /// NVIDIA's driver.
    pub(crate) fn cuda_driver(main: &Workspace) -> Result<Self> {
        let mut doubles = Self::all(main)?.into_iter();
        let found = doubles.find(|double| double.name == CUDA_DRIVER);
        found.with_context(|| format!("there is no {DOUBLES}/{CUDA_DRIVER}"))
    }

    /// Builds the double. Returns the path for its clients: of the library, if they load it (its folder contains no
    /// other file, so that the folder can be put on a loader's path); else of the file for cargo.
    ///
    /// # Errors
    /// When it does not build.
    pub(crate) fn build(&self, profile: Profile) -> Result<PathBuf> {
        let mut cargo = self.workspace.task("build")?;
        // Below it the library lies in a folder of that name.
        cargo
            .args(["--lib", "--locked"])
            .env_remove("CARGO_BUILD_TARGET");
        let folder = match profile {
            Profile::Debug => "debug",
            Profile::Release => {
                cargo.arg("--release");
                "release"
            }
        };
        process::show(cargo.stdout(std::io::stderr()))?;
        let Some(library) = self.library else {
            let arguments = self.workspace.arguments()?;
            let path = arguments.into_iter().nth(1).map(PathBuf::from);
            return path.with_context(|| format!("{} is neither loaded nor patched", self.name));
        };
        let target = &self.workspace.target;
        let built = format!("{DLL_PREFIX}{}{DLL_SUFFIX}", library.target);
        let built = target.join(folder).join(built);
        let placed = target.join("lib").join(folder).join(library.file);
        // Renamed into its place: a process that has the older one loaded keeps that one whole.
        let fresh = target.join(format!("{}.fresh", library.file));
        fs::copy(&built, &fresh).with_context(|| format!("cannot copy {}", built.display()))?;
        files::make(placed.parent().context("the library lies in a folder")?)?;
        files::rename(&fresh, &placed)?;
        Ok(placed)
    }
}

const CUDA_DRIVER: &str = "cuda-driver";

/// Each double, with the library that clients load; without one, they link it.
const KNOWN: [(&str, Option<Library>); 2] = [
    (
        CUDA_DRIVER,
        Some(Library {
            target: "cuda",
            file: "libcuda.so.1",
        }),
    ),
    ("metal", None),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_double_of_this_tree_is_known_and_what_a_loader_finds_lies_apart() {
        let main = Workspace::load().unwrap();
        let doubles = Double::all(&main).unwrap();
        assert_eq!(doubles.len(), KNOWN.len());
        assert_eq!(
            Double::cuda_driver(&main).unwrap().workspace.target,
            main.target.join("doubles").join("cuda-driver")
        );
    }
}
