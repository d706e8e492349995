//! Semaphores of other interfaces, as far as Linux lets a stand-in.
//!
//! Source: CUDA Driver API, External Resource Interoperability: cuImportExternalSemaphore,
//! cuSignalExternalSemaphoresAsync, cuWaitExternalSemaphoresAsync, cuDestroyExternalSemaphore.
//!
//! Only the driver that made a semaphore knows the content of its file descriptor. The control function makes
//! semaphores that every process with this double can import: a [board](crate::board) in shared memory. Semaphores
//! of Vulkan drivers are refused: lavapipe of Mesa 22.3 exports none, and SwiftShader's contain a mutex of its C
//! library. Waiting for one is work that is done when a thread that sleeps on the board was woken and found it
//! signalled; in virtual time too, where it comes at no instant of that time.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use rustix::fs::{FileType, fstat};
use transload_cuda::raw::{
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC, CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS,
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, CUcontext, CUexternalSemaphore,
    CUexternalSemaphoreHandleType, CUresult, CUstream,
};

use crate::board::Board;
use crate::call::{Call, driver, put};
use crate::engine::{Action, Work};
use crate::shared::{Kind, Label, client_file};
use crate::state::State;
use crate::work::{Leg, at_once};

/// An imported semaphore.
#[derive(Clone, Debug)]
pub(crate) struct Semaphore {
    /// It ends with this context (CUDA Driver API, cuCtxDestroy).
    context: CUcontext,
    board: Board,
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

/// Where on the board the value is; of a binary semaphore 1 if it is signalled.
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
        let board = Board::open(file, sort.kind());
        let board = board.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        Ok(Semaphore {
            context,
            board,
            sort,
        })
    }

    fn signal(&self, value: u64) {
        let value = match self.sort {
            Sort::Binary => 1,
            Sort::Timeline => value,
        };
        self.board.number(VALUE).store(value, Ordering::Release);
        self.board.ring();
    }

    /// Whether a wait for a value is over, which takes the signal of a binary semaphore.
    fn passes(board: &Board, sort: Sort, value: u64) -> bool {
        let number = board.number(VALUE);
        match sort {
            Sort::Binary => number
                .compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire)
                .is_ok(),
            Sort::Timeline => number.load(Ordering::Acquire) >= value,
        }
    }

    fn signal_leg(self, value: u64) -> Leg {
        let signal = move || self.signal(value);
        at_once(Vec::new(), Action::Move(Box::new(signal)))
    }

    /// Begins to wait when it is its turn in the stream: before, it might take another one's signal. In a ruined
    /// context it never begins, and is over.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when the system gives no thread to wait with.
    fn wait_leg(self, call: &Call, value: u64) -> Result<Leg, CUresult> {
        let (begin, begun) = mpsc::channel();
        let sort = self.sort;
        let gate = self.board.gate_after(
            &call.world.engine,
            move || begun.recv().is_ok(),
            move |board| Semaphore::passes(board, sort, value),
        );
        let gate = gate.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let begin = move || {
            // Its thread listens until then.
            let _ = begin.send(());
        };
        let work = |action| Work {
            after: Vec::new(),
            channels: Vec::new(),
            duration_ns: 0,
            action,
        };
        Ok(vec![
            work(Action::Move(Box::new(begin))),
            work(Action::Until(gate)),
        ])
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
    let board = Board::new(sort.kind()).map_err(|error| error.to_string())?;
    board.number(VALUE).store(value, Ordering::Release);
    let file = board.file().ok_or("there is no file of it")?;
    let file = file
        .try_clone_to_owned()
        .map_err(|error| error.to_string())?;
    Ok(file.into_raw_fd())
}

impl State {
    /// Takes all semaphores of a context away; work that waits for one goes on.
    pub(crate) fn end_semaphores_of(&mut self, context: CUcontext) {
        self.semaphores
            .retain(|semaphore| semaphore.context != context);
    }

    /// The semaphores of an array, each with its parameters.
    ///
    /// # Errors
    /// `INVALID_VALUE` where an array is missing, `INVALID_HANDLE` where something is no semaphore.
    ///
    /// # Safety
    /// The arrays are as long as `count` says, or null.
    unsafe fn semaphores<P>(
        &self,
        handles: *const CUexternalSemaphore,
        params: *const P,
        count: u32,
    ) -> Result<Vec<(Semaphore, P)>, CUresult> {
        if count > 0 && (handles.is_null() || params.is_null()) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut found = Vec::new();
        for index in 0..count as usize {
            // SAFETY: the caller's promise, here and below.
            let handle = unsafe { handles.add(index) };
            // SAFETY: as above.
            let handle = unsafe { handle.read_unaligned() };
            let semaphore = self.semaphores.get(handle.0.addr() as u64);
            let semaphore = semaphore.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
            // SAFETY: as above.
            let param = unsafe { params.add(index) };
            // SAFETY: as above.
            let param = unsafe { param.read_unaligned() };
            found.push((semaphore.clone(), param));
        }
        Ok(found)
    }
}

driver! {
    /// Takes a file descriptor over that the control function of a double made; on failure it stays the caller's.
    fn cuImportExternalSemaphore(
        ext_sem_out: *mut CUexternalSemaphore,
        sem_handle_desc: *const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC,
    ), call => {
        if ext_sem_out.is_null() || sem_handle_desc.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller passes a valid description.
        let desc = unsafe { sem_handle_desc.read_unaligned() };
        let mut state = call.state();
        let (context, _) = call.current(&state)?;
        let sort = Sort::of(desc.type_)?;
        if desc.flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: that is what the type says it is.
        let fd = unsafe { desc.handle.fd };
        let file = client_file(fd).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let semaphore = Semaphore::open(context, file, sort)?;
        // SAFETY: it is open, or there were no file; from here on it is ours, as documented.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        let number = state.semaphores.add(semaphore);
        let handle = CUexternalSemaphore(ptr::without_provenance_mut(number as usize));
        // SAFETY: the caller passes a valid out-pointer for a handle.
        unsafe { put(ext_sem_out, handle) }
    }

    /// When all before it in the stream is done: a binary semaphore is signalled, a timeline gets its value.
    fn cuSignalExternalSemaphoresAsync(
        ext_sem_array: *const CUexternalSemaphore,
        params_array: *const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS,
        num_ext_sems: u32,
        stream: CUstream,
    ), call => {
        let mut state = call.state();
        // SAFETY: the caller's arrays.
        let semaphores = unsafe { state.semaphores(ext_sem_array, params_array, num_ext_sems) }?;
        if semaphores.iter().any(|(_, params)| params.flags != 0) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let legs = semaphores.into_iter();
        let legs = legs.map(|(semaphore, params)| semaphore.signal_leg(params.fence.value));
        let legs = legs.collect();
        state.enqueue(call.world, stream, legs).map(drop)
    }

    /// When all before it in the stream is done, the stream goes on as soon as all are signalled: a binary
    /// semaphore is not signalled any more then, a timeline has reached the value.
    fn cuWaitExternalSemaphoresAsync(
        ext_sem_array: *const CUexternalSemaphore,
        params_array: *const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS,
        num_ext_sems: u32,
        stream: CUstream,
    ), call => {
        let mut state = call.state();
        // SAFETY: the caller's arrays.
        let semaphores = unsafe { state.semaphores(ext_sem_array, params_array, num_ext_sems) }?;
        if semaphores.iter().any(|(_, params)| params.flags != 0) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let legs = semaphores.into_iter();
        let legs = legs.map(|(semaphore, params)| semaphore.wait_leg(call, params.fence.value));
        let legs = legs.collect::<Result<_, _>>()?;
        state.enqueue(call.world, stream, legs).map(drop)
    }

    /// Work in flight is completed.
    fn cuDestroyExternalSemaphore(ext_sem: CUexternalSemaphore), call => {
        let removed = call.state().semaphores.remove(ext_sem.0.addr() as u64);
        removed.map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }
}
