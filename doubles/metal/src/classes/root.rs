//! `NSObject`: what every object can.

use std::ffi::c_void;
use std::mem;

use super::string::Text;
use crate::runtime::{Bool, Class, ClassReceiver, Id, Method, New, Ref, Selector};

/// Instances of the class itself hold nothing.
struct Nothing;

#[unsafe(export_name = "_OBJC_CLASS_NSObject")]
pub(crate) static CLASS: Class = Class::of::<Nothing>(c"NSObject", &META, None, methods);
pub(crate) static META: Class = Class::meta(c"NSObject", &CLASS, class_methods);

fn methods() -> Vec<Method> {
    let mut methods = methods![Id;
        c"isKindOfClass:" => fn(object, class: ClassReceiver) -> Bool {
            let header = object.header();
            Bool::from(header.is_some_and(|header| header.class().descends_from(class.class())))
        }
        c"respondsToSelector:" => fn(object, selector: Selector) -> Bool {
            let header = object.header();
            Bool::from(header.is_some_and(|header| header.class().method(selector).is_some()))
        }
        c"isEqual:" => fn(object, other: Id) -> Bool {
            Bool::from(object.is(other))
        }
        c"hash" => fn(object) -> usize {
            object.address()
        }
        c"retainCount" => fn(object) -> usize {
            object.header().map_or(0, |header| header.count())
        }
        c"description" => fn(object) -> Id {
            let class = object.header().map_or("nil", |header| header.class().name());
            Text::new(&format!("<{class}: {:#x}>", object.address())).autoreleased()
        }
    ];
    methods.extend(methods![New;
        c"init" => fn(object) -> Id {
            object.id()
        }
    ]);
    methods
}

fn class_methods() -> Vec<Method> {
    methods![ClassReceiver;
        c"alloc" => fn(class) -> Id {
            class.allocate()
        }
        c"allocWithZone:" => fn(class, _zone: *mut c_void) -> Id {
            class.allocate()
        }
        c"new" => fn(class) -> Id {
            let init = Selector::named(c"init");
            let method = class.class().method(init).expect("NSObject has init");
            // SAFETY: every `init` takes the object and the selector, and answers an object.
            let init_of_class = unsafe {
                mem::transmute::<unsafe extern "C-unwind" fn(), extern "C-unwind" fn(Id, Selector) -> Id>(method.imp)
            };
            init_of_class(class.allocate(), init)
        }
    ]
}

impl Text {
    /// A new string.
    pub(crate) fn new(text: &str) -> Ref<Self> {
        Ref::new(Self::from(text))
    }
}
