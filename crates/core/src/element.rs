//! Numbers in memory, and their conversion from one form to another.

use core::fmt;

/// A form of floating-point numbers in memory, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Element {
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of an [`Element::F32`].
    BF16,
    /// 8 bits, 4 of them exponent and 3 mantissa, without infinities (E4M3 of the OCP 8-bit Floating Point Specification).
    F8E4M3,
    /// 8 bits, 5 of them exponent and 2 mantissa: the upper half of an [`Element::F16`] (E5M2 there).
    F8E5M2,
}

impl Element {
    /// Returns the bytes of a number: 1 to 8.
    pub const fn len_bytes(self) -> u64 {
        match self {
            Element::F64 => 8,
            Element::F32 => 4,
            Element::F16 | Element::BF16 => 2,
            Element::F8E4M3 | Element::F8E5M2 => 1,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How numbers are converted while they are copied: to the nearest number of the other form, of two the even one (IEEE 754,
/// roundTiesToEven); what is too large becomes an infinity, and what is no number stays none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Conversion {
    from: Element,
    to: Element,
}

/// A conversion that there is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{from} is not converted to {to}: F64, F32, F16 and BF16 are what numbers are converted to"
)]
pub struct NoConversion {
    /// The form of the source.
    pub from: Element,
    /// The form that was asked for.
    pub to: Element,
}

impl Conversion {
    /// Makes a conversion from any form to one of 2 bytes or more.
    ///
    /// # Errors
    /// When there is no such conversion: to forms of 8 bits, which need a scale.
    pub const fn new(from: Element, to: Element) -> Result<Conversion, NoConversion> {
        match to {
            Element::F8E4M3 | Element::F8E5M2 => Err(NoConversion { from, to }),
            Element::F64 | Element::F32 | Element::F16 | Element::BF16 => {
                Ok(Conversion { from, to })
            }
        }
    }

    /// Returns the form of the source.
    pub const fn from(self) -> Element {
        self.from
    }

    /// Returns the form of the destination.
    pub const fn to(self) -> Element {
        self.to
    }

    /// Returns how many bytes so many bytes of the source become; `None` where they are no whole numbers, or become more than
    /// 2⁶⁴ bytes.
    pub const fn converted_bytes(self, src_bytes: u64) -> Option<u64> {
        if !src_bytes.is_multiple_of(self.from.len_bytes()) {
            return None;
        }
        (src_bytes / self.from.len_bytes()).checked_mul(self.to.len_bytes())
    }

    /// Returns how many bytes of the source become so many bytes, of which a last part of a number counts as none.
    pub const fn source_bytes(self, dst_bytes: u64) -> u64 {
        // At most 8 times as many as became them, or fewer: the source has that many.
        (dst_bytes / self.to.len_bytes()).saturating_mul(self.from.len_bytes())
    }
}
