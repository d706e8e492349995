//! Sizes, rates and times in the notation of users and reports.

use alloc::format;
use core::fmt;
use core::str::FromStr;

use crate::ParseError;

/// A number of bytes that prints in binary units with at most three digits, `64 MiB` or `86.7 MiB`, and reads `64KiB`,
/// `1.5GB` or `4096`. Fewer than 1024 bytes print whole.
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
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let units = [
            (60, "EiB"),
            (50, "PiB"),
            (40, "TiB"),
            (30, "GiB"),
            (20, "MiB"),
            (10, "KiB"),
        ];
        let in_units = |shift: u32| self.0 as f64 / (1u64 << shift) as f64;
        // 1000 of a unit have one digit too many.
        let fits = |(shift, _): &(u32, &str)| in_units(shift - 10) >= 999.5;
        let (shift, name) = units.into_iter().find(fits).unwrap_or((10, "KiB"));
        let value = in_units(shift);
        let digits = match value {
            ..0.9995 => 3,
            ..9.995 => 2,
            ..99.95 => 1,
            _ => 0,
        };
        let text = format!("{value:.digits$}");
        let short = match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.'),
            false => &text,
        };
        write!(f, "{short} {name}")
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
    fn sizes_print_in_binary_units_with_at_most_three_digits() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1025, "1 KiB"),
            (4259, "4.16 KiB"),
            (1000 << 10, "0.977 MiB"),
            ((1 << 20) - 1, "1 MiB"),
            (90_868_376, "86.7 MiB"),
            (1_894_712_662, "1.76 GiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }

    #[test]
    fn chunks_print_in_the_largest_whole_unit() {
        let cases = [
            (4096, "4 KiB"),
            (8 << 20, "8 MiB"),
            (100 << 20, "100 MiB"),
            (1 << 30, "1 GiB"),
            (1536 << 10, "1.5 MiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(ByteSize(bytes).to_string(), text);
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
