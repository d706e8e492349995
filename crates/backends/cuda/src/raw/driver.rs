//! A driver that functions are called of.

use std::ffi::c_int;
use std::fmt;
use std::path::PathBuf;

use super::library::{self, LoadError};
use super::{CUresult, Function, Table, Version};

/// A driver: a table, where it comes from, and the version that it tells of itself.
///
/// Nothing of a driver is ever unloaded: it has threads and handlers of its own in the process.
#[derive(Clone, Debug)]
pub struct Driver {
    table: Table,
    source: Source,
    version: Version,
    is_stand_in: bool,
}

/// Where a driver comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Source {
    /// A library, by the name or path that it was loaded with.
    Library(PathBuf),
    /// Functions of this program, called so.
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

/// Why a call came to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The driver has no such function.
    #[error("the driver, of CUDA {driver}, has no {function}, which came with CUDA {since}")]
    Missing {
        /// The function.
        function: &'static str,
        /// The first CUDA that has it.
        since: Version,
        /// The driver's CUDA.
        driver: Version,
    },
    /// The function answered so.
    #[error("{function}: {result}")]
    Failed {
        /// The function.
        function: &'static str,
        /// What it answered, which the sentence tells: it is no source beside.
        result: CUresult,
    },
}

impl CallError {
    /// What the function answered, if it is there.
    #[must_use]
    pub const fn result(&self) -> Option<CUresult> {
        match self {
            CallError::Failed { result, .. } => Some(*result),
            CallError::Missing { .. } => None,
        }
    }

    /// Whether the function answered just that.
    #[must_use]
    pub fn is(&self, result: CUresult) -> bool {
        self.result() == Some(result)
    }
}

impl Driver {
    /// Loads the driver of this machine: what the environment variable
    /// [`TRANSLOAD_CUDA_DRIVER`](super::DRIVER_VARIABLE) names, else `libcuda.so.1`, on Windows
    /// `nvcuda.dll`. Blocks on the disk. Starts nothing: that is `cuInit`'s.
    ///
    /// # Errors
    /// When there is none, or it is none. That is what a machine without an NVIDIA driver answers.
    pub fn load() -> Result<Driver, LoadError> {
        library::load()
    }

    /// Loads a driver from a library of that name or path, whatever the environment says.
    ///
    /// # Errors
    /// As [`Driver::load`].
    pub fn load_from(library: impl Into<PathBuf>) -> Result<Driver, LoadError> {
        library::load_from(library.into())
    }

    /// Makes a driver of functions of this program, under a name that errors will tell.
    ///
    /// # Safety
    /// Each function must do what CUDA's function of its name does, as far as users of the driver rely on it, and
    /// must stay valid for the life of the process.
    #[must_use]
    pub unsafe fn from_table(table: Table, name: &'static str) -> Driver {
        Driver::new(table, Source::Functions(name), true)
    }

    pub(super) fn new(table: Table, source: Source, is_stand_in: bool) -> Driver {
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

    /// Its functions.
    #[must_use]
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// Where it comes from.
    #[must_use]
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// Whether it only stands in for NVIDIA's driver and has no devices behind it: functions of this program, or a
    /// library that says so of itself.
    #[must_use]
    pub const fn is_stand_in(&self) -> bool {
        self.is_stand_in
    }

    /// The newest CUDA that it knows; 0.0 if it does not say.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The functions that it lacks. What they are for is then not to be had, and that is no error.
    pub fn missing(&self) -> impl Iterator<Item = &'static Function> + use<> {
        let present = self.table.present();
        Table::FUNCTIONS
            .iter()
            .zip(present)
            .filter_map(|(function, present)| (!present).then_some(function))
    }
}
