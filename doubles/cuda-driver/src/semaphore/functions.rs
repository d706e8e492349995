//! The driver's functions on semaphores.

use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::mpsc;

use transload_cuda::raw::{
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC, CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS,
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, CUcontext, CUexternalSemaphore, CUresult, CUstream,
};

use super::{Semaphore, Sort};
use crate::answer::put;
use crate::call::{Call, driver};
use crate::engine::{Action, Work};
use crate::shared::client_file;
use crate::state::State;
use crate::work::{Leg, at_once};

impl Semaphore {
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
        let gate = self.numbers.gate_after(
            &call.world.engine,
            move || begun.recv().is_ok(),
            move |numbers| Semaphore::passes(numbers, sort, value),
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
            work(Action::Until(gate.bar())),
        ])
    }
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
