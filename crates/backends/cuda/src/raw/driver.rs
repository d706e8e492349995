//! A driver and calls of its functions.
#![allow(
    non_snake_case,
    clippy::too_many_arguments,
    reason = "functions have the names and the arguments of the header"
)]

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::path::PathBuf;

use super::library::{self, LoadError, Loaded};
// Functions take arguments of nearly every type of the binding.
use super::*;

/// A driver: a table of functions, its source, and the version that it reports.
///
/// A driver is never unloaded, because it has threads and handlers of its own in the process.
#[derive(Clone, Debug)]
pub struct Driver {
    table: Table,
    source: Source,
    version: Version,
    is_stand_in: bool,
}

/// The source of a driver.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Source {
    /// A library, by the name or path that it was loaded with.
    Library(PathBuf),
    /// Functions of this program, under this name.
    Functions(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Library(path) => write!(f, "{}", path.display()),
            Source::Functions(name) => f.write_str(name),
        }
    }
}

/// Why a call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The driver has no such function.
    #[error("the driver, of CUDA {driver}, has no {function}, which came with CUDA {since}")]
    Missing {
        /// The function.
        function: &'static str,
        /// The first CUDA version that has it.
        since: Version,
        /// The driver's CUDA version.
        driver: Version,
    },
    /// The function returned an error.
    #[error("{function}: {result}")]
    Failed {
        /// The function.
        function: &'static str,
        /// The result. The error text contains it, so it is not an error source as well.
        result: CUresult,
    },
}

impl CallError {
    /// The function's result; `None` if the driver lacks the function.
    #[must_use]
    pub const fn result(&self) -> Option<CUresult> {
        match self {
            CallError::Failed { result, .. } => Some(*result),
            CallError::Missing { .. } => None,
        }
    }

    /// Whether the function returned exactly this result.
    #[must_use]
    pub fn is(&self, result: CUresult) -> bool {
        self.result() == Some(result)
    }
}

impl Driver {
    /// Loads the driver of this machine: the library that the environment variable
    /// [`TRANSLOAD_CUDA_DRIVER`](super::DRIVER_VARIABLE) names, else `libcuda.so.1`, on Windows `nvcuda.dll`.
    /// Blocks on the disk. Does not start the driver; `cuInit` does.
    ///
    /// # Errors
    /// If the library does not exist, or is no driver. A machine without an NVIDIA driver returns this error.
    pub fn load() -> Result<Driver, LoadError> {
        library::load().map(Driver::of_library)
    }

    /// Loads a driver from a library of that name or path, and ignores the environment variable.
    ///
    /// # Errors
    /// As [`Driver::load`].
    pub fn load_from(library: impl Into<PathBuf>) -> Result<Driver, LoadError> {
        library::load_from(library.into()).map(Driver::of_library)
    }

    /// Makes a driver of functions of this program, under a name that errors contain.
    ///
    /// # Safety
    /// Each function must do what CUDA's function of its name does, as far as users of the driver rely on it, and
    /// must stay valid for the life of the process.
    #[must_use]
    pub unsafe fn from_table(table: Table, name: &'static str) -> Driver {
        Driver::new(table, Source::Functions(name), true)
    }

    fn of_library(loaded: Loaded) -> Driver {
        let source = Source::Library(loaded.library);
        Driver::new(loaded.table, source, loaded.is_stand_in)
    }

    fn new(table: Table, source: Source, is_stand_in: bool) -> Driver {
        let mut driver = Driver {
            table,
            source,
            version: Version::default(),
            is_stand_in,
        };
        let mut version: c_int = 0;
        // SAFETY: the pointer is to an integer of ours.
        let asked = unsafe { driver.cuDriverGetVersion(&raw mut version) };
        if asked.is_ok() {
            driver.version = Version(version.try_into().unwrap_or(0));
        }
        driver
    }

    /// The driver's functions.
    #[must_use]
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// The driver's source.
    #[must_use]
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// Whether it is a stand-in for NVIDIA's driver without real devices: functions of this program, or a library
    /// that identifies itself as one.
    #[must_use]
    pub const fn is_stand_in(&self) -> bool {
        self.is_stand_in
    }

    /// The newest CUDA version that it supports; 0.0 if it does not report one.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The functions that the driver lacks. Their features are unavailable, which is no error.
    pub fn missing(&self) -> impl Iterator<Item = &'static Function> + use<> {
        let present = self.table.present();
        Table::FUNCTIONS
            .iter()
            .zip(present)
            .filter_map(|(function, present)| (!present).then_some(function))
    }
}

macro_rules! calls {
    ($( $(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $since:literal; )*) => {
        /// The functions, by name. Each has the arguments of NVIDIA's function and blocks as long.
        impl Driver {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// If the driver lacks the function, or if its result is not success.
                ///
                /// # Safety
                /// As in NVIDIA's reference: pointers are valid for all reads and writes, as long as the device
                /// may make them, and handles belong to this driver.
                #[inline]
                pub unsafe fn $name(&self, $($argument: $type),*) -> Result<(), CallError> {
                    let Some(function) = self.table().$name else {
                        return Err(CallError::Missing {
                            function: stringify!($name),
                            since: Version($since),
                            driver: self.version(),
                        });
                    };
                    // SAFETY: the caller keeps NVIDIA's contract; the code that filled the table vouched for the
                    // function.
                    let result = unsafe { function($($argument),*) };
                    result.ok().map_err(|result| CallError::Failed {
                        function: stringify!($name),
                        result,
                    })
                }
            )*
        }
    };
}

crate::for_each_cuda_function!(calls);
