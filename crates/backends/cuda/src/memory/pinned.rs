//! Host memory that is locked in place and mapped for every device.
//!
//! It is ordinary memory of the process, registered with the driver, and not memory that the driver allocates, so
//! that other drivers can import it too: CUDA and Vulkan can reach one buffer. If the driver cannot register
//! memory, the driver allocates it.

use std::ptr::NonNull;
use std::sync::Arc;

use transload_hal::{
    AllocError, AllocSpec, Buffer, ErrorClass, Fault, HostSpan, StorageId, StorageInfo,
};

use super::block::Block;
use super::hosted;
use super::storage::{check, info, refused};
use crate::context::Context;
use crate::fault::fault_of;
use crate::gpu::{Gpu, Opened, by_any};
use crate::ids::PINNED;
use crate::raw::{CU_MEMHOSTREGISTER, CUresult, CallError};

/// Registered memory, which the devices reach; unregistered when dropped.
pub(super) struct Registration {
    context: Arc<Context>,
    start: NonNull<u8>,
    has_ended: bool,
}

// SAFETY: the address is a name for the driver.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

/// The owner of memory that was allocated here.
struct Pinned {
    /// `Some` until the drop.
    parts: Option<(Registration, Block)>,
}

pub(super) fn allocate(gpus: &[Gpu], spec: &AllocSpec) -> Result<Buffer, AllocError> {
    check(PINNED, spec, largest())?;
    let refused = |fault| refused(PINNED, spec.len_bytes, fault);
    by_any(gpus, |opened| allocate_by(opened, spec)).map_err(refused)
}

fn allocate_by(opened: &Opened, spec: &AllocSpec) -> Result<Buffer, Fault> {
    if spec.write_combined
        && let Some(buffer) = hosted::allocate(opened, spec, true)?
    {
        return Ok(buffer);
    }
    let block = Block::new(spec)?;
    let span = block.span();
    let registration = match Registration::new(opened, span, true) {
        // Not every system can register existing memory (CUDA Driver API,
        // CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED).
        Err(fault) if fault.class == ErrorClass::Unsupported => {
            drop(block);
            return hosted::allocate(opened, spec, false)?.ok_or(fault);
        }
        registration => registration?,
    };
    let info = StorageInfo {
        host: span.slice(0, spec.len_bytes),
        ..info(PINNED, StorageId::Host, span.addr(), spec.len_bytes)
    };
    let owner = Pinned {
        parts: Some((registration, block)),
    };
    // SAFETY: the block stays where it is until the owner is dropped, is at least as long as was asked for, and has
    // no other owner.
    Ok(unsafe { Buffer::new(info, Box::new(owner)) })
}

/// The largest allocation, in bytes: half of the machine's memory, so that enough is left for the rest of the
/// system.
pub(super) fn largest() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        let system = rustix::system::sysinfo();
        let unit = u64::from(system.mem_unit.max(1));
        // As wide as a pointer.
        #[allow(clippy::useless_conversion, reason = "narrower on 32-bit machines")]
        (u64::from(system.totalram).saturating_mul(unit) / 2)
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    (isize::MAX as u64 / 2)
}

impl Registration {
    pub(super) fn new(
        opened: &Opened,
        span: HostSpan,
        writable: bool,
    ) -> Result<Registration, Fault> {
        let context = &opened.context;
        let _current = context.enter()?;
        let mut flags = CU_MEMHOSTREGISTER::PORTABLE | CU_MEMHOSTREGISTER::DEVICEMAP;
        // Memory that the process may only read can be registered only as read-only. If the devices cannot do that,
        // plain registration is tried: the process may be able to write the memory although the caller declared it
        // read-only.
        if !writable && opened.registers_read_only {
            flags |= CU_MEMHOSTREGISTER::READ_ONLY;
        }
        let start = span.as_ptr();
        let registered = context.allocate(|| {
            let driver = &context.driver;
            // SAFETY: the range is memory of the process, by the caller's promise, until this is dropped.
            unsafe { driver.cuMemHostRegister_v2(start.cast(), span.len(), flags) }
        });
        registered.map_err(|error| match error.result() {
            Some(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) => {
                Fault::new(ErrorClass::Caller, "some of it is registered already")
            }
            _ => opened.blame(error),
        })?;
        Ok(Registration {
            context: Arc::clone(context),
            start: NonNull::new(start).unwrap_or(NonNull::dangling()),
            has_ended: false,
        })
    }

    /// Unregisters the memory.
    ///
    /// # Errors
    /// The driver's: then a device may still reach the memory.
    fn end(&mut self) -> Result<(), Fault> {
        if std::mem::replace(&mut self.has_ended, true) {
            return Ok(());
        }
        let _current = self.context.enter()?;
        // SAFETY: it was registered, and no operation uses it any more.
        let ended = unsafe {
            self.context
                .driver
                .cuMemHostUnregister(self.start.as_ptr().cast())
        };
        match ended {
            Err(CallError::Failed { result, .. })
                if result == CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED =>
            {
                Ok(())
            }
            ended => ended.map_err(fault_of),
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // The memory belongs to the caller and returns to it even if this fails. A device that refuses is assumed
        // to be quiet, as a lost device is.
        let _ = self.end();
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(mut parts) = self.parts.take() {
            let reaper = Arc::clone(&parts.0.context.reapers.common);
            reaper.free(move || {
                // First the registration, then the block.
                let (registration, block) = &mut parts;
                block.is_stuck = registration.end().is_err();
            });
        }
    }
}
