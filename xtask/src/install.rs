//! Installs Debian packages that a stage needs, where this run may install.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail};

use crate::process;

/// Records the packages that this run installed.
#[derive(Debug, Default)]
pub(crate) struct Installer {
    installed: Vec<String>,
    lists_are_fresh: bool,
}

/// Whether packages can be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Provision {
    /// They are installed, from before or from now.
    Ready,
    /// They are missing, and this run may not install them, for this reason.
    Unavailable(String),
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
    /// When installing was tried and failed: on a machine where it may
    /// install, a missing tool is a failure and no reason to skip.
    pub(crate) fn require(&mut self, packages: &[&str]) -> Result<Provision> {
        let missing: Vec<&str> = packages
            .iter()
            .copied()
            .filter(|package| !is_installed(package))
            .collect();
        if missing.is_empty() {
            return Ok(Provision::Ready);
        }
        let wanted = missing.join(", ");
        if !is_debian() {
            return Ok(Provision::Unavailable(format!(
                "needs {wanted} of Debian, and this is another system"
            )));
        }
        let Some(administrator) = administrator() else {
            return Ok(Provision::Unavailable(format!(
                "needs the packages {wanted}; install them, or run as root"
            )));
        };
        println!("   installing {wanted} with apt-get ...");
        if !self.lists_are_fresh {
            apt(administrator, &["update"])?;
            self.lists_are_fresh = true;
        }
        if let Some(unknown) = missing.iter().find(|package| !is_offered(package)) {
            return Ok(Provision::Unavailable(format!(
                "needs the package {unknown}, which this system's archive does not offer"
            )));
        }
        let mut arguments = vec!["install", "-y", "--no-install-recommends"];
        arguments.extend(&missing);
        apt(administrator, &arguments)?;
        if let Some(absent) = missing.iter().find(|package| !is_installed(package)) {
            bail!("apt-get reported success, and {absent} is still not installed");
        }
        self.installed
            .extend(missing.iter().map(|package| format!("{package} (apt-get)")));
        Ok(Provision::Ready)
    }
}

/// A package's archive on this machine, or the reason why there is none.
#[derive(Debug)]
pub(crate) enum Fetched {
    Archive(PathBuf),
    Unavailable(String),
}

impl Installer {
    /// Downloads the archive of `package` into `folder`, which exists, and installs nothing.
    ///
    /// Unlike installing, this needs no root. A fetched package may be missing: a mirror that does not answer is a
    /// reason to skip.
    ///
    /// # Errors
    /// When apt-get cannot be started, or `folder` cannot be read.
    pub(crate) fn fetch(&mut self, package: &str, folder: &Path) -> Result<Fetched> {
        let unavailable = |why: String| Ok(Fetched::Unavailable(why));
        if !is_debian() {
            return unavailable(format!(
                "needs {package} of Debian, and this is another system"
            ));
        }
        if !is_offered(package)
            && !self.lists_are_fresh
            && let Some(administrator) = administrator()
        {
            // A system that was just set up has no package lists yet.
            if let Err(error) = apt(administrator, &["update"]) {
                let why = format!("{error:#}");
                return unavailable(format!("cannot look for {package}: {}", last_line(&why)));
            }
            self.lists_are_fresh = true;
        }
        if !is_offered(package) {
            return unavailable(format!(
                "needs the package {package}, which this system's archive does not offer"
            ));
        }
        println!("   fetching {package} with apt-get download ...");
        let mut apt_get = Command::new("apt-get");
        apt_get.args(["download", package]).current_dir(folder);
        let finished = process::run(&mut apt_get, APT_LIMIT)?;
        if !finished.success() {
            let said = last_line(&finished.output);
            return unavailable(format!("{package} cannot be fetched: {said}"));
        }
        let mut entries = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
        let archive = entries.find(|path| path.extension().is_some_and(|end| end == "deb"));
        match archive {
            Some(archive) => Ok(Fetched::Archive(archive)),
            None => bail!("apt-get reported success, and no archive of {package} is here"),
        }
    }
}

fn last_line(text: &str) -> &str {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.next_back().unwrap_or("it says nothing")
}

/// The words in front of a command that needs to be root.
fn administrator() -> Option<&'static [&'static str]> {
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program)
            .args(arguments)
            .stderr(Stdio::null())
            .output();
        output.ok().filter(|output| output.status.success())
    };
    if said("id", &["-u"]).is_some_and(|output| output.stdout == b"0\n") {
        return Some(&[]);
    }
    // `-n` fails instead of asking for a password.
    said("sudo", &["-n", "true"]).map(|_| &["sudo", "-n"][..])
}

fn apt(administrator: &[&str], arguments: &[&str]) -> Result<()> {
    let mut words = administrator.to_vec();
    words.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    words.extend(arguments);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    let finished = process::run(&mut command, APT_LIMIT)?;
    if !finished.success() {
        bail!("{} failed:\n{}", words.join(" "), finished.output);
    }
    Ok(())
}

fn is_debian() -> bool {
    fs::read_to_string("/etc/os-release").is_ok_and(|text| names_debian(&text))
}

/// Whether `ID` or `ID_LIKE` of an os-release file names Debian.
fn names_debian(os_release: &str) -> bool {
    os_release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or(line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.trim_matches('"').split(' '))
        .any(|id| id == "debian")
}

fn is_installed(package: &str) -> bool {
    let status = Command::new("dpkg-query")
        .args(["-W", "-f", "${Status}", package])
        .stderr(Stdio::null())
        .output();
    status.is_ok_and(|output| output.stdout == b"install ok installed")
}

fn is_offered(package: &str) -> bool {
    let policy = Command::new("apt-cache").args(["policy", package]).output();
    policy.is_ok_and(|output| {
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines()
            .filter_map(|line| line.trim().strip_prefix("Candidate: "))
            .any(|candidate| candidate != "(none)")
    })
}

/// A slow mirror takes minutes for the 150 MB of a toolchain; a longer download counts as hanging.
const APT_LIMIT: Duration = Duration::from_secs(15 * 60);

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
}
