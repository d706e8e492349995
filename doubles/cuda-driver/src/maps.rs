//! The process's mappings: whether an address is mapped, and whether it can be written.
//!
//! Source: proc_pid_maps(5).

use std::fs;
use std::ops::Range;

/// The access that all pages of a range allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

/// The access of the process to a range of its addresses; `None` where a page of it is not mapped or cannot be read.
pub(crate) fn access(range: &Range<u64>) -> Option<Access> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    access_in(&maps, range)
}

fn access_in(maps: &str, range: &Range<u64>) -> Option<Access> {
    let mut access = Access::ReadWrite;
    let mut at = range.start;
    // The lines are in the order of addresses.
    for (mapped, permissions) in maps.lines().filter_map(parse) {
        if mapped.end <= at {
            continue;
        }
        if mapped.start > at || !permissions.starts_with('r') {
            return None;
        }
        if !permissions[1..].starts_with('w') {
            access = Access::Read;
        }
        at = mapped.end;
        if at >= range.end {
            return Some(access);
        }
    }
    None
}

fn parse(line: &str) -> Option<(Range<u64>, &str)> {
    let mut words = line.split(' ');
    let (start, end) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(start)?..number(end)?, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0
3000-4000 r--p 00000000 00:00 0    /some/file with words
4000-5000 ---p 00000000 00:00 0
6000-7000 rw-s 00000000 00:00 0
";

    #[test]
    fn every_page_counts() {
        let of = |range| access_in(MAPS, &range);
        assert_eq!(of(0x1000..0x3000), Some(Access::ReadWrite));
        assert_eq!(of(0x2fff..0x3001), Some(Access::Read));
        assert_eq!(of(0x6000..0x7000), Some(Access::ReadWrite));
        assert_eq!(of(0x3fff..0x4001), None, "nothing may be done there");
        assert_eq!(of(0xfff..0x1001), None, "it begins before");
        assert_eq!(of(0x5000..0x6001), None);
        assert_eq!(of(0x6fff..0x7001), None, "it ends after");
    }

    #[test]
    fn this_process_is_looked_at() {
        let local = 7u64;
        let start = (&raw const local).addr() as u64;
        assert_eq!(access(&(start..start + 8)), Some(Access::ReadWrite));
        let text = "in read-only memory".as_ptr().addr() as u64;
        assert_eq!(access(&(text..text + 1)), Some(Access::Read));
        assert_eq!(access(&(0..1)), None);
    }
}
