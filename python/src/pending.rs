//! Copies under way, which Python code awaits.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use transload_tensors::Tensor;
use transload_tensors::transload::{Canceller, Report, Transfer, TransferError};

use crate::tensor::PyTensor;
use crate::{errors, service, wait};

/// What a copy gives when it has ended.
pub(crate) enum Outcome {
    Tensor(Tensor),
    Object(Py<PyAny>),
}

/// A copy under way.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Pending {
    shared: Arc<Shared>,
    canceller: Canceller,
    outcome: Outcome,
}

struct Shared(Mutex<State>);

struct State {
    transfer: Option<Transfer>,
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks whether the transfer has ended, and tells those that wait.
    fn advance(self: &Arc<Self>, py: Python<'_>) {
        let waker = Waker::from(Arc::clone(self));
        let ended = py.detach(|| {
            let mut state = self.state();
            let Some(transfer) = &mut state.transfer else {
                // A thread in `result` has it, or it has ended.
                return state.result.is_some();
            };
            match Pin::new(transfer).poll(&mut Context::from_waker(&waker)) {
                Poll::Pending => false,
                Poll::Ready(result) => {
                    state.transfer = None;
                    state.result = Some(result);
                    true
                }
            }
        });
        if ended {
            let callbacks = std::mem::take(&mut self.state().callbacks);
            for callback in callbacks {
                if let Err(error) = callback.call0(py) {
                    error.write_unraisable(py, Some(callback.bind(py)));
                }
            }
        }
    }
}

impl Pending {
    pub(crate) fn start(
        py: Python<'_>,
        transfer: Transfer,
        outcome: Outcome,
    ) -> PyResult<Bound<'_, Pending>> {
        let canceller = transfer.canceller();
        let state = State {
            transfer: Some(transfer),
            result: None,
            callbacks: Vec::new(),
        };
        let shared = Arc::new(Shared(Mutex::new(state)));
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
    /// Whether the copy has ended.
    fn done(&self) -> bool {
        self.shared.state().result.is_some()
    }

    /// Stops the copy. What it has written is unspecified.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.canceller.cancel());
    }

    /// How many bytes have arrived, and how many there are; None when the copy has failed.
    fn progress(&self) -> Option<(u64, u64)> {
        let state = self.shared.state();
        match (&state.transfer, &state.result) {
            (Some(transfer), _) => transfer.progress(),
            (None, Some(Ok(report))) => Some((report.bytes(), report.bytes())),
            _ => None,
        }
    }

    /// Waits for the end, and returns the new tensor or the destination.
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let begun = std::time::Instant::now();
        while !self.done() {
            let taken = self.shared.state().transfer.take();
            let Some(mut transfer) = taken else {
                // The thread that tells of it has it for a moment.
                py.detach(std::thread::yield_now);
                continue;
            };
            let left = timeout.map(|limit| limit - begun.elapsed().as_secs_f64());
            let look = wait::LOOK.as_secs_f64();
            let limit = left.map_or(look, |left| left.clamp(0.0, look));
            let limit = std::time::Duration::from_secs_f64(limit);
            let ended = py.detach(|| transfer.wait_timeout(limit));
            let mut state = self.shared.state();
            match ended {
                Some(result) => state.result = Some(result),
                None => state.transfer = Some(transfer),
            }
            drop(state);
            self.shared.advance(py);
            py.check_signals()?;
            if left.is_some_and(|left| left <= 0.0) && !self.done() {
                return Err(pyo3::exceptions::PyTimeoutError::new_err(format!(
                    "the copy has not ended within {} s",
                    timeout.unwrap_or_default()
                )));
            }
        }
        self.outcome(py)
    }

    /// The report of a copy that has ended, as text.
    #[getter]
    fn report(&self) -> Option<String> {
        let state = self.shared.state();
        let report = state.result.as_ref()?.as_ref().ok()?;
        Some(report.to_string())
    }

    /// Has a function called when the copy has ended, by a thread of the library's; at once if it has.
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
    fn outcome(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let state = self.shared.state();
        match (&state.result, &self.outcome) {
            (Some(Ok(_)), Outcome::Tensor(tensor)) => {
                let tensor = tensor.clone();
                Ok(Py::new(py, PyTensor { tensor })?.into_any())
            }
            (Some(Ok(_)), Outcome::Object(object)) => Ok(object.clone_ref(py)),
            (Some(Err(error)), _) => Err(errors::raise(py, error)),
            (None, _) => Err(PyRuntimeError::new_err("the copy has not ended")),
        }
    }
}
