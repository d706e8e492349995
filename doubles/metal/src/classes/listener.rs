//! `MTLSharedEventListener`: the receiver of event notifications. All notifications run on the thread
//! that calls handlers.

use std::sync::OnceLock;

use crate::runtime::{ClassReceiver, Id, Method, New, Ref};

/// Holds no state: one thread makes all notifications.
#[derive(Debug)]
pub(crate) struct Listener;

class!(c"MTLSharedEventListener" "_OBJC_CLASS_MTLSharedEventListener", Listener, methods, class_methods);

fn methods() -> Vec<Method> {
    methods![New;
        c"init" => fn(this) -> Id {
            this.hold(Listener)
        }
    ]
}

fn class_methods() -> Vec<Method> {
    methods![ClassReceiver;
        c"sharedListener" => fn(_class) -> Id {
            SHARED.get_or_init(|| Ref::new(Listener)).clone().autoreleased()
        }
    ]
}

static SHARED: OnceLock<Ref<Listener>> = OnceLock::new();
