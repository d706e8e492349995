//! `NSArray`.

use std::ffi::c_void;
use std::slice;

use crate::runtime::{Coded, Id, Instance, Method, New, Receiver, Ref};

/// Objects of any class, each with a count of ours.
#[derive(Debug)]
pub(crate) struct Array {
    objects: Vec<Id>,
}

class!(c"NSArray" "_OBJC_CLASS_NSArray", Array, methods);

// SAFETY: it has a count of each object, and objects may be sent and shared (`Instance`).
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

/// `NSFastEnumerationState`
#[repr(C)]
pub(crate) struct Enumeration {
    state: usize,
    items: *const Id,
    mutations: *const usize,
    extra: [usize; 5],
}

impl Coded for *mut Enumeration {
    const CODE: &'static str = "^{?=Q^@^Q[5Q]}";
}

impl Array {
    pub(crate) fn of<T: Instance>(objects: impl Iterator<Item = Ref<T>>) -> Ref<Self> {
        Ref::new(Self {
            objects: objects.map(Ref::into_id).collect(),
        })
    }

    /// One that takes a count of each.
    fn retaining(objects: &[Id]) -> Self {
        for object in objects {
            object.retain();
        }
        Self {
            objects: objects.to_vec(),
        }
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        for object in &self.objects {
            object.release();
        }
    }
}

fn methods() -> Vec<Method> {
    let mut methods = methods![Receiver<Array>;
        c"count" => fn(this) -> usize {
            this.objects.len()
        }
        c"objectAtIndex:" => fn(this, index: usize) -> Id {
            // Foundation throws NSRangeException.
            this.objects[index]
        }
        c"firstObject" => fn(this) -> Id {
            this.objects.first().copied().unwrap_or(Id::NIL)
        }
        c"lastObject" => fn(this) -> Id {
            this.objects.last().copied().unwrap_or(Id::NIL)
        }
        c"getObjects:" => fn(this, objects: *mut Id) {
            // SAFETY: the caller has room for as many as `count` says.
            unsafe { objects.copy_from_nonoverlapping(this.objects.as_ptr(), this.objects.len()) };
        }
        c"countByEnumeratingWithState:objects:count:" => fn(
            this, state: *mut Enumeration, _objects: *mut Id, _count: usize
        ) -> usize {
            // SAFETY: the caller has such a state, and nothing else uses it during this call.
            let state = unsafe { &mut *state };
            if state.state != 0 {
                return 0;
            }
            state.state = 1;
            state.items = this.objects.as_ptr();
            state.mutations = &raw const NEVER_CHANGES;
            this.objects.len()
        }
    ];
    methods.extend(methods![New;
        c"initWithObjects:count:" => fn(this, objects: *const Id, count: usize) -> Id {
            if count == 0 {
                return this.hold(Array::retaining(&[]));
            }
            // SAFETY: the caller says that `count` objects are there for as long as this call lasts.
            let objects = unsafe { slice::from_raw_parts(objects, count) };
            this.hold(Array::retaining(objects))
        }
        c"init" => fn(this) -> Id {
            this.hold(Array::retaining(&[]))
        }
    ]);
    methods
}

/// Arrays cannot be changed, and tell so here.
static NEVER_CHANGES: usize = 0;

const _: () = assert!(size_of::<Id>() == size_of::<*mut c_void>());
