//! Catching the panics of code that is not this crate's: transforms and sinks.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `f`; `None` when it panicked.
///
/// Never unwinds, not even where the panic's payload panics when it is dropped: a pool's thread would end with it, and what
/// waits for its piece would wait for ever.
pub(crate) fn catch<T>(f: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(f)).map_err(discard).ok()
}

/// Drops the payload of a panic. Leaks the payload of a second panic, which the drop may raise.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;

    use super::*;

    /// Panics when it is dropped, with another of its kind as long as there are any left.
    struct Spiteful(u32);

    impl Drop for Spiteful {
        fn drop(&mut self) {
            if self.0 > 0 {
                resume_unwind(Box::new(Spiteful(self.0 - 1)));
            }
        }
    }

    #[test]
    fn a_payload_that_panics_in_its_drop_does_not_escape() {
        for left in 0..3 {
            assert_eq!(
                catch(|| resume_unwind(Box::new(Spiteful(left)))),
                None::<()>
            );
        }
        assert_eq!(catch(|| 7), Some(7));
    }
}
