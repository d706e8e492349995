//! A copy of the tree that patches may break.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::patch::Sentinel;
use crate::files;
use crate::process::output_of;

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
    pub(crate) fn restore(&self) -> Result<()> {
        let wanted = self.files()?;
        for file in &wanted {
            let from = self.original.join(file);
            let bytes =
                fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
            let to = self.copy.join(file);
            if fs::read(&to).ok().as_ref() != Some(&bytes) {
                files::write(&to, bytes)?;
            }
        }
        for path in files::below(&self.copy)? {
            if !wanted.contains(path.strip_prefix(&self.copy)?) {
                files::remove(&path)?;
            }
        }
        Ok(())
    }

    /// Applies the patch.
    ///
    /// # Errors
    /// When it does not fit, with git's words.
    pub(crate) fn apply(&self, sentinel: &Sentinel) -> Result<()> {
        let mut git = Command::new("git");
        git.args(["apply", "--whitespace=nowarn", "--recount"])
            .arg(fs::canonicalize(&sentinel.path)?)
            .current_dir(&self.copy)
            .env_remove("GIT_DIR")
            .env_remove("GIT_WORK_TREE");
        // The copy lies inside the original's work tree: without this, git would apply the paths to the original.
        let copy = fs::canonicalize(&self.copy)?;
        git.env("GIT_CEILING_DIRECTORIES", copy.parent().unwrap_or(&copy));
        output_of(&mut git).map(|_| ())
    }

    /// Tracked files, and new ones that git does not ignore, as they are on disk.
    fn files(&self) -> Result<BTreeSet<PathBuf>> {
        let mut git = Command::new("git");
        git.args(["ls-files", "-z", "--cached", "--others"]);
        git.arg("--exclude-standard").current_dir(&self.original);
        let names = output_of(&mut git).context("sentinels need a git checkout")?;
        let names = names.split('\0').filter(|name| !name.is_empty());
        // A tracked file that is deleted on disk is no part of the tree.
        let there = names.filter(|name| self.original.join(name).is_file());
        Ok(there.map(PathBuf::from).collect())
    }
}
