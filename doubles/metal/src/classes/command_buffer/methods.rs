//! The methods of command buffers.

use super::super::blit::BlitEncoder;
use super::{CommandBuffer, Status};
use crate::gpu::Command;
use crate::ledger::COUNTS;
use crate::machine::made;
use crate::runtime::{BlockArgument, Bool, Id, Method, Receiver, Ref};

class!(c"MTLCommandBuffer" "_OBJC_CLASS_MTLCommandBuffer", CommandBuffer, methods);

fn methods() -> Vec<Method> {
    let mut methods = properties();
    methods.extend(methods![Receiver<CommandBuffer>;
        c"blitCommandEncoder" => fn(this) -> Id {
            if this.begin_encoding() {
                BlitEncoder::new(this.retained()).autoreleased()
            } else {
                Id::NIL
            }
        }
        c"encodeSignalEvent:value:" => fn(this, event: Id, value: u64) {
            this.encode_event(event, |event| Command::Signal(event, value));
        }
        c"encodeWaitForEvent:value:" => fn(this, event: Id, value: u64) {
            this.encode_event(event, |event| Command::Wait(event, value));
        }
        c"addScheduledHandler:" => fn(this, block: BlockArgument) {
            this.add_handler(block, |state| &mut state.scheduled_handlers);
        }
        c"addCompletedHandler:" => fn(this, block: BlockArgument) {
            this.add_handler(block, |state| &mut state.completed_handlers);
        }
        c"enqueue" => fn(this) {
            CommandBuffer::enqueue(&this.retained());
        }
        c"commit" => fn(this) {
            CommandBuffer::commit(&this.retained());
        }
        c"waitUntilScheduled" => fn(this) {
            this.wait(|state| state.status >= Status::Scheduled);
        }
        // "Blocks the current thread until the GPU finishes executing the command buffer and all of its completion
        // handlers" (`MTLCommandBuffer`, waitUntilCompleted).
        c"waitUntilCompleted" => fn(this) {
            COUNTS.host_waits.one();
            this.wait(|state| state.finished);
        }
    ]);
    methods
}

fn properties() -> Vec<Method> {
    methods![Receiver<CommandBuffer>;
        c"status" => fn(this) -> usize {
            this.state().status as usize
        }
        c"error" => fn(this) -> Id {
            let error = this.state().error.clone();
            error.map_or(Id::NIL, Ref::autoreleased)
        }
        c"retainedReferences" => fn(this) -> Bool {
            Bool::from(this.retains)
        }
        c"device" => fn(this) -> Id {
            made().devices[this.device()].autoreleased()
        }
        c"commandQueue" => fn(this) -> Id {
            this.queue.clone().autoreleased()
        }
        c"label" => fn(this) -> Id {
            this.label.get()
        }
        c"setLabel:" => fn(this, label: Id) {
            this.label.set(label);
        }
    ]
}
