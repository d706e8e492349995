//! Sizes, rates and times in the notation of users and reports.

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

/// A number of bytes that prints in the largest binary unit that leaves no rest, `64 MiB`, and where
/// none does as a [`ByteSize`]: for chunks and slots, which are powers of two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BinarySize(pub u64);

impl fmt::Display for BinarySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let whole =
            |(shift, _): &(u32, &str)| self.0 >> shift > 0 && self.0.trailing_zeros() >= *shift;
        match units.into_iter().find(whole) {
            Some((shift, name)) => write!(f, "{} {name}", self.0 >> shift),
            None => ByteSize(self.0).fmt(f),
        }
    }
}

/// A number of bytes that prints whole, its digits in groups of three: `67,108,864 bytes`.
#[derive(Clone, Copy)]
pub(crate) struct WholeBytes(pub(crate) u64);

impl fmt::Display for WholeBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = (0..self.0.checked_ilog(1000).unwrap_or(0)).rev();
        write!(f, "{}", self.0 / 1000u64.pow(groups.len() as u32))?;
        for group in groups {
            write!(f, ",{:03}", self.0 / 1000u64.pow(group) % 1000)?;
        }
        f.write_str(" bytes")
    }
}

/// Bytes per second that print with three digits: `9.84 GB/s`, `417 kB/s`.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct ByteRate(pub f64);

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            (1e12, "TB/s"),
            (1e9, "GB/s"),
            (1e6, "MB/s"),
            (1e3, "kB/s"),
            (1.0, "B/s"),
        ];
        three_digits(f, self.0, &units)
    }
}

/// A time in nanoseconds that prints with three digits: `21.0 ms`, `1.25 µs`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Nanoseconds(pub u64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1000 {
            return write!(f, "{} ns", self.0);
        }
        let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
        three_digits(f, self.0 as f64, &units)
    }
}

/// `value` in the largest of the units, which fall, in which three digits have none before the point
/// that is 0.
fn three_digits(
    f: &mut fmt::Formatter<'_>,
    value: f64,
    units: &[(f64, &'static str)],
) -> fmt::Result {
    let fits = |(unit, _): &&(f64, &str)| value >= unit * 0.9995;
    let Some((unit, name)) = units.iter().find(fits).or(units.last()) else {
        return Ok(());
    };
    let value = value / unit;
    // Where the digits that are printed round up to the next power of ten.
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    write!(f, "{value:.digits$} {name}")
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
    fn whole_bytes_are_grouped() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (999, "999 bytes"),
            (1000, "1,000 bytes"),
            (4_194_304, "4,194,304 bytes"),
            (1_000_007, "1,000,007 bytes"),
            (u64::MAX, "18,446,744,073,709,551,615 bytes"),
        ] {
            assert_eq!(WholeBytes(bytes).to_string(), text);
        }
    }

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

    #[test]
    fn chunks_print_in_the_largest_whole_unit() {
        let cases = [
            (4096, "4 KiB"),
            (8 << 20, "8 MiB"),
            (1 << 30, "1 GiB"),
            (1536 << 10, "1536 KiB"),
            (100, "100 B"),
            (0, "0 B"),
        ];
        for (bytes, text) in cases {
            assert_eq!(BinarySize(bytes).to_string(), text);
        }
    }

    #[test]
    fn rates_and_times_print_with_three_digits() {
        let rates = [
            (0.0, "0.00 B/s"),
            (10.0, "10.0 B/s"),
            (999.4, "999 B/s"),
            (999.6, "1.00 kB/s"),
            (3.2e6, "3.20 MB/s"),
            (417e6, "417 MB/s"),
            (9.996e9, "10.0 GB/s"),
            (99.96e9, "100 GB/s"),
            (2.5e15, "2500 TB/s"),
        ];
        for (rate, text) in rates {
            assert_eq!(ByteRate(rate).to_string(), text);
        }
        let times = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (20_997_000, "21.0 ms"),
            (999_600_000, "1.00 s"),
            (61_000_000_000, "61.0 s"),
        ];
        for (ns, text) in times {
            assert_eq!(Nanoseconds(ns).to_string(), text);
        }
    }
}
