//! A Python with NVIDIA's bindings, in a virtual environment below the target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::checks::first_line;
use crate::doubles::Double;
use crate::install::Provision;
use crate::process;
use crate::stage::Session;

/// The interpreter of the environment, which is made anew when its requirements change; or the reason why there is
/// none.
///
/// # Errors
/// When an environment can be made and its requirements cannot be installed.
pub(super) fn python(session: &mut Session, double: &Double) -> Result<Result<PathBuf, String>> {
    let environment = double.workspace.target.join("python");
    let python = environment.join("bin/python");
    let requirements = double
        .workspace
        .root
        .join("clients/python/requirements.txt");
    let wanted = fs::read_to_string(&requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    // Written last, so that an environment that has it is whole.
    let stamp = environment.join("requirements.txt");
    if fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) || !runs(&python, "") {
        let maker = match maker(session)? {
            Ok(maker) => maker,
            Err(reason) => return Ok(Err(reason)),
        };
        println!(
            "   making a Python environment with {} ...",
            one_line(&wanted)
        );
        run(Command::new(maker)
            .args(["-m", "venv", "--clear"])
            .arg(&environment))?;
        run(Command::new(&python)
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ])
            .arg("--requirement")
            .arg(&requirements))?;
        fs::write(&stamp, &wanted)?;
    }
    if let Some(version) = first_line(Command::new(&python).arg("--version")) {
        session.found(format!("{version} with {}", one_line(&wanted)));
    }
    Ok(Ok(python))
}

/// A Python that can make environments, installed where it is missing if this run may install.
fn maker(session: &mut Session) -> Result<Result<&'static str, String>> {
    const PARTS: &str = "import ensurepip, venv";
    if runs(Path::new("python3"), PARTS) {
        return Ok(Ok("python3"));
    }
    Ok(
        match session.installer.require(&["python3", "python3-venv"])? {
            Provision::Unavailable(reason) => Err(reason),
            Provision::Ready => {
                ensure!(
                    runs(Path::new(SYSTEM_PYTHON), PARTS),
                    "python3-venv is installed, and {SYSTEM_PYTHON} cannot make an environment"
                );
                Ok(SYSTEM_PYTHON)
            }
        },
    )
}

fn runs(python: &Path, program: &str) -> bool {
    let output = Command::new(python).args(["-c", program]).output();
    output.is_ok_and(|output| output.status.success())
}

fn run(command: &mut Command) -> Result<()> {
    let finished = process::run(command, LIMIT)?;
    ensure!(
        finished.success(),
        "{} failed:\n{}",
        process::describe(command),
        finished.output
    );
    Ok(())
}

fn one_line(requirements: &str) -> String {
    let lines = requirements.lines().filter(|line| !line.starts_with('#'));
    lines.collect::<Vec<_>>().join(", ")
}

/// The one that Debian's packages belong to; another may go before it on the path.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";

/// 10 MB of wheels; a slow mirror takes minutes, past this it hangs.
const LIMIT: Duration = Duration::from_secs(10 * 60);
