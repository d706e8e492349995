//! The sim as a backend.

use std::sync::Arc;
use std::time::Duration;

use transload_hal::{
    Access, AllocError, AllocSpec, Backend, Buffer, CompletionSink, ConnectError, ErrorClass,
    External, ExternalKind, Fault, Fence, ImportError, Inventory, LinkId, MemoryId, Op, StorageId,
    StorageInfo, SubmitError, Waited,
};

use super::Sim;
use super::completion::Completion;
use super::deliver::Progress;
use super::memory::{Block, next_block};
use super::script::{Call, CallFault, scripted};
use super::shared::{Allocation, BACKEND, Exported, own};
use super::submit::{StageError, stage};

/// The largest alignment that allocations may ask for: a gibibyte, the largest page there is.
const MAX_ALIGNMENT: u64 = 1 << 30;

// SAFETY: operations touch only the spans that `Work` measured against their buffers, and only at their end, before
// their fence settles; `submit` stages all operations before it accepts any; each fence leaves the outbox once; a lost
// device settles its fences. Buffers show blocks that their owner keeps alive. A scripted corruption settles as done
// with a wrong byte inside the destination, on purpose.
unsafe impl Backend for Sim {
    fn inventory(&self) -> Inventory {
        self.strike(Call::Inventory, None);
        self.shared.inventory.clone()
    }

    fn available_bytes(&self, memory: MemoryId) -> Option<u64> {
        let used = self.use_of(memory)?;
        (used.total_bytes < u64::MAX).then(|| used.total_bytes - used.live_bytes)
    }

    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
        let struck = self.strike(Call::Allocate, Some(memory));
        let pool = self
            .pool(memory)
            .ok_or(AllocError::UnknownMemory { memory })?;
        let len_bytes = spec.len_bytes;
        match struck {
            Some(CallFault::OutOfMemory) | Some(CallFault::Refuse(ErrorClass::Exhausted)) => {
                return Err(AllocError::OutOfMemory {
                    memory,
                    len_bytes,
                    fault: scripted(ErrorClass::Exhausted),
                });
            }
            Some(CallFault::Refuse(ErrorClass::Lost)) => {
                return Err(AllocError::Lost {
                    device: memory.device,
                    fault: scripted(ErrorClass::Lost),
                });
            }
            Some(CallFault::Refuse(class)) => {
                return Err(AllocError::Failed {
                    memory,
                    fault: scripted(class),
                });
            }
            Some(CallFault::Panic) | None => {}
        }
        if let Some(fault) = self.lost(memory) {
            return Err(AllocError::Lost {
                device: memory.device,
                fault,
            });
        }
        let info = &self.shared.inventory.memories[pool];
        if !spec.alignment.is_power_of_two() || spec.alignment > MAX_ALIGNMENT {
            return Err(AllocError::Alignment {
                memory,
                alignment: spec.alignment,
                limit: MAX_ALIGNMENT,
            });
        }
        if len_bytes > info.max_alloc_bytes {
            return Err(AllocError::TooLarge {
                memory,
                len_bytes,
                limit_bytes: info.max_alloc_bytes,
            });
        }
        let full = |message: &'static str| AllocError::OutOfMemory {
            memory,
            len_bytes,
            fault: Fault::new(ErrorClass::Exhausted, message),
        };
        if !self.shared.lock().pools[pool].take(len_bytes) {
            return Err(full("the simulated memory is full"));
        }
        let alignment = spec.alignment.max(info.alignment) as usize;
        let block = usize::try_from(len_bytes)
            .ok()
            .and_then(|len| Block::new(next_block(), len, alignment));
        let Some(block) = block else {
            self.shared.lock().pools[pool].undo(len_bytes);
            return Err(full("the test process has no memory left to simulate with"));
        };
        Ok(self.buffer(Arc::new(block), pool, memory))
    }

    unsafe fn import(&self, memory: MemoryId, external: External) -> Result<Buffer, ImportError> {
        let kind = external.kind();
        self.exchange(Call::Import, memory, kind)?;
        let pool = self
            .pool(memory)
            .ok_or(ImportError::UnknownMemory { memory })?;
        let unsupported = |reason: &'static str| ImportError::Unsupported {
            memory,
            kind,
            reason: reason.into(),
        };
        match external {
            External::Host {
                span,
                writable,
                owner,
            } => {
                if !self.shared.inventory.memories[pool].host_addressable {
                    return Err(unsupported("the host cannot address this simulated memory"));
                }
                let info = StorageInfo {
                    id: StorageId::Host,
                    base: span.addr(),
                    len_bytes: span.len() as u64,
                    memory,
                    backend: BACKEND,
                    writable,
                    host: Some(span),
                };
                // SAFETY: the span is valid as long as the owner lives, by this call's contract.
                Ok(unsafe { Buffer::new(info, owner) })
            }
            External::Object(object) => {
                let object: Box<dyn std::any::Any> = object;
                let invalid = |reason: &'static str| ImportError::Invalid {
                    memory,
                    kind,
                    reason: reason.into(),
                };
                let Ok(exported) = object.downcast::<Exported>() else {
                    return Err(invalid("it is no export of a simulated memory"));
                };
                if exported.memory != memory || !Arc::ptr_eq(&exported.sim, &self.shared) {
                    return Err(invalid("it was exported from another simulated memory"));
                }
                Ok(self.buffer(Arc::clone(&exported.block), pool, memory))
            }
            _ => Err(unsupported("simulated memory has no handles")),
        }
    }

    unsafe fn export(&self, buffer: &Buffer, kind: ExternalKind) -> Result<External, ImportError> {
        let memory = buffer.memory();
        self.exchange(Call::Export, memory, kind)?;
        if self.pool(memory).is_none() {
            return Err(ImportError::UnknownMemory { memory });
        }
        let unsupported = |reason: &'static str| ImportError::Unsupported {
            memory,
            kind,
            reason: reason.into(),
        };
        if kind != ExternalKind::Object {
            return Err(unsupported("simulated memory is exported as an object"));
        }
        let Some(allocation) = own(&self.shared, buffer) else {
            return Err(unsupported(
                "it was not allocated by this simulated machine",
            ));
        };
        Ok(External::Object(Box::new(Exported::new(
            allocation, memory,
        ))))
    }

    fn connect(&self, src: MemoryId, dst: MemoryId) -> Result<Access, ConnectError> {
        let failed = |fault| ConnectError::Failed {
            src,
            dst,
            fault: Box::new(fault),
        };
        if let Some(CallFault::Refuse(class)) = self.strike(Call::Connect, None) {
            return Err(failed(scripted(class)));
        }
        if let Some(fault) = self.lost(src).or_else(|| self.lost(dst)) {
            return Err(failed(fault));
        }
        let links = &self.shared.inventory.links;
        let link = links
            .iter()
            .find(|link| link.id.src == src && link.id.dst == dst);
        link.map(|link| link.id.access)
            .ok_or_else(|| ConnectError::NoAccess {
                src,
                dst,
                reason: "the simulated machine has no such link".into(),
            })
    }

    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        if let Some(CallFault::Refuse(class)) = self.strike(Call::Submit, None) {
            return Err(SubmitError::Refused(scripted(class)));
        }
        if after.iter().any(|fence| fence.backend() != BACKEND) {
            return Err(SubmitError::Refused(Fault::new(
                ErrorClass::Caller,
                "a simulated machine waits for its own fences alone",
            )));
        }
        let mut state = self.shared.lock();
        let staged = stage(&self.shared, &mut state, via, ops);
        match staged {
            Ok(()) => {}
            Err(StageError::Error(error)) => {
                state.staged.clear();
                return Err(error);
            }
            Err(StageError::Panic) => {
                state.staged.clear();
                drop(state);
                panic!("{}", panic_text(Call::Submit));
            }
        }
        let before = after.iter().filter(|fence| !fence.is_immediate());
        let number = state.accept(before.map(Fence::number));
        let at_once = state.completion == Completion::AtOnce;
        drop(state);
        let fence = Fence::new(BACKEND, number);
        if at_once && self.shared.settle_at_once(number) {
            return Ok(Fence::immediate(BACKEND));
        }
        Ok(fence)
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.strike(Call::Attach, None);
        self.shared.sink.set(sink).is_ok()
    }

    fn pump(&self) {
        self.strike(Call::Pump, None);
        while self.shared.step(self.shared.clock.now_ns()) {}
        self.shared.deliver();
    }

    fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        self.wait_any(&[fence], limit)
    }

    fn wait_any(&self, fences: &[Fence], limit: Duration) -> Waited {
        self.strike(Call::Wait, None);
        if fences.iter().any(Fence::is_immediate) {
            return Waited::Settled;
        }
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let deadline = self.shared.clock.now_ns().saturating_add(limit_ns);
        loop {
            self.shared.deliver();
            match self.shared.advance(fences, deadline) {
                Progress::Told => return Waited::Settled,
                Progress::Delivering(number) => self.shared.await_delivery(number),
                Progress::Moved => {}
                Progress::OutOfTime => return Waited::TimedOut,
            }
        }
    }
}

impl Sim {
    /// Returns the script's fault for a call. Panics if the script says so, with no lock held.
    fn strike(&self, call: Call, memory: Option<MemoryId>) -> Option<CallFault> {
        let fault = self.shared.lock().script.at_call(call, memory);
        if fault == Some(CallFault::Panic) {
            panic!("{}", panic_text(call));
        }
        fault
    }

    fn exchange(
        &self,
        call: Call,
        memory: MemoryId,
        kind: ExternalKind,
    ) -> Result<(), ImportError> {
        let failed = |fault| ImportError::Failed {
            memory,
            kind,
            fault,
        };
        if let Some(CallFault::Refuse(class)) = self.strike(call, Some(memory)) {
            return Err(failed(scripted(class)));
        }
        self.lost(memory).map_or(Ok(()), |fault| Err(failed(fault)))
    }

    fn pool(&self, memory: MemoryId) -> Option<usize> {
        let memories = &self.shared.inventory.memories;
        memories.iter().position(|info| info.id == memory)
    }

    fn lost(&self, memory: MemoryId) -> Option<Fault> {
        let devices = &self.shared.inventory.devices;
        let at = devices.iter().position(|info| info.id == memory.device)?;
        self.shared.lock().lost[at].clone()
    }

    fn buffer(&self, block: Arc<Block>, pool: usize, memory: MemoryId) -> Buffer {
        let span = block.span();
        let allocation = Allocation::new(block, pool, Arc::clone(&self.shared));
        let (id, base) = self.shared.storage_id(&allocation);
        let info = StorageInfo {
            id,
            base,
            len_bytes: span.len() as u64,
            memory,
            backend: BACKEND,
            writable: true,
            host: (id == StorageId::Host).then_some(span),
        };
        // SAFETY: the allocation keeps its block alive; a block's id is used once, and no other live block has its
        // address; only engines and the library touch its bytes.
        unsafe { Buffer::new(info, Box::new(allocation)) }
    }
}

fn panic_text(call: Call) -> String {
    format!("simulated fault: {call:?} panics by script")
}
