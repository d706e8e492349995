//! A range of bytes.

use core::fmt;

/// `len` bytes from `offset` on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

impl Span {
    /// `len` bytes from `offset` on.
    pub const fn new(offset: u64, len: u64) -> Span {
        Span { offset, len }
    }

    /// Returns the first byte after the range; `None` past `u64::MAX`.
    pub const fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }

    /// Returns whether the range lies within the first `limit` bytes.
    pub const fn fits(&self, limit: u64) -> bool {
        match self.end() {
            Some(end) => end <= limit,
            None => false,
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.offset, self.len)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "bytes {}..{}",
            self.offset,
            self.offset.saturating_add(self.len)
        )
    }
}
