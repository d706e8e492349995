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

    fn name(self) -> &'static str {
        match self.0 {
            1 => "Internal Error",
            2 => "Caused GPU Timeout Error",
            3 => "Caused GPU Address Fault Error",
            4 => "Ignored (for causing prior/excessive GPU errors)",
            7 => "Insufficient Permission (to submit GPU work from background)",
            8 => "Insufficient Memory",
            9 => "Invalid Resource",
            10 => "Memoryless Limits Reached",
            11 => "Device Removed",
            12 => "Stack Overflow",
            _ => "Unknown Error",
        }
    }
}

impl Error {
    pub(crate) fn new(code: Code, told: &str) -> Ref<Self> {
        let description = format!("{} ({:08x}:{told})", code.name(), code.0);
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
