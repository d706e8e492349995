//! Operations of which a backend tells the outcome only when it is asked: in [`Backend::wait`], or after
//! [`Backend::expect`].

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use transload_core::{
    Access, Cost, Curve, DeviceId, DeviceInfo, EngineId, Inventory, Link, LinkClass, LinkId,
    MemoryId, MemoryInfo, MemoryKind, Passage, StorageId,
};
use transload_hal::{
    AllocError, AllocSpec, Backend, BackendId, Buffer, CompletionSink, ConnectError, External,
    ExternalKind, Fence, HostSpan, ImportError, Name, Op, Outcome, StorageInfo, SubmitError,
    Waited,
};

use super::super::clock::NoClock;
use super::super::signal::Parker;
use super::super::sync::Lock;
use super::super::types::{Index, TransferId};
use super::{Kept, handover, model, spawn};
use crate::{Request, TransferManager};

/// The first transfer of a manager.
const FIRST: TransferId = TransferId {
    index: Index::of(0),
    generation: 0,
};

/// The second one.
const BEHIND: TransferId = TransferId {
    index: Index::of(1),
    generation: 0,
};

const BACKEND: BackendId = BackendId(Name::constant("lazy"));

/// Hardware that copies nothing, and tells no outcome by itself.
struct Lazy {
    tells: Tells,
    state: Lock<Told>,
    /// Called when the first operation has been told.
    first: Arc<Parker>,
    /// Called by the thread that submits the first operation.
    in_submit: Lock<Option<Box<dyn FnOnce() + Send>>>,
}

/// When outcomes are told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tells {
    /// To threads that wait.
    Waiting,
    /// Once they are expected.
    Expected,
    /// Never: `expect` panics.
    Never,
}

#[derive(Default)]
struct Told {
    sink: Option<Arc<dyn CompletionSink>>,
    last_number: u64,
    pending: Vec<Fence>,
}

fn memory() -> MemoryId {
    DeviceId::CPU0.memory(MemoryKind::Pageable)
}

impl Lazy {
    fn tell_all(&self) {
        let (sink, pending) = self.state.with(|state| {
            let pending = core::mem::take(&mut state.pending);
            (state.sink.clone(), pending)
        });
        for fence in pending {
            sink.as_ref().unwrap().settle(fence, Outcome::Done);
            self.first.unpark();
        }
    }
}

// SAFETY: no operation touches a byte.
unsafe impl Backend for Lazy {
    fn inventory(&self) -> Inventory {
        let engine = EngineId {
            device: DeviceId::CPU0,
            index: 0,
        };
        Inventory {
            backend: BACKEND,
            devices: vec![DeviceInfo {
                id: DeviceId::CPU0,
                backend: BACKEND,
                name: "lazy".into(),
                software: true,
                simulated: true,
                memory_bytes: None,
                driver: None,
                uuid: None,
                pci: None,
                numa_node: None,
            }],
            memories: vec![MemoryInfo {
                id: memory(),
                backend: BACKEND,
                total_bytes: None,
                max_alloc_bytes: 1 << 20,
                alignment: 1,
                host_addressable: true,
                staging: false,
                passage: Passage::default(),
            }],
            links: vec![Link {
                id: LinkId {
                    src: memory(),
                    dst: memory(),
                    engine,
                    access: Access::Native,
                },
                backend: BACKEND,
                class: LinkClass::Local,
                cost: Curve::from(Cost::from_rate(1_000, 1_000_000_000)),
                pitched: false,
                depth: 1,
            }],
            lacks: Vec::new(),
            transform: None,
        }
    }

    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
        let mut bytes = vec![0u8; spec.len_bytes as usize].into_boxed_slice();
        let host = HostSpan::of_mut(&mut bytes);
        let info = StorageInfo {
            id: StorageId::Host,
            base: host.addr(),
            len_bytes: spec.len_bytes,
            memory,
            backend: BACKEND,
            writable: true,
            host: Some(host),
        };
        // SAFETY: the block stays in place until the owner is dropped, and only the buffer reaches it.
        Ok(unsafe { Buffer::new(info, Box::new(bytes)) })
    }

    unsafe fn import(&self, memory: MemoryId, what: External) -> Result<Buffer, ImportError> {
        let _ = what;
        Err(ImportError::UnknownMemory { memory })
    }

    unsafe fn export(&self, buffer: &Buffer, _kind: ExternalKind) -> Result<External, ImportError> {
        let memory = buffer.memory();
        Err(ImportError::UnknownMemory { memory })
    }

    fn connect(&self, _src: MemoryId, _dst: MemoryId) -> Result<Access, ConnectError> {
        Ok(Access::Native)
    }

    unsafe fn submit(
        &self,
        _via: Option<LinkId>,
        _ops: &[Op<'_>],
        _after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        if let Some(call) = self.in_submit.with(Option::take) {
            call();
        }
        Ok(self.state.with(|state| {
            state.last_number += 1;
            let fence = Fence::new(BACKEND, state.last_number);
            state.pending.push(fence);
            fence
        }))
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.state.with(|state| state.sink.replace(sink).is_none())
    }

    fn completes_unattended(&self) -> bool {
        self.tells != Tells::Waiting
    }

    fn expect(&self) {
        match self.tells {
            Tells::Waiting => {}
            Tells::Expected => self.tell_all(),
            Tells::Never => std::panic::resume_unwind(Box::new("by design")),
        }
    }

    /// Does nothing: outcomes are told only to a thread that waits.
    fn pump(&self) {}

    fn wait(&self, _fence: Fence, _limit: Duration) -> Waited {
        self.tell_all();
        Waited::Settled
    }
}

impl Lazy {
    fn new(tells: Tells) -> Lazy {
        Lazy {
            tells,
            state: Lock::default(),
            first: Parker::current(),
            in_submit: Lock::default(),
        }
    }
}

fn buffer(manager: &TransferManager) -> Kept<crate::Buffer> {
    let place = transload_core::Place::from(memory());
    let spec = AllocSpec::bytes(1 << 16);
    Kept::new(manager.allocate(place, spec).unwrap())
}

/// A transfer waits for an event, which another thread sets while it is submitted: so one thread appoints the listener,
/// another one submits the operation, and no thread waits for the transfer.
fn an_operation_is_told_of(tells: Tells) {
    let lazy = Lazy::new(tells);
    let first = Arc::clone(&lazy.first);
    let builder = TransferManager::builder().backend(Arc::new(lazy));
    let manager = Kept::new(builder.build().unwrap());
    let [src, dst] = [0, 1].map(|_| buffer(&manager));
    let [event, then] = [0, 1].map(|_| Kept::new(manager.event()));
    let setter = event.clone();
    spawn(move || setter.set());
    let request = Request::new(&*src, &*dst).after(&event).then(&then);
    let _held = Kept::new(manager.submit(&Kept::new(request)));
    first.park(None);
}

#[test]
fn an_operation_submitted_beside_the_appointment_is_waited_for() {
    model(|| an_operation_is_told_of(Tells::Waiting));
}

#[test]
fn an_operation_submitted_beside_the_appointment_is_expected() {
    model(|| an_operation_is_told_of(Tells::Expected));
}

/// The thread that listens stops listening while another thread submits, which then finds no listener to notify.
#[test]
fn an_operation_submitted_while_the_listener_leaves_is_waited_for() {
    model(|| {
        let lazy = Kept::new(Arc::new(Lazy::new(Tells::Waiting)));
        let builder = TransferManager::builder().backend(Arc::clone(&*lazy) as Arc<dyn Backend>);
        let manager = Kept::new(builder.build().unwrap());
        let [src, dst] = [0, 1].map(|_| buffer(&manager));
        let event = Kept::new(manager.event());
        let request = Kept::new(Request::new(&*src, &*dst).after(&event));
        let _held = Kept::new(manager.submit(&request));
        let shared = &manager.shared;
        let own = shared.state.with(handover::begin);
        let completions = Arc::clone(&shared.completions);
        let end_own = move || {
            completions.tell(vec![own].into_iter());
            loom::thread::yield_now();
        };
        lazy.in_submit.with(|call| *call = Some(Box::new(end_own)));
        let setter = event.clone();
        spawn(move || setter.set());
        assert!(shared.block_on(own, None));
        lazy.first.park(None);
    });
}

/// A thread waits for a transfer behind another one, whose operation another thread submits meanwhile. No transfer
/// advances by itself, so no thread listens before.
fn a_waiter_sees_an_operation(tells: Tells) {
    let builder = TransferManager::builder().clock(Arc::new(NoClock));
    let builder = builder.backend(Arc::new(Lazy::new(tells)));
    let manager = Kept::new(builder.build().unwrap());
    let [src, dst, last] = [0, 1, 2].map(|_| buffer(&manager));
    let event = Kept::new(manager.event());
    let request = Kept::new(Request::new(&*src, &*dst).after(&event));
    let _held = Kept::new(manager.submit(&request));
    let _behind = Kept::new(manager.copy(&*dst, &*last));
    let setter = event.clone();
    spawn(move || setter.set());
    // `Transfer::wait` would drop the handle while a model fails.
    assert!(manager.shared.block_on(BEHIND, None));
}

#[test]
fn a_waiter_that_begins_to_listen_waits_for_what_was_submitted_before() {
    model(|| a_waiter_sees_an_operation(Tells::Waiting));
}

#[test]
fn a_waiter_that_begins_to_listen_expects_what_was_submitted_before() {
    model(|| a_waiter_sees_an_operation(Tells::Expected));
}

#[test]
fn a_task_learns_of_a_backend_that_panics_when_it_is_expected_to_tell() {
    model(|| {
        let builder = TransferManager::builder().backend(Arc::new(Lazy::new(Tells::Never)));
        let manager = Kept::new(builder.build().unwrap());
        let [src, dst] = [0, 1].map(|_| buffer(&manager));
        let held = Kept::new(manager.copy(&*src, &*dst));
        let task = Parker::current();
        while manager.shared.poll(FIRST, &task.waker()) {
            task.park(None);
        }
        assert!(held.is_over());
    });
}

#[test]
fn a_waiter_behind_a_transfer_that_was_left_to_hardware_expects_its_outcome() {
    model(|| {
        let builder = TransferManager::builder().clock(Arc::new(NoClock));
        let builder = builder.backend(Arc::new(Lazy::new(Tells::Expected)));
        let manager = Kept::new(builder.build().unwrap());
        let [src, dst, last] = [0, 1, 2].map(|_| buffer(&manager));
        let _left = Kept::new(manager.copy(&*src, &*dst));
        let _behind = Kept::new(manager.copy(&*dst, &*last));
        assert!(manager.shared.block_on(BEHIND, None));
    });
}
