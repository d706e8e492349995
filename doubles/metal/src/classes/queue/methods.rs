//! The methods of command queues.

use super::super::command_buffer::CommandBuffer;
use super::CommandQueue;
use crate::machine::made;
use crate::runtime::{Id, Method, Receiver};

class!(c"MTLCommandQueue" "_OBJC_CLASS_MTLCommandQueue", CommandQueue, methods);

fn methods() -> Vec<Method> {
    methods![Receiver<CommandQueue>;
        c"commandBuffer" => fn(this) -> Id {
            CommandBuffer::new(this.retained(), true).autoreleased()
        }
        c"commandBufferWithUnretainedReferences" => fn(this) -> Id {
            CommandBuffer::new(this.retained(), false).autoreleased()
        }
        c"device" => fn(this) -> Id {
            made().devices[this.device].autoreleased()
        }
        c"label" => fn(this) -> Id {
            this.label.get()
        }
        c"setLabel:" => fn(this, label: Id) {
            this.label.set(label);
        }
    ]
}
