//! The extension module `transload._transload`. The package `transload` shows what is in it.
//!
//! The lock of the interpreter is released while bytes move. The engine's threads never take it: what needs it, such as giving
//! back another library's memory, goes to one thread ([`service`]).

mod buffers;
mod copies;
mod dtype;
mod errors;
mod exchange;
mod machine;
mod models;
mod pending;
mod service;
mod tensor;
mod wait;

use pyo3::prelude::*;
use transload_tensors::transload::TransferManager;

/// The manager of the process.
fn manager(py: Python<'_>) -> PyResult<&'static TransferManager> {
    // Drivers are found at the first call, which takes a while.
    let manager = py.detach(TransferManager::shared);
    manager.map_err(|error| errors::raise(py, &error))
}

#[pymodule(gil_used = false)]
mod _transload {
    #[pymodule_export]
    use super::copies::{copy, copy_async, empty};
    #[pymodule_export]
    use super::machine::{Device, Explanation, Probe, devices, explain, probe};
    #[pymodule_export]
    use super::models::{Stream, inspect, load, save, stream, trim};
    #[pymodule_export]
    use super::pending::Pending;
    #[pymodule_export]
    use super::service::stop;
    #[pymodule_export]
    use super::tensor::{PyTensor, restore};

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
