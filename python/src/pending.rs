//! Copies under way, which Python code awaits.

use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use transload_tensors::Tensor;
use transload_tensors::transload::{Canceller, Report, Transfer, TransferError};

use crate::buffers::Lease;
use crate::tensor::PyTensor;
use crate::{errors, service, wait};

/// What a copy gives when it has ended.
pub(crate) enum Outcome {
    Tensor(Tensor),
    Object(Py<PyAny>),
}

/// A copy under way, which `copy_async` starts. `await` it in a task of asyncio or trio: the task gets the new tensor or the
/// destination, or TransferError; a task that is cancelled stops its copy. Elsewhere wait with `result()`. Dropped, the copy goes on.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Pending {
    shared: Arc<Shared>,
    canceller: Canceller,
    outcome: Outcome,
}

struct Shared {
    state: Mutex<State>,
    /// Told when a thread has put the transfer back, or its result is there.
    changed: Condvar,
    /// The memory of other objects, which is given back when the copy has ended.
    leases: [Option<Lease>; 2],
}

struct State {
    /// `None` while a thread polls it or waits for it, and after its end.
    transfer: Option<Transfer>,
    /// The transfer has woken its waker while a thread had it.
    is_woken: bool,
    /// The progress when a thread took the transfer.
    seen: Option<(u64, u64)>,
    result: Option<Result<Report, TransferError>>,
    callbacks: Vec<Py<PyAny>>,
}

impl Wake for Shared {
    /// Threads of the engine call this: it takes no lock of the interpreter's.
    fn wake(self: Arc<Self>) {
        service::later(move |py| self.advance(py));
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks whether the transfer has ended, and tells those that wait.
    fn advance(self: &Arc<Self>, py: Python<'_>) {
        if py.detach(|| self.has_ended()) {
            self.release(py);
            let callbacks = std::mem::take(&mut self.state().callbacks);
            for callback in callbacks {
                if let Err(error) = callback.call0(py) {
                    error.write_unraisable(py, Some(callback.bind(py)));
                }
            }
        }
    }

    /// Gives other objects' memory back. The copy has ended.
    fn release(&self, py: Python<'_>) {
        if !self.state().result.as_ref().is_some_and(wait::is_quiet) {
            return;
        }
        self.leases
            .iter()
            .flatten()
            .for_each(|lease| lease.release(py));
    }

    /// Polls the transfer, unless a thread has it: that thread polls it afterwards. The state is not locked meanwhile, since a
    /// poll may copy bytes, and threads with the interpreter's lock ask for the state.
    fn has_ended(self: &Arc<Self>) -> bool {
        let waker = Waker::from(Arc::clone(self));
        loop {
            let mut state = self.state();
            let Some(mut transfer) = state.take() else {
                state.is_woken = true;
                return state.result.is_some();
            };
            drop(state);
            let polled = Pin::new(&mut transfer).poll(&mut Context::from_waker(&waker));
            let ended = match polled {
                Poll::Ready(result) => Some(result),
                Poll::Pending => None,
            };
            let is_over = ended.is_some();
            if !self.put_back(transfer, ended) {
                return is_over;
            }
        }
    }

    /// Ends a thread's turn with the transfer. Returns whether it has to be polled again.
    fn put_back(&self, transfer: Transfer, ended: Option<Result<Report, TransferError>>) -> bool {
        let mut state = self.state();
        let is_woken = ended.is_none() && state.is_woken;
        match ended {
            Some(result) => state.result = Some(result),
            None => state.transfer = Some(transfer),
        }
        drop(state);
        self.changed.notify_all();
        is_woken
    }
}

impl State {
    fn take(&mut self) -> Option<Transfer> {
        let transfer = self.transfer.take()?;
        self.is_woken = false;
        self.seen = transfer.progress();
        Some(transfer)
    }
}

impl Pending {
    pub(crate) fn start(
        py: Python<'_>,
        transfer: Transfer,
        outcome: Outcome,
        leases: [Option<Lease>; 2],
    ) -> PyResult<Bound<'_, Pending>> {
        let canceller = transfer.canceller();
        let state = State {
            transfer: Some(transfer),
            is_woken: false,
            seen: None,
            result: None,
            callbacks: Vec::new(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            leases,
        });
        shared.advance(py);
        Bound::new(
            py,
            Pending {
                shared,
                canceller,
                outcome,
            },
        )
    }
}

#[pymethods]
impl Pending {
    /// Returns whether the copy has ended, well or not. Does not block.
    fn done(&self) -> bool {
        self.shared.state().result.is_some()
    }

    /// Asks the copy to stop. Does not block: `result()` waits until it has ended, and raises TransferError of the kind
    /// `"Cancelled"`, unless the copy had ended before. The destination has unspecified elements.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.canceller.cancel());
    }

    /// Returns how many bytes have arrived, and how many there are, as a pair; None when the copy has failed. While a thread
    /// waits in `result`, the figures are up to 0.1 s old. Does not block.
    fn progress(&self) -> Option<(u64, u64)> {
        let state = self.shared.state();
        match (&state.transfer, &state.result) {
            (Some(transfer), _) => transfer.progress(),
            (None, Some(Ok(report))) => Some((report.bytes(), report.bytes())),
            (None, None) => state.seen,
            (None, Some(Err(_))) => None,
        }
    }

    /// Waits until the copy has ended, without the interpreter's lock. Any number of threads may wait.
    ///
    /// Parameters
    /// ----------
    /// timeout : float, optional
    ///     The longest wait in seconds. Without it the wait ends with the copy.
    ///
    /// Returns
    /// -------
    /// The new tensor, or the destination that `copy_async` was given.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     When the copy has not ended by then. The copy goes on.
    /// TransferError
    ///     When the copy failed or was cancelled.
    /// KeyboardInterrupt
    ///     On Ctrl-C, and what else signal handlers raise. The copy goes on.
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        if timeout.is_some_and(f64::is_nan) {
            return Err(PyValueError::new_err(
                "timeout: NaN is no number of seconds",
            ));
        }
        let begun = Instant::now();
        while !self.done() {
            let left = timeout.map(|limit| limit - begun.elapsed().as_secs_f64());
            let look = wait::LOOK.as_secs_f64();
            let limit = left.map_or(look, |left| left.clamp(0.0, look));
            py.detach(|| self.look(Duration::from_secs_f64(limit)));
            self.shared.advance(py);
            py.check_signals()?;
            if left.is_some_and(|left| left <= 0.0) && !self.done() {
                return Err(PyTimeoutError::new_err(format!(
                    "timeout: the copy has not ended within {} s",
                    timeout.unwrap_or_default()
                )));
            }
        }
        self.outcome(py)
    }

    /// The report of a copy that has ended well, as text: its way, its time and its rate. Else None.
    #[getter]
    fn report(&self) -> Option<String> {
        let state = self.shared.state();
        let report = state.result.as_ref()?.as_ref().ok()?;
        Some(report.to_string())
    }

    /// Has a function called without arguments when the copy has ended: on a thread of the library's or one that waits, and on
    /// this one at once if it has ended. What it raises on other threads goes to `sys.unraisablehook`.
    fn add_done_callback(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        {
            let mut state = self.shared.state();
            if state.result.is_none() {
                state.callbacks.push(callback);
                return Ok(());
            }
        }
        callback.call0(py).map(drop)
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let waiting = slf.py().import("transload._waiting")?;
        waiting.call_method1("wait", (slf,))
    }
}

impl Pending {
    /// Waits a moment: for the transfer, or for the thread that has it.
    fn look(&self, limit: Duration) {
        let mut state = self.shared.state();
        let Some(mut transfer) = state.take() else {
            if state.result.is_none() {
                // Woken or not, the caller looks again.
                drop(self.shared.changed.wait_timeout(state, limit));
            }
            return;
        };
        drop(state);
        let ended = transfer.wait_timeout(limit);
        // The caller polls it in any case.
        self.shared.put_back(transfer, ended);
    }

    fn outcome(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        // Not locked below: Python's code may run there, and other threads ask for the state with the interpreter's lock.
        let failed = match &self.shared.state().result {
            Some(Ok(_)) => None,
            Some(Err(error)) => Some(error.clone()),
            None => return Err(PyRuntimeError::new_err("the copy has not ended")),
        };
        // The thread that tells of the end may come to it later.
        self.shared.release(py);
        match (failed, &self.outcome) {
            (Some(error), _) => Err(errors::raise(py, &error)),
            (None, Outcome::Tensor(tensor)) => {
                let tensor = tensor.clone();
                Ok(Py::new(py, PyTensor { tensor })?.into_any())
            }
            (None, Outcome::Object(object)) => Ok(object.clone_ref(py)),
        }
    }
}
