//! The checks at the start of every function of the driver.
//!
//! [`driver!`] makes the exported functions, each of which enters here. The checks: the driver is initialised, in this
//! process; the thread does not run a user's function, which may not call CUDA; no fault is ordered for this call. A
//! panic of the double becomes `CUDA_ERROR_UNKNOWN` and a line in the log, because no panic may unwind into a client.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::MutexGuard;

use transload_cuda::raw::{CUcontext, CUdevice, CUresult};

use crate::answer::Answer;
use crate::context;
use crate::log::Calls;
use crate::state::{State, World, world};

/// The times at which a function may be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum When {
    /// At any time, within a user's function too.
    Always,
    /// After `cuInit`, in the process that called it, and not within a user's function of a stream.
    Initialised,
}

/// A call in progress.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) world: &'static World,
    pub(crate) function: &'static str,
}

impl Call {
    /// The driver's whole state. Do not hold it while bytes move or a thread waits.
    pub(crate) fn state(&self) -> MutexGuard<'static, State> {
        self.world.state()
    }

    /// The current context of this thread, and its device.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` without one, `CONTEXT_IS_DESTROYED` if it is destroyed, and the error that has ruined it.
    pub(crate) fn current(&self, state: &State) -> Result<(CUcontext, CUdevice), CUresult> {
        context::current(state)
    }
}

thread_local! {
    /// Whether this thread is inside a user's function of a stream.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs a user's function of a stream, inside which every call is refused.
///
/// Source: CUDA Driver API, Execution Control, cuLaunchHostFunc: "The host function must not make any CUDA API
/// calls. Attempting to use a CUDA API may result in CUDA_ERROR_NOT_PERMITTED".
pub(crate) fn within_host_function(function: impl FnOnce()) {
    let before = IN_HOST_FUNCTION.replace(true);
    function();
    IN_HOST_FUNCTION.set(before);
}

/// Enters a function, and returns its answer.
pub(crate) fn enter(
    calls: &'static Calls,
    when: When,
    body: impl FnOnce(&Call) -> Answer,
) -> CUresult {
    let function = calls.name();
    let answer = panic::catch_unwind(AssertUnwindSafe(|| {
        let world = world();
        let call = Call { world, function };
        if world.is_initialised_elsewhere(process::id()) {
            return in_forked_child(&call, when, body);
        }
        calls.count();
        admitted(&call, when)?;
        body(&call)
    }));
    match answer {
        Ok(Ok(())) => CUresult::CUDA_SUCCESS,
        Ok(Err(result)) => result,
        Err(_) => {
            world().log.note(format_args!("{function} panicked"));
            CUresult::CUDA_ERROR_UNKNOWN
        }
    }
}

/// A forked child has none of the threads of its parent, and such a thread may have held any lock. The child therefore
/// takes no lock, neither for counting nor for faults.
fn in_forked_child(call: &Call, when: When, body: impl FnOnce(&Call) -> Answer) -> Answer {
    match when {
        When::Always => body(call),
        When::Initialised => Err(CUresult::CUDA_ERROR_NOT_INITIALIZED),
    }
}

fn admitted(call: &Call, when: When) -> Answer {
    if when == When::Initialised {
        if IN_HOST_FUNCTION.get() {
            return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
        }
        if !call.world.is_initialised_in(process::id()) {
            return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
        }
    }
    call.world.faults.on_call(call.function)?;
    call.world.captures.admit(call.function)
}

/// Makes functions of the driver:
///
/// ```text
/// driver! {
///     /// What is modelled, and which section of NVIDIA's documentation says so.
///     fn cuMemFree_v2(dptr: CUdeviceptr), call => { ... Ok(()) }
///     /// Before cuInit too:
///     always fn cuDriverGetVersion(version: *mut c_int), call => { ... }
/// }
/// ```
///
/// The body is a block of type [`Answer`] in which `call` is a [`&Call`](Call).
macro_rules! driver {
    () => {};
    (
        $(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?), $call:ident => $body:block
        $($rest:tt)*
    ) => {
        $crate::call::driver!(@make Initialised $(#[$doc])* $name($($argument: $type),*) $call $body);
        $crate::call::driver!($($rest)*);
    };
    (
        $(#[$doc:meta])* always fn $name:ident($($argument:ident: $type:ty),* $(,)?), $call:ident => $body:block
        $($rest:tt)*
    ) => {
        $crate::call::driver!(@make Always $(#[$doc])* $name($($argument: $type),*) $call $body);
        $crate::call::driver!($($rest)*);
    };
    (@make $when:ident $(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $call:ident $body:block) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As NVIDIA's reference has it for this function.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> ::transload_cuda::raw::CUresult {
            static CALLS: $crate::log::Calls = $crate::log::Calls::new(stringify!($name));
            $crate::call::enter(&CALLS, $crate::call::When::$when, |$call| $body)
        }
    };
}

pub(crate) use driver;
