//! Waits that Ctrl-C ends.

use std::time::Duration;

use pyo3::prelude::*;
use transload_tensors::transload::{Report, Transfer, TransferError};

use crate::errors;

/// How often a wait looks for signals. A transfer's end wakes it at once.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// Waits for a transfer without the interpreter's lock, and calls `look` meanwhile. When a signal's handler or `look` raises,
/// the transfer is cancelled, and nothing of it is under way any more.
pub(crate) fn transfer(
    py: Python<'_>,
    transfer: Transfer,
    mut look: impl FnMut(Python<'_>, &Transfer) -> PyResult<()>,
) -> PyResult<Report> {
    let mut under_way = Some(transfer);
    while let Some(transfer) = &mut under_way {
        let ended: Option<Result<Report, TransferError>> =
            py.detach(|| transfer.wait_timeout(LOOK));
        if let Some(result) = ended {
            look(py, transfer)?;
            return result.map_err(|error| errors::raise(py, &error));
        }
        let looked = py.check_signals().and_then(|()| look(py, transfer));
        if let Err(raised) = looked {
            let transfer = under_way.take();
            py.detach(|| transfer.map(Transfer::cancel));
            return Err(raised);
        }
    }
    unreachable!("a transfer is taken when it is cancelled")
}
