//! Waits that Ctrl-C ends.

use std::cell::Cell;
use std::time::Duration;

use pyo3::prelude::*;
use transload_tensors::transload::{ErrorClass, Report, Transfer, TransferError};

use crate::errors;

/// How often a wait looks for signals. A transfer's end wakes it at once.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// Waits for a transfer without the interpreter's lock, and calls `look` meanwhile. When a signal's handler or `look` raises,
/// the transfer is cancelled, and nothing of it is under way any more. A device may never end what it has begun: a second signal
/// leaves it then, and sets `left`, as a device that is lost does. The memory of both ends must stay until the library drops it.
pub(crate) fn transfer(
    py: Python<'_>,
    mut transfer: Transfer,
    left: Option<&Cell<bool>>,
    mut look: impl FnMut(Python<'_>, &Transfer) -> PyResult<()>,
) -> PyResult<Report> {
    let raised = loop {
        let ended: Option<Result<Report, TransferError>> =
            py.detach(|| transfer.wait_timeout(LOOK));
        if let Some(result) = ended {
            left.inspect(|left| left.set(!is_quiet(&result)));
            look(py, &transfer)?;
            return result.map_err(|error| errors::raise(py, &error));
        }
        let looked = py.check_signals().and_then(|()| look(py, &transfer));
        if let Err(raised) = looked {
            break raised;
        }
    };
    transfer.canceller().cancel();
    while py.detach(|| transfer.wait_timeout(LOOK)).is_none() {
        if let Err(again) = py.check_signals() {
            left.inspect(|left| left.set(true));
            return Err(again);
        }
    }
    Err(raised)
}

/// Returns whether nothing touches the memory of both ends any more: what a backend has begun that was lost may go on, and the library
/// keeps the memory then.
pub(crate) fn is_quiet(result: &Result<Report, TransferError>) -> bool {
    match result {
        Ok(report) => { report.fallbacks().iter() }.all(|of| of.fault.class != ErrorClass::Lost),
        Err(error) => error.class() != ErrorClass::Lost,
    }
}
