//! `NSString`.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::slice;

use crate::runtime::{Bool, Id, Method, New, Receiver};

/// The contents of a string: text that ends with a zero, for `UTF8String`. A zero within ends it too.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Text(Cow<'static, CStr>);

class!(c"NSString" "_OBJC_CLASS_NSString", Text, methods);

impl Text {
    /// A constant of a framework.
    pub(crate) const fn constant(text: &'static CStr) -> Self {
        Self(Cow::Borrowed(text))
    }

    pub(crate) fn text(&self) -> Cow<'_, str> {
        self.0.to_string_lossy()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        let end = text.find('\0').unwrap_or(text.len());
        let text = CString::new(&text[..end]).expect("it was cut before the first zero");
        Self(Cow::Owned(text))
    }
}

fn methods() -> Vec<Method> {
    let mut methods = methods![Receiver<Text>;
        c"UTF8String" => fn(this) -> *const c_char {
            this.0.as_ptr()
        }
        c"lengthOfBytesUsingEncoding:" => fn(this, _encoding: i32) -> usize {
            this.0.count_bytes()
        }
        c"length" => fn(this) -> usize {
            this.text().encode_utf16().count()
        }
        c"isEqual:" => fn(this, other: Id) -> Bool {
            Bool::from(other.get::<Text>().is_some_and(|other| *other == *this))
        }
        c"isEqualToString:" => fn(this, other: Id) -> Bool {
            Bool::from(other.get::<Text>().is_some_and(|other| *other == *this))
        }
        c"hash" => fn(this) -> usize {
            let mut hasher = DefaultHasher::new();
            this.0.hash(&mut hasher);
            hasher.finish() as usize
        }
        c"description" => fn(this) -> Id {
            this.retained().autoreleased()
        }
        c"copyWithZone:" => fn(this, _zone: *mut c_void) -> Id {
            this.retained().into_id()
        }
    ];
    methods.extend(methods![New;
        c"initWithBytes:length:encoding:" => fn(this, bytes: *const c_void, len: usize, encoding: i32) -> Id {
            // SAFETY: the caller says that `len` bytes lie there for as long as this call lasts.
            let bytes = unsafe { slice::from_raw_parts(bytes.cast::<u8>(), len) };
            match std::str::from_utf8(bytes) {
                Ok(text) if encoding == UTF8 => this.hold(Text::from(text)),
                _ => this.refuse(),
            }
        }
    ]);
    methods
}

/// `NSUTF8StringEncoding`, the only supported one.
const UTF8: i32 = 4;
