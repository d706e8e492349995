//! The words of a row's `shown_by`.

use anyhow::{Result, bail};

/// One way to show a demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShownBy {
    /// `test SUITE NAME`: a test, or all whose names start with NAME when it
    /// ends in `*`.
    Test { suite: String, name: String },
    /// `bench CASE`: a case of the benchmarks, or a pattern of cases.
    Bench { case: String },
    /// `xtask ARGUMENTS`: another task of this program.
    Xtask { arguments: Vec<String> },
    /// `file PATH`: that file is there, for a person to read.
    File { path: String },
}

impl ShownBy {
    /// Reads one entry.
    ///
    /// # Errors
    /// When it has other words than these.
    pub(crate) fn parse(entry: &str) -> Result<Self> {
        let words: Vec<&str> = entry.split_whitespace().collect();
        Ok(match words.as_slice() {
            ["test", suite, name] => Self::Test {
                suite: (*suite).to_owned(),
                name: (*name).to_owned(),
            },
            ["bench", case] => Self::Bench {
                case: (*case).to_owned(),
            },
            ["file", path] => Self::File {
                path: (*path).to_owned(),
            },
            ["xtask", arguments @ ..] if !arguments.is_empty() => Self::Xtask {
                arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            },
            _ => bail!(
                "`{entry}` is none of `test SUITE NAME`, `bench CASE`, `xtask ARGUMENTS`, `file PATH`"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_forms_are_read() {
        assert!(matches!(
            ShownBy::parse("test transload::faults sweep::*"),
            Ok(ShownBy::Test { suite, name }) if suite == "transload::faults" && name == "sweep::*"
        ));
        assert!(matches!(
            ShownBy::parse("bench host-host"),
            Ok(ShownBy::Bench { .. })
        ));
        assert!(matches!(
            ShownBy::parse("file a/b.md"),
            Ok(ShownBy::File { .. })
        ));
        assert!(matches!(
            ShownBy::parse("xtask test --only direction"),
            Ok(ShownBy::Xtask { arguments }) if arguments.len() == 3
        ));
    }

    #[test]
    fn other_words_are_refused_with_the_forms() {
        for wrong in ["", "test x", "run it", "xtask", "file"] {
            let error = ShownBy::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("test SUITE NAME"), "{error}");
        }
    }
}
