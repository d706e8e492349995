//! A third party's backend with the required methods of `Backend` alone: every other method keeps its default, so
//! nothing completes unless `pump` or `wait` is called.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::any::Any;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use transload::hal::StorageId;
use transload::hal::{
    AllocError, Buffer as RawBuffer, CompletionSink, ConnectError, ErrorClass, External,
    ExternalKind, Fault, Fence, HostSpan, ImportError, Inventory, Op, Outcome, StorageInfo,
    SubmitError, Waited,
};
use transload::model::{
    Access, Cost, Curve, DeviceInfo, EngineId, Link, LinkClass, LinkId, MemoryInfo, Passage,
};
use transload::{AllocSpec, Backend, BackendId, Buffer, MemoryId, TransferManager};

/// The backend. Its one device `<kind>:0` has one memory, and one link from that memory to itself.
pub(crate) struct Plain {
    id: BackendId,
    memory: MemoryId,
    desk: Arc<Desk>,
}

/// The test's side of a [`Plain`].
#[derive(Default)]
pub(crate) struct Desk {
    state: Mutex<State>,
    news: Condvar,
}

/// When and how a backend reports the outcome of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Telling {
    /// Once, in `pump` or `wait`, after the bytes moved.
    #[default]
    Once,
    /// As done and then as failed.
    DoneThenFailed {
        /// Before `submit` returns.
        early: bool,
    },
    /// As failed and then as done.
    FailedThenDone {
        /// Before `submit` returns.
        early: bool,
    },
}

/// A call that panics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    Submit,
    Pump,
    Wait,
}

type Payload = Box<dyn Fn() -> Box<dyn Any + Send> + Send>;

#[derive(Default)]
struct State {
    sink: Option<Arc<dyn CompletionSink>>,
    last_number: u64,
    pending: Vec<Job>,
    submitted: Vec<u64>,
    stalled: Vec<u64>,
    waits: usize,
    telling: Telling,
    armed: Option<(Call, Payload)>,
}

struct Job {
    fence: Fence,
    copies: Vec<(HostSpan, HostSpan)>,
    is_stalled: bool,
    /// The number of `pump` calls that still skip the job, so that the turn which submits it does not see it end.
    passes: u8,
}

/// Registers a backend for each of the kinds beside the host.
pub(crate) fn manager(kinds: &[&str]) -> (TransferManager, Vec<Arc<Desk>>) {
    let mut builder = TransferManager::builder().host();
    let mut desks = Vec::new();
    for kind in kinds {
        let plain = Plain::new(kind);
        desks.push(Arc::clone(&plain.desk));
        builder = builder.backend(Arc::new(plain));
    }
    (builder.build().unwrap(), desks)
}

/// Registers a backend of that kind with a manager.
pub(crate) fn register(manager: &TransferManager, kind: &str) -> Arc<Desk> {
    let plain = Plain::new(kind);
    let desk = Arc::clone(&plain.desk);
    manager.register_backend(plain).unwrap();
    desk
}

impl Plain {
    pub(crate) fn new(kind: &str) -> Plain {
        let memory: MemoryId = format!("{kind}:0/device").parse().unwrap();
        Plain {
            id: memory.device.backend(),
            memory,
            desk: Arc::default(),
        }
    }

    pub(crate) fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }
}

/// Memory of the backend of that kind, filled with one byte.
pub(crate) fn filled(manager: &TransferManager, kind: &str, len: u64, byte: u8) -> Buffer {
    let place = format!("{kind}:0").parse().unwrap();
    let buffer = manager.allocate(place, AllocSpec::bytes(len)).unwrap();
    buffer.write().unwrap().fill(byte);
    buffer
}

impl Desk {
    /// Keeps copies of that length pending until [`Desk::release`]: `pump` passes them over, and `wait` for one
    /// of them blocks as long as its limit allows.
    pub(crate) fn stall(&self, len: u64) {
        self.lock().stalled.push(len);
    }

    /// Lets copies of that length complete at the next `pump`, or in a `wait` for one of them.
    pub(crate) fn release(&self, len: u64) {
        let mut state = self.lock();
        state.stalled.retain(|stalled| *stalled != len);
        let of_it = |job: &&mut Job| job.len() == len;
        state
            .pending
            .iter_mut()
            .filter(of_it)
            .for_each(|job| job.is_stalled = false);
        drop(state);
        self.news.notify_all();
    }

    /// The lengths of the copies in the order of their submission.
    pub(crate) fn submitted(&self) -> Vec<u64> {
        self.lock().submitted.clone()
    }

    /// Gives a thread of the manager the opportunity to block in `wait`. It yields a bounded number of times and waits
    /// for no condition: the engine need not call `wait` at all.
    pub(crate) fn linger(&self) {
        for _ in 0..20_000 {
            if self.lock().waits > 0 {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Whether no copy is pending.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending() == 0
    }

    /// How many copies are pending.
    pub(crate) fn pending(&self) -> usize {
        self.lock().pending.len()
    }

    /// Sets how outcomes are reported from now on.
    pub(crate) fn tell(&self, telling: Telling) {
        self.lock().telling = telling;
    }

    /// Makes the next such call unwind with that payload.
    pub(crate) fn arm<P: Any + Send>(&self, call: Call, payload: impl Fn() -> P + Send + 'static) {
        self.lock().armed = Some((call, Box::new(move || Box::new(payload()))));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strike(&self, call: Call) {
        let armed = self.lock().armed.take_if(|(armed, _)| *armed == call);
        if let Some((_, payload)) = armed {
            // The payload unwinds without the panic hook, which would print a backtrace of an expected panic.
            std::panic::resume_unwind(payload());
        }
    }

    /// Completes the job `only` if it is not stalled, or else one that `pump` has skipped often enough.
    fn complete(&self, only: Option<Fence>) -> bool {
        let mut state = self.lock();
        let is_due = |job: &Job| only.map_or(job.passes == 0, |fence| fence == job.fence);
        let fits = |job: &Job| !job.is_stalled && is_due(job);
        let Some(at) = state.pending.iter().position(fits) else {
            return false;
        };
        let job = state.pending.remove(at);
        let (sink, telling) = (state.sink.clone().unwrap(), state.telling);
        drop(state);
        job.run();
        tell(&*sink, job.fence, telling);
        self.news.notify_all();
        true
    }
}

impl Job {
    fn len(&self) -> u64 {
        self.copies.iter().map(|(src, _)| src.len() as u64).sum()
    }

    fn run(&self) {
        for (src, dst) in &self.copies {
            // SAFETY: the engine keeps both operands valid and undisturbed until the fence has settled.
            unsafe { src.copy_to(*dst) };
        }
    }
}

fn tell(sink: &dyn CompletionSink, fence: Fence, telling: Telling) {
    let failed = || Outcome::Failed(Fault::new(ErrorClass::Failed, "told as failed"));
    match telling {
        Telling::Once => sink.settle(fence, Outcome::Done),
        Telling::DoneThenFailed { .. } => {
            sink.settle(fence, Outcome::Done);
            sink.settle(fence, failed());
        }
        Telling::FailedThenDone { .. } => {
            sink.settle(fence, failed());
            sink.settle(fence, Outcome::Done);
        }
    }
}

// SAFETY: a job's bytes move before its fence settles, and nothing touches them after that. A backend that the test
// makes settle a fence twice breaks the promise on purpose; its job has moved its bytes once before the first outcome.
unsafe impl Backend for Plain {
    fn inventory(&self) -> Inventory {
        let (backend, memory) = (self.id, self.memory);
        let engine: EngineId = format!("{}#0", memory.device).parse().unwrap();
        Inventory {
            backend,
            devices: vec![DeviceInfo {
                id: memory.device,
                backend,
                name: "plain".into(),
                software: true,
                simulated: false,
                memory_bytes: None,
                driver: None,
                uuid: None,
                pci: None,
                numa_node: None,
            }],
            memories: vec![MemoryInfo {
                id: memory,
                backend,
                total_bytes: None,
                max_alloc_bytes: 1 << 30,
                alignment: 1,
                host_addressable: true,
                staging: false,
                passage: Passage::default(),
            }],
            links: vec![Link {
                id: LinkId {
                    src: memory,
                    dst: memory,
                    engine,
                    access: Access::Native,
                },
                backend,
                class: LinkClass::Local,
                cost: Curve::from(Cost::from_rate(1_000, 1_000_000_000)),
                pitched: false,
                depth: 1,
            }],
            lacks: Vec::new(),
            transform: None,
        }
    }

    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<RawBuffer, AllocError> {
        let mut bytes = vec![0_u8; spec.len_bytes as usize].into_boxed_slice();
        let span = HostSpan::of_mut(&mut bytes);
        let info = StorageInfo {
            id: StorageId::Host,
            base: span.addr(),
            len_bytes: spec.len_bytes,
            memory,
            backend: self.id,
            writable: true,
            host: Some(span),
        };
        // SAFETY: the owner is the block of bytes that the span describes, and only the buffer reaches it.
        Ok(unsafe { RawBuffer::new(info, Box::new(bytes)) })
    }

    unsafe fn import(&self, memory: MemoryId, what: External) -> Result<RawBuffer, ImportError> {
        Err(no_exchange(memory, what.kind()))
    }

    unsafe fn export(
        &self,
        buffer: &RawBuffer,
        kind: ExternalKind,
    ) -> Result<External, ImportError> {
        Err(no_exchange(buffer.memory(), kind))
    }

    fn connect(&self, _src: MemoryId, _dst: MemoryId) -> Result<Access, ConnectError> {
        Ok(Access::Native)
    }

    unsafe fn submit(
        &self,
        _via: Option<LinkId>,
        ops: &[Op<'_>],
        _after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        self.desk.strike(Call::Submit);
        let mut copies = Vec::new();
        for op in ops {
            let Op::Copy { src, dst } = op else {
                let fault = Fault::new(ErrorClass::Unsupported, "only contiguous copies");
                return Err(SubmitError::Refused(fault));
            };
            let spans = [src, dst].map(|part| part.buffer.host(part.offset, part.len_bytes));
            copies.push((spans[0].unwrap(), spans[1].unwrap()));
        }
        let mut state = self.desk.lock();
        state.last_number += 1;
        let mut job = Job {
            fence: Fence::new(self.id, state.last_number),
            copies,
            is_stalled: false,
            passes: 3,
        };
        let len = job.len();
        job.is_stalled = state.stalled.contains(&len);
        state.submitted.push(len);
        let fence = job.fence;
        let telling = state.telling;
        let is_early = matches!(
            telling,
            Telling::DoneThenFailed { early: true } | Telling::FailedThenDone { early: true }
        );
        if !is_early {
            state.pending.push(job);
            return Ok(fence);
        }
        let sink = state.sink.clone().unwrap();
        drop(state);
        job.run();
        tell(&*sink, fence, telling);
        Ok(fence)
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        let mut state = self.desk.lock();
        let is_first = state.sink.is_none();
        state.sink.get_or_insert(sink);
        is_first
    }

    fn pump(&self) {
        self.desk.strike(Call::Pump);
        let pass = |job: &mut Job| job.passes = job.passes.saturating_sub(1);
        self.desk.lock().pending.iter_mut().for_each(pass);
        while self.desk.complete(None) {}
    }

    fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        self.desk.strike(Call::Wait);
        self.desk.lock().waits += 1;
        let end = Instant::now().checked_add(limit);
        loop {
            self.desk.complete(Some(fence));
            let state = self.desk.lock();
            if state.pending.iter().all(|job| job.fence != fence) {
                return Waited::Settled;
            }
            let left = end.map_or(Duration::MAX, |end| {
                end.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return Waited::TimedOut;
            }
            let still = |state: &mut State| {
                let of_it = |job: &&Job| job.fence == fence;
                state
                    .pending
                    .iter()
                    .find(of_it)
                    .is_some_and(|job| job.is_stalled)
            };
            drop(self.desk.news.wait_timeout_while(state, left, still));
        }
    }
}

fn no_exchange(memory: MemoryId, kind: ExternalKind) -> ImportError {
    ImportError::Unsupported {
        memory,
        kind,
        reason: "a plain backend exchanges nothing".into(),
    }
}
