//! Turns panics and errors of backends into faults.

use transload_hal::{ErrorClass, Fault};

/// Runs `f`. A panic becomes a fault with the panic's message.
#[cfg(feature = "std")]
pub(crate) fn guarded<R>(f: impl FnOnce() -> R) -> Result<R, Fault> {
    // The engine holds no lock and no half-made change over a call into a backend.
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    unwound.map_err(|payload| {
        let said = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| {
                payload
                    .downcast_ref::<std::string::String>()
                    .map(|s| s.as_str())
            })
            .unwrap_or("no message");
        let said = alloc::format!("the backend panicked: {said}");
        // The payload of the panic may panic when it is dropped. The payload of that second panic is leaked.
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(payload)));
        dropped.unwrap_or_else(core::mem::forget);
        Fault::new(ErrorClass::Failed, said)
    })
}

/// Runs `f`. Without an operating system a panic does not return.
#[cfg(not(feature = "std"))]
pub(crate) fn guarded<R>(f: impl FnOnce() -> R) -> Result<R, Fault> {
    Ok(f())
}

/// Returns the fault of a call that the engine made on its own account, for a slot or a proof: it is never the caller's
/// mistake.
pub(crate) fn own_fault(class: ErrorClass, error: &dyn core::fmt::Display) -> Fault {
    let class = match class {
        ErrorClass::Caller => ErrorClass::Unsupported,
        class => class,
    };
    Fault::new(class, alloc::format!("{error}"))
}
