//! Classes: statics, each with its metaclass, whose tables are filled when first asked.

use std::any::TypeId;
use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::method::Method;
use super::{Bool, Selector};

/// The header of all objects, and of classes too.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Object {
    /// Its class. A metaclass has none.
    pub(super) isa: Option<&'static Class>,
}

/// A class or a metaclass. Clients have its address, and send messages to it as to any object.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Class {
    object: Object,
    name: &'static CStr,
    superclass: Option<&'static Self>,
    methods: fn() -> Vec<Method>,
    payload: Option<Payload>,
    table: OnceLock<Table>,
    alive: AtomicUsize,
}

/// The state of a class's instances.
#[derive(Debug, Clone, Copy)]
struct Payload {
    kind: fn() -> TypeId,
    drop: unsafe fn(NonNull<()>),
}

type Table = HashMap<usize, Method>;

impl Class {
    /// A class whose instances hold a `T`.
    pub(crate) const fn of<T: 'static>(
        name: &'static CStr,
        metaclass: &'static Self,
        superclass: Option<&'static Self>,
        methods: fn() -> Vec<Method>,
    ) -> Self {
        Self {
            object: Object {
                isa: Some(metaclass),
            },
            name,
            superclass,
            methods,
            payload: Some(Payload {
                kind: TypeId::of::<T>,
                drop: drop_payload::<T>,
            }),
            table: OnceLock::new(),
            alive: AtomicUsize::new(0),
        }
    }

    /// The class of a class: its methods are those of the class itself.
    pub(crate) const fn meta(
        name: &'static CStr,
        superclass: &'static Self,
        methods: fn() -> Vec<Method>,
    ) -> Self {
        Self {
            object: Object { isa: None },
            name,
            superclass: Some(superclass),
            methods,
            payload: None,
            table: OnceLock::new(),
            alive: AtomicUsize::new(0),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name.to_str().expect("classes have names in ASCII")
    }

    pub(super) fn is_meta(&self) -> bool {
        self.object.isa.is_none()
    }

    /// Its method for `selector`, or that of the nearest class above it.
    pub(crate) fn method(&'static self, selector: Selector) -> Option<&'static Method> {
        let table = self.table.get_or_init(|| {
            let methods = (self.methods)().into_iter();
            methods
                .map(|method| (method.selector.key(), method))
                .collect()
        });
        let above = || self.superclass.and_then(|class| class.method(selector));
        table.get(&selector.key()).or_else(above)
    }

    /// Whether its instances hold a `T`.
    pub(crate) fn holds<T: 'static>(&self) -> bool {
        self.payload
            .is_some_and(|payload| (payload.kind)() == TypeId::of::<T>())
    }

    /// Whether it is `other` or stands below it.
    pub(crate) fn descends_from(&'static self, other: &'static Self) -> bool {
        ptr::eq(self, other)
            || self
                .superclass
                .is_some_and(|class| class.descends_from(other))
    }

    /// # Safety
    /// `payload` came from a `Box<T>` where `T` is what instances hold, and is not used again.
    pub(super) unsafe fn drop_payload(&self, payload: NonNull<()>) {
        if let Some(kind) = self.payload {
            // SAFETY: the function is that of `T`; the rest is the caller's promise.
            unsafe { (kind.drop)(payload) }
        }
    }

    pub(super) fn born(&self) {
        self.alive.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn died(&self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of its instances.
    pub(crate) fn alive(&self) -> usize {
        self.alive.load(Ordering::Relaxed)
    }
}

/// # Safety
/// As [`Class::drop_payload`].
unsafe fn drop_payload<T>(payload: NonNull<()>) {
    // SAFETY: the caller keeps the same promise.
    drop(unsafe { Box::from_raw(payload.cast::<T>().as_ptr()) });
}

#[unsafe(no_mangle)]
extern "C" fn object_getClass(object: Option<&Object>) -> Option<&'static Class> {
    object.and_then(|object| object.isa)
}

#[unsafe(no_mangle)]
extern "C" fn class_getName(class: &'static Class) -> *const c_char {
    class.name.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn class_isMetaClass(class: &'static Class) -> Bool {
    Bool::from(class.is_meta())
}

#[unsafe(no_mangle)]
extern "C" fn class_getSuperclass(class: &'static Class) -> Option<&'static Class> {
    class.superclass
}

#[unsafe(no_mangle)]
extern "C" fn class_getInstanceMethod(
    class: &'static Class,
    selector: Selector,
) -> Option<&'static Method> {
    class.method(selector)
}
