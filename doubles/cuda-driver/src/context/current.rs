//! The contexts of this thread, and the context of a handle.

use std::cell::RefCell;

use transload_cuda::raw::{CUcontext, CUdevice, CUresult};

use super::Context;
use crate::state::State;

thread_local! {
    /// The contexts of this thread, the current one last.
    pub(super) static STACK: RefCell<Vec<CUcontext>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn top() -> Option<CUcontext> {
    STACK.with_borrow(|stack| stack.last().copied())
}

/// The current context of this thread, and its device.
///
/// # Errors
/// `INVALID_CONTEXT` without one, `CONTEXT_IS_DESTROYED` if it is gone, and what has ruined it.
pub(crate) fn current(state: &State) -> Result<(CUcontext, CUdevice), CUresult> {
    let (handle, device) = present(state)?;
    state.context(handle)?.ruin.check()?;
    Ok((handle, device))
}

/// As [`current`], but returns a ruined context too.
///
/// # Errors
/// As there, but for what has ruined it.
pub(crate) fn present(state: &State) -> Result<(CUcontext, CUdevice), CUresult> {
    let handle = top().filter(|handle| !handle.is_null());
    let handle = handle.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    Ok((handle, state.context(handle)?.device))
}

impl State {
    /// The context of a handle, ruined or not.
    ///
    /// # Errors
    /// `CONTEXT_IS_DESTROYED` if it is gone, `INVALID_CONTEXT` if it never was.
    pub(crate) fn context(&self, handle: CUcontext) -> Result<&Context, CUresult> {
        let number = handle.0.addr() as u64;
        self.contexts.get(number).ok_or_else(|| {
            if self.contexts.was(number) {
                CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            } else {
                CUresult::CUDA_ERROR_INVALID_CONTEXT
            }
        })
    }

    /// As [`State::context`], to change it.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn context_mut(&mut self, handle: CUcontext) -> Result<&mut Context, CUresult> {
        self.context(handle)?;
        let context = self.contexts.get_mut(handle.0.addr() as u64);
        context.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }
}
