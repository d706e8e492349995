//! Submission and completion.

mod moves;
mod serve;

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use transload_hal::{
    Buffer, CompletionSink, ErrorClass, Fault, Fence, Op, Outcome, Sleepers, SubmitError, Waited,
    Worker, run_callback,
};

use crate::exit::Inside;
use crate::gpu::Gpu;
use crate::host_import::HostImport;
use crate::memory::Slot;
use crate::raw::{self, Program};
use crate::storage::BACKEND;
use crate::watch::WatchError;
use moves::Moves;

/// The queue of one device.
pub(crate) struct Queue {
    shared: Arc<Shared>,
    thread: Worker,
}

struct Shared {
    gpu: Arc<Gpu>,
    sink: Arc<OnceLock<Arc<dyn CompletionSink>>>,
    /// Fence numbers are unique across all devices of the backend.
    numbers: Arc<AtomicU64>,
    state: Mutex<State>,
    /// Used only by the thread that serves the queue.
    ended: Mutex<Vec<Ended>>,
    /// Held from the first command of a submission until its number is taken, so that submissions of two
    /// threads do not mix.
    gate: Mutex<()>,
    /// Something was submitted that no thread serves, or the queue closes.
    work: Condvar,
    /// Threads that wait until something settles, or the serving thread stops serving the queue.
    sleepers: Sleepers,
}

#[derive(Default)]
struct State {
    /// In the driver's hands, oldest first.
    flying: VecDeque<Waiting>,
    /// Fences that have not settled.
    pending: HashSet<u64>,
    /// A thread is in the driver for it.
    is_served: bool,
    is_closing: bool,
}

/// A submission whose end is awaited.
enum Waiting {
    Own(Flight),
    /// A submission of the user's. It was submitted before it was entered here, so every later entry
    /// ends later: waiting for the front entry delays none behind it.
    User(Watch),
}

struct Flight {
    /// The numbers of its fences, one for each copy of a `submit_each`.
    numbers: Range<u64>,
    index: wgpu::SubmissionIndex,
    /// Staging slots that it uses.
    slots: Vec<Buffer>,
    /// Host memory that it reads or writes in place.
    imports: Vec<HostImport>,
    _inside: Inside,
}

/// A submission of the user, and the callback for its end.
struct Watch {
    index: wgpu::SubmissionIndex,
    then: Box<dyn FnOnce() + Send>,
    inside: Inside,
}

/// An operation that has ended while one of its slots is in use again.
struct Ended {
    numbers: Range<u64>,
    slots: Vec<Buffer>,
    outcome: Outcome,
}

impl Queue {
    pub(crate) fn new(
        gpu: Arc<Gpu>,
        sink: Arc<OnceLock<Arc<dyn CompletionSink>>>,
        numbers: Arc<AtomicU64>,
    ) -> Queue {
        Queue {
            shared: Arc::new(Shared {
                gpu,
                sink,
                numbers,
                state: Mutex::default(),
                ended: Mutex::default(),
                gate: Mutex::new(()),
                work: Condvar::new(),
                sleepers: Sleepers::default(),
            }),
            thread: Worker::default(),
        }
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.shared.gpu
    }

    pub(crate) fn is_pending(&self, number: u64) -> bool {
        self.shared.lock().pending.contains(&number)
    }

    /// Starts the operations, all of which must be of this device, after everything that was submitted
    /// to it before.
    pub(crate) fn submit(&self, ops: &[Op<'_>], after: &[Fence]) -> Result<Fence, SubmitError> {
        let shared = &self.shared;
        let moves = Moves::of(&shared.gpu, ops)?;
        if moves.is_empty() {
            return Ok(Fence::immediate(BACKEND));
        }
        if moves.show_only_own() && shared.lock().pending.is_empty() {
            let entered = shared.gpu.enter();
            return entered
                .map(|_| Fence::immediate(BACKEND))
                .map_err(SubmitError::Refused);
        }
        // The edges of host memory are copied during this call, outside the queue's order.
        if moves.touches_host()
            && let Some(fence) = after.iter().find(|fence| self.is_pending(fence.number()))
        {
            return Err(SubmitError::unawaited(fence));
        }
        let number = self.begin(&moves, 1).map_err(SubmitError::Refused)?;
        Ok(Fence::new(BACKEND, number))
    }

    /// Starts independent copies, all in one submission or none. Returns the number of the first fence of as many as there
    /// are copies; `None` where they do not go together. Copies of host memory do not: each of them pins pages, which may
    /// fail.
    ///
    /// After an error the commands may have run, so that no copy may be submitted again: one within its own bytes would
    /// change them twice.
    pub(crate) fn submit_together(&self, ops: &[Op<'_>]) -> Option<Result<u64, Fault>> {
        let moves = Moves::of(&self.shared.gpu, ops).ok()?;
        let go_together = ops.len() > 1 && moves.are(ops.len()) && !moves.touches_host();
        go_together.then(|| self.begin(&moves, ops.len() as u64))
    }

    /// Hands the moves to the driver, for that many fences. Returns the number of the first one.
    fn begin(&self, moves: &Moves<'_>, fences: u64) -> Result<u64, Fault> {
        let shared = &self.shared;
        let _gate = shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = moves.slots();
        let start = |inside| shared.start(moves, &slots, inside, fences);
        let flight = shared.gpu.enter().and_then(start)?;
        let first = flight.numbers.start;
        shared.lock().pending.extend(flight.numbers.clone());
        self.enqueue(Waiting::Own(flight));
        Ok(first)
    }

    fn enqueue(&self, waiting: Waiting) {
        self.shared.lock().flying.push_back(waiting);
        self.shared.work.notify_one();
        self.ensure_thread();
    }

    pub(crate) fn wait(&self, number: u64, limit: Duration) -> Waited {
        self.shared.wait(number, limit)
    }

    /// Calls `then` when a submission of the user's is over.
    ///
    /// # Errors
    /// If the device is lost or has no such submission.
    pub(crate) fn watch(
        &self,
        index: wgpu::SubmissionIndex,
        then: Box<dyn FnOnce() + Send>,
    ) -> Result<(), WatchError> {
        let gpu = self.gpu();
        let device = gpu.id;
        let lost = |fault| WatchError::Lost { device, fault };
        let inside = gpu.enter().map_err(lost)?;
        gpu.probe().map_err(lost)?;
        let number = raw::number_of(&index);
        if let Some(last) = raw::last_submission(&gpu.device).filter(|last| number > *last) {
            return Err(WatchError::UnknownSubmission {
                device,
                number,
                last,
            });
        }
        self.enqueue(Waiting::User(Watch {
            index,
            then,
            inside,
        }));
        Ok(())
    }

    fn ensure_thread(&self) {
        let make = || {
            let shared = Arc::clone(&self.shared);
            let name = format!("transload-{}", shared.gpu.id);
            (name, move || shared.run())
        };
        if self.thread.start(make).is_err() {
            // No thread could report the end later, so this thread finishes the work now.
            self.shared.finish_all();
        }
    }
}

impl Drop for Queue {
    /// Completes everything that is under way.
    fn drop(&mut self) {
        self.shared.lock().is_closing = true;
        self.shared.work.notify_one();
        self.thread.join();
    }
}

impl Waiting {
    fn index(&self) -> wgpu::SubmissionIndex {
        match self {
            Waiting::Own(flight) => flight.index.clone(),
            Waiting::User(watch) => watch.index.clone(),
        }
    }
}

impl Watch {
    fn tell(self) {
        // The callback may end the process.
        drop(self.inside);
        // A panic in one callback must not keep the other callbacks from running.
        let _ = catch_unwind(AssertUnwindSafe(|| run_callback(self.then)));
    }
}

impl Shared {
    /// Hands the moves to the driver.
    fn start(
        &self,
        moves: &Moves<'_>,
        slots: &[Buffer],
        inside: Inside,
        fences: u64,
    ) -> Result<Flight, Fault> {
        let mut program = Program::new(self.gpu.shifts);
        let mut imports = moves.import_host(&self.gpu)?;
        let edges = moves.keep_edges(&self.gpu, || self.wait_for(slots))?;
        for slot in slots {
            if let Some(of) = slot.native::<Slot>() {
                of.begin_use(slot);
            }
        }
        moves.write(&mut program, &edges, &imports);
        let submitted = self.encode(&program);
        imports.iter_mut().for_each(HostImport::release_pages);
        match submitted {
            Ok(index) => Ok(Flight {
                numbers: self.next_numbers(fences),
                index,
                slots: slots.to_vec(),
                imports,
                _inside: inside,
            }),
            Err(fault) => {
                // Nothing was submitted: the host gets the slots back.
                for slot in slots {
                    let _ = self.end_use(slot);
                }
                Err(fault)
            }
        }
    }

    fn encode(&self, program: &Program) -> Result<wgpu::SubmissionIndex, Fault> {
        let gpu = &self.gpu;
        let shifter = match program.needs_scratch() {
            true => Some(gpu.shifter()?),
            false => None,
        };
        let commands = gpu.catching(|| {
            program.encode(&gpu.device, shifter.as_ref().map(|shifter| &***shifter))
        })?;
        self.hand_over(commands)
    }

    /// Submits the commands to the driver, all or none.
    ///
    /// wgpu runs callbacks of the user before it returns. A callback that panics, or that raises an
    /// error in the error scope open here, looks like a refusal although the commands are under way.
    /// This then waits for the commands, so that nothing touches their memory when it returns.
    fn hand_over(&self, commands: wgpu::CommandBuffer) -> Result<wgpu::SubmissionIndex, Fault> {
        let submit = || self.gpu.queue.submit([commands]);
        let submit = || catch_unwind(AssertUnwindSafe(|| run_callback(submit)));
        let fault = match self.gpu.catching(submit) {
            Ok(Ok(index)) => return Ok(index),
            Ok(Err(_)) => Fault::new(
                ErrorClass::Caller,
                "a callback of the user's panicked while commands were submitted",
            ),
            Err(fault) => fault,
        };
        self.drain();
        Err(fault)
    }

    fn end_use(&self, slot: &Buffer) -> Result<(), Fault> {
        match slot.native::<Slot>() {
            Some(of) => of.end_use(slot, &self.gpu),
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
