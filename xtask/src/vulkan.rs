//! Vulkan drivers that need no hardware, so that tests of adapters move bytes everywhere; there are two, so that bytes
//! move from one driver to another.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::files;
use crate::install::{Absent, Installer, or_absent};
use crate::process::{Limit, must_run};

/// The drivers of this run.
#[derive(Debug, Default)]
pub(crate) struct Drivers {
    /// The manifest of each driver for Vulkan's loader.
    manifests: Vec<PathBuf>,
    found: Vec<String>,
    absent: Vec<String>,
}

impl Drivers {
    /// Installs lavapipe and fetches SwiftShader where they are missing and this run may install. SwiftShader stays under
    /// `target` for the next run.
    ///
    /// # Errors
    /// When installing was tried and failed, or `target` cannot be written.
    pub(crate) fn provide(installer: &mut Installer, target: &Path) -> Result<Self> {
        let mut drivers = Self::default();
        if let Some(variable) = chosen() {
            drivers.found.push(format!("Vulkan drivers of {variable}"));
            return Ok(drivers);
        }
        drivers.add("SwiftShader", or_absent(swiftshader(installer, target))?);
        drivers.add("lavapipe", or_absent(lavapipe(installer))?);
        Ok(drivers)
    }

    /// The drivers that earlier runs left; changes nothing.
    pub(crate) fn present(target: &Path) -> Self {
        let mut drivers = Self::default();
        if chosen().is_none() {
            let [library, manifest] = places(target);
            if library.is_file() && manifest.is_file() {
                drivers.add("SwiftShader", Ok(manifest));
            }
            if let Some(manifest) = manifest_of_lavapipe() {
                drivers.add("lavapipe", Ok(manifest));
            }
        }
        drivers
    }

    /// Makes `command` use these drivers and no others, and fail rather than skip if it does not find them. Without
    /// any, the command uses those of the system.
    pub(crate) fn tell(&self, command: &mut Command) {
        // Mesa's layer that puts the preferred device first complains on each start without a display, and the order
        // does not matter here.
        command.env("NODEVICE_SELECT", "1");
        if self.manifests.is_empty() {
            return;
        }
        if let Ok(list) = env::join_paths(&self.manifests) {
            command.envs(CHOICES.map(|variable| (variable, &list)));
        }
        command.env("TRANSLOAD_ADAPTER", self.manifests.len().to_string());
    }

    /// The variable that selects them, as for a shell; `None` where the system's drivers are used.
    pub(crate) fn variable(&self) -> Option<String> {
        let list = env::join_paths(&self.manifests).ok()?;
        let [variable, _] = CHOICES;
        (!list.is_empty()).then(|| format!("{variable}={}", list.display()))
    }

    /// The drivers, for the closing summary.
    pub(crate) fn found(&self) -> &[String] {
        &self.found
    }

    /// The absent drivers, with the reasons.
    pub(crate) fn absent(&self) -> &[String] {
        &self.absent
    }

    fn add(&mut self, name: &str, manifest: Result<PathBuf, Absent>) {
        match manifest {
            Ok(manifest) => {
                self.found.push(format!("{name}, a Vulkan driver"));
                self.manifests.push(manifest);
            }
            Err(why) => self.absent.push(format!("Vulkan driver {name}: {why}")),
        }
    }
}

/// The variable by which the user has already selected the drivers.
fn chosen() -> Option<&'static str> {
    let is_set = |variable: &&str| env::var_os(variable).is_some();
    CHOICES.into_iter().find(is_set)
}

fn lavapipe(installer: &mut Installer) -> Result<PathBuf> {
    if let Some(manifest) = manifest_of_lavapipe() {
        return Ok(manifest);
    }
    installer.require(&[MESA])?;
    manifest_of_lavapipe()
        .with_context(|| format!("{MESA} is installed, and names no lavapipe in {SYSTEM}"))
}

fn manifest_of_lavapipe() -> Option<PathBuf> {
    let mut manifests = files::entries(Path::new(SYSTEM)).ok()?.into_iter();
    manifests.find(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("lvp_icd") && name.ends_with(".json"))
    })
}

/// Debian ships SwiftShader within a browser. The one library is taken out of
/// the archive; the browser is not installed.
fn swiftshader(installer: &mut Installer, target: &Path) -> Result<PathBuf> {
    let [library, manifest] = places(target);
    if !library.is_file() {
        let fresh = target.join("swiftshader-fresh");
        // Files of an interrupted run.
        files::remove(&fresh)?;
        files::make(&fresh)?;
        let archive = installer.fetch(CHROMIUM, &fresh)?;
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("-x").args([&archive, &fresh]);
        must_run(&mut unpack, UNPACK_LIMIT)?;
        // Renamed, so that an existing library is complete.
        files::make(&target.join(FOLDER))?;
        files::rename(&fresh.join("usr/lib/chromium").join(LIBRARY), &library)?;
        files::remove(&fresh)?;
    }
    // Written each time: the folder may have moved.
    let text = serde_json::json!({
        "file_format_version": "1.0.0",
        "ICD": { "library_path": library, "api_version": "1.3.0" },
    });
    files::write(&manifest, text.to_string())?;
    Ok(manifest)
}

/// SwiftShader's library below the folder `target`, and its manifest.
fn places(target: &Path) -> [PathBuf; 2] {
    [LIBRARY, "swiftshader.json"].map(|name| target.join(FOLDER).join(name))
}

/// What the loader's versions look for, the older one last.
const CHOICES: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

const SYSTEM: &str = "/usr/share/vulkan/icd.d";
const MESA: &str = "mesa-vulkan-drivers";
const CHROMIUM: &str = "chromium-common";
const LIBRARY: &str = "libvk_swiftshader.so";
const FOLDER: &str = "swiftshader";

/// 100 MB take a second.
const UNPACK_LIMIT: Limit = Limit::minutes(5);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn a_command_is_told_of_every_driver_and_how_many_to_find() {
        let mut drivers = Drivers::default();
        drivers.add("a", Ok("/x/a.json".into()));
        drivers.add("b", Err(Absent("not here".into())));
        drivers.add("c", Ok("/x/c.json".into()));
        let mut command = Command::new("true");
        drivers.tell(&mut command);
        let told: BTreeMap<_, _> = command.get_envs().collect();
        let told = |name: &str| told[OsStr::new(name)].unwrap();
        for variable in CHOICES {
            assert_eq!(told(variable), "/x/a.json:/x/c.json");
        }
        let variable = drivers.variable().unwrap();
        assert_eq!(variable, "VK_DRIVER_FILES=/x/a.json:/x/c.json");
        assert_eq!(told("TRANSLOAD_ADAPTER"), "2");
        assert_eq!(drivers.absent(), ["Vulkan driver b: not here"]);
    }

    #[test]
    fn without_drivers_nothing_is_demanded() {
        let mut command = Command::new("true");
        Drivers::default().tell(&mut command);
        let told: Vec<_> = command.get_envs().map(|(name, _)| name).collect();
        assert_eq!(told, ["NODEVICE_SELECT"]);
        assert_eq!(Drivers::default().variable(), None);
    }
}
