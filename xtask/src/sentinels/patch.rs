//! One sentinel: its heading and its patch.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::files;

/// A patch that breaks something, and the tests that must notice.
///
/// The file begins with lines `# key: value`, the patch follows:
///
/// ```text
/// # breaks: a lease returns before its fence has settled
/// # command: test -p transload-core --lib
/// # red: lease::tests::lease_returns_only_after_its_fence
/// diff --git a/crates/core/src/lease.rs b/crates/core/src/lease.rs
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sentinel {
    /// The file's name without `.patch`.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The broken promise, in a sentence.
    pub(crate) breaks: String,
    /// Arguments of cargo that run the tests; the first is `test`.
    pub(crate) command: Vec<String>,
    /// Tests that must fail, by their full names; at least one.
    pub(crate) red: Vec<String>,
}

impl Sentinel {
    /// Reads a sentinel from its file.
    ///
    /// # Errors
    /// When it cannot be read, or its heading is incomplete.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        Self::parse(path, &files::read(path)?).with_context(|| format!("in {}", path.display()))
    }

    fn parse(path: &Path, text: &str) -> Result<Self> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut sentinel = Self {
            name: name.into_owned(),
            path: path.to_path_buf(),
            breaks: String::new(),
            command: Vec::new(),
            red: Vec::new(),
        };
        for line in text.lines().map_while(|line| line.strip_prefix('#')) {
            let Some((key, value)) = line.split_once(':') else {
                bail!("the heading line `#{line}` is no `# key: value`");
            };
            let value = value.trim();
            match key.trim() {
                "breaks" => sentinel.breaks = value.to_owned(),
                "command" => {
                    sentinel.command = value.split_whitespace().map(str::to_owned).collect();
                }
                "red" => sentinel.red.push(value.to_owned()),
                other => bail!("the heading has an unknown key `{other}`"),
            }
        }
        let breaks = !sentinel.breaks.is_empty();
        ensure!(breaks, "the heading does not say what it `breaks`");
        let red = !sentinel.red.is_empty();
        ensure!(red, "the heading names no test that turns `red`");
        let tests = sentinel.command.first().is_some_and(|word| word == "test");
        ensure!(tests, "the heading's `command` does not begin with `test`");
        Ok(sentinel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Sentinel> {
        Sentinel::parse(Path::new("sentinels/early_lease.patch"), text)
    }

    #[test]
    fn a_heading_is_read() {
        let sentinel = parse(
            "# breaks: leases\n# command: test -p a --lib\n# red: x::one\n# red: x::two\n\
             diff --git a/x b/x\n# red: no heading any more\n",
        )
        .unwrap();
        assert_eq!(sentinel.name, "early_lease");
        assert_eq!(sentinel.breaks, "leases");
        assert_eq!(sentinel.command, ["test", "-p", "a", "--lib"]);
        assert_eq!(sentinel.red, ["x::one", "x::two"]);
    }

    #[test]
    fn an_incomplete_heading_is_refused() {
        for (text, words) in [
            ("# command: test\n# red: x\n", "breaks"),
            ("# breaks: x\n# command: test\n", "red"),
            ("# breaks: x\n# red: x\n", "command"),
            ("# breaks: x\n# red: x\n# command: run\n", "command"),
            ("# breaks: x\n# colour: blue\n", "colour"),
            ("# breaks\n", "key: value"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
