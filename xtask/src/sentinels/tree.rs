//! A copy of the tree that patches may break.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::patch::Sentinel;

/// The copy, in one place for all sentinels: cargo then rebuilds only what a
/// patch touched.
#[derive(Debug)]
pub(crate) struct Tree {
    original: PathBuf,
    copy: PathBuf,
}

impl Tree {
    /// Makes the folder `copy` equal to what git would commit of `original`.
    ///
    /// # Errors
    /// When `original` is no work tree of git, or a file cannot be copied.
    pub(crate) fn new(original: &Path, copy: PathBuf) -> Result<Self> {
        let tree = Self {
            original: original.to_path_buf(),
            copy,
        };
        tree.restore()?;
        Ok(tree)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.copy
    }

    /// Makes the copy equal to the original again. A file that is equal
    /// already keeps its time stamp, so that cargo does not rebuild it.
    ///
    /// # Errors
    /// As [`Tree::new`].
    pub(crate) fn restore(&self) -> Result<()> {
        fs::create_dir_all(&self.copy)?;
        let wanted = self.files()?;
        for file in &wanted {
            let bytes = fs::read(self.original.join(file))
                .with_context(|| format!("cannot read {}", file.display()))?;
            let to = self.copy.join(file);
            if fs::read(&to).is_ok_and(|there| there == bytes) {
                continue;
            }
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&to, bytes).with_context(|| format!("cannot write {}", to.display()))?;
        }
        self.remove_all_but(&wanted)
    }

    /// Applies the patch. A patch that does not fit gives git's words.
    ///
    /// # Errors
    /// When git cannot be started.
    pub(crate) fn apply(&self, sentinel: &Sentinel) -> Result<std::result::Result<(), String>> {
        let output = Command::new("git")
            .args(["apply", "--whitespace=nowarn", "--recount"])
            .arg(fs::canonicalize(&sentinel.path)?)
            .current_dir(&self.copy)
            // The copy lies inside the original's work tree: without this, git would apply the paths to the original.
            .env(
                "GIT_CEILING_DIRECTORIES",
                fs::canonicalize(&self.copy)?
                    .parent()
                    .unwrap_or(Path::new("/")),
            )
            .env_remove("GIT_DIR")
            .env_remove("GIT_WORK_TREE")
            .output()
            .context("cannot run git")?;
        if output.status.success() {
            return Ok(Ok(()));
        }
        Ok(Err(String::from_utf8_lossy(&output.stderr)
            .trim()
            .to_owned()))
    }

    /// Tracked files, and new ones that git does not ignore, as they are on disk.
    fn files(&self) -> Result<BTreeSet<PathBuf>> {
        let output = Command::new("git")
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(&self.original)
            .output()
            .context("cannot run git")?;
        ensure!(
            output.status.success(),
            "sentinels need a git checkout, and {} is none: {}",
            self.original.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let mut files = BTreeSet::new();
        for name in output
            .stdout
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
        {
            let Ok(name) = std::str::from_utf8(name) else {
                bail!(
                    "a file's name is not UTF-8: {}",
                    String::from_utf8_lossy(name)
                );
            };
            // A tracked file that is deleted on disk is no part of the tree.
            if self.original.join(name).is_file() {
                files.insert(PathBuf::from(name));
            }
        }
        Ok(files)
    }

    fn remove_all_but(&self, wanted: &BTreeSet<PathBuf>) -> Result<()> {
        let mut folders = vec![self.copy.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let path = entry?.path();
                let relative = path.strip_prefix(&self.copy)?;
                if path.is_dir() {
                    folders.push(path);
                } else if !wanted.contains(relative) {
                    fs::remove_file(&path)?;
                }
            }
        }
        Ok(())
    }
}
