//! Installs Debian packages that a stage needs, where this run may install, or says why something is absent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use thiserror::Error;

use crate::files;
use crate::process::{Limit, must_run, output_of};

/// Records the packages that this run installed.
#[derive(Debug, Default)]
pub(crate) struct Installer {
    installed: Vec<String>,
    lists_are_fresh: bool,
}

impl Installer {
    /// The packages that this run installed, for the closing summary.
    pub(crate) fn installed(&self) -> &[String] {
        &self.installed
    }

    /// Adds what a stage installed by itself.
    pub(crate) fn note(&mut self, what: String) {
        self.installed.push(what);
    }

    /// Makes sure that `packages` are installed.
    ///
    /// # Errors
    /// [`Absent`] when this run may not install a missing one. Another error when installing was tried and failed: on
    /// a machine where this run may install, a missing tool is a failure and no reason to skip.
    pub(crate) fn require(&mut self, packages: &[&str]) -> Result<()> {
        let is_missing = |package: &&&str| !is_installed(package);
        let missing: Vec<&str> = packages.iter().filter(is_missing).copied().collect();
        if missing.is_empty() {
            return Ok(());
        }
        let wanted = missing.join(", ");
        must_be_debian(&wanted)?;
        if administrator().is_none() {
            let advice = "install them, or run as root";
            bail!(Absent(format!("needs the packages {wanted}; {advice}")));
        }
        println!("   installing {wanted} with apt-get ...");
        self.refresh()?;
        missing
            .iter()
            .try_for_each(|package| must_be_offered(package))?;
        apt(&[&["install", "-y", "--no-install-recommends"], &missing[..]].concat())?;
        if let Some(absent) = missing.iter().find(|package| !is_installed(package)) {
            bail!("apt-get reported success, and {absent} is still not installed");
        }
        let noted = missing.iter().map(|package| format!("{package} (apt-get)"));
        self.installed.extend(noted);
        Ok(())
    }

    /// Downloads the archive of `package` into `folder`, which exists, and installs nothing. Returns the archive's path.
    ///
    /// Unlike installing, this needs no root.
    ///
    /// # Errors
    /// [`Absent`] also when a mirror does not answer: a fetched package may be missing.
    pub(crate) fn fetch(&mut self, package: &str, folder: &Path) -> Result<PathBuf> {
        must_be_debian(package)?;
        if !is_offered(package) && administrator().is_some() {
            // A system that was just set up has no package lists yet.
            self.refresh()
                .map_err(|error| absent(&format!("cannot look for {package}"), &error))?;
        }
        must_be_offered(package)?;
        println!("   fetching {package} with apt-get download ...");
        let mut apt_get = Command::new("apt-get");
        apt_get.args(["download", package]).current_dir(folder);
        must_run(&mut apt_get, APT_LIMIT)
            .map_err(|error| absent(&format!("{package} cannot be fetched"), &error))?;
        let mut archives = files::entries(folder)?.into_iter();
        let archive = archives.find(|path| files::ends_with(path, "deb"));
        let none = || format!("apt-get reported success, and no archive of {package} is here");
        archive.with_context(none)
    }

    /// Fetches the lists of packages, once.
    fn refresh(&mut self) -> Result<()> {
        if !self.lists_are_fresh {
            apt(&["update"])?;
            self.lists_are_fresh = true;
        }
        Ok(())
    }
}

/// The reason why something is not on this machine, and cannot or must not be installed.
///
/// A stage that returns this error is skipped. A stage that has begun its checks must not return it, as a failure would
/// be lost: [`or_absent`] separates it from other errors.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct Absent(pub(crate) String);

/// `Ok(Err(_))` if `result` says that something is absent.
///
/// # Errors
/// Every other error.
pub(crate) fn or_absent<T>(result: Result<T>) -> Result<Result<T, Absent>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error) => error.downcast().map(Err),
    }
}

/// `what` is absent, for the reason in the last line of `error`.
fn absent(what: &str, error: &anyhow::Error) -> Absent {
    let text = format!("{error:#}");
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    Absent(format!("{what}: {}", lines.next_back().unwrap_or_default()))
}

fn must_be_debian(wanted: &str) -> Result<()> {
    let is_debian = fs::read_to_string("/etc/os-release").is_ok_and(|text| names_debian(&text));
    if !is_debian {
        let reason = format!("needs {wanted} of Debian, and this is another system");
        bail!(Absent(reason));
    }
    Ok(())
}

/// Whether `ID` or `ID_LIKE` of an os-release file names Debian.
fn names_debian(os_release: &str) -> bool {
    os_release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or(line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.trim_matches('"').split(' '))
        .any(|id| id == "debian")
}

fn must_be_offered(package: &str) -> Result<()> {
    if !is_offered(package) {
        bail!(Absent(format!(
            "needs the package {package}, which this system's archive does not offer"
        )));
    }
    Ok(())
}

fn is_offered(package: &str) -> bool {
    let policy = output_of(Command::new("apt-cache").args(["policy", package]));
    let is_candidate = |line: &str| {
        let candidate = line.trim().strip_prefix("Candidate: ");
        candidate.is_some_and(|candidate| candidate != "(none)")
    };
    policy.is_ok_and(|text| text.lines().any(is_candidate))
}

fn is_installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    let status = output_of(query.args(["-W", "-f", "${Status}", package]));
    status.is_ok_and(|status| status == "install ok installed")
}

/// The words in front of a command that needs to be root.
fn administrator() -> Option<&'static [&'static str]> {
    if output_of(Command::new("id").arg("-u")).is_ok_and(|id| id == "0\n") {
        return Some(&[]);
    }
    // `-n` fails instead of asking for a password.
    let sudo = output_of(Command::new("sudo").args(["-n", "true"]));
    sudo.is_ok().then_some(&["sudo", "-n"])
}

fn apt(arguments: &[&str]) -> Result<()> {
    let mut words = administrator().unwrap_or_default().to_vec();
    words.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    words.extend(arguments);
    must_run(Command::new(words[0]).args(&words[1..]), APT_LIMIT)?;
    Ok(())
}

/// A slow mirror takes minutes for the 150 MB of a toolchain; a longer download counts as hanging.
const APT_LIMIT: Limit = Limit::minutes(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_and_its_descendants_are_recognised() {
        assert!(names_debian("NAME=x\nID=debian\n"));
        assert!(names_debian("ID=pop\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!names_debian(
            "ID=fedora\nID_LIKE=\"rhel\"\nNAME=\"not debian\"\n"
        ));
    }

    #[test]
    fn only_an_absent_thing_is_told_apart_from_other_errors() {
        let absent = anyhow::Error::from(Absent("no tool".into()));
        let told = or_absent::<()>(Err(absent)).unwrap();
        assert_eq!(told.unwrap_err().to_string(), "no tool");
        assert!(or_absent::<()>(Err(anyhow::anyhow!("broken"))).is_err());
    }
}
