//! The stage that uses the double of NVIDIA's driver through clients that others wrote for the real one, and with
//! memory from Vulkan drivers.

mod python;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::counts::Counts;
use crate::doubles::{self, Calls, Double, Profile};
use crate::runner;
use crate::skips::Skips;
use crate::stage::{Session, Verdict};
use crate::vulkan::Drivers;

/// cudarc, then NVIDIA's own bindings for Python. Each has a suite under `doubles/cuda-driver/clients`.
///
/// # Errors
/// When the double does not build, or something was installed and cannot be used.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    if let Some(reason) = doubles::unusable() {
        return Ok(Verdict::skipped(reason));
    }
    let double = Double::cuda_driver(&session.workspace)?;
    let library = double.build(Profile::Debug)?;
    let calls = Calls::new(&double, "clients")?;
    let mut verdict = Verdict::passed();

    let mut cargo = runner::tests(&double.workspace)?;
    cargo.args(["--tests", "--package", "transload-double-cudarc"]);
    // A target folder other than the double's own, which cargo would put on the loader's path.
    cargo.env("CARGO_TARGET_DIR", double.workspace.target.join("clients"));
    let skips = Skips::new(&double.workspace.target, "clients")?;
    skips.tell(&mut cargo);
    run(&mut verdict, &mut cargo, &library, &calls, "cudarc")?;
    session.skipped.extend(skips.settle(&mut verdict.counts)?);
    let cudarc = verdict.counts.ran();

    match python::python(session, &double)? {
        Ok(python) => {
            let suite = double.workspace.root.join("clients/python");
            let mut tests = Command::new(python);
            tests.arg(suite.join("run.py")).current_dir(&suite);
            // No caches beside the sources.
            tests.env("PYTHONDONTWRITEBYTECODE", "1");
            run(&mut verdict, &mut tests, &library, &calls, "cuda-bindings")?;
            let bindings = verdict.counts.ran() - cudarc;
            verdict.note = format!("cudarc {cudarc} tests, cuda-bindings {bindings} tests");
            session.calls.insert("clients", calls);
        }
        Err(reason) => {
            session.skipped.push(format!("cuda-bindings: {reason}"));
            verdict.note = format!("cudarc {cudarc} tests, cuda-bindings skipped");
        }
    }
    vulkan(session, &double, &mut verdict)?;
    Ok(verdict)
}

/// Vulkan's memory in the double, which is linked into the test's own program there.
fn vulkan(session: &mut Session, double: &Double, verdict: &mut Verdict) -> Result<()> {
    let mut cargo = runner::tests(&double.workspace)?;
    cargo.args(["--tests", "--package", "transload-double-vulkan"]);
    let skips = Skips::new(&double.workspace.target, "vulkan")?;
    skips.tell(&mut cargo);
    let drivers = Drivers::provide(&mut session.installer, &session.workspace.target, true)?;
    drivers.tell(&mut cargo);
    let finished = verdict.run_tests(&mut cargo)?;
    let ran = Counts::read(&finished.output).ran();
    if finished.success() && ran == 0 {
        verdict.fail("no test with Vulkan ran");
    }
    session.skipped.extend(skips.settle(&mut verdict.counts)?);
    verdict.note += &format!(", Vulkan {ran} tests");
    Ok(())
}

/// Runs a client's tests with the double on the loader's path.
fn run(
    verdict: &mut Verdict,
    command: &mut Command,
    library: &Path,
    calls: &Calls,
    client: &str,
) -> Result<()> {
    calls.tell(command);
    command.env(LOADER_PATH, loader_path(library)?);
    let finished = verdict.run_tests(command)?;
    if finished.success() && Counts::read(&finished.output).ran() == 0 {
        verdict.fail(&format!("no test of {client} ran"));
    }
    Ok(())
}

/// The double's folder before whatever the loader looks through otherwise.
fn loader_path(library: &Path) -> Result<std::ffi::OsString> {
    let folder = library.parent().context("the library lies in a folder")?;
    let mut folders = vec![folder.to_path_buf()];
    if let Some(others) = env::var_os(LOADER_PATH) {
        folders.extend(env::split_paths(&others).filter(|path| *path != PathBuf::new()));
    }
    env::join_paths(folders).context("the library's folder cannot be on a path")
}

const LOADER_PATH: &str = "LD_LIBRARY_PATH";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_double_is_looked_for_before_anything_else() {
        let path = loader_path(Path::new("/target/lib/debug/libcuda.so.1")).unwrap();
        let mut folders = env::split_paths(&path);
        assert_eq!(folders.next(), Some(PathBuf::from("/target/lib/debug")));
        // An empty entry would be the current folder.
        assert!(folders.all(|folder| folder != PathBuf::new()));
    }
}
