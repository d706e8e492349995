//! Vulkan drivers that need no hardware, so that tests of adapters move bytes everywhere; there are two, so that bytes
//! move from one driver to another.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::install::{Fetched, Installer, Provision};
use crate::process;

/// The drivers of this run.
#[derive(Debug)]
pub(crate) struct Drivers {
    /// The manifest of each driver for Vulkan's loader.
    manifests: Vec<PathBuf>,
    found: Vec<String>,
    absent: Vec<String>,
}

impl Drivers {
    /// Installs lavapipe, and fetches SwiftShader too if `both` are wanted, where they are missing and this run may
    /// install. SwiftShader stays under `target` for the next run.
    ///
    /// # Errors
    /// When installing was tried and failed, or `target` cannot be written.
    pub(crate) fn provide(installer: &mut Installer, target: &Path, both: bool) -> Result<Self> {
        let mut drivers = Self::none();
        if let Some(variable) = chosen() {
            drivers.found.push(format!("Vulkan drivers of {variable}"));
            return Ok(drivers);
        }
        if both {
            drivers.add("SwiftShader", swiftshader(installer, target)?);
        }
        drivers.add("lavapipe", lavapipe(installer)?);
        Ok(drivers)
    }

    /// The drivers that earlier runs left; changes nothing.
    pub(crate) fn present(target: &Path) -> Self {
        let mut drivers = Self::none();
        if chosen().is_none() {
            let library = library(&folder(target));
            let manifest = folder(target).join(MANIFEST);
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
        let Ok(list) = env::join_paths(&self.manifests) else {
            return;
        };
        for variable in CHOICES {
            command.env(variable, &list);
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

    fn none() -> Self {
        Self {
            manifests: Vec::new(),
            found: Vec::new(),
            absent: Vec::new(),
        }
    }

    fn add(&mut self, name: &str, manifest: Result<PathBuf, String>) {
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
    CHOICES
        .into_iter()
        .find(|variable| env::var_os(variable).is_some())
}

fn lavapipe(installer: &mut Installer) -> Result<Result<PathBuf, String>> {
    if let Some(manifest) = manifest_of_lavapipe() {
        return Ok(Ok(manifest));
    }
    Ok(match installer.require(&[MESA])? {
        Provision::Unavailable(why) => Err(why),
        Provision::Ready => Ok(manifest_of_lavapipe()
            .with_context(|| format!("{MESA} is installed, and names no lavapipe in {SYSTEM}"))?),
    })
}

fn manifest_of_lavapipe() -> Option<PathBuf> {
    let entries = fs::read_dir(SYSTEM).ok()?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("lvp_icd") && name.ends_with(".json"))
        })
}

/// Debian ships SwiftShader within a browser. The one library is taken out of
/// the archive; the browser is not installed.
fn swiftshader(installer: &mut Installer, target: &Path) -> Result<Result<PathBuf, String>> {
    let folder = folder(target);
    let library = library(&folder);
    if !library.is_file() {
        let unpacked = folder.join("unpacked");
        // Files of an interrupted run.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&unpacked)
            .with_context(|| format!("cannot make {}", unpacked.display()))?;
        let archive = match installer.fetch(CHROMIUM, &folder)? {
            Fetched::Unavailable(why) => return Ok(Err(why)),
            Fetched::Archive(archive) => archive,
        };
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("-x").args([&archive, &unpacked]);
        let finished = process::run(&mut unpack, UNPACK_LIMIT)?;
        if !finished.success() {
            bail!("{} cannot be unpacked: {}", CHROMIUM, finished.output);
        }
        let inside = unpacked.join("usr/lib/chromium").join(LIBRARY);
        // Renamed last, so that an existing library is complete.
        fs::rename(&inside, &library)
            .with_context(|| format!("{CHROMIUM} holds no {}", inside.display()))?;
        fs::remove_dir_all(&unpacked)?;
        fs::remove_file(&archive)?;
    }
    // Written each time: the folder may have moved.
    let manifest = folder.join(MANIFEST);
    let text = serde_json::json!({
        "file_format_version": "1.0.0",
        "ICD": { "library_path": library, "api_version": "1.3.0" },
    });
    fs::write(&manifest, text.to_string())
        .with_context(|| format!("cannot write {}", manifest.display()))?;
    Ok(Ok(manifest))
}

fn folder(target: &Path) -> PathBuf {
    target.join("swiftshader")
}

fn library(folder: &Path) -> PathBuf {
    folder.join(LIBRARY)
}

/// What the loader's versions look for, the older one last.
const CHOICES: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

const SYSTEM: &str = "/usr/share/vulkan/icd.d";
const MESA: &str = "mesa-vulkan-drivers";
const CHROMIUM: &str = "chromium-common";
const LIBRARY: &str = "libvk_swiftshader.so";
const MANIFEST: &str = "swiftshader.json";

/// 100 MB take a second.
const UNPACK_LIMIT: Duration = Duration::from_secs(5 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_of_every_driver_and_how_many_to_find() {
        let mut drivers = Drivers::none();
        drivers.add("a", Ok("/x/a.json".into()));
        drivers.add("b", Err("not here".into()));
        drivers.add("c", Ok("/x/c.json".into()));
        let mut command = Command::new("true");
        drivers.tell(&mut command);
        let told = |name: &str| {
            let mut variables = command.get_envs();
            variables
                .find(|(variable, _)| *variable == name)?
                .1
                .map(|value| value.to_string_lossy().into_owned())
        };
        for variable in CHOICES {
            assert_eq!(told(variable).unwrap(), "/x/a.json:/x/c.json");
        }
        let variable = drivers.variable().unwrap();
        assert_eq!(variable, "VK_DRIVER_FILES=/x/a.json:/x/c.json");
        assert_eq!(told("TRANSLOAD_ADAPTER").unwrap(), "2");
        assert_eq!(drivers.absent(), ["Vulkan driver b: not here"]);
    }

    #[test]
    fn without_drivers_nothing_is_demanded() {
        let mut command = Command::new("true");
        Drivers::none().tell(&mut command);
        let told: Vec<_> = command.get_envs().map(|(name, _)| name).collect();
        assert_eq!(told, ["NODEVICE_SELECT"]);
        assert_eq!(Drivers::none().variable(), None);
    }
}
