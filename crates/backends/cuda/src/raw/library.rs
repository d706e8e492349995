//! Finds and opens the driver's library.

use std::env;
use std::ffi::c_void;
use std::fs;
use std::mem;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use libloading::Library;

use super::table::Table;

/// The environment variable that names another driver's library. An empty value counts as unset.
pub const DRIVER_VARIABLE: &str = "TRANSLOAD_CUDA_DRIVER";

/// The library that NVIDIA's driver installs. The name without the number is the toolkit's, whose `libcuda.so`
/// is a stub for linking: opening that name may load the stub instead of the driver.
const LIBRARY: &str = if cfg!(windows) {
    "nvcuda.dll"
} else {
    "libcuda.so.1"
};

/// Why no driver could be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The library could not be opened: it, or a library that it needs, does not exist.
    #[error("no CUDA driver: {}", unopened(library, *from_variable, source))]
    Library {
        /// The name or path.
        library: PathBuf,
        /// Whether the environment variable named it.
        from_variable: bool,
        /// The loader's error.
        r#source: libloading::Error,
    },
    /// The path is a folder, a pipe or a device. The loader would wait for a pipe's other end.
    #[error("no CUDA driver: {}{} is not a regular file", library.display(), aside(*from_variable))]
    NotRegular {
        /// The path.
        library: PathBuf,
        /// Whether the environment variable named it.
        from_variable: bool,
    },
    /// The library was opened, but lacks the function that every driver has.
    #[error("no CUDA driver: {}{} has no cuInit", library.display(), aside(*from_variable))]
    NoDriver {
        /// The name or path.
        library: PathBuf,
        /// Whether the environment variable named it.
        from_variable: bool,
    },
}

/// A library that was opened, for good.
pub(super) struct Loaded {
    /// Its name or path.
    pub(super) library: PathBuf,
    pub(super) table: Table,
    /// It identifies itself as a stand-in for NVIDIA's driver.
    pub(super) is_stand_in: bool,
}

fn named_by(from_variable: bool) -> String {
    if from_variable {
        format!(", which {DRIVER_VARIABLE} names")
    } else {
        String::new()
    }
}

/// The same text for the middle of a sentence.
fn aside(from_variable: bool) -> String {
    let comma = if from_variable { "," } else { "" };
    named_by(from_variable) + comma
}

/// The library and the system loader's message, which is the source of libloading's error. Some loaders begin
/// with the library's name.
fn unopened(library: &Path, from_variable: bool, error: &libloading::Error) -> String {
    let inner = std::error::Error::source(error);
    let reason = inner.map_or_else(|| error.to_string(), ToString::to_string);
    let name = library.display().to_string();
    let after_name = reason
        .strip_prefix(&name)
        .and_then(|rest| rest.strip_prefix(": "));
    let reason = after_name.unwrap_or(&reason);
    format!("{name}{}: {reason}", named_by(from_variable))
}

pub(super) fn load() -> Result<Loaded, LoadError> {
    match env::var_os(DRIVER_VARIABLE).filter(|name| !name.is_empty()) {
        Some(named) => open(PathBuf::from(named), true),
        None => open(PathBuf::from(LIBRARY), false),
    }
}

pub(super) fn load_from(library: PathBuf) -> Result<Loaded, LoadError> {
    open(library, false)
}

fn open(library: PathBuf, from_variable: bool) -> Result<Loaded, LoadError> {
    // The loader searches its library folders for a name without a folder.
    let has_folder = library.components().nth(1).is_some();
    if has_folder && fs::metadata(&library).is_ok_and(|found| !found.is_file()) {
        return Err(LoadError::NotRegular {
            library,
            from_variable,
        });
    }
    let opened = match open_library(&library) {
        Ok(opened) => opened,
        Err(source) => {
            return Err(LoadError::Library {
                library,
                from_variable,
                source,
            });
        }
    };
    let symbol = |name: &std::ffi::CStr| {
        // SAFETY: the symbol is only taken for an address.
        let found = unsafe { opened.get::<*mut c_void>(name.to_bytes_with_nul()) };
        NonNull::new(*found.ok()?)
    };
    // SAFETY: a library that calls itself CUDA's driver, or that the user names as one, has CUDA's functions
    // under their names. It is never unloaded.
    let table = unsafe { Table::from_symbols(symbol) };
    if table.cuInit.is_none() {
        return Err(LoadError::NoDriver {
            library,
            from_variable,
        });
    }
    let is_stand_in = symbol(STAND_IN).is_some();
    mem::forget(opened);
    Ok(Loaded {
        library,
        table,
        is_stand_in,
    })
}

/// A stand-in for the driver exports a function of this name, by which tests control it.
const STAND_IN: &std::ffi::CStr = c"transload_double_control";

fn open_library(library: &Path) -> Result<Library, libloading::Error> {
    // SAFETY: opening runs the library's initialisers. That of a driver does so in every program that uses CUDA;
    // of another library the user said that it is one.
    unsafe { Library::new(library) }
}
