//! The stage that uses the double of NVIDIA's driver through clients that others wrote for the real one, and with
//! memory from Vulkan drivers.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::doubles::{self, Double, Profile};
use crate::files;
use crate::install::or_absent;
use crate::process::{first_line, must_run, output_of};
use crate::runner;
use crate::stage::{Calls, Session, Verdict};
use crate::suites;

/// cudarc, then NVIDIA's own bindings for Python, then Vulkan. Each has a suite under `doubles/cuda-driver/clients`.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
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

    match or_absent(python(session, &double))? {
        Ok(python) => {
            let suite = double.workspace.root.join(SUITE);
            let mut bindings = Command::new(python);
            bindings.arg(suite.join("run.py")).current_dir(&suite);
            // No caches beside the sources.
            bindings.env("PYTHONDONTWRITEBYTECODE", "1");
            calls.tell(bindings.env(LOADER_PATH, &path));
            let ran = verdict.run_tests(&mut bindings)?.ran();
            verdict.note += &format!(", cuda-bindings {ran} tests");
            session.calls.insert("clients", calls);
        }
        Err(reason) => {
            session.skip(format!("cuda-bindings: {reason}"));
            verdict.note += ", cuda-bindings skipped";
        }
    }

    // Here the double is linked into the test's own program.
    let mut vulkan = runner::tests(&double.workspace)?;
    vulkan.args(["--tests", "--package", "transload-double-vulkan"]);
    suites::drivers(session, true)?.tell(&mut vulkan);
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

/// A Python with NVIDIA's bindings, in a virtual environment below the target folder, which is made anew when its
/// requirements change.
fn python(session: &mut Session, double: &Double) -> Result<PathBuf> {
    let environment = double.workspace.target.join("python");
    let python = environment.join("bin/python");
    let requirements = double.workspace.root.join(SUITE).join("requirements.txt");
    let wanted = files::read(&requirements)?;
    let lines: Vec<_> = wanted
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let lines = lines.join(", ");
    // Written last, so that an environment that has it is whole.
    let stamp = environment.join("requirements.txt");
    let is_whole = files::read(&stamp).is_ok_and(|there| there == wanted);
    if !is_whole || !runs(&python, "") {
        println!("   making a Python environment with {lines} ...");
        let mut make = Command::new(maker(session)?);
        make.args(["-m", "venv", "--clear"]).arg(&environment);
        must_run(&mut make, LIMIT)?;
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet"]);
        install.args(["--disable-pip-version-check", "--requirement"]);
        must_run(install.arg(&requirements), LIMIT)?;
        files::write(&stamp, &wanted)?;
    }
    if let Some(version) = first_line(Command::new(&python).arg("--version")) {
        session.found(format!("{version} with {lines}"));
    }
    Ok(python)
}

/// A Python that can make environments, installed where it is missing if this run may install.
fn maker(session: &mut Session) -> Result<&'static str> {
    const PARTS: &str = "import ensurepip, venv";
    if runs(Path::new("python3"), PARTS) {
        return Ok("python3");
    }
    session.installer.require(&["python3", "python3-venv"])?;
    let can = runs(Path::new(SYSTEM_PYTHON), PARTS).then_some(SYSTEM_PYTHON);
    can.context("python3-venv is installed, and /usr/bin/python3 cannot make an environment")
}

fn runs(python: &Path, program: &str) -> bool {
    output_of(Command::new(python).args(["-c", program])).is_ok()
}

const SUITE: &str = "clients/python";

const LOADER_PATH: &str = "LD_LIBRARY_PATH";

/// The one that Debian's packages belong to; another may go before it on the path.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";

/// 10 MB of wheels; a slow mirror takes minutes, past this it hangs.
const LIMIT: Duration = Duration::from_secs(10 * 60);

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
