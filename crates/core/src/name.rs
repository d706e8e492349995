//! Short names held inline: the kinds of devices and the names of backends.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::num::NonZeroU8;
use core::str::FromStr;

use crate::ParseError;

/// A name of 1 to 15 bytes, `[a-z][a-z0-9_-]*`, held inline.
///
/// Device kinds and backends are named by it. Being its own storage it needs no table of interned
/// strings, so it is `Copy`, comparable and usable without an allocator or a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    bytes: [u8; Name::MAX_LEN],
    len: NonZeroU8,
}

impl Name {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 15;

    /// Makes a name out of `text`; `None` when it is empty, too long, or has a character outside
    /// `[a-z][a-z0-9_-]*`.
    pub const fn new(text: &str) -> Option<Name> {
        let text = text.as_bytes();
        if text.len() > Name::MAX_LEN {
            return None;
        }
        let Some(len) = NonZeroU8::new(text.len() as u8) else {
            return None;
        };
        if !text[0].is_ascii_lowercase() {
            return None;
        }
        let mut bytes = [0; Name::MAX_LEN];
        let mut i = 0;
        while i < text.len() {
            let c = text[i];
            if !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || c == b'-') {
                return None;
            }
            bytes[i] = c;
            i += 1;
        }
        Some(Name { bytes, len })
    }

    /// Returns a name that is known when the program is compiled.
    ///
    /// # Panics
    /// When `text` is no name; in a `const` that is a compile error.
    pub const fn constant(text: &str) -> Name {
        match Name::new(text) {
            Some(name) => name,
            None => panic!("not a name of 1 to 15 bytes [a-z][a-z0-9_-]*"),
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        // Only ASCII passes `new`.
        core::str::from_utf8(&self.bytes[..usize::from(self.len.get())]).unwrap_or("")
    }
}

/// One number in place of a slice and its length: plans are looked up by four names.
impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut whole = [self.len.get(); Name::MAX_LEN + 1];
        whole[..Name::MAX_LEN].copy_from_slice(&self.bytes);
        state.write_u128(u128::from_ne_bytes(whole));
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Name {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Name, ParseError> {
        Name::new(text).ok_or_else(|| ParseError::name(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_lower_case_words() {
        assert_eq!(Name::new("cpu").map(|n| n.as_str().len()), Some(3));
        assert!(Name::new("abcdefghijklmno").is_some());
        assert!(Name::new("abcdefghijklmnop").is_none());
        for bad in ["", "Cpu", "9p", "a b", "a/b", "-a", "é"] {
            assert!(Name::new(bad).is_none(), "{bad:?}");
        }
    }
}
