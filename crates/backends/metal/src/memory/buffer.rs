//! The owner of a buffer, which `Buffer::native` returns.

use std::fmt;
use std::sync::Arc;

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::MTLBuffer;

use super::Coherence;
use crate::gpu::Gpu;
use crate::raw::{DropPooled, Mode, Raw};

/// A `MTLBuffer`, made by this backend or by the program.
///
/// Each buffer that the manager allocates is owned by one: `buffer.native::<MetalBuffer>()`. Import one of the
/// program's own with `TransferManager::import`, as `External::Object`.
pub struct MetalBuffer {
    raw: DropPooled<Raw>,
    coherence: Arc<Coherence>,
}

impl MetalBuffer {
    /// Wraps a buffer of the program's own. Other references to the buffer stay valid.
    #[must_use]
    pub fn new(buffer: Retained<ProtocolObject<dyn MTLBuffer>>) -> MetalBuffer {
        let made = MetalBuffer::own(Raw(buffer));
        made.coherence.give_out();
        made
    }

    pub(crate) fn own(raw: Raw) -> MetalBuffer {
        MetalBuffer {
            raw: DropPooled::new(raw),
            coherence: Arc::default(),
        }
    }

    /// Returns the buffer, for commands of the program's own. From then on managed memory is synchronized every time
    /// that the host reads it, because the backend cannot see other writes to it.
    ///
    /// # Safety
    /// While a transfer or a guard of the manager uses bytes of the buffer, commands made with this must not touch
    /// them. Transfers start after commands of the program's by [`Metal::when_done`](crate::Metal::when_done) and
    /// [`Metal::when_event`](crate::Metal::when_event); commands start after transfers by
    /// [`Metal::follow`](crate::Metal::follow), or when they were awaited.
    #[must_use]
    pub unsafe fn get(&self) -> &ProtocolObject<dyn MTLBuffer> {
        self.coherence.give_out();
        &self.raw.0
    }

    /// Returns the buffer. `transload::Buffer::into_inner` gives the `MetalBuffer` back once no view is left.
    #[must_use]
    pub fn into_inner(self) -> Retained<ProtocolObject<dyn MTLBuffer>> {
        self.raw.into_inner().0
    }

    /// The same, with the coherence that all owners of a managed buffer share.
    pub(crate) fn known(self, gpu: &Gpu) -> MetalBuffer {
        match self.raw.mode() {
            Some(Mode::Managed) => MetalBuffer {
                coherence: gpu.coherence.of(self.raw.handle()),
                ..self
            },
            _ => self,
        }
    }

    pub(crate) fn raw(&self) -> &Raw {
        &self.raw
    }

    pub(crate) fn coherence(&self) -> &Arc<Coherence> {
        &self.coherence
    }
}

impl fmt::Debug for MetalBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetalBuffer")
            .field("len_bytes", &self.raw.len_bytes())
            .field("mode", &self.raw.mode())
            .finish_non_exhaustive()
    }
}
