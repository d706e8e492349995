//! Command queues, command buffers and the encoder of copies.

use objc2::Message as _;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBlitCommandEncoder, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder as _,
    MTLCommandQueue, MTLDevice as _, MTLResource,
};

use super::{Device, EndBlock, Event, Raw};

/// A command queue, which any thread may use (Apple, Metal Programming Guide, Command Organization and Execution Model:
/// command queues are thread safe).
pub(crate) struct Queue(pub(crate) Retained<ProtocolObject<dyn MTLCommandQueue>>);

impl Device {
    pub(crate) fn queue(&self) -> Option<Queue> {
        self.0.newCommandQueue().map(Queue)
    }
}

impl Queue {
    /// Makes a command buffer that keeps the objects that it uses.
    pub(crate) fn commands(&self) -> Option<Commands> {
        self.0.commandBuffer().map(Commands)
    }
}

/// Commands that stay on the thread that writes them.
pub(crate) struct Commands(Retained<ProtocolObject<dyn MTLCommandBuffer>>);

impl Commands {
    /// A user's commands.
    pub(crate) fn of(commands: &ProtocolObject<dyn MTLCommandBuffer>) -> Commands {
        Commands(commands.retain())
    }

    /// Whether they were committed already; nothing can be added after that.
    pub(crate) fn is_committed(&self) -> bool {
        let status = self.0.status();
        status != MTLCommandBufferStatus::NotEnqueued && status != MTLCommandBufferStatus::Enqueued
    }

    /// Makes later commands wait until the event has that value.
    pub(crate) fn wait_for(&self, event: &Event, value: u64) {
        self.0.encodeWaitForEvent_value(event.as_event(), value);
    }

    /// Sets the event when all earlier commands are over.
    pub(crate) fn signal(&self, event: &Event, value: u64) {
        self.0.encodeSignalEvent_value(event.as_event(), value);
    }

    pub(crate) fn blit(&self) -> Option<Blit> {
        self.0.blitCommandEncoder().map(Blit)
    }

    /// Makes Metal call the block when the commands are over.
    pub(crate) fn when_over(&self, block: &EndBlock) {
        // SAFETY: what the block holds may be sent to another thread, as `EndBlock` demands.
        unsafe { self.0.addCompletedHandler(block.as_handler()) };
    }

    /// Commits the commands.
    pub(crate) fn commit(&self) {
        self.0.commit();
    }
}

/// An encoder of copies, in order. Ends when dropped, as every encoder must before the next one begins and before its
/// commands are committed.
pub(crate) struct Blit(pub(super) Retained<ProtocolObject<dyn MTLBlitCommandEncoder>>);

impl Blit {
    /// Copies bytes between buffers, or within one where the ranges do not overlap.
    ///
    /// # Safety
    /// Both ranges lie within their buffers, stay valid until the commands are over, and nothing else touches them.
    pub(crate) unsafe fn copy(&self, (src, from): (&Raw, u64), (dst, to): (&Raw, u64), len: u64) {
        // SAFETY: the caller's promise; operands lie in memory, so offsets fit a usize.
        unsafe {
            self.0
                .copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                    &src.0,
                    from as usize,
                    &dst.0,
                    to as usize,
                    len as usize,
                );
        }
    }

    /// Brings the host's copy of a managed buffer up to date.
    pub(crate) fn synchronize(&self, buffer: &Raw) {
        let resource: &ProtocolObject<dyn MTLResource> = ProtocolObject::from_ref(&*buffer.0);
        self.0.synchronizeResource(resource);
    }
}

impl Drop for Blit {
    fn drop(&mut self) {
        self.0.endEncoding();
    }
}
