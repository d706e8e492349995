//! The extension module `transload._transload`. The package `transload` shows what is in it.
//!
//! The lock of the interpreter is released while bytes move. The engine's threads never take it: what needs it, such as giving
//! back another library's memory, goes to one thread ([`service`]).

mod blocks;
mod buffers;
mod copies;
mod dtype;
mod errors;
mod exchange;
mod files;
mod machine;
mod models;
mod pending;
mod service;
mod tensor;
mod views;
mod wait;

use pyo3::prelude::*;
use transload_tensors::transload::TransferManager;
use transload_tensors::transload::hal::PerProcess;

/// The manager of the process.
fn manager(py: Python<'_>) -> PyResult<&'static TransferManager> {
    static KNOWN: PerProcess<&TransferManager> = PerProcess::new();
    if let Some(manager) = KNOWN.get() {
        return Ok(manager);
    }
    // Another thread may be making it, which reads the saved profile.
    let manager = py.detach(TransferManager::shared);
    let manager = manager.map_err(|error| errors::raise(py, &error))?;
    Ok(KNOWN.get_or_init(|| manager))
}

/// Refuses further interpreters of the process: the threads of the library attach to the first one.
fn must_be_the_first(_: Python<'_>) -> PyResult<()> {
    // SAFETY: the thread is attached to an interpreter, as the token shows.
    let interpreter = unsafe { pyo3::ffi::PyInterpreterState_Get() };
    // SAFETY: the interpreter runs.
    let number = unsafe { pyo3::ffi::PyInterpreterState_GetID(interpreter) };
    match number {
        0 => Ok(()),
        _ => Err(pyo3::exceptions::PyImportError::new_err(
            "transload works in the first interpreter of a process, and not in subinterpreters",
        )),
    }
}

#[pymodule(gil_used = false)]
mod _transload {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::blocks::copy_blocks;
    #[pymodule_export]
    use super::copies::{asarray, copy, copy_async, empty};
    #[pymodule_export]
    use super::files::{inspect, save};
    #[pymodule_export]
    use super::machine::{Device, Explanation, Probe, devices, explain, probe};
    #[pymodule_export]
    use super::models::{Stream, load, stream, trim};
    use super::must_be_the_first;
    #[pymodule_export]
    use super::pending::Pending;
    #[pymodule_export]
    use super::service::stop;
    #[pymodule_export]
    use super::tensor::{PyTensor, restore};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        must_be_the_first(module.py())
    }

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
