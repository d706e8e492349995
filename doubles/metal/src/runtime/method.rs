//! Methods: a selector, a function, and the codes of its types.
//!
//! The codes are made from the function's own types. In debug builds objc2 compares them with the types that it is
//! about to send, so a disagreement between a binding and this double shows before the call.

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem;
use std::ptr::NonNull;

use super::Selector;

/// A function whose real type only its caller knows.
pub(crate) type Imp = unsafe extern "C-unwind" fn();

/// One method of a class. Clients get its address.
#[derive(Debug)]
pub(crate) struct Method {
    pub(crate) selector: Selector,
    pub(crate) imp: Imp,
    types: CString,
}

impl Method {
    pub(crate) fn new(selector: &CStr, function: impl Signature) -> Self {
        let types = CString::new(function.types()).expect("codes of types have no zero in them");
        Self {
            selector: Selector::named(selector),
            imp: function.imp(),
            types,
        }
    }
}

/// The methods of a class whose payload is `$this`:
/// `c"selector:" => fn(receiver, argument: Type) -> Type { body }`.
macro_rules! methods {
    ($receiver_type:ty; $(
        $selector:literal => fn($receiver:ident $(, $argument:ident: $kind:ty)* $(,)?) $(-> $answer:ty)? $body:block
    )*) => {
        vec![$({
            extern "C-unwind" fn method(
                receiver: $receiver_type,
                _: $crate::runtime::Selector
                $(, $argument: $kind)*
            ) $(-> $answer)? {
                let $receiver = receiver;
                $body
            }
            $crate::runtime::Method::new(
                $selector,
                method as extern "C-unwind" fn($receiver_type, $crate::runtime::Selector $(, $kind)*) $(-> $answer)?,
            )
        }),*]
    };
}

/// A type that messages carry, with its code (Objective-C Runtime Programming Guide, Type Encodings).
pub(crate) trait Coded {
    const CODE: &'static str;
}

macro_rules! coded {
    ($($kind:ty => $code:literal),* $(,)?) => {$(
        impl Coded for $kind {
            const CODE: &'static str = $code;
        }
    )*};
}

coded! {
    () => "v",
    u8 => "C",
    i32 => "i",
    u64 => "Q",
    i64 => "q",
    usize => "Q",
    isize => "q",
    f64 => "d",
    Selector => ":",
    *const c_char => "*",
    *mut c_void => "^v",
    *const c_void => "^v",
    Option<NonNull<c_void>> => "^v",
}

/// Functions that can be methods.
pub(crate) trait Signature {
    fn types(&self) -> String;
    fn imp(self) -> Imp;
}

macro_rules! signature {
    ($($argument:ident)*) => {
        impl<T: Coded, Answer: Coded $(, $argument: Coded)*> Signature
            for extern "C-unwind" fn(T, Selector $(, $argument)*) -> Answer
        {
            fn types(&self) -> String {
                [Answer::CODE, T::CODE, Selector::CODE $(, $argument::CODE)*].concat()
            }

            fn imp(self) -> Imp {
                // SAFETY: both are pointers to functions; the caller gives it its type back, which objc2 checks
                // by the codes.
                unsafe { mem::transmute::<Self, Imp>(self) }
            }
        }
    };
}

signature!();
signature!(A);
signature!(A B);
signature!(A B C);
signature!(A B C D);
signature!(A B C D E);
signature!(A B C D E F);
signature!(A B C D E F G);
signature!(A B C D E F G H);
signature!(A B C D E F G H I);
signature!(A B C D E F G H I J);

#[unsafe(no_mangle)]
extern "C" fn method_getTypeEncoding(method: &'static Method) -> *const c_char {
    method.types.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn method_getName(method: &'static Method) -> Selector {
    method.selector
}
