//! Structures that messages carry by value.

use std::ops::Range as Bytes;

use crate::runtime::Coded;

/// `NSRange`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Range {
    pub(crate) location: usize,
    pub(crate) length: usize,
}

/// `MTLSize`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Size {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// `MTLOrigin`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Origin {
    pub(crate) x: usize,
    pub(crate) y: usize,
    pub(crate) z: usize,
}

/// `MTLRegion`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Region {
    pub(crate) origin: Origin,
    pub(crate) size: Size,
}

impl Range {
    /// The bytes, where they lie within the first `len`.
    pub(crate) fn within(self, len: usize) -> Option<Bytes<usize>> {
        let end = self.location.checked_add(self.length)?;
        (end <= len).then_some(self.location..end)
    }
}

impl Coded for Range {
    const CODE: &'static str = "{_NSRange=QQ}";
}

impl Coded for Size {
    const CODE: &'static str = "{?=QQQ}";
}

impl Coded for Origin {
    const CODE: &'static str = "{?=QQQ}";
}

impl Coded for Region {
    const CODE: &'static str = "{?={?=QQQ}{?=QQQ}}";
}
