//! Sizes as people write them, and as reports print them.

use core::fmt;
use core::str::FromStr;

use crate::ParseError;

/// A number of bytes that prints as `90.9 MB` and reads `64KiB`, `1.5GB` or `4096`.
///
/// Decimal units (kB, MB, GB, TB) are powers of 1000; binary ones (KiB, MiB, GiB, TiB) of 1024.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 10] = [
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("", 1),
];

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            (1_000_000_000_000, "TB"),
            (1_000_000_000, "GB"),
            (1_000_000, "MB"),
            (1_000, "kB"),
        ];
        for (unit, name) in units {
            if self.0 >= unit {
                return write!(f, "{:.1} {name}", self.0 as f64 / unit as f64);
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl FromStr for ByteSize {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<ByteSize, ParseError> {
        let error = || ParseError::size(text);
        let trimmed = text.trim();
        let end = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(end);
        let unit = unit.trim();
        let (_, factor) = UNITS
            .into_iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .ok_or_else(error)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.len() > 9 || (number.contains('.') && fraction.is_empty()) {
            return Err(error());
        }
        let whole: u64 = whole.parse().map_err(|_| error())?;
        let scale = 10u64.pow(fraction.len() as u32);
        let fraction: u64 = if fraction.is_empty() {
            0
        } else {
            fraction.parse().map_err(|_| error())?
        };
        let part = u128::from(fraction) * u128::from(factor) / u128::from(scale);
        u64::try_from(u128::from(whole) * u128::from(factor) + part)
            .map(ByteSize)
            .map_err(|_| error())
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn sizes_read_in_decimal_and_binary_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64KiB", 65_536),
            ("64 kib", 65_536),
            ("1.5GB", 1_500_000_000),
            ("2MiB", 2_097_152),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse::<ByteSize>().unwrap().0, bytes, "{text}");
        }
    }

    #[test]
    fn malformed_and_oversized_sizes_are_refused() {
        for text in [
            "",
            "KiB",
            "-1",
            "1.GB",
            ".5MB",
            "1e3",
            "3 parsecs",
            "16777216TiB",
            "1.2.3",
        ] {
            assert!(text.parse::<ByteSize>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn sizes_print_with_one_decimal() {
        assert_eq!(ByteSize(90_900_000).to_string(), "90.9 MB");
        assert_eq!(ByteSize(999).to_string(), "999 B");
    }
}
