//! A device's primary context, which all of the process shares, and the pool that memory in it comes from.

use std::fmt::Display;
use std::sync::{Arc, OnceLock};

use transload_hal::{DeviceId, ErrorClass, Fault};

use crate::capture::{Relaxed, relax};
use crate::facts::Facts;
use crate::fault::{fault_of, is_end, is_ruined};
use crate::pool::{Pool, kept_bytes};
use crate::raw::{CUcontext, CUdevice, CUdeviceptr, CUresult, CUstream, CallError, Driver};
use crate::reaper::Reapers;

/// A primary context, retained until its last user drops it.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) driver: Arc<Driver>,
    pub(crate) id: DeviceId,
    pub(crate) handle: CUcontext,
    device: CUdevice,
    /// How much a pool of its memory is to keep; none where it has no pools.
    kept_bytes: Option<u64>,
    /// The pool, once something was allocated; none where there can be none.
    pool: OnceLock<Option<Pool>>,
    /// Frees memory that the driver frees only once devices are idle.
    pub(crate) reapers: Reapers,
    /// Why the device is gone.
    lost: OnceLock<Fault>,
}

/// The context is the thread's current one until this goes; then the one before is again.
pub(crate) struct Current<'a> {
    context: &'a Context,
    /// Goes after the context.
    relaxed: Option<Relaxed<'a>>,
}

impl Context {
    /// Retains the primary context of a device. Blocks on the driver, for some tenths of a second if the context does
    /// not exist yet.
    pub(crate) fn open(
        driver: &Arc<Driver>,
        id: DeviceId,
        device: CUdevice,
        facts: &Facts,
        reapers: &Reapers,
    ) -> Result<Arc<Context>, Fault> {
        let mut handle = CUcontext::NULL;
        let _relaxed = relax(driver);
        // SAFETY: the place is ours.
        let retained = unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut handle, device) };
        match retained {
            Ok(()) => Ok(Arc::new(Context {
                driver: Arc::clone(driver),
                id,
                handle,
                device,
                kept_bytes: facts.has_pools.then(|| kept_bytes(facts.memory_bytes)),
                pool: OnceLock::new(),
                reapers: reapers.clone(),
                lost: OnceLock::new(),
            })),
            Err(error) => Err(fault_of(error)),
        }
    }

    /// Makes it current on this thread, above whatever was, and whatever others capture. That there is no such context
    /// any more is believed when the driver says so twice: work that is under way would be taken to be over.
    pub(crate) fn enter(&self) -> Result<Current<'_>, Fault> {
        let mut current = self.enter_to_submit()?;
        current.relaxed = relax(&self.driver);
        Ok(current)
    }

    /// The same, to put work into streams of this backend's and to do nothing else.
    pub(crate) fn enter_to_submit(&self) -> Result<Current<'_>, Fault> {
        let ends = |error: &CallError| error.result().is_some_and(is_end);
        let entered = match self.push() {
            Err(error) if ends(&error) => self.push(),
            entered => entered,
        };
        entered.map_err(|error| match ends(&error) {
            true => self.lose(error),
            false => fault_of(error),
        })
    }

    /// The same, for a context that has not been used so far: a failure says nothing about the device.
    pub(crate) fn push(&self) -> Result<Current<'_>, CallError> {
        // SAFETY: the context was retained.
        unsafe { self.driver.cuCtxPushCurrent_v2(self.handle) }?;
        Ok(Current {
            context: self,
            relaxed: None,
        })
    }

    /// The device's pool, which is made when it is first asked for; none where it has to do without.
    pub(crate) fn pool(&self) -> Option<&Pool> {
        let make = || {
            let kept_bytes = self.kept_bytes?;
            let _current = self.enter().ok()?;
            Pool::new(&self.driver, self.device, kept_bytes).ok()
        };
        self.pool.get_or_init(make).as_ref()
    }

    /// Gives back to the device what its pool keeps. False where there is no pool.
    pub(crate) fn trim(&self) -> bool {
        let pool = self.pool.get().and_then(Option::as_ref);
        let _current = self.enter();
        pool.inspect(|pool| pool.trim(&self.driver)).is_some()
    }

    /// Lets another device reach what the pool gives out.
    pub(crate) fn admit(&self, other: &Context) -> Result<(), CallError> {
        let admit = |pool: &Pool| pool.admit(&self.driver, other.device);
        self.pool().map_or(Ok(()), admit)
    }

    /// Has the driver allocate; where it finds no memory, again without what is about to be freed and what the
    /// pool keeps. The context is the current one.
    pub(crate) fn allocate<T>(
        &self,
        mut ask: impl FnMut() -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let _relaxed = relax(&self.driver);
        let mut answer = ask();
        // Memory that all devices reach is the last to hope for: one that never becomes idle keeps it.
        let means: [&dyn Fn() -> bool; 2] = [&|| self.reapers.own.settle() | self.trim(), &|| {
            self.reapers.common.settle()
        }];
        for free in means {
            let full = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
            if answer.as_ref().is_err_and(|error| error.is(full)) && free() {
                answer = ask();
            }
        }
        answer
    }

    /// Frees memory that `cuMemAlloc` or `cuMemAllocManaged` made, which no operation uses any more. Blocks until the
    /// device is idle. Of a context that is gone nothing is left to free.
    pub(crate) fn free(&self, start: CUdeviceptr) {
        if let Ok(_current) = self.enter() {
            // SAFETY: it was allocated, and its owner frees it once.
            let _ = unsafe { self.driver.cuMemFree_v2(start) };
        }
    }

    /// Why the device is gone, if it is.
    pub(crate) fn lost(&self) -> Option<&Fault> {
        self.lost.get()
    }

    /// What a failed call means: the device is gone if the context, of which `stream` is one, answers nothing
    /// else any more. CUDA says so of every error of work that had begun: "The context cannot be used, so it must be
    /// destroyed" (CUDA Driver API, Data types used by CUDA driver, `CUresult`), and new numbers join the list with
    /// new versions, so the context is asked. Nor is a single call believed that all of CUDA is gone: what is under way
    /// would be taken to be over, and its memory used again.
    pub(crate) fn blame(&self, error: CallError, stream: CUstream) -> Fault {
        if let Some(fault) = self.lost() {
            return fault.clone();
        }
        if error.result().is_none() {
            return fault_of(error);
        }
        let _relaxed = relax(&self.driver);
        // SAFETY: the stream is of this context.
        if is_ruined(unsafe { self.driver.cuStreamQuery(stream) }) {
            return self.lose(error);
        }
        match fault_of(error) {
            // A call may name another device's context too, and then it is that one which is gone.
            fault if fault.class == ErrorClass::Lost => {
                Fault::new(ErrorClass::Failed, fault.message)
            }
            fault => fault,
        }
    }

    /// Records that the device is lost, and why. The first reason is kept.
    pub(crate) fn lose(&self, why: impl Display) -> Fault {
        let message = format!("device {} is lost: {why}", self.id);
        let fault = Fault::new(ErrorClass::Lost, message);
        self.lost.get_or_init(|| fault).clone()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take().flatten() {
            // The pool is the device's, its stream the context's.
            let _current = self.enter();
            pool.destroy(&self.driver);
        }
        let _relaxed = relax(&self.driver);
        // SAFETY: it was retained once. A driver that refuses has ended.
        let _ = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = CUcontext::NULL;
        // SAFETY: the place is ours, and what is on top was pushed when this was made.
        let _ = unsafe { self.context.driver.cuCtxPopCurrent_v2(&raw mut popped) };
    }
}
