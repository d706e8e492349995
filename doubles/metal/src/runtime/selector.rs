//! The names of messages. A selector is the address of the only copy of its name.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::{Mutex, PoisonError};

use super::Bool;

/// A name that was registered; two are equal when their addresses are.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Selector(&'static Name);

/// Never freed: clients keep selectors in statics.
#[derive(Debug)]
struct Name(CString);

static NAMES: Mutex<BTreeMap<&'static CStr, Selector>> = Mutex::new(BTreeMap::new());

impl Selector {
    /// The selector called `name`.
    pub(crate) fn named(name: &CStr) -> Self {
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&selector) = names.get(name) {
            return selector;
        }
        let kept: &'static Name = Box::leak(Box::new(Name(name.to_owned())));
        names.insert(&kept.0, Self(kept));
        Self(kept)
    }

    pub(crate) fn name(self) -> &'static CStr {
        &self.0.0
    }

    /// Its key for lookups.
    pub(crate) fn key(self) -> usize {
        std::ptr::from_ref(self.0).addr()
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sel_registerName(name: *const c_char) -> Selector {
    // SAFETY: the caller gives a string that ends with a zero, as Objective-C Runtime, sel_registerName, asks.
    Selector::named(unsafe { CStr::from_ptr(name) })
}

#[unsafe(no_mangle)]
extern "C" fn sel_getName(selector: Selector) -> *const c_char {
    selector.name().as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn sel_isEqual(one: Selector, other: Selector) -> Bool {
    Bool::from(one.key() == other.key())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_selector() {
        let one = Selector::named(c"length");
        assert_eq!(one.key(), Selector::named(c"length").key());
        assert_ne!(one.key(), Selector::named(c"length:").key());
        assert_eq!(one.name(), c"length");
    }
}
