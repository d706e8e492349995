//! The driver's functions on contexts.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::MutexGuard;

use transload_cuda::raw::{CUcontext, CUdevice, CUresult};

use super::current::{STACK, top};
use super::{Context, Ruin};
use crate::answer::{put, put_if_wanted};
use crate::call::driver;
use crate::state::State;

impl State {
    fn make_context(&mut self, device: CUdevice, flags: c_uint, primary: bool) -> CUcontext {
        let number = self.contexts.add(Context {
            device,
            flags,
            primary,
            ruin: Ruin::default(),
            peers: BTreeSet::new(),
        });
        CUcontext(ptr::without_provenance_mut(number as usize))
    }

    /// Ends a context and all objects of its own. Work in flight takes its time, and the memory that it uses stays
    /// until then. The caller calls [`Ruin::end`] afterwards, without the lock.
    #[must_use]
    fn end_context(&mut self, handle: CUcontext) -> Option<Ruin> {
        let ended = self.contexts.remove(handle.0.addr() as u64);
        self.streams.end_context(handle);
        self.end_events_of(handle);
        self.end_externals_of(handle);
        self.end_semaphores_of(handle);
        for (_, other) in self.contexts.iter_mut() {
            other.peers.remove(&handle);
        }
        self.space.end_context(handle);
        self.managed.forget_all_but(&self.space);
        ended.map(|context| context.ruin)
    }
}

/// Ends a context that can no longer be found. The documentation does not say that the call waits for the context's
/// work, so this waits for none of it: no byte moves any more, and registered memory belongs to the client alone.
fn let_go(state: MutexGuard<'_, State>, ended: Option<Ruin>) {
    drop(state);
    if let Some(ruin) = ended {
        ruin.end();
    }
}

/// The valid flags of contexts; all others are refused.
const FLAGS: c_uint = 0xff;

driver! {
    /// Makes the context if it has no holder, and leaves the current context as it is.
    fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice), call => {
        if pctx.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut state = call.state();
        let primary = &state.device(dev)?.primary;
        let handle = match primary.context {
            Some(handle) => handle,
            None => state.make_context(dev, 0, true),
        };
        let primary = &mut state.device_mut(dev)?.primary;
        primary.context = Some(handle);
        primary.holders += 1;
        // SAFETY: the caller passes a valid out-pointer for a context.
        unsafe { put(pctx, handle) }
    }

    /// The last release ends it. It stays on the stacks of threads, where it then counts as destroyed.
    fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice), call => {
        let mut state = call.state();
        let primary = &mut state.device_mut(dev)?.primary;
        if primary.holders == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        primary.holders -= 1;
        if primary.holders == 0 && let Some(handle) = primary.context.take() {
            let ended = state.end_context(handle);
            let_go(state, ended);
        }
        Ok(())
    }

    /// Returns the flags, of which there are none, and whether the context exists.
    fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut c_uint, active: *mut c_int), call => {
        let state = call.state();
        let primary = &state.device(dev)?.primary;
        // SAFETY: the caller passes valid out-pointers.
        unsafe { put(flags, 0) }?;
        // SAFETY: as above.
        unsafe { put(active, c_int::from(primary.context.is_some())) }
    }

    /// Ends the context for all holders, and clears its error. The holders still hold it, must release it, and find
    /// it destroyed; the next retain makes a new context.
    fn cuDevicePrimaryCtxReset_v2(dev: CUdevice), call => {
        let mut state = call.state();
        let primary = &mut state.device_mut(dev)?.primary;
        if let Some(handle) = primary.context.take() {
            let ended = state.end_context(handle);
            let_go(state, ended);
        }
        Ok(())
    }

    /// A context of the caller's own, current at once.
    fn cuCtxCreate_v2(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice), call => {
        if flags & !FLAGS != 0 || pctx.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut state = call.state();
        state.device(dev)?;
        let handle = state.make_context(dev, flags, false);
        STACK.with_borrow_mut(|stack| stack.push(handle));
        // SAFETY: the caller passes a valid out-pointer for a context.
        unsafe { put(pctx, handle) }
    }

    /// Ends a context of the caller's own, and pops it if it is current here.
    fn cuCtxDestroy_v2(ctx: CUcontext), call => {
        let mut state = call.state();
        if state.context(ctx)?.primary {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        let ended = state.end_context(ctx);
        let_go(state, ended);
        STACK.with_borrow_mut(|stack| stack.pop_if(|top| *top == ctx));
        Ok(())
    }

    /// Pushes any existing context, ruined or not.
    fn cuCtxPushCurrent_v2(ctx: CUcontext), call => {
        call.state().context(ctx)?;
        STACK.with_borrow_mut(|stack| stack.push(ctx));
        Ok(())
    }

    /// Pops the current context, in whatever state it is.
    fn cuCtxPopCurrent_v2(pctx: *mut CUcontext), call => {
        let popped = STACK.with_borrow_mut(Vec::pop);
        let popped = popped.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        let _ = call;
        // SAFETY: the caller passes null or a valid out-pointer for a context.
        unsafe { put_if_wanted(pctx, popped) };
        Ok(())
    }

    /// Replaces the current context; null takes it off.
    fn cuCtxSetCurrent(ctx: CUcontext), call => {
        if !ctx.is_null() {
            call.state().context(ctx)?;
        }
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            if !ctx.is_null() {
                stack.push(ctx);
            }
        });
        Ok(())
    }

    /// Null where there is none.
    fn cuCtxGetCurrent(pctx: *mut CUcontext), call => {
        let _ = call;
        // SAFETY: the caller passes a valid out-pointer for a context.
        unsafe { put(pctx, top().unwrap_or(CUcontext::NULL)) }
    }

    /// The current context's device.
    fn cuCtxGetDevice(device: *mut CUdevice), call => {
        let (_, current) = call.current(&call.state())?;
        // SAFETY: the caller passes a valid out-pointer for a device.
        unsafe { put(device, current) }
    }

    /// The number of a context is its handle; no number is used twice. Null asks for the current one.
    fn cuCtxGetId(ctx: CUcontext, ctx_id: *mut u64), call => {
        let state = call.state();
        let asked = if ctx.is_null() { call.current(&state)?.0 } else { ctx };
        state.context(asked)?;
        // SAFETY: the caller passes a valid out-pointer for a number.
        unsafe { put(ctx_id, asked.0.addr() as u64) }
    }
}
