//! Callbacks for the end of the user's own work.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use transload_hal::run_callback;

use super::error::{StreamError, is_unknown};
use super::relay::Relay;
use crate::context::Context;
use crate::device::Cuda;
use crate::fault::{fault_of, is_ruined};
use crate::raw::{CUevent, CUresult, CUstream, CUstreamCallback, CallError, Driver};

impl Cuda {
    /// Calls `then` once all work that the user's stream has been given so far is over: done, or given up with the
    /// stream's context. Use it with `transload::Event::setter` to start a transfer after the user's own work:
    ///
    /// ```no_run
    /// # fn example(cuda: &transload_cuda::Cuda, stream: transload_cuda::raw::CUstream)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let (tell, told) = std::sync::mpsc::channel();
    /// // SAFETY: the stream is there.
    /// unsafe { cuda.when_done(stream, move || tell.send(()).unwrap_or_default()) }?;
    /// told.recv()?;
    /// # Ok(()) }
    /// ```
    ///
    /// The stream may belong to any context of the process, the CUDA runtime's or one of the program's own. A default
    /// stream is the one of the calling thread's current context. That context stays current. The stream may be destroyed
    /// when the call has returned.
    ///
    /// # Where it runs
    /// `then` runs during this call if the stream is idle. Otherwise it runs on a thread of the driver, and the stream's
    /// later work waits until it has returned: it must not block, and must not call CUDA (CUDA Driver API,
    /// cuStreamAddCallback). In both cases it must not wait for a transfer of a device: the library refuses that
    /// (`TransferError::WouldBlock`).
    ///
    /// # Errors
    /// If the stream is being captured, its context is lost, or the driver refuses. An invalid handle, or one of a
    /// destroyed stream, is reported if the driver reports it.
    ///
    /// # Safety
    /// The stream belongs to this backend's driver, and is not destroyed before the call has returned.
    pub unsafe fn when_done(
        &self,
        stream: CUstream,
        then: impl FnOnce() + Send + 'static,
    ) -> Result<(), StreamError> {
        // SAFETY: the caller's promise.
        let user_stream = unsafe { self.user_stream(stream) }?;
        if user_stream.is_done()? {
            drop(user_stream);
            call(Box::new(then));
            return Ok(());
        }
        let watch = Watch {
            then: Some(Box::new(then)),
            relayed: None,
        };
        // SAFETY: as above.
        let added = unsafe { watch.add_to(self.driver(), stream) };
        added.map_err(|error| user_stream.refusal(error))
    }

    /// Calls `then` once the work before the last record of an event is over. An event that was never recorded counts as
    /// over. A stream of this backend waits for the event. If that stream's device is lost meanwhile, a thread waits in
    /// the context of another device in use; if there is none, the event is given up.
    ///
    /// # Errors
    /// As [`Cuda::when_done`].
    ///
    /// # Safety
    /// The event belongs to this backend's driver, and is not destroyed before `then` was called.
    pub unsafe fn when_event(
        &self,
        event: CUevent,
        then: impl FnOnce() + Send + 'static,
    ) -> Result<(), StreamError> {
        let any = self.any().map_err(StreamError::of_fault)?;
        let context = &any.context;
        let current = context.enter().map_err(StreamError::of_fault)?;
        let driver = self.driver();
        // SAFETY: the event is the driver's, by the caller's promise.
        match unsafe { driver.cuEventQuery(event) } {
            Ok(()) => {
                drop(current);
                call(Box::new(then));
                return Ok(());
            }
            Err(error) if error.is(CUresult::CUDA_ERROR_NOT_READY) => {}
            Err(error) => return Err(refusal(event, error)),
        }
        let relay = self.relays().take(context)?;
        // SAFETY: as above; the stream is ours, of the current context.
        let waits = unsafe { driver.cuStreamWaitEvent(relay.stream, event, 0) };
        waits.map_err(|error| {
            self.relays().put_back(relay);
            StreamError::of_fault(any.blame(error))
        })?;
        let others = self.gpus().iter().filter_map(|gpu| gpu.opened());
        let others = others.filter(|of| of.context.id != context.id);
        let watch = Watch {
            then: Some(Box::new(then)),
            relayed: Some(Relayed {
                event,
                relay,
                idle: Arc::clone(&self.relays().idle),
                others: others.map(|of| Arc::downgrade(&of.context)).collect(),
            }),
        };
        // SAFETY: the stream is ours, and there as long as the backend is.
        let added = unsafe { watch.add_to(driver, relay.stream) };
        // If the callback was not added, nothing reports the end of the stream's wait, and the stream is not reused.
        added.map_err(|error| StreamError::of_fault(any.blame(error)))
    }
}

/// The callback, and the stream that waits for an event.
struct Watch {
    then: Option<Box<dyn FnOnce() + Send>>,
    relayed: Option<Relayed>,
}

/// An event, and the stream of this backend that waits for it.
struct Relayed {
    event: CUevent,
    relay: Relay,
    idle: Arc<Mutex<Vec<Relay>>>,
    /// Contexts of other devices. The references are weak, because no CUDA object may be dropped on the driver's thread.
    others: Vec<Weak<Context>>,
}

impl Watch {
    /// Makes the driver call back, exactly once, when all work of the stream is over, successful or not (CUDA Driver API,
    /// Stream Management, cuStreamAddCallback). `cuLaunchHostFunc` would never call back in a ruined context.
    ///
    /// # Safety
    /// The stream is the driver's.
    unsafe fn add_to(self, driver: &Driver, stream: CUstream) -> Result<(), CallError> {
        let callback: CUstreamCallback = Some(called);
        let watch = Box::into_raw(Box::new(self));
        // SAFETY: the stream is there, by the caller's promise, and the function takes what it is given.
        let added = unsafe { driver.cuStreamAddCallback(stream, callback, watch.cast(), 0) };
        if added.is_err() {
            // SAFETY: it was made of a box, and the driver has not taken it.
            drop(unsafe { Box::from_raw(watch) });
        }
        added
    }

    /// Ends the watch: the stream has reached the callback.
    fn end(mut self, status: CUresult) {
        let Some(then) = self.then.take() else { return };
        let Some(relayed) = self.relayed.take() else {
            return call(then);
        };
        if status == CUresult::CUDA_SUCCESS {
            let mut idle = relayed.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push(relayed.relay);
            drop(idle);
            return call(then);
        }
        // This backend's device is lost, which says nothing about the user's event.
        let name = "transload-cuda-event".into();
        let thread = std::thread::Builder::new().name(name);
        // If no thread can be started, the event is never reported, like all other events of this device.
        let _ = thread.spawn(move || {
            relayed.await_elsewhere();
            call(then);
        });
    }
}

impl Relayed {
    /// Blocks until the event has occurred, or its context or every device is lost.
    fn await_elsewhere(self) {
        for context in self.others.iter().filter_map(Weak::upgrade) {
            let Ok(_current) = context.enter() else {
                continue;
            };
            // SAFETY: the event exists until the callback has been called.
            let waited = unsafe { context.driver.cuEventSynchronize(self.event) };
            // SAFETY: the default stream is always there.
            let asked = unsafe { context.driver.cuStreamQuery(CUstream::NULL) };
            // In an intact context the error concerns the event itself.
            if waited.is_ok() || !is_ruined(asked) {
                return;
            }
        }
    }
}

/// A panic in one callback must not keep the other callbacks from running.
fn call(then: Box<dyn FnOnce() + Send>) {
    let _ = catch_unwind(AssertUnwindSafe(|| run_callback(then)));
}

/// The callback that the driver calls.
unsafe extern "C" fn called(_: CUstream, status: CUresult, watch: *mut c_void) {
    // SAFETY: it is what `add_to` made of a box, and comes back once.
    let watch = unsafe { Box::from_raw(watch.cast::<Watch>()) };
    watch.end(status);
}

/// Why the driver refused a query of an event.
fn refusal(event: CUevent, error: CallError) -> StreamError {
    let (what, handle) = ("event", event.0.addr());
    match error.result() {
        _ if is_unknown(&error) => StreamError::Unknown {
            what,
            handle,
            fault: fault_of(error),
        },
        Some(CUresult::CUDA_ERROR_CAPTURED_EVENT) => StreamError::Capturing { what, handle },
        _ => StreamError::of_fault(fault_of(error)),
    }
}
