//! The stage that checks the Python package: lints, wheel, published sources, tests.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::checks::DENIED;
use crate::doubles::{self, Double, Profile};
use crate::files;
use crate::install::Absent;
use crate::process::output_of;
use crate::stage::{Session, Verdict};
use crate::{suites, venv};

/// Builds the wheel, and tests it in an environment of its own.
pub(crate) fn stage(session: &Session) -> Result<Verdict> {
    if venv::runs(Path::new("python3"), TOO_OLD) {
        bail!(Absent("needs Python 3.11 or newer".into()));
    }
    let package = session.workspace.python()?;
    let requirements = package.root.join("tests/requirements.txt");
    let python = venv::provide(session, &package.target.join("environment"), &requirements)?;
    let call = |words: &[&str]| {
        let mut call = Command::new(&python);
        call.arg("-m").args(words);
        call
    };
    let mut verdict = Verdict::passed();
    // What the stages before have built and checked is there.
    let target = &session.workspace.target;
    // Interpreters without the GIL need a build without the stable ABI.
    for features in [&[][..], &["--no-default-features"]] {
        let mut clippy = package.task("clippy")?;
        clippy.args(["--all-targets", "--locked"]).args(features);
        clippy
            .env("PYO3_PYTHON", &python)
            .env("CARGO_TARGET_DIR", target);
        verdict.run(clippy.args(DENIED))?;
    }
    let pack = |verdict: &mut Verdict, task: &str, ending: &str| {
        let folder = package.target.join("packages").join(task);
        files::remove(&folder)?;
        let mut maturin = package.call(&python);
        maturin.args(["-m", "maturin", task, "--out"]).arg(&folder);
        maturin.env("CARGO_TARGET_DIR", target);
        if task == "build" {
            // The wheel is tested and thrown away: optimising it would take longer than the tests.
            maturin
                .args(["--profile", "dev", "--interpreter"])
                .arg(&python);
        }
        verdict.run(&mut maturin)?;
        let mut made = files::entries(&folder)?.into_iter();
        let found = made.find(|path| files::ends_with(path, ending));
        found.with_context(|| format!("maturin {task} left nothing in {}", folder.display()))
    };
    let wheel = pack(&mut verdict, "build", "whl")?;
    let sources = pack(&mut verdict, "sdist", "gz")?;
    verdict.run(call(&["twine", "check", "--strict"]).args([&wheel, &sources]))?;
    let list = output_of(call(&["zipfile", "-l"]).arg(&wheel))?;
    for name in IN_WHEEL.iter().filter(|name| !list.contains(*name)) {
        verdict.fail(format!("the wheel has no {name}:\n{list}"));
    }
    // Outside of the tree, because cargo would find a missing file here.
    let folder = tempfile::tempdir()?;
    verdict.run(call(&["tarfile", "-e"]).arg(&sources).arg(folder.path()))?;
    let top = files::entries(folder.path())?.pop();
    let mut check = package.cargo();
    check.args(["check", "--locked", "--manifest-path", "python/Cargo.toml"]);
    check.current_dir(top.context("the archive of the sources is empty")?);
    check
        .arg("--config")
        .arg(session.workspace.root.join(".cargo/config.toml"))
        .env("CARGO_TARGET_DIR", target);
    verdict.run(check.env("PYO3_PYTHON", &python))?;

    let install = [
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--force-reinstall",
    ];
    verdict.run(call(&install).arg(&wheel))?;
    let mut tests = Command::new(&python);
    tests.arg(package.root.join("tests/run.py"));
    // No profile of the machine, as for the tests of Rust.
    tests.env("TRANSLOAD_PROFILE", "");
    suites::drivers(session)?.tell(&mut tests);
    if doubles::must_be_usable().is_ok() {
        Double::cuda_driver(&session.workspace)?.build(Profile::Debug)?;
        // The tests find the double there, and start programs that use it.
        tests.env("CARGO_TARGET_DIR", &session.workspace.target);
    }
    let from = verdict.transcript.len();
    verdict.run_tests(tests.current_dir(&package.target))?;
    let told = verdict.transcript[from..].lines();
    for reason in told.filter_map(|line| line.strip_prefix("skipped: ")) {
        session.skip(format!("python: {reason}"));
    }
    let [wheel, sources] = [wheel, sources].map(|it| it.metadata().map_or(0, |it| it.len()) / 1000);
    verdict.note = format!("wheel {wheel} kB, sources {sources} kB");
    Ok(verdict)
}

/// A program that succeeds in interpreters that the wheel does not serve.
const TOO_OLD: &str = "import sys; assert sys.version_info < (3, 11)";

/// Parts of paths in the wheel.
const IN_WHEEL: [&str; 5] = [
    "transload/_transload.abi3.so",
    "transload/py.typed",
    ".pyi",
    "licenses/LICENSE-MIT",
    "licenses/LICENSE-APACHE",
];
