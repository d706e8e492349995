//! A device, as every program that calls the driver holds it.

use std::sync::Arc;

use anyhow::{Context, Result};
use transload_cuda::raw::{CUcontext, CUdevice, CUdevice_attribute, CallError, Driver};

/// A device with its primary context, which PyTorch and Transload use too.
pub(crate) struct Gpu {
    pub(crate) driver: Driver,
    pub(crate) device: CUdevice,
    context: CUcontext,
}

impl Gpu {
    /// Retains the primary context and makes it current on this thread.
    pub(crate) fn open(driver: &Driver, ordinal: i32) -> Result<Arc<Gpu>> {
        let mut gpu = Gpu {
            driver: driver.clone(),
            device: CUdevice(ordinal),
            context: CUcontext::NULL,
        };
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut gpu.context, gpu.device) }
            .with_context(|| format!("no context on device {ordinal}"))?;
        let gpu = Arc::new(gpu);
        gpu.enter()?;
        Ok(gpu)
    }

    /// Makes the context current on this thread.
    pub(crate) fn enter(&self) -> Result<(), CallError> {
        // SAFETY: the context is held until `self` is dropped.
        unsafe { self.driver.cuCtxSetCurrent(self.context) }
    }

    /// Makes the context current on this thread until the guard is dropped; then the previous one is current again.
    pub(crate) fn push(&self) -> Result<Pushed<'_>, CallError> {
        // SAFETY: the context is held until `self` is dropped.
        unsafe { self.driver.cuCtxPushCurrent_v2(self.context) }?;
        Ok(Pushed(self))
    }

    /// The context, for calls that name two.
    pub(crate) fn context(&self) -> CUcontext {
        self.context
    }

    /// Whether the device reaches the other device's memory without the host.
    pub(crate) fn reaches(&self, other: &Gpu) -> Result<bool, CallError> {
        let mut answer = 0;
        // SAFETY: the out-pointer is a local variable.
        unsafe {
            self.driver
                .cuDeviceCanAccessPeer(&raw mut answer, self.device, other.device)
        }?;
        Ok(answer != 0)
    }

    /// Waits for all work of the context.
    pub(crate) fn settle(&self) -> Result<(), CallError> {
        // SAFETY: the call takes no arguments.
        unsafe { self.driver.cuCtxSynchronize() }
    }

    /// One attribute of the device.
    pub(crate) fn attribute(&self, asked: CUdevice_attribute) -> Result<i32, CallError> {
        let mut value = 0;
        // SAFETY: the out-pointer is a local variable.
        unsafe {
            self.driver
                .cuDeviceGetAttribute(&raw mut value, asked, self.device)
        }?;
        Ok(value)
    }

    /// The number of free bytes in the device's memory.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        let _current = self.push()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both out-pointers are local variables.
        unsafe { self.driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) }?;
        Ok(free as u64)
    }
}

/// A context that is current on this thread until this is dropped.
pub(crate) struct Pushed<'gpu>(&'gpu Gpu);

impl Drop for Pushed<'_> {
    fn drop(&mut self) {
        let mut popped = CUcontext::NULL;
        // SAFETY: the out-pointer is a local variable, and the context on top was pushed when this was made.
        let _ = unsafe { self.0.driver.cuCtxPopCurrent_v2(&raw mut popped) };
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // If this fails, the context was lost before, and the call that lost it has reported that.
        // SAFETY: a null context may be made current.
        let _ = unsafe { self.driver.cuCtxSetCurrent(CUcontext::NULL) };
        // SAFETY: it was retained once, by `open`.
        let _ = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}
