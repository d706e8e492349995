//! A device's primary context, which the whole process shares, and the pool that its memory comes from.

use std::fmt::Display;
use std::sync::{Arc, OnceLock};

use transload_hal::{DeviceId, ErrorClass, Fault};

use crate::capture::{Relaxed, relax};
use crate::facts::Facts;
use crate::fault::{fault_of, is_end, is_ruined};
use crate::pool::{Pool, threshold_bytes};
use crate::raw::{CUcontext, CUdevice, CUdeviceptr, CUresult, CUstream, CallError, Driver};
use crate::reaper::Reapers;

/// A primary context, retained until its last user drops it.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) driver: Arc<Driver>,
    pub(crate) id: DeviceId,
    pub(crate) handle: CUcontext,
    device: CUdevice,
    /// How many bytes a pool of the device keeps; none if the device has no pools.
    threshold_bytes: Option<u64>,
    /// The pool, after the first allocation; none if the device cannot have one.
    pool: OnceLock<Option<Pool>>,
    /// Frees memory that the driver frees only once devices are idle.
    pub(crate) reapers: Reapers,
    /// Why the device is lost.
    lost: OnceLock<Fault>,
}

/// Makes the context current on the thread until this is dropped; then the previous one is current again.
pub(crate) struct Current<'a> {
    context: &'a Context,
    /// Dropped after the context is popped.
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
                threshold_bytes: facts.has_pools.then(|| threshold_bytes(facts.memory_bytes)),
                pool: OnceLock::new(),
                reapers: reapers.clone(),
                lost: OnceLock::new(),
            })),
            Err(error) => Err(fault_of(error)),
        }
    }

    /// Makes the context current on this thread, on top of the previous one, and relaxes the capture mode. The device
    /// counts as lost only if the driver says twice that the context does not exist, because work under way would then
    /// be taken to be over.
    pub(crate) fn enter(&self) -> Result<Current<'_>, Fault> {
        let mut current = self.enter_to_submit()?;
        current.relaxed = relax(&self.driver);
        Ok(current)
    }

    /// The same, only for putting work into streams of this backend: it does not relax the capture mode.
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

    /// The device's pool, made at the first call; `None` if the device has none.
    pub(crate) fn pool(&self) -> Option<&Pool> {
        let make = || {
            let threshold_bytes = self.threshold_bytes?;
            let _current = self.enter().ok()?;
            Pool::new(&self.driver, self.device, threshold_bytes).ok()
        };
        self.pool.get_or_init(make).as_ref()
    }

    /// Gives the memory that the pool keeps back to the device. Returns false if there is no pool.
    pub(crate) fn trim(&self) -> bool {
        let pool = self.pool.get().and_then(Option::as_ref);
        let _current = self.enter();
        pool.inspect(|pool| pool.trim(&self.driver)).is_some()
    }

    /// Lets another device reach the pool's memory.
    pub(crate) fn admit(&self, other: &Context) -> Result<(), CallError> {
        let admit = |pool: &Pool| pool.admit(&self.driver, other.device);
        self.pool().map_or(Ok(()), admit)
    }

    /// Calls the driver to allocate. If it finds no memory, waits for memory that is about to be freed, gives back what
    /// the pool keeps, and tries again. The context must be current.
    pub(crate) fn allocate<T>(
        &self,
        mut ask: impl FnMut() -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let _relaxed = relax(&self.driver);
        let mut answer = ask();
        // Memory that all devices reach comes last: a device that never becomes idle keeps it from being freed.
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
    /// device is idle. Does nothing if the context is gone.
    pub(crate) fn free(&self, start: CUdeviceptr) {
        if let Ok(_current) = self.enter() {
            // SAFETY: it was allocated, and its owner frees it once.
            let _ = unsafe { self.driver.cuMemFree_v2(start) };
        }
    }

    /// Why the device is lost, if it is.
    pub(crate) fn lost(&self) -> Option<&Fault> {
        self.lost.get()
    }

    /// Returns the fault of a failed call. The device is lost if a query of `stream`, a stream of its context, shows
    /// that the context is ruined. CUDA says of every error of work that had begun: "The context cannot be used, so it
    /// must be destroyed" (CUDA Driver API, Data types used by CUDA driver, `CUresult`). New versions add results to
    /// that list, so this asks the context and not the result. A single call that reports the end of CUDA is not
    /// believed either: work under way would be taken to be over, and its memory used again.
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
            // A call may also name another device's context; then that context is the lost one.
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
            // The pool belongs to the device, its stream to the context.
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
