//! Semaphores of other interfaces, as far as Linux lets a stand-in.
//!
//! Source: CUDA Driver API, External Resource Interoperability: cuImportExternalSemaphore,
//! cuSignalExternalSemaphoresAsync, cuWaitExternalSemaphoresAsync, cuDestroyExternalSemaphore.
//!
//! Only the driver that made a semaphore knows the content of its file descriptor. The control function makes
//! semaphores that every process with this double can import: a [page of numbers](crate::numbers) in shared memory.
//! Semaphores of Vulkan drivers are refused: lavapipe of Mesa 22.3 exports none, and SwiftShader's contain a mutex of
//! its C library. Waiting for one is work that is done when a thread that sleeps on the page of numbers was woken and
//! found it signalled; in virtual time too, where it comes at no instant of that time.

mod functions;

use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{FileType, fstat};
use transload_cuda::raw::{CUcontext, CUexternalSemaphoreHandleType, CUresult};

pub use self::functions::*;
use crate::numbers::SharedNumbers;
use crate::shared::{Kind, Label};

/// An imported semaphore.
#[derive(Clone, Debug)]
pub(crate) struct Semaphore {
    /// It ends with this context (CUDA Driver API, cuCtxDestroy).
    context: CUcontext,
    numbers: SharedNumbers,
    sort: Sort,
}

/// How a semaphore counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sort {
    /// Signalled or not. A wait takes the signal.
    Binary,
    /// A value, which a wait leaves as it is.
    Timeline,
}

/// Where on the page of numbers the value is; of a binary semaphore 1 if it is signalled.
const VALUE: usize = 0;

impl Semaphore {
    /// # Errors
    /// `INVALID_HANDLE` for what is no semaphore of that sort, `NOT_SUPPORTED` for what may be another driver's.
    fn open(context: CUcontext, file: OwnedFd, sort: Sort) -> Result<Semaphore, CUresult> {
        if Label::read(&file).is_none() {
            let regular = fstat(&file)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
            return Err(match regular {
                true => CUresult::CUDA_ERROR_NOT_SUPPORTED,
                false => CUresult::CUDA_ERROR_INVALID_HANDLE,
            });
        }
        let numbers = SharedNumbers::open(file, sort.kind());
        let numbers = numbers.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        Ok(Semaphore {
            context,
            numbers,
            sort,
        })
    }

    fn signal(&self, value: u64) {
        let value = match self.sort {
            Sort::Binary => 1,
            Sort::Timeline => value,
        };
        self.numbers.number(VALUE).store(value, Ordering::Release);
        self.numbers.ring();
    }

    /// Whether a wait for a value is over, which takes the signal of a binary semaphore.
    fn passes(numbers: &SharedNumbers, sort: Sort, value: u64) -> bool {
        let number = numbers.number(VALUE);
        match sort {
            Sort::Binary => number
                .compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire)
                .is_ok(),
            Sort::Timeline => number.load(Ordering::Acquire) >= value,
        }
    }
}

impl Sort {
    fn kind(self) -> Kind {
        match self {
            Sort::Binary => Kind::BinarySemaphore,
            Sort::Timeline => Kind::TimelineSemaphore,
        }
    }

    fn of(type_: CUexternalSemaphoreHandleType) -> Result<Sort, CUresult> {
        use CUexternalSemaphoreHandleType as T;
        match type_ {
            T::CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD => Ok(Sort::Binary),
            T::CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD => Ok(Sort::Timeline),
            _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
    }
}

/// A new semaphore, as a file descriptor that is the caller's. `what` is `binary`, or `timeline` with the value
/// that it begins with, or without one.
///
/// # Errors
/// What it cannot be, or why there is none.
pub(crate) fn make(what: &str) -> Result<i32, String> {
    const WANTS: &str = "semaphore wants `binary`, or `timeline` and a value";
    let mut words = what.split_whitespace();
    let (sort, value) = match (words.next(), words.next(), words.next()) {
        (Some("binary"), None, None) => (Sort::Binary, 0),
        (Some("timeline"), value, None) => {
            let value = value.unwrap_or("0").parse().map_err(|_| WANTS)?;
            (Sort::Timeline, value)
        }
        _ => return Err(WANTS.into()),
    };
    let numbers = SharedNumbers::new(sort.kind()).map_err(|error| error.to_string())?;
    numbers.number(VALUE).store(value, Ordering::Release);
    let file = numbers.file().ok_or("there is no file of it")?;
    let file = file
        .try_clone_to_owned()
        .map_err(|error| error.to_string())?;
    Ok(file.into_raw_fd())
}
