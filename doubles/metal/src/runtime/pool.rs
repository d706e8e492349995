//! Autorelease pools: a stack for each thread.
//!
//! Objects that the innermost pool releases later. Without a pool they stay until the thread ends, which amounts to a
//! leak and is reported as misuse (`NSAutoreleasePool`: "an object that is sent autorelease when there is no pool
//! leaks").

use std::cell::RefCell;
use std::ffi::c_void;

use super::object::{Id, Instance, Ref};
use crate::ledger::{Misuse, report};

/// The pools of a thread.
pub(crate) struct Pool;

#[derive(Debug, Default)]
struct Pools {
    objects: Vec<Id>,
    /// How many objects there were when each pool began.
    begins: Vec<usize>,
}

thread_local! {
    static POOLS: RefCell<Pools> = RefCell::default();
}

impl Pool {
    /// Runs `work` in a pool of its own.
    pub(crate) fn around<T>(work: impl FnOnce() -> T) -> T {
        let pool = objc_autoreleasePoolPush();
        let answer = work();
        objc_autoreleasePoolPop(pool);
        answer
    }

    /// Has the innermost pool release `object` some time.
    fn add(object: Id) -> Id {
        let pooled = POOLS.with_borrow_mut(|pools| {
            pools.objects.push(object);
            !pools.begins.is_empty()
        });
        if !pooled && let Some(header) = object.header() {
            let name = header.class().name();
            report(
                Misuse::NoPool,
                format!("a {name} was autoreleased on a thread without a pool"),
            );
        }
        object
    }
}

impl<T: Instance> Ref<T> {
    /// For callers of any other method: their pool releases it.
    pub(crate) fn autoreleased(self) -> Id {
        Pool::add(self.into_id())
    }
}

impl Id {
    /// A count of it that the pool of the caller of a method releases.
    pub(crate) fn autoreleased(self) -> Id {
        self.retain();
        Pool::add(self)
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        drain(std::mem::take(&mut self.objects));
    }
}

fn drain(objects: Vec<Id>) {
    for object in objects {
        object.release();
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPush() -> *mut c_void {
    POOLS.with_borrow_mut(|pools| {
        pools.begins.push(pools.objects.len());
        std::ptr::without_provenance_mut(pools.begins.len())
    })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPop(pool: *mut c_void) {
    // A released object may autorelease others at its end: they go to the same pool.
    loop {
        let objects = POOLS.with_borrow_mut(|pools| {
            let begin = pools.begins.get(pool.addr().wrapping_sub(1));
            let begin = *begin.expect("a pool is popped once, and before those around it");
            pools.objects.split_off(begin)
        });
        if objects.is_empty() {
            break;
        }
        drain(objects);
    }
    POOLS.with_borrow_mut(|pools| pools.begins.truncate(pool.addr().wrapping_sub(1)));
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autorelease(object: Id) -> Id {
    Pool::add(object)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleaseReturnValue(object: Id) -> Id {
    Pool::add(object)
}
