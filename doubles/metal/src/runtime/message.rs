//! From a message to the function that carries it out.

use super::Selector;
use super::class::{Class, Object};
use super::method::Imp;
use super::object::Id;
use crate::faults;

/// The receiver of a message, seen as its superclass.
#[repr(C)]
struct Super {
    receiver: Id,
    class: &'static Class,
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_msg_lookup(receiver: Option<&Object>, selector: Selector) -> Imp {
    let Some(object) = receiver else {
        return NOTHING;
    };
    let Some(class) = object.isa else {
        unknown("a metaclass", selector);
    };
    // A class begins as an object does and has no count.
    if !class.is_meta() {
        let id = Id::of(object);
        if let Some(header) = id.header()
            && header.count() == 0
        {
            let selector = selector.name().to_string_lossy();
            header.told_dead(&format!("sent {selector}"));
            return NOTHING;
        }
    }
    if faults::silences(selector) {
        return NOTHING;
    }
    match class.method(selector) {
        Some(method) => method.imp,
        None => unknown(class.name(), selector),
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_msg_lookup_super(target: &Super, selector: Selector) -> Imp {
    let _ = target.receiver;
    match target.class.method(selector) {
        Some(method) => method.imp,
        None => unknown(target.class.name(), selector),
    }
}

/// The behaviour of NSObject's `doesNotRecognizeSelector:`.
fn unknown(class: &str, selector: Selector) -> ! {
    let selector = selector.name().to_string_lossy();
    panic!("{class} does not know the message {selector}: this double does not model it");
}

/// Messages to nil, and to objects that have ended, return zero.
extern "C-unwind" fn nothing() -> usize {
    0
}

// SAFETY: both are functions, and each caller takes a register's worth of answer or none.
const NOTHING: Imp =
    unsafe { std::mem::transmute::<extern "C-unwind" fn() -> usize, Imp>(nothing) };
