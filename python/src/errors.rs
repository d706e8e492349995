//! The library's errors as exceptions. The classes are Python's (`transload.errors`), one for each of the library's.

use std::io;
use std::path::Path;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use transload_tensors::dlpack::DLPackError;
use transload_tensors::transload::hal::AllocError;
use transload_tensors::transload::host::FileError;
use transload_tensors::transload::{ErrorClass, OpenError, TransferError};
use transload_tensors::{LoadError, ModelError, SaveError, TensorError, transload};

/// An error that has an exception of its own.
pub(crate) trait Raised: std::error::Error {
    /// The name of its class, and its category.
    fn class(&self) -> (&'static str, ErrorClass);

    /// What Python programs are told in place of the error's own text.
    fn text(&self) -> Option<String> {
        None
    }

    /// The file and the system's error, where it refused something.
    fn refused(&self) -> Option<(&Path, &io::Error)> {
        None
    }

    /// Fields that programs decide by.
    fn fields(&self, _: &Bound<'_, PyDict>) -> PyResult<()> {
        Ok(())
    }
}

/// Makes the exception of an error.
pub(crate) fn raise(py: Python<'_>, error: &impl Raised) -> PyErr {
    exception(py, "", error)
}

/// Makes the exception of an error in an argument, which its text names.
pub(crate) fn named(py: Python<'_>, argument: &str, error: &impl Raised) -> PyErr {
    exception(py, argument, error)
}

fn exception(py: Python<'_>, argument: &str, error: &impl Raised) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let (name, class) = error.class();
        let fields = PyDict::new(py);
        fields.set_item("kind", kind(&format!("{error:?}")))?;
        let class = format!("{class:?}").to_lowercase();
        fields.set_item("category", class)?;
        error.fields(&fields)?;
        if let Some((path, system)) = error.refused() {
            fields.set_item("path", path)?;
            fields.set_item("errno", system.raw_os_error())?;
        }
        let errors = py.import("transload.errors")?;
        let mut text = error.text().unwrap_or_else(|| told(error));
        // A process has one manager, unless it was forked.
        if text.contains("another manager") || text.contains("was forked") {
            text += "; in Python: a child of fork cannot use tensors of its parent; start processes by the method \"spawn\", which \
                     pickles tensors";
        }
        if !argument.is_empty() {
            text = format!("{argument}: {text}");
        }
        let exception = errors.call_method1("make", (name, text, fields))?;
        Ok(PyErr::from_value(exception))
    };
    make().unwrap_or_else(|_| PyRuntimeError::new_err(error.to_string()))
}

/// An argument in an error's text: contents of arrays and files are not repeated.
pub(crate) fn shown(argument: &Bound<'_, PyAny>) -> String {
    const MOST: usize = 100;
    let text = argument.str().map(|text| text.to_string());
    match text {
        Ok(text) if text.len() <= MOST && !text.contains('\n') => text,
        _ => argument.get_type().to_string(),
    }
}

/// The name of an error's variant; of an error that holds another one, that one's.
fn kind(shown: &str) -> &str {
    let end = shown.find(|at: char| !at.is_alphanumeric());
    let (word, rest) = shown.split_at(end.unwrap_or(shown.len()));
    let held = match word {
        "BatchError" => rest.split_once("source: ").map(|(_, inner)| inner),
        _ => { rest.strip_prefix('(') }.filter(|_| HOLDERS.contains(&word)),
    };
    held.map_or(word, kind)
}

/// The variants whose text is the text of the error that they hold.
const HOLDERS: [&str; 17] = [
    "Alloc", "Batch", "Connect", "File", "Guard", "Import", "Library", "Open", "Parse", "Place",
    "Profile", "Region", "Register", "Shape", "Share", "Tensor", "Transfer",
];

/// The error and what it was caused by, where its text does not say that.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(of) = cause {
        let said = of.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = of.source();
    }
    text
}

impl Raised for transload::Error {
    fn class(&self) -> (&'static str, ErrorClass) {
        let name = match self {
            transload::Error::Parse(_) => "ParseError",
            transload::Error::Place(_) => "PlaceError",
            transload::Error::Alloc(_) => "AllocError",
            transload::Error::Import(_) => "ImportError",
            transload::Error::Shape(_) | transload::Error::Region(_) => "RegionError",
            transload::Error::Transfer(_) => "TransferError",
            transload::Error::Batch(_) => "BatchError",
            transload::Error::Guard(_) => "GuardError",
            transload::Error::Share(_) => "ShareError",
            transload::Error::Open(_) => "OpenError",
            _ => "Error",
        };
        (name, transload::Error::class(self))
    }

    fn refused(&self) -> Option<(&Path, &io::Error)> {
        match self {
            transload::Error::Open(error) => error.refused(),
            _ => None,
        }
    }

    fn fields(&self, fields: &Bound<'_, PyDict>) -> PyResult<()> {
        match self {
            transload::Error::Alloc(error) => alloc_fields(error, fields),
            transload::Error::Transfer(error) => error.fields(fields),
            _ => Ok(()),
        }
    }
}

fn alloc_fields(error: &AllocError, fields: &Bound<'_, PyDict>) -> PyResult<()> {
    match error {
        AllocError::OutOfMemory {
            memory, len_bytes, ..
        } => {
            fields.set_item("memory", memory.to_string())?;
            fields.set_item("nbytes", len_bytes)
        }
        AllocError::TooLarge {
            memory,
            len_bytes,
            limit_bytes,
        } => {
            fields.set_item("memory", memory.to_string())?;
            fields.set_item("nbytes", len_bytes)?;
            fields.set_item("limit", limit_bytes)
        }
        _ => Ok(()),
    }
}

/// Errors whose exceptions have their names, and no fields beside what all have.
macro_rules! raised {
    ($($error:ident),*) => {$(
        impl Raised for $error {
            fn class(&self) -> (&'static str, ErrorClass) {
                (stringify!($error), $error::class(self))
            }
        }
    )*};
}

raised!(TensorError, TransferError);

impl Raised for OpenError {
    fn class(&self) -> (&'static str, ErrorClass) {
        ("OpenError", OpenError::class(self))
    }

    fn refused(&self) -> Option<(&Path, &io::Error)> {
        match self {
            OpenError::File(FileError::System { path, source }) => Some((path, source)),
            _ => None,
        }
    }
}

impl Raised for ModelError {
    fn class(&self) -> (&'static str, ErrorClass) {
        ("ModelError", ModelError::class(self))
    }

    fn refused(&self) -> Option<(&Path, &io::Error)> {
        match self {
            ModelError::Open(error) => error.refused(),
            ModelError::Read { path, source } => Some((path, source)),
            _ => None,
        }
    }

    fn fields(&self, fields: &Bound<'_, PyDict>) -> PyResult<()> {
        match self {
            ModelError::Read { path, .. }
            | ModelError::Header { path, .. }
            | ModelError::NoModel { path, .. }
            | ModelError::Index { path, .. }
            | ModelError::Missing { path, .. }
            | ModelError::Dangling { path, .. }
            | ModelError::Part { path, .. }
            | ModelError::Parts { path, .. }
            | ModelError::NotThere { path, .. } => fields.set_item("path", path),
            _ => Ok(()),
        }
    }
}

impl Raised for SaveError {
    fn class(&self) -> (&'static str, ErrorClass) {
        ("SaveError", SaveError::class(self))
    }

    fn refused(&self) -> Option<(&Path, &io::Error)> {
        match self {
            SaveError::File { path, source } | SaveError::Step { path, source, .. } => {
                Some((path, source))
            }
            _ => None,
        }
    }

    fn fields(&self, fields: &Bound<'_, PyDict>) -> PyResult<()> {
        match self {
            SaveError::File { path, .. }
            | SaveError::Step { path, .. }
            | SaveError::Ending { path }
            | SaveError::Hidden { older: path } => fields.set_item("path", path),
            SaveError::DType { tensor, .. } => fields.set_item("tensor", tensor),
            SaveError::Transfer { path, tensor, .. } => {
                fields.set_item("path", path)?;
                fields.set_item("tensor", tensor)
            }
            _ => Ok(()),
        }
    }
}

impl Raised for DLPackError {
    fn class(&self) -> (&'static str, ErrorClass) {
        ("DLPackError", DLPackError::class(self))
    }

    fn text(&self) -> Option<String> {
        match self {
            DLPackError::Memory { memory } => Some(format!(
                "cannot export a tensor in {memory} by DLPack; transload.copy(tensor, \"cpu:0\") copies it"
            )),
            _ => None,
        }
    }

    fn fields(&self, fields: &Bound<'_, PyDict>) -> PyResult<()> {
        match self {
            DLPackError::Memory { memory } => fields.set_item("memory", memory.to_string()),
            _ => Ok(()),
        }
    }
}

impl Raised for LoadError {
    fn class(&self) -> (&'static str, ErrorClass) {
        ("LoadError", LoadError::class(self))
    }

    fn refused(&self) -> Option<(&Path, &io::Error)> {
        match self {
            LoadError::Open(error) => error.refused(),
            LoadError::Library(error) => error.refused(),
            _ => None,
        }
    }

    fn fields(&self, fields: &Bound<'_, PyDict>) -> PyResult<()> {
        match self {
            LoadError::NoRoom { memory, needs, has } => {
                fields.set_item("memory", memory.to_string())?;
                fields.set_item("needs", needs)?;
                fields.set_item("has", has)
            }
            LoadError::Slice { tensor, .. } | LoadError::UnknownDType { tensor, .. } => {
                fields.set_item("tensor", tensor)
            }
            LoadError::Convert { tensor, from, to } => {
                fields.set_item("tensor", tensor)?;
                fields.set_item("from_dtype", crate::dtype::name(*from))?;
                fields.set_item("to_dtype", crate::dtype::name(*to))
            }
            LoadError::Cut {
                path,
                end,
                len_bytes,
            } => {
                fields.set_item("path", path)?;
                fields.set_item("end", end)?;
                fields.set_item("nbytes", len_bytes)
            }
            LoadError::Transfer { path, tensors, .. } | LoadError::Differs { path, tensors } => {
                fields.set_item("path", path)?;
                fields.set_item("tensors", tensors)
            }
            LoadError::Library(error) => error.fields(fields),
            _ => Ok(()),
        }
    }
}
