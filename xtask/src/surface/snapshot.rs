//! A surface as it is kept in a file: one item a line, under the setting in which it was listed.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::checks::output_of;

/// The compiler and the system by which a surface was listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    /// Without the last part of its version, which changes nothing in what rustdoc writes.
    compiler: String,
    target: String,
}

impl Setting {
    /// # Errors
    /// When rustc cannot be asked.
    pub(crate) fn of_this_machine() -> Result<Self> {
        let said = output_of(Command::new("rustc").arg("-vV")).context("rustc does not run")?;
        Self::told(&said).with_context(|| format!("rustc says nothing of itself:\n{said}"))
    }

    /// What `rustc -vV` says.
    fn told(said: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut lines = said.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        };
        let release = field("release")?;
        let (version, channel) = release.split_once('-').unwrap_or((release, "stable"));
        let (minor, _) = version.rsplit_once('.')?;
        Some(Self {
            compiler: match channel {
                "stable" => format!("rustc {minor}"),
                // From one night to the next everything may change.
                _ => format!("rustc {release} of {}", field("commit-date")?),
            },
            target: field("host")?.to_owned(),
        })
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}", self.compiler, self.target)
    }
}

/// A surface and how it was listed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) setting: Setting,
    pub(crate) items: Vec<String>,
}

impl Snapshot {
    /// # Errors
    /// When there is no such file, or it was not written by [`Snapshot::write`].
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| {
            format!(
                "{} is not there; `cargo xtask public-api --accept` writes it",
                path.display()
            )
        })?;
        Self::parse(&text).with_context(|| format!("{} begins otherwise", path.display()))
    }

    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn write(&self, package: &str, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, self.text(package))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn text(&self, package: &str) -> String {
        let mut text = format!(
            "# What {package} shows to others with all its features. \
             `cargo xtask public-api --accept` writes this file.\n{LISTED}{}\n",
            self.setting
        );
        for item in &self.items {
            text.push_str(item);
            text.push('\n');
        }
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let setting = lines.by_ref().find_map(|line| line.strip_prefix(LISTED))?;
        let (compiler, target) = setting.split_once(" for ")?;
        let setting = Setting {
            compiler: compiler.to_owned(),
            target: target.to_owned(),
        };
        let items = lines.map(str::to_owned).collect();
        Some(Self { setting, items })
    }

    /// The lines that are here and not among `items`, and then the other way round.
    pub(crate) fn differences(&self, items: &[String]) -> Vec<String> {
        let missing = |from: &[String], which: &[String], sign: char| -> Vec<String> {
            let mut have = BTreeMap::new();
            for item in from {
                *have.entry(item.as_str()).or_insert(0_u32) += 1;
            }
            let mut signed = Vec::new();
            for item in which {
                match have.get_mut(item.as_str()).filter(|count| **count > 0) {
                    Some(count) => *count -= 1,
                    None => signed.push(format!("{sign}{item}")),
                }
            }
            signed
        };
        let mut differences = missing(items, &self.items, '-');
        differences.extend(missing(&self.items, items, '+'));
        differences
    }
}

/// What stands before the setting.
const LISTED: &str = "# Listed by ";

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
rustc 1.95.0 (59807616e 2026-04-14)
binary: rustc
commit-date: 2026-04-14
host: x86_64-unknown-linux-gnu
release: 1.95.0
";

    fn snapshot(items: &[&str]) -> Snapshot {
        Snapshot {
            setting: Setting::told(SAID).unwrap(),
            items: items.iter().map(|&item| item.to_owned()).collect(),
        }
    }

    #[test]
    fn compilers_that_differ_in_a_patch_alone_are_one() {
        let setting = Setting::told(SAID).unwrap();
        assert_eq!(
            setting.to_string(),
            "rustc 1.95 for x86_64-unknown-linux-gnu"
        );
        let other = |from: &str, to: &str| Setting::told(&SAID.replace(from, to)).unwrap();
        assert_eq!(setting, other("release: 1.95.0", "release: 1.95.1"));
        assert_ne!(setting, other("release: 1.95.0", "release: 1.96.0"));
        assert_ne!(setting, other("x86_64", "aarch64"));
        let nightly = other("release: 1.95.0", "release: 1.97.0-nightly");
        assert_eq!(nightly.compiler, "rustc 1.97.0-nightly of 2026-04-14");
    }

    #[test]
    fn a_snapshot_is_read_as_it_was_written() {
        let written = snapshot(&["pub mod a", "pub fn a::f()"]);
        assert_eq!(Snapshot::parse(&written.text("a")), Some(written));
        assert_eq!(Snapshot::parse("pub mod a\n"), None);
    }

    #[test]
    fn what_is_gone_and_what_is_new_are_shown() {
        let kept = snapshot(&["pub mod a", "pub fn a::f()", "pub fn a::g()"]);
        let now = snapshot(&["pub mod a", "pub fn a::f(u8)", "pub fn a::g()"]);
        assert_eq!(
            kept.differences(&now.items),
            ["-pub fn a::f()", "+pub fn a::f(u8)"]
        );
        assert!(kept.differences(&kept.items).is_empty());
    }

    #[test]
    fn one_of_two_equal_lines_can_go() {
        let kept = snapshot(&["impl A", "impl A", "impl B"]);
        let now = snapshot(&["impl A", "impl B"]);
        assert_eq!(kept.differences(&now.items), ["-impl A"]);
        assert_eq!(now.differences(&kept.items), ["+impl A"]);
    }
}
