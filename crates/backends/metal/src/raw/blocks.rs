//! Functions that Metal calls back, on threads of its own.
//!
//! A block is made once and given to Metal many times, which only counts a reference. Blocks catch panics, which would
//! otherwise unwind through Metal.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use block2::{DynBlock, RcBlock};
use objc2::rc::autoreleasepool as pooled;
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLCommandBuffer, MTLCommandBufferHandler, MTLCommandBufferStatus, MTLSharedEvent,
};

type OfCommands = dyn Fn(NonNull<ProtocolObject<dyn MTLCommandBuffer>>);
type OfMemory = dyn Fn(NonNull<c_void>, usize);
type OfEvent = dyn Fn(NonNull<ProtocolObject<dyn MTLSharedEvent>>, u64);

/// How commands failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub(crate) code: i64,
    pub(crate) text: String,
}

/// The failure of finished commands, if they failed.
fn failure_of(commands: &ProtocolObject<dyn MTLCommandBuffer>) -> Option<Failure> {
    if commands.status() == MTLCommandBufferStatus::Completed {
        return None;
    }
    let error = commands.error();
    Some(Failure {
        code: error.as_ref().map_or(0, |error| error.code() as i64),
        text: error.map_or_else(
            || "Metal says nothing of it".into(),
            |error| error.localizedDescription().to_string(),
        ),
    })
}

/// Called when commands are over.
pub(crate) struct EndBlock(RcBlock<OfCommands>);

impl EndBlock {
    pub(crate) fn new(ended: impl Fn(Option<Failure>) + Send + Sync + 'static) -> EndBlock {
        let call = move |commands: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| {
            pooled(|_| {
                // SAFETY: Metal passes a command buffer that is alive during the call.
                let failure = failure_of(unsafe { commands.as_ref() });
                let _ = catch_unwind(AssertUnwindSafe(|| ended(failure)));
            });
        };
        EndBlock(RcBlock::new(call))
    }

    pub(super) fn as_handler(&self) -> MTLCommandBufferHandler {
        RcBlock::as_ptr(&self.0)
    }
}

/// Called when Metal has released host memory.
pub(crate) struct ReleaseBlock(RcBlock<OfMemory>);

impl ReleaseBlock {
    pub(crate) fn new(gone: impl Fn() + Send + Sync + 'static) -> ReleaseBlock {
        let call = move |_: NonNull<c_void>, _: usize| {
            let _ = catch_unwind(AssertUnwindSafe(&gone));
        };
        ReleaseBlock(RcBlock::new(call))
    }

    pub(super) fn as_block(&self) -> &DynBlock<OfMemory> {
        &self.0
    }
}

/// Called when an event has reached a value.
pub(crate) struct EventBlock(RcBlock<OfEvent>);

impl EventBlock {
    pub(crate) fn new(reached: impl Fn() + Send + Sync + 'static) -> EventBlock {
        let call = move |_: NonNull<ProtocolObject<dyn MTLSharedEvent>>, _: u64| {
            let _ = catch_unwind(AssertUnwindSafe(&reached));
        };
        EventBlock(RcBlock::new(call))
    }

    pub(super) fn as_ptr(&self) -> *mut DynBlock<OfEvent> {
        RcBlock::as_ptr(&self.0)
    }
}

// SAFETY: what a block holds may be sent and shared, by the bounds of the function that makes it, and Objective-C counts
// references to blocks atomically (Block_copy and Block_release of the Blocks runtime).
unsafe impl Send for EndBlock {}
// SAFETY: as above.
unsafe impl Sync for EndBlock {}
// SAFETY: as above.
unsafe impl Send for ReleaseBlock {}
// SAFETY: as above.
unsafe impl Sync for ReleaseBlock {}
