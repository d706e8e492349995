//! Sizes of this processor's caches, which the default tuning is a function of.

/// Data cache sizes in bytes, as one core sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caches {
    /// The core's own second level.
    pub l2_bytes: usize,
    /// The last level that it can use, shared with others.
    pub last_bytes: usize,
}

impl Caches {
    /// The sizes that are assumed if the system reports none: 1 MiB, and 8 MiB shared, as in a small
    /// current laptop.
    pub const ASSUMED: Self = Self {
        l2_bytes: 1 << 20,
        last_bytes: 8 << 20,
    };

    /// Reads the sizes from Linux's `/sys/devices/system/cpu/cpu0/cache`; [`Caches::ASSUMED`] where that
    /// is missing or says nothing useful. Reads a few small files: call it once.
    #[must_use]
    pub fn detect() -> Self {
        let mut found = Vec::new();
        for index in 0..8 {
            let folder = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
            let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).ok();
            let (Some(level), Some(kind), Some(size)) = (read("level"), read("type"), read("size"))
            else {
                continue;
            };
            if let (Ok(level), Some(bytes)) = (level.trim().parse::<u32>(), parse_size(&size))
                && kind.trim() != "Instruction"
            {
                found.push((level, bytes));
            }
        }
        Self::from_levels(&found)
    }

    /// The sizes out of (level, bytes) pairs.
    fn from_levels(levels: &[(u32, usize)]) -> Self {
        let level = |wanted| {
            levels
                .iter()
                .find(|(level, _)| *level == wanted)
                .map(|(_, bytes)| *bytes)
        };
        let Some(l2_bytes) = level(2) else {
            return Self::ASSUMED;
        };
        let last = levels.iter().max_by_key(|(level, _)| *level);
        Self {
            l2_bytes,
            last_bytes: last.map_or(l2_bytes, |(_, bytes)| *bytes),
        }
    }
}

/// Bytes of a size as the kernel prints it: `48K`, `1024K`, `32M`.
fn parse_size(text: &str) -> Option<usize> {
    let text = text.trim();
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if text.ends_with('K') => (digits, 10),
        Some(digits) if text.ends_with('M') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (text, 0),
    };
    let bytes = digits.parse::<usize>().ok()?.checked_shl(shift)?;
    (bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_sizes_are_read_in_every_unit() {
        assert_eq!(parse_size("1024K\n"), Some(1 << 20));
        assert_eq!(parse_size("32M"), Some(32 << 20));
        assert_eq!(parse_size("512"), Some(512));
        assert_eq!(parse_size("0K"), None);
        assert_eq!(parse_size("many"), None);
    }

    #[test]
    fn the_highest_level_is_the_last_and_a_missing_second_level_is_assumed() {
        let found = Caches::from_levels(&[(1, 32 << 10), (2, 1 << 20), (3, 32 << 20)]);
        assert_eq!(
            found,
            Caches {
                l2_bytes: 1 << 20,
                last_bytes: 32 << 20
            }
        );
        let found = Caches::from_levels(&[(1, 32 << 10), (2, 4 << 20)]);
        assert_eq!(found.last_bytes, 4 << 20);
        assert_eq!(Caches::from_levels(&[]), Caches::ASSUMED);
    }
}
