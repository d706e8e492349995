//! The patched bindings of Metal for the double: a copy in which the framework is linked on Apple's systems only.
//!
//! `objc2-metal` as published does not compile on other systems: a link attribute names a framework (E0455). This
//! program copies the source that cargo downloaded to the target folder; the copy is not committed.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::workspace::{METAL, cargo_in};

/// One place of the source that differs in the copy.
struct Edit {
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

const EDITS: [Edit; 3] = [
    Edit {
        file: "src/generated/mod.rs",
        from: "#[link(name = \"Metal\", kind = \"framework\")]",
        to: "#[cfg_attr(target_vendor = \"apple\", link(name = \"Metal\", kind = \"framework\"))]",
    },
    // Except on a Mac, the bindings ask for one device alone; the double stands for a Mac that may have several.
    Edit {
        file: "src/device.rs",
        from: "#[cfg(any(target_os = \"macos\", target_env = \"macabi\"))]",
        to: "#[cfg(any(target_os = \"macos\", target_env = \"macabi\", not(target_vendor = \"apple\")))]",
    },
    Edit {
        file: "src/device.rs",
        from: "#[cfg(not(any(target_os = \"macos\", target_env = \"macabi\")))]",
        to: "#[cfg(not(any(target_os = \"macos\", target_env = \"macabi\", not(target_vendor = \"apple\"))))]",
    },
];

/// The arguments that every cargo call needs that resolves the dependencies of the double of Metal. The main workspace
/// lies at `main`, the double's target folder is `target`. Makes the copy if it is missing.
///
/// # Errors
/// When the bindings cannot be had, or are not as this program knows them.
pub(crate) fn arguments(main: &Path, target: &Path) -> Result<[OsString; 2]> {
    Ok(["--config".into(), configuration(main, target)?.into()])
}

/// The file that names the copy to cargo.
fn configuration(main: &Path, target: &Path) -> Result<PathBuf> {
    let version = locked_version(&main.join(METAL))?;
    let folder = target.join("bindings");
    let file = folder.join(format!("{PACKAGE}-{version}.toml"));
    let copy = folder.join(format!("{PACKAGE}-{version}"));
    let text = format!(
        "# Made by xtask, of the edits {:016x}\n[patch.crates-io]\n{PACKAGE}.path = {:?}\n",
        fingerprint(),
        copy
    );
    // The file is written last: if it has the right text, the copy is complete.
    if fs::read_to_string(&file).is_ok_and(|there| there == text) && copy.is_dir() {
        return Ok(file);
    }
    let source = source(main, &version)?;
    // Made next to its place and renamed into it: several calls may make it at once.
    let fresh = folder.join(format!("fresh-{}", std::process::id()));
    copy_all(&source, &fresh)?;
    for edit in &EDITS {
        let path = fresh.join(edit.file);
        let text = fs::read_to_string(&path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let edited = edited(&text, edit).with_context(|| format!("in {PACKAGE} {version}"))?;
        fs::write(&path, edited).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if copy.exists() {
        fs::remove_dir_all(&copy).with_context(|| format!("cannot remove {}", copy.display()))?;
    }
    fs::rename(&fresh, &copy).with_context(|| format!("cannot make {}", copy.display()))?;
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

fn edited(text: &str, edit: &Edit) -> Result<String> {
    let found = text.matches(edit.from).count();
    if found != 1 {
        bail!(
            "{} has the line `{}` {found} times and not once: the double's edits (xtask/src/doubles/bindings.rs) \
             do not fit this version",
            edit.file,
            edit.from
        );
    }
    Ok(text.replace(edit.from, edit.to))
}

/// The version that the double's lockfile names.
fn locked_version(double: &Path) -> Result<String> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        version: String,
    }
    let path = double.join("Cargo.lock");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let lock: Lock = toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
    let mut packages = lock.package.into_iter();
    let found = packages.find(|package| package.name == PACKAGE);
    let package = found.with_context(|| format!("{} has no {PACKAGE}", path.display()))?;
    Ok(package.version)
}

/// The path of cargo's source of that version, which cargo downloads if needed. The main workspace is asked: it has the
/// bindings with their checksum, and the double's lockfile has them without.
fn source(main: &Path, version: &str) -> Result<PathBuf> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        version: String,
        manifest_path: PathBuf,
    }
    let output = cargo_in(main)
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(["--filter-platform", "aarch64-apple-darwin"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed");
    let metadata: Metadata = serde_json::from_slice(&output.stdout)
        .context("cargo metadata wrote something unexpected")?;
    let bindings = metadata
        .packages
        .into_iter()
        .filter(|package| package.name == PACKAGE);
    let versions: Vec<Package> = bindings.collect();
    match versions.iter().find(|package| package.version == version) {
        Some(package) => {
            let folder = package.manifest_path.parent();
            Ok(folder.context("a manifest lies in a folder")?.to_path_buf())
        }
        None => {
            let others: Vec<&str> = versions
                .iter()
                .map(|package| package.version.as_str())
                .collect();
            bail!(
                "{METAL}/Cargo.lock has {PACKAGE} {version}, and the main Cargo.lock {}: they must agree",
                others.join(", ")
            )
        }
    }
}

fn copy_all(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let entries = fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))?;
    for entry in entries {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &place)?;
        } else {
            fs::copy(entry.path(), &place)
                .with_context(|| format!("cannot write {}", place.display()))?;
        }
    }
    Ok(())
}

/// Changes when an edit does.
fn fingerprint() -> u64 {
    let all: Vec<&str> = EDITS
        .iter()
        .flat_map(|edit| [edit.file, edit.from, edit.to])
        .collect();
    xxhash_rust::xxh3::xxh3_64(all.join("\n").as_bytes())
}

const PACKAGE: &str = "objc2-metal";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_without_the_line_is_told() {
        let edit = &EDITS[0];
        let text = format!("before\n{}\nafter\n", edit.from);
        assert_eq!(
            edited(&text, edit).unwrap(),
            format!("before\n{}\nafter\n", edit.to)
        );
        for wrong in ["nothing of the kind".to_owned(), text.repeat(2)] {
            let error = edited(&wrong, edit).unwrap_err().to_string();
            assert!(error.contains("do not fit this version"), "{error}");
        }
    }

    #[test]
    fn the_bindings_of_this_very_tree_can_be_patched() {
        let main = crate::workspace::Workspace::load().unwrap();
        let folder = std::env::temp_dir().join(format!("xtask-bindings-{}", std::process::id()));
        let file = configuration(&main.root, &folder).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        let version = locked_version(&main.root.join(METAL)).unwrap();
        let copy = folder.join("bindings").join(format!("{PACKAGE}-{version}"));
        assert!(text.contains(&format!("{copy:?}")), "{text}");
        for edit in &EDITS {
            let text = fs::read_to_string(copy.join(edit.file)).unwrap();
            assert!(
                text.contains(edit.to) && !text.contains(edit.from),
                "{}",
                edit.file
            );
        }
        // An existing copy is used as it is.
        let mark = copy.join("mark");
        fs::write(&mark, "").unwrap();
        configuration(&main.root, &folder).unwrap();
        assert!(mark.is_file());
        fs::remove_dir_all(&folder).unwrap();
    }
}
