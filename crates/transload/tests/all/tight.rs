//! A backend with a limited number of places, whose `submit` the test can block.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use transload::hal::{
    AllocError, Buffer as RawBuffer, CompletionSink, ConnectError, External, ExternalKind, Fence,
    ImportError, Inventory, Op, Part, SubmitError, Waited,
};
use transload::model::{Access, LinkId};
use transload::{AllocSpec, Backend, Buffer, Clock, MemoryId, TransferManager};

use crate::plain::{Desk, Plain};

/// The side of the test.
pub(crate) struct Tight {
    pub(crate) manager: TransferManager,
    /// Operations of a length that the desk stalls keep their places.
    pub(crate) desk: Arc<Desk>,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    limit: AtomicUsize,
    refused: AtomicUsize,
    held: Mutex<Vec<Held>>,
}

/// The side of the backend of a [`Call`].
struct Held {
    len: u64,
    arrive: Sender<()>,
    leave: Receiver<()>,
}

/// A call of `submit` that waits for the test. Dropping this value resumes the call.
pub(crate) struct Call {
    came: Receiver<()>,
    _goes_on: Sender<()>,
}

struct Narrow {
    plain: Plain,
    inner: Arc<Inner>,
    /// The destination of prefetches.
    scratch: RawBuffer,
}

impl Tight {
    /// A backend with that many places for its first memory, `tight:0`. `tight:0/pinned` always has room.
    pub(crate) fn new(limit: usize) -> Tight {
        Tight::timed(limit, None)
    }

    /// The same with a clock of the test's.
    pub(crate) fn timed(limit: usize, clock: Option<Arc<dyn Clock>>) -> Tight {
        let plain = Plain::new("tight");
        let desk = Arc::clone(plain.desk());
        let inner = Arc::new(Inner::default());
        inner.limit.store(limit, Ordering::SeqCst);
        let memory = "tight:0/device".parse().unwrap();
        let scratch = plain.allocate(memory, &AllocSpec::bytes(1000)).unwrap();
        let narrow = Narrow {
            plain,
            inner: Arc::clone(&inner),
            scratch,
        };
        let mut builder = TransferManager::builder().backend(Arc::new(narrow));
        if let Some(clock) = clock {
            builder = builder.clock(clock);
        }
        Tight {
            manager: builder.build().unwrap(),
            desk,
            inner,
        }
    }

    pub(crate) fn set_limit(&self, limit: usize) {
        self.inner.limit.store(limit, Ordering::SeqCst);
    }

    pub(crate) fn refused(&self) -> usize {
        self.inner.refused.load(Ordering::SeqCst)
    }

    /// Makes the next submission of that length stop when it has its place or was refused one.
    pub(crate) fn hold(&self, len: u64) -> Call {
        let (arrive, came) = mpsc::channel();
        let (goes_on, leave) = mpsc::channel();
        let held = Held { len, arrive, leave };
        self.inner.held.lock().unwrap().push(held);
        Call {
            came,
            _goes_on: goes_on,
        }
    }

    /// Two buffers of that length.
    pub(crate) fn pair(&self, at: &str, len: u64) -> (Buffer, Buffer) {
        let allocate = || {
            let spec = AllocSpec::bytes(len);
            self.manager.allocate(at.parse().unwrap(), spec).unwrap()
        };
        (allocate(), allocate())
    }
}

impl Call {
    /// Blocks until a thread is in the call.
    pub(crate) fn has_begun(&self) {
        self.came.recv().unwrap();
    }
}

impl Inner {
    fn stop_here(&self, len: u64) {
        let mut held = self.held.lock().unwrap();
        let Some(at) = held.iter().position(|call| call.len == len) else {
            return;
        };
        let call = held.remove(at);
        drop(held);
        let _ = call.arrive.send(());
        // The call resumes when the test drops its side.
        let _ = call.leave.recv();
    }
}

// SAFETY: the plain backend executes the operations; this one refuses those without a place.
unsafe impl Backend for Narrow {
    fn inventory(&self) -> Inventory {
        let mut inventory = self.plain.inventory();
        let memory: MemoryId = "tight:0/pinned".parse().unwrap();
        let (mut second, mut link) = (inventory.memories[0].clone(), inventory.links[0].clone());
        second.id = memory;
        (link.id.src, link.id.dst) = (memory, memory);
        link.id.engine = "tight:0#1".parse().unwrap();
        inventory.memories.push(second);
        inventory.links.push(link);
        inventory
    }

    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<RawBuffer, AllocError> {
        self.plain.allocate(memory, spec)
    }

    unsafe fn import(&self, memory: MemoryId, what: External) -> Result<RawBuffer, ImportError> {
        // SAFETY: the caller keeps the same promise that `Plain` asks for.
        unsafe { self.plain.import(memory, what) }
    }

    unsafe fn export(
        &self,
        buffer: &RawBuffer,
        kind: ExternalKind,
    ) -> Result<External, ImportError> {
        // SAFETY: the caller keeps the same promise that `Plain` asks for.
        unsafe { self.plain.export(buffer, kind) }
    }

    fn connect(&self, src: MemoryId, dst: MemoryId) -> Result<Access, ConnectError> {
        self.plain.connect(src, dst)
    }

    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        let limit = self.inner.limit.load(Ordering::SeqCst);
        let is_second = via.is_some_and(|via| via.src == "tight:0/pinned".parse().unwrap());
        let is_full = !is_second && self.plain.desk().pending() >= limit;
        let (len, fence) = match (is_full, &ops[0]) {
            (true, Op::Copy { src: part, .. } | Op::Prefetch { part, .. }) => {
                self.inner.refused.fetch_add(1, Ordering::SeqCst);
                (part.len_bytes, Err(SubmitError::Full { limit }))
            }
            (_, Op::Prefetch { part, .. }) => {
                let (src, len_bytes) = (*part, part.len_bytes);
                let dst = Part {
                    buffer: &self.scratch,
                    offset: 0,
                    len_bytes,
                };
                // SAFETY: the caller keeps the promise for the source; no other operation uses the scratch buffer.
                let fence = unsafe { self.plain.submit(via, &[Op::Copy { src, dst }], after) };
                (len_bytes, fence)
            }
            (_, Op::Copy { src, .. }) => {
                // SAFETY: the caller keeps the same promise that `Plain` asks for.
                (src.len_bytes, unsafe { self.plain.submit(via, ops, after) })
            }
            // SAFETY: the caller keeps the same promise that `Plain` asks for.
            _ => return unsafe { self.plain.submit(via, ops, after) },
        };
        self.inner.stop_here(len);
        fence
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.plain.attach(sink)
    }

    fn pump(&self) {
        self.plain.pump();
    }

    fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        self.plain.wait(fence, limit)
    }
}
