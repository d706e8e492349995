//! Virtual environments of Python below the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::files;
use crate::install::Absent;
use crate::process::{Limit, first_line, must_run, output_of};
use crate::stage::Session;

/// The interpreter of an environment with the packages of a file, which is made anew when the file changes.
///
/// # Errors
/// [`Absent`] also when the index of packages does not answer.
pub(crate) fn provide(session: &Session, folder: &Path, packages: &Path) -> Result<PathBuf> {
    let python = folder.join("bin/python");
    let wanted = files::read(packages)?;
    let lines: Vec<_> = wanted
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let lines = lines.join(", ");
    // Written last, so that an environment that has it is whole.
    let stamp = folder.join("requirements.txt");
    let is_whole = files::read(&stamp).is_ok_and(|there| there == wanted);
    if !is_whole || !runs(&python, "") {
        println!("   making a Python environment with {lines} ...");
        let mut make = Command::new(maker(session)?);
        make.args(["-m", "venv", "--clear"]).arg(folder);
        must_run(&mut make, LIMIT)?;
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet"]);
        install.args(["--disable-pip-version-check", "--requirement"]);
        let installed = must_run(install.arg(packages), LIMIT);
        installed.map_err(|error| match error.to_string().contains(NO_NETWORK) {
            true => Absent("pip reaches no index of packages".into()).into(),
            false => error,
        })?;
        files::write(&stamp, &wanted)?;
    }
    if let Some(version) = first_line(Command::new(&python).arg("--version")) {
        session.note_found(format!("{version} with {lines}"));
    }
    Ok(python)
}

/// A Python that can make environments, installed where it is missing if this run may install.
fn maker(session: &Session) -> Result<&'static str> {
    const PARTS: &str = "import ensurepip, venv";
    if runs(Path::new("python3"), PARTS) {
        return Ok("python3");
    }
    session.installer().require(&["python3", "python3-venv"])?;
    let can = runs(Path::new(SYSTEM_PYTHON), PARTS).then_some(SYSTEM_PYTHON);
    can.context("python3-venv is installed, and /usr/bin/python3 cannot make an environment")
}

/// Whether an interpreter runs a program to a good end.
pub(crate) fn runs(python: &Path, program: &str) -> bool {
    output_of(Command::new(python).args(["-c", program])).is_ok()
}

/// The one that Debian's packages belong to; another may go before it on the path.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";

/// pip's words for an index that does not answer.
const NO_NETWORK: &str = "after connection broken by";

/// 250 MB of wheels; a slow mirror takes minutes, past this it hangs.
const LIMIT: Limit = Limit::minutes(10);
