//! The stage of the Python package: its lints, its wheel, its sources as they would be published, its tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::checks::DENIED;
use crate::files;
use crate::install::Absent;
use crate::process::output_of;
use crate::stage::{Session, Verdict};
use crate::workspace::Workspace;
use crate::{suites, venv};

/// Builds the wheel, and tests it in an environment of its own.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let package = session.workspace.python()?;
    let requirements = package.root.join("tests/requirements.txt");
    let python = venv::provide(session, &package.target.join("environment"), &requirements)?;
    if !venv::runs(&python, "import sys; assert sys.version_info >= (3, 11)") {
        bail!(Absent("needs Python 3.11 or newer".into()));
    }
    let mut verdict = Verdict::passed();
    // The second is for interpreters that the stable ABI does not serve.
    for features in [&[][..], &["--no-default-features"]] {
        let mut clippy = package.task("clippy")?;
        clippy
            .env("PYO3_PYTHON", &python)
            .args(["--all-targets", "--locked"]);
        verdict.run(clippy.args(features).args(DENIED))?;
    }
    let wheel = pack(&mut verdict, &package, &python, "build", "whl")?;
    let sources = pack(&mut verdict, &package, &python, "sdist", "gz")?;
    let mut check = Command::new(&python);
    check.args(["-m", "twine", "check", "--strict"]);
    verdict.run(check.arg(&wheel).arg(&sources))?;
    let mut list = Command::new(&python);
    let list = output_of(list.args(["-m", "zipfile", "-l"]).arg(&wheel))?;
    for name in IN_WHEEL.iter().filter(|name| !list.contains(*name)) {
        verdict.fail(format!("the wheel has no {name}:\n{list}"));
    }
    // Outside of this tree, where a file that is missing in the archive shows.
    let folder = tempfile::tempdir()?;
    let mut unpack = Command::new(&python);
    unpack.args(["-m", "tarfile", "-e"]).arg(&sources);
    verdict.run(unpack.arg(folder.path()))?;
    let top = files::entries(folder.path())?.pop();
    let mut check = package.cargo();
    check.args(["check", "--locked", "--manifest-path", "python/Cargo.toml"]);
    check.current_dir(top.context("the archive of the sources is empty")?);
    verdict.run(check.env("PYO3_PYTHON", &python))?;

    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--no-deps"]);
    install.args(["--force-reinstall", "--disable-pip-version-check"]);
    verdict.run(install.arg(&wheel))?;
    let mut tests = Command::new(&python);
    tests.arg(package.root.join("tests/run.py"));
    // No profile of the machine, as for the tests of Rust.
    tests
        .env("TRANSLOAD_PROFILE", "")
        .current_dir(&package.target);
    suites::drivers(session, true)?.tell(&mut tests);
    let from = verdict.transcript.len();
    verdict.run_tests(&mut tests)?;
    let told = verdict.transcript[from..].lines();
    for reason in told.filter_map(|line| line.strip_prefix("skipped: ")) {
        session.skip(format!("python: {reason}"));
    }
    let mb = |of: &Path| of.metadata().map_or(0, |of| of.len()) as f64 / 1e6;
    verdict.note = format!("wheel {:.1} MB, sources {:.1} MB", mb(&wheel), mb(&sources));
    Ok(verdict)
}

/// Has maturin make the wheel or the archive of the sources. Returns its path.
fn pack(
    verdict: &mut Verdict,
    package: &Workspace,
    python: &Path,
    task: &str,
    ending: &str,
) -> Result<PathBuf> {
    let folder = package.target.join("packages").join(task);
    files::remove(&folder)?;
    let mut maturin = package.call(python);
    maturin.args(["-m", "maturin", task, "--out"]).arg(&folder);
    if task == "build" {
        maturin.args(["--release", "--interpreter"]).arg(python);
    }
    verdict.run(&mut maturin)?;
    let mut made = files::entries(&folder)?.into_iter();
    let found = made.find(|path| files::ends_with(path, ending));
    found.with_context(|| format!("maturin {task} left nothing in {}", folder.display()))
}

/// Parts of paths in the wheel.
const IN_WHEEL: [&str; 5] = [
    "transload/_transload.abi3.so",
    "transload/py.typed",
    ".pyi",
    "licenses/LICENSE-MIT",
    "licenses/LICENSE-APACHE",
];
