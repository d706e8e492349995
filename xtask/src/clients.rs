//! The stage that uses the double of NVIDIA's driver through clients that others wrote for the real one, and with
//! memory from Vulkan drivers.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::doubles::{self, Double, Profile};
use crate::install::or_absent;
use crate::runner;
use crate::stage::{Calls, Session, Verdict};
use crate::suites;
use crate::venv;

/// cudarc, then NVIDIA's own bindings for Python, then Vulkan. Each has a suite under `doubles/cuda-driver/clients`.
pub(crate) fn stage(session: &Session) -> Result<Verdict> {
    doubles::must_be_usable()?;
    let double = Double::cuda_driver(&session.workspace)?;
    let path = loader_path(&double.build(Profile::Debug)?)?;
    let calls = Calls::new(&double.workspace, "clients")?;
    let mut verdict = Verdict::passed();

    let mut cudarc = runner::tests(&double.workspace)?;
    cudarc.args(["--tests", "--package", "transload-double-cudarc"]);
    // A target folder other than the double's own, which cargo would put on the loader's path.
    cudarc.env("CARGO_TARGET_DIR", double.workspace.target.join("clients"));
    calls.tell(cudarc.env(LOADER_PATH, &path));
    let ran = session.run_tests(&mut verdict, &mut cudarc)?.ran();
    verdict.note = format!("cudarc {ran} tests");

    let suite = double.workspace.root.join(SUITE);
    let environment = double.workspace.target.join("python");
    let python = venv::provide(session, &environment, &suite.join("requirements.txt"));
    match or_absent(python)? {
        Ok(python) => {
            let mut bindings = Command::new(python);
            bindings.arg(suite.join("run.py")).current_dir(&suite);
            // No caches beside the sources.
            bindings.env("PYTHONDONTWRITEBYTECODE", "1");
            calls.tell(bindings.env(LOADER_PATH, &path));
            let ran = verdict.run_tests(&mut bindings)?.ran();
            verdict.note += &format!(", cuda-bindings {ran} tests");
            session.calls().insert("clients", calls);
        }
        Err(reason) => {
            session.skip(format!("cuda-bindings: {reason}"));
            verdict.note += ", cuda-bindings skipped";
        }
    }

    // Here the double is linked into the test's own program.
    let mut vulkan = runner::tests(&double.workspace)?;
    vulkan.args(["--tests", "--package", "transload-double-vulkan"]);
    suites::drivers(session)?.tell(&mut vulkan);
    let ran = session.run_tests(&mut verdict, &mut vulkan)?.ran();
    verdict.note += &format!(", Vulkan {ran} tests");
    Ok(verdict)
}

/// The double's folder before whatever the loader looks through otherwise.
fn loader_path(library: &Path) -> Result<OsString> {
    let folder = library.parent().context("the library lies in a folder")?;
    let others = env::var_os(LOADER_PATH).unwrap_or_default();
    // An empty entry would be the current folder.
    let others = env::split_paths(&others).filter(|path| *path != PathBuf::new());
    let folders = [folder.to_path_buf()].into_iter().chain(others);
    env::join_paths(folders).context("the library's folder cannot be on a path")
}

const SUITE: &str = "clients/python";

const LOADER_PATH: &str = "LD_LIBRARY_PATH";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_double_is_looked_for_before_anything_else() {
        let path = loader_path(Path::new("/target/lib/debug/libcuda.so.1")).unwrap();
        let mut folders = env::split_paths(&path);
        assert_eq!(folders.next(), Some(PathBuf::from("/target/lib/debug")));
        assert!(folders.all(|folder| folder != PathBuf::new()));
    }
}
