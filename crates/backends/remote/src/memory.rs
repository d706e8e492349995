//! Buffers at another machine: leases of its memory.

use std::sync::Arc;

use transload_hal::{
    AllocError, AllocSpec, BackendId, Buffer, ErrorClass, Fault, MemoryId, StorageId, StorageInfo,
};

use crate::queue::Line;
use crate::wire::Message;

/// A buffer at another machine, which frees it when this is dropped or the session ends.
pub(crate) struct Lease {
    line: Arc<Line>,
    pub(crate) id: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.line.tell(Message::Free { lease: self.id });
    }
}

/// Allocates at the other machine. Blocks until it has answered.
pub(crate) fn allocate(
    line: &Arc<Line>,
    memory: MemoryId,
    spec: &AllocSpec,
) -> Result<Buffer, AllocError> {
    let answer = line.ask(|id| Message::Allocate {
        id,
        memory: local(memory).to_string(),
        len: spec.len_bytes,
        align: spec.alignment,
    });
    let (id, answer) = answer.map_err(|fault| match fault.class {
        ErrorClass::Exhausted => AllocError::OutOfMemory {
            memory,
            len_bytes: spec.len_bytes,
            fault,
        },
        _ => AllocError::Failed { memory, fault },
    })?;
    let lease = Lease {
        line: Arc::clone(line),
        id,
    };
    let Message::Allocated { number, .. } = answer else {
        let message = format!("{}: it answers with {}", line.node, answer.name());
        let fault = Fault::new(ErrorClass::Failed, message);
        return Err(AllocError::Failed { memory, fault });
    };
    let info = StorageInfo {
        id: StorageId::Remote {
            owner: line.owner(),
            number,
        },
        base: 0,
        len_bytes: spec.len_bytes,
        memory,
        backend: BackendId(line.node),
        writable: true,
        host: None,
    };
    // SAFETY: the host has no address of the bytes, which only this lease names.
    Ok(unsafe { Buffer::new(info, Box::new(lease)) })
}

/// Returns the memory as its own machine names it.
pub(crate) fn local(memory: MemoryId) -> MemoryId {
    let device = memory.device.at(transload_hal::Node::HERE);
    device.memory(memory.kind)
}
