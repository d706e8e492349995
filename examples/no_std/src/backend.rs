//! A small backend: ordinary memory, and copies that `pump` makes piece by piece.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::time::Duration;

use critical_section::Mutex;
use transload::hal::{
    Access, AllocError, AllocSpec, Backend, BackendId, Buffer, CompletionSink, ConnectError, Cost,
    DeviceId, DeviceInfo, EngineId, External, ExternalKind, Fence, HostSpan, ImportError,
    Inventory, Link, LinkClass, LinkId, MemoryId, MemoryInfo, MemoryKind, Name, Op, Outcome,
    Passage, StorageId, StorageInfo, SubmitError, Waited,
};

/// The processor's own memory.
pub(crate) struct Words {
    work: Mutex<RefCell<Work>>,
}

struct Work {
    /// Copies that were submitted but not made yet, oldest first.
    queue: VecDeque<(Fence, Vec<(HostSpan, HostSpan)>)>,
    sink: Option<Arc<dyn CompletionSink>>,
    last: u64,
}

/// The number of bytes that one `pump` copies: the share of time that the program's loop can spare.
const PIECE_BYTES: u64 = 1024;

const BACKEND: BackendId = BackendId(Name::constant("words"));

fn memory() -> MemoryId {
    DeviceId::CPU0.memory(MemoryKind::Pageable)
}

impl Words {
    pub(crate) fn new() -> Words {
        let work = Work {
            queue: VecDeque::new(),
            sink: None,
            last: 0,
        };
        Words {
            work: Mutex::new(RefCell::new(work)),
        }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Work) -> R) -> R {
        critical_section::with(|token| f(&mut self.work.borrow_ref_mut(token)))
    }

    fn host(
        &self,
        span: HostSpan,
        writable: bool,
        owner: Box<dyn transload::hal::Owner>,
    ) -> Buffer {
        let info = StorageInfo {
            id: StorageId::Host,
            base: span.addr(),
            len_bytes: span.len() as u64,
            memory: memory(),
            backend: BACKEND,
            writable,
            host: Some(span),
        };
        // SAFETY: the owner keeps the span valid and in place, as its maker promised.
        unsafe { Buffer::new(info, owner) }
    }
}

// SAFETY: `pump` alone makes copies, and makes them whole; their fences are reported after that, once each; `submit`
// checks all operations before it queues any.
unsafe impl Backend for Words {
    fn inventory(&self) -> Inventory {
        let engine = EngineId {
            device: DeviceId::CPU0,
            index: 0,
        };
        let id = LinkId {
            src: memory(),
            dst: memory(),
            engine,
            access: Access::Native,
        };
        Inventory {
            backend: BACKEND,
            devices: alloc::vec![DeviceInfo {
                id: DeviceId::CPU0,
                backend: BACKEND,
                name: "a processor".into(),
                software: false,
                simulated: false,
                memory_bytes: None,
                driver: None,
                uuid: None,
                pci: None,
                numa_node: None,
            }],
            memories: alloc::vec![MemoryInfo {
                id: memory(),
                backend: BACKEND,
                total_bytes: None,
                max_alloc_bytes: 1 << 20,
                alignment: 1,
                host_addressable: true,
                staging: true,
                passage: Passage::default(),
            }],
            links: alloc::vec![Link {
                id,
                backend: BACKEND,
                class: LinkClass::Local,
                cost: Cost::from_rate(100, 1_000_000_000).into(),
                pitched: false,
                depth: 2,
            }],
            lacks: alloc::vec::Vec::new(),
            transform: None,
        }
    }

    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
        let len = usize::try_from(spec.len_bytes).map_err(|_| AllocError::TooLarge {
            memory,
            len_bytes: spec.len_bytes,
            limit_bytes: 1 << 20,
        })?;
        let mut bytes = alloc::vec![0u8; len];
        Ok(self.host(HostSpan::of_mut(&mut bytes), true, Box::new(bytes)))
    }

    unsafe fn import(&self, memory: MemoryId, external: External) -> Result<Buffer, ImportError> {
        match external {
            External::Host {
                span,
                writable,
                owner,
            } => Ok(self.host(span, writable, owner)),
            other => Err(ImportError::Unsupported {
                memory,
                kind: other.kind(),
                reason: "there is nothing but memory here".into(),
            }),
        }
    }

    unsafe fn export(&self, buffer: &Buffer, kind: ExternalKind) -> Result<External, ImportError> {
        Err(ImportError::Unsupported {
            memory: buffer.memory(),
            kind,
            reason: "there is no other process to share with".into(),
        })
    }

    fn connect(&self, _: MemoryId, _: MemoryId) -> Result<Access, ConnectError> {
        Ok(Access::Native)
    }

    unsafe fn submit(
        &self,
        _: Option<LinkId>,
        ops: &[Op<'_>],
        _: &[Fence],
    ) -> Result<Fence, SubmitError> {
        let unsupported = |index| SubmitError::Unsupported {
            index,
            reason: "only contiguous copies".into(),
        };
        let mut copies = Vec::with_capacity(ops.len());
        for (index, op) in ops.iter().enumerate() {
            let Op::Copy { src, dst } = op else {
                return Err(unsupported(index));
            };
            let from = src.buffer.host(src.offset, src.len_bytes);
            let to = dst.buffer.host(dst.offset, dst.len_bytes);
            copies.push(from.zip(to).ok_or(unsupported(index))?);
        }
        // The backend works through the queue in order, so every earlier fence settles before this one.
        Ok(self.with(|work| {
            work.last += 1;
            let fence = Fence::new(BACKEND, work.last);
            work.queue.push_back((fence, copies));
            fence
        }))
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.with(|work| {
            let free = work.sink.is_none();
            work.sink.get_or_insert(sink);
            free
        })
    }

    fn pump(&self) {
        // The entry is out of the queue while it is worked on: copies are made outside the critical section.
        let Some((fence, mut copies)) = self.with(|work| work.queue.pop_front()) else {
            return;
        };
        if let Some((src, dst)) = copies.pop() {
            let piece = (src.len() as u64).min(PIECE_BYTES);
            let pieces = src.slice(0, piece).zip(dst.slice(0, piece));
            if let Some((src, dst)) = pieces {
                // SAFETY: the engine keeps both alive, and lets no other operation touch them, until the fence has
                // settled.
                unsafe { src.copy_to(dst) };
            }
            let left = src.len() as u64 - piece;
            if left > 0 {
                copies.extend(src.slice(piece, left).zip(dst.slice(piece, left)));
            }
        }
        if !copies.is_empty() {
            return self.with(|work| work.queue.push_front((fence, copies)));
        }
        let sink = self.with(|work| work.sink.clone());
        if let Some(sink) = sink {
            sink.settle(fence, Outcome::Done);
        }
    }

    fn wait(&self, fence: Fence, _: Duration) -> Waited {
        let is_queued = |work: &mut Work| work.queue.iter().any(|(queued, _)| *queued == fence);
        while self.with(is_queued) {
            self.pump();
        }
        Waited::Settled
    }
}
