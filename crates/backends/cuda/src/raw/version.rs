//! CUDA's version numbers.

use core::fmt;

/// A version of CUDA as the driver tells it: 1000 times the major number and 10 times the minor one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version(pub u32);

impl Version {
    /// The version `major.minor`.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Version {
        Version(major * 1000 + minor * 10)
    }

    /// 12 of 12.8.
    #[must_use]
    pub const fn major(self) -> u32 {
        self.0 / 1000
    }

    /// 8 of 12.8.
    #[must_use]
    pub const fn minor(self) -> u32 {
        self.0 % 1000 / 10
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_reads_as_people_write_it() {
        assert_eq!(Version(12080).to_string(), "12.8");
        assert_eq!(Version::new(13, 4), Version(13040));
        assert_eq!(Version(11040).to_string(), "11.4");
    }
}
