//! Counts tests in the output of test runners.

use std::ops::AddAssign;

/// The numbers of tests by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Counts {
    /// Adds up every closing line of libtest in `output`.
    pub(crate) fn read(output: &str) -> Self {
        let mut counts = Self::default();
        for line in output.lines() {
            if let Some(rest) = line.strip_prefix("test result: ") {
                // "ok. 3 passed; 0 failed; 1 ignored; 0 measured; ..."
                counts.passed += number_before(rest, "passed");
                counts.failed += number_before(rest, "failed");
                counts.skipped += number_before(rest, "ignored");
            }
        }
        counts
    }

    /// Tests that ran.
    pub(crate) fn ran(self) -> u64 {
        self.passed + self.failed
    }

    /// Tests in all.
    pub(crate) fn all(self) -> u64 {
        self.ran() + self.skipped
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// The names of the tests that libtest lists as failed in `output`.
pub(crate) fn failed_tests(output: &str) -> Vec<String> {
    let mut names: Vec<String> = output
        .lines()
        .filter_map(|line| line.trim().strip_prefix("test "))
        .filter_map(|rest| rest.split_once(" ... "))
        .filter(|(_, result)| result.trim() == "FAILED")
        .map(|(name, _)| name.trim_end_matches(" - should panic").to_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}

/// The number in front of each `word`, added up: "2 failed, 1 exec failed".
fn number_before(text: &str, word: &str) -> u64 {
    text.split([',', ';', ':', '.', '(', ')', ']'])
        .filter_map(|part| part.trim().split_once(' '))
        .filter(|(_, rest)| *rest == word)
        .filter_map(|(number, _)| number.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtest_lines_add_up() {
        let output = "\
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 4 filtered out; finished in 1.01s
";
        let expected = Counts {
            passed: 4,
            failed: 2,
            skipped: 1,
        };
        assert_eq!(Counts::read(output), expected);
    }

    #[test]
    fn text_that_only_speaks_of_tests_counts_nothing() {
        let counts = Counts::read("7 passed, 1 failed\nall tests passed");
        assert_eq!(counts, Counts::default());
    }

    #[test]
    fn failed_tests_are_named_once() {
        let output = "test a::b ... ok\ntest a::c ... FAILED\ntest a::c ... FAILED\n";
        assert_eq!(failed_tests(output), ["a::c"]);
    }
}
