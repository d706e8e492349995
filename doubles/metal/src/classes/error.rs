//! `NSError`, of command buffers.

use super::string::{self, Text};
use crate::runtime::{Header, Id, Method, Receiver, Ref};

/// Why a command buffer failed.
#[derive(Debug)]
pub(crate) struct Error {
    code: isize,
    description: Ref<Text>,
}

class!(c"NSError" "_OBJC_CLASS_NSError", Error, methods);

/// `MTLCommandBufferError`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) isize);

impl Code {
    pub(crate) const INTERNAL: Self = Self(1);
    pub(crate) const INVALID_RESOURCE: Self = Self(9);
    pub(crate) const DEVICE_REMOVED: Self = Self(11);

    /// The name that faults have for it, or its number. Zero is no error.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some((code, ..)) = CODES.iter().find(|(_, name, _)| *name == text) {
            return Some(Self(*code));
        }
        text.parse().ok().filter(|code| *code != 0).map(Self)
    }

    /// As Metal words it.
    fn words(self) -> &'static str {
        let known = CODES.iter().find(|(code, ..)| *code == self.0);
        known.map_or("Unknown Error", |(_, _, words)| words)
    }
}

/// Number, name, words.
const CODES: [(isize, &str, &str); 10] = [
    (1, "internal", "Internal Error"),
    (2, "timeout", "Caused GPU Timeout Error"),
    (3, "page-fault", "Caused GPU Address Fault Error"),
    (
        4,
        "access-revoked",
        "Ignored (for causing prior/excessive GPU errors)",
    ),
    (
        7,
        "not-permitted",
        "Insufficient Permission (to submit GPU work from background)",
    ),
    (8, "out-of-memory", "Insufficient Memory"),
    (9, "invalid-resource", "Invalid Resource"),
    (10, "memoryless", "Memoryless Limits Reached"),
    (11, "device-removed", "Device Removed"),
    (12, "stack-overflow", "Stack Overflow"),
];

impl Error {
    pub(crate) fn new(code: Code, told: &str) -> Ref<Self> {
        let description = format!("{} ({:08x}:{told})", code.words(), code.0);
        Ref::new(Self {
            code: code.0,
            description: Text::new(&description),
        })
    }
}

fn methods() -> Vec<Method> {
    methods![Receiver<Error>;
        c"code" => fn(this) -> isize {
            this.code
        }
        c"domain" => fn(_this) -> Id {
            Id::forever(&DOMAIN)
        }
        c"localizedDescription" => fn(this) -> Id {
            this.description.clone().autoreleased()
        }
        c"description" => fn(this) -> Id {
            let text = format!("Error Domain=MTLCommandBufferErrorDomain Code={}", this.code);
            Text::new(&text).autoreleased()
        }
    ]
}

static DOMAIN_TEXT: Text = Text::constant(c"MTLCommandBufferErrorDomain");
static DOMAIN: Header = Header::forever(&string::CLASS, &DOMAIN_TEXT);

#[unsafe(no_mangle)]
static MTLCommandBufferErrorDomain: &Header = &DOMAIN;
