//! `MTLCommandQueue`.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::command_buffer::CommandBuffer;
use super::device::Device;
use super::label::Label;
use crate::ledger::COUNTS;
use crate::machine::made;
use crate::runtime::{Id, Method, Receiver, Ref};

/// Command buffers go in the order in which they were enqueued or committed.
#[derive(Debug)]
pub(crate) struct CommandQueue {
    pub(crate) device: usize,
    /// No other queue has it.
    pub(crate) number: usize,
    label: Label,
}

class!(c"MTLCommandQueue" "_OBJC_CLASS_MTLCommandQueue", CommandQueue, methods);

impl CommandQueue {
    pub(crate) fn new(device: &Device) -> Option<Ref<Self>> {
        if device.is_removed() {
            return None;
        }
        COUNTS.queues.one();
        Some(Ref::new(Self {
            device: device.index,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            label: Label::default(),
        }))
    }
}

fn methods() -> Vec<Method> {
    methods![Receiver<CommandQueue>;
        c"commandBuffer" => fn(this) -> Id {
            CommandBuffer::new(this.retained(), true).autoreleased()
        }
        c"commandBufferWithUnretainedReferences" => fn(this) -> Id {
            CommandBuffer::new(this.retained(), false).autoreleased()
        }
        c"device" => fn(this) -> Id {
            made().devices[this.device].clone().autoreleased()
        }
        c"label" => fn(this) -> Id {
            this.label.get()
        }
        c"setLabel:" => fn(this, label: Id) {
            this.label.set(label);
        }
    ]
}

static NUMBERS: AtomicUsize = AtomicUsize::new(0);
