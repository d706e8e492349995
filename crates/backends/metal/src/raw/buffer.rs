//! Metal buffers.

use std::ffi::c_void;
use std::ptr::NonNull;

use objc2::msg_send;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSRange;
use objc2_metal::{
    MTLBuffer, MTLDevice as _, MTLResource as _, MTLResourceOptions, MTLStorageMode,
};
use transload_hal::HostSpan;

use super::{Device, ReleaseBlock};

/// A buffer, kept.
#[derive(Clone)]
pub(crate) struct Raw(pub(crate) Retained<ProtocolObject<dyn MTLBuffer>>);

// SAFETY: what is called on the object here only asks it what it was made with, or counts references, which Objective-C
// does atomically; `didModifyRange` is told by one thread at a time, under the buffer's `Coherence`. Metal's resources are
// made on one thread and encoded on others (Apple, Metal Programming Guide, Command Organization and Execution Model:
// several threads encode command buffers of one queue at a time). Encoders and command buffers stay on their thread.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

/// Which of host and device reach a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Host and device, in one place.
    Shared,
    /// Host and device, each its own copy.
    Managed,
    /// The device.
    Private,
}

impl Mode {
    pub(crate) fn options(self, is_combined: bool) -> MTLResourceOptions {
        let mode = match self {
            Mode::Shared => MTLResourceOptions::StorageModeShared,
            Mode::Managed => MTLResourceOptions::StorageModeManaged,
            Mode::Private => MTLResourceOptions::StorageModePrivate,
        };
        match is_combined {
            true => mode | MTLResourceOptions::CPUCacheModeWriteCombined,
            false => mode,
        }
    }
}

impl Device {
    /// Makes a buffer of `len_bytes` bytes, at least one. `None` if Metal refuses.
    pub(crate) fn buffer(&self, len_bytes: u64, mode: Mode, is_combined: bool) -> Option<Raw> {
        let len = usize::try_from(len_bytes).ok()?;
        let options = mode.options(is_combined);
        self.0.newBufferWithLength_options(len, options).map(Raw)
    }
}

impl Raw {
    pub(crate) fn len_bytes(&self) -> u64 {
        self.0.length() as u64
    }

    /// `None` for other storage modes: tile memory, or a mode unknown here.
    pub(crate) fn mode(&self) -> Option<Mode> {
        match self.0.storageMode() {
            MTLStorageMode::Shared => Some(Mode::Shared),
            MTLStorageMode::Managed => Some(Mode::Managed),
            MTLStorageMode::Private => Some(Mode::Private),
            _ => None,
        }
    }

    /// The address of the bytes on the host. `None` for a private buffer: Metal would return NULL for it, which the
    /// bindings do not expect.
    pub(crate) fn contents(&self) -> Option<NonNull<u8>> {
        match self.mode()? {
            Mode::Private => None,
            Mode::Shared | Mode::Managed => {
                // SAFETY: the method takes nothing and gives an address, which may be NULL here.
                let start: *mut c_void = unsafe { msg_send![&*self.0, contents] };
                NonNull::new(start.cast())
            }
        }
    }

    pub(crate) fn is_of(&self, device: &Device) -> bool {
        self.0.device().registryID() == device.0.registryID()
    }

    /// Names the buffer as long as it lives.
    pub(crate) fn handle(&self) -> u64 {
        Retained::as_ptr(&self.0).addr() as u64
    }

    /// Tells Metal that the host wrote `len_bytes` bytes of a managed buffer.
    pub(crate) fn did_modify(&self, at: u64, len_bytes: u64) {
        self.0
            .didModifyRange(NSRange::new(at as usize, len_bytes as usize));
    }

    /// Makes a buffer of whole pages of host memory, which Metal reaches in place. Metal calls `gone` once, when it has
    /// released them. `None` if Metal refuses the pages; `gone` is not called then.
    ///
    /// # Safety
    /// The pages stay valid until `gone` was called.
    pub(crate) unsafe fn wrapping(
        device: &Device,
        pages: HostSpan,
        gone: &ReleaseBlock,
    ) -> Option<Raw> {
        let start = NonNull::new(pages.as_ptr().cast())?;
        let options = Mode::Shared.options(false);
        // SAFETY: the pages are valid until the block is called, by the caller's promise; what the block holds may be
        // sent to another thread, as `ReleaseBlock` demands.
        let made = unsafe {
            device
                .0
                .newBufferWithBytesNoCopy_length_options_deallocator(
                    start,
                    pages.len(),
                    options,
                    Some(gone.as_block()),
                )
        };
        made.map(Raw)
    }
}
