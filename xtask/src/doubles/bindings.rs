//! The patched bindings of Metal for the double: a copy in which the framework is linked on Apple's systems only.
//!
//! `objc2-metal` as published does not compile on other systems: a link attribute names a framework (E0455). This
//! program copies the source that cargo downloaded to the target folder; the copy is not committed.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use xxhash_rust::xxh3::xxh3_64;

use crate::cargo::{Metadata, locked_version};
use crate::files;
use crate::stage::lock;

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
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _held = lock(&ONE_AT_A_TIME);
    let version = locked_version(&main.join(METAL), PACKAGE)?;
    let folder = target.join("bindings");
    let file = folder.join(format!("{PACKAGE}-{version}.toml"));
    let copy = folder.join(format!("{PACKAGE}-{version}"));
    let text = format!(
        "# Made by xtask, of the edits {:016x}\n[patch.crates-io]\n{PACKAGE}.path = {:?}\n",
        fingerprint(),
        copy
    );
    // The file is written last: if it has the right text, the copy is complete.
    if files::read(&file).is_ok_and(|there| there == text) && copy.is_dir() {
        return Ok(file);
    }
    let source = source(main, &version)?;
    // Made next to its place and renamed into it: several calls may make it at once.
    let fresh = folder.join(format!("fresh-{}", std::process::id()));
    for path in files::below(&source)? {
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        files::write(&fresh.join(path.strip_prefix(&source)?), bytes)?;
    }
    for edit in &EDITS {
        let path = fresh.join(edit.file);
        let edited = edited(&files::read(&path)?, edit);
        files::write(
            &path,
            edited.with_context(|| format!("in {PACKAGE} {version}"))?,
        )?;
    }
    files::remove(&copy)?;
    files::rename(&fresh, &copy)?;
    files::write(&file, text)?;
    Ok(file)
}

fn edited(text: &str, edit: &Edit) -> Result<String> {
    let found = text.matches(edit.from).count();
    ensure!(
        found == 1,
        "{} has the line `{}` {found} times and not once: the double's edits (xtask/src/doubles/bindings.rs) \
         do not fit this version",
        edit.file,
        edit.from
    );
    Ok(text.replace(edit.from, edit.to))
}

/// The path of cargo's source of that version, which cargo downloads if needed. The main workspace is asked: it has the
/// bindings with their checksum, and the double's lockfile has them without.
fn source(main: &Path, version: &str) -> Result<PathBuf> {
    let metadata = Metadata::read(
        main,
        &["--locked", "--filter-platform", "aarch64-apple-darwin"],
    );
    let mut packages = metadata?.packages;
    packages.retain(|package| package.name == PACKAGE);
    let found = packages.iter().find(|package| package.version == version);
    let folder = found.and_then(|package| package.manifest_path.parent());
    let folder = folder.with_context(|| {
        let others: Vec<&str> = packages.iter().map(|other| &other.version[..]).collect();
        let others = others.join(", ");
        format!("{METAL}/Cargo.lock has {PACKAGE} {version}, and the main Cargo.lock {others}: they must agree")
    });
    Ok(folder?.to_path_buf())
}

/// Changes when an edit does.
fn fingerprint() -> u64 {
    let all = EDITS.map(|edit| [edit.file, edit.from, edit.to].join("\n"));
    xxh3_64(all.join("\n").as_bytes())
}

/// The double of Metal, whose bindings are patched.
pub(crate) const METAL: &str = "doubles/metal";

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
        let main = crate::workspace::Workspace::load().unwrap().root;
        let folder = tempfile::tempdir().unwrap();
        let file = configuration(&main, folder.path()).unwrap();
        let version = locked_version(&main.join(METAL), PACKAGE).unwrap();
        let copy = folder.path().join(format!("bindings/{PACKAGE}-{version}"));
        let text = files::read(&file).unwrap();
        assert!(text.contains(&format!("{copy:?}")), "{text}");
        for edit in &EDITS {
            let text = files::read(&copy.join(edit.file)).unwrap();
            let is_edited = text.contains(edit.to) && !text.contains(edit.from);
            assert!(is_edited, "{}", edit.file);
        }
        // An existing copy is used as it is.
        let mark = copy.join("mark");
        files::write(&mark, "").unwrap();
        configuration(&main, folder.path()).unwrap();
        assert!(mark.is_file());
    }
}
