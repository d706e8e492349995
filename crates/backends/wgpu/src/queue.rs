//! Submission and completion: one thread per device waits in the driver while operations are under way.

mod moves;
mod rows;
mod watch;

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use transload_hal::{
    Buffer, CompletionSink, ErrorClass, Fault, Fence, Op, Outcome, SubmitError, Waited,
};

use crate::device::{BACKEND, Gpu};
use crate::guest::Guest;
use crate::look::Unseen;
use crate::memory::Slot;
use crate::raw::Program;
use moves::Moves;
pub(crate) use moves::device_of;
use watch::Watch;
pub use watch::WatchError;

/// How long the thread stays in the driver before it looks whether the device was lost meanwhile.
const PATIENCE: Duration = Duration::from_millis(100);

/// The queue of one device.
pub(crate) struct Queue {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    gpu: Arc<Gpu>,
    sink: Arc<OnceLock<Arc<dyn CompletionSink>>>,
    /// Fences are numbered through over all devices.
    numbers: Arc<AtomicU64>,
    state: Mutex<State>,
    /// Held from the first command of a submission to its number, so that what two threads submit does
    /// not mix.
    gate: Mutex<()>,
    /// Something was submitted, settled, or the queue closes.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// In the driver's hands, oldest first.
    flying: VecDeque<Waiting>,
    /// Fences that have not settled.
    pending: HashSet<u64>,
    closing: bool,
}

/// What the thread waits for.
enum Waiting {
    Own(Flight),
    /// A submission of the user's. It was there before it was entered, so whatever was entered later
    /// ends later: nobody waits behind it for nothing.
    User(Watch),
}

struct Flight {
    number: u64,
    index: wgpu::SubmissionIndex,
    /// Staging slots that it uses.
    slots: Vec<Buffer>,
    /// Host memory that it reads or writes in place.
    guests: Vec<Guest>,
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
                gate: Mutex::new(()),
                changed: Condvar::new(),
            }),
            thread: Mutex::new(None),
        }
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.shared.gpu
    }

    pub(crate) fn is_pending(&self, number: u64) -> bool {
        self.shared.lock().pending.contains(&number)
    }

    /// Starts the operations, all of which must be of this device, behind everything that was submitted
    /// to it before.
    pub(crate) fn submit(&self, ops: &[Op<'_>], after: &[Fence]) -> Result<Fence, SubmitError> {
        let shared = &self.shared;
        let moves = Moves::of(&shared.gpu, ops)?;
        if moves.is_empty() {
            return Ok(Fence::settled(BACKEND));
        }
        // The edges of host memory are copied here and now, in no queue's order.
        if moves.touches_host()
            && let Some(fence) = after.iter().find(|fence| self.is_pending(fence.number()))
        {
            return Err(unawaited(fence));
        }
        let _gate = shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fault) = shared.gpu.lost.get() {
            return Err(SubmitError::Refused(fault.clone()));
        }
        let slots = moves.slots();
        let flight = shared.start(&moves, &slots).map_err(SubmitError::Refused)?;
        let number = flight.number;
        shared.lock().pending.insert(number);
        self.enqueue(Waiting::Own(flight));
        Ok(Fence::new(BACKEND, number))
    }

    fn enqueue(&self, waiting: Waiting) {
        self.shared.lock().flying.push_back(waiting);
        self.shared.changed.notify_all();
        self.ensure_thread();
    }

    pub(crate) fn wait(&self, number: u64, limit: Duration) -> Waited {
        let deadline = Instant::now().checked_add(limit);
        let mut state = self.shared.lock();
        while state.pending.contains(&number) {
            state = match deadline {
                None => self
                    .shared
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Waited::TimedOut;
                    }
                    let waited = self.shared.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        Waited::Settled
    }

    fn ensure_thread(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let name = format!("transload-{}", shared.gpu.id);
        match std::thread::Builder::new()
            .name(name)
            .spawn(move || shared.run())
        {
            Ok(handle) => *thread = Some(handle),
            // Nobody would ever tell: it is done here and now.
            Err(_) => self.shared.finish_all(),
        }
    }
}

impl Drop for Queue {
    /// What is under way is completed.
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        let thread = self
            .thread
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // It panics nowhere; if it did, its fences are lost with the backend.
            let _ = thread.join();
        }
    }
}

/// To wait here would hold the caller up.
pub(crate) fn unawaited(fence: &Fence) -> SubmitError {
    let message = format!("{fence:?} must be awaited first: these operations go another way");
    SubmitError::Refused(Fault::new(ErrorClass::Unsupported, message))
}

impl Waiting {
    fn index(&self) -> wgpu::SubmissionIndex {
        match self {
            Waiting::Own(flight) => flight.index.clone(),
            Waiting::User(watch) => watch.index.clone(),
        }
    }
}

impl Shared {
    /// Hands the moves to the driver.
    fn start(&self, moves: &Moves<'_>, slots: &[Buffer]) -> Result<Flight, Fault> {
        let mut program = Program::new(self.gpu.single_rows);
        let mut guests = moves.invite(&self.gpu)?;
        let kept = moves.keep_edges(&self.gpu, || self.wait_for(slots))?;
        for slot in slots {
            if let Some(of) = slot.native::<Slot>() {
                of.begin_use(slot);
            }
        }
        moves.write(&mut program, &kept, &guests);
        let submitted = self.encode(&program);
        guests.iter_mut().for_each(Guest::let_go);
        match submitted {
            Ok(index) => Ok(Flight {
                number: self.numbers.fetch_add(1, Ordering::Relaxed),
                index,
                slots: slots.to_vec(),
                guests,
            }),
            Err(fault) => {
                // Nothing was done: the slots are the host's again.
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
        let commands = gpu.catching(|| program.encode(&gpu.device, shifter.as_ref()))?;
        gpu.catching(|| gpu.queue.submit([commands]))
    }

    fn end_use(&self, slot: &Buffer) -> Result<(), Fault> {
        match slot.native::<Slot>() {
            Some(of) => of.end_use(slot, &self.gpu),
            None => Ok(()),
        }
    }

    /// Blocks until the host can reach the slots: whoever uses them now must have ended.
    fn wait_for(&self, slots: &[Buffer]) {
        let mapped = |slot: &Buffer| slot.native::<Slot>().is_none_or(Slot::is_mapped);
        let mut state = self.lock();
        while !slots.iter().all(mapped) && !state.flying.is_empty() {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run(&self) {
        // Ended, but a slot of theirs is in use again.
        let mut ended = Vec::new();
        loop {
            let mut state = self.lock();
            while state.flying.is_empty() && !state.closing {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            let Some(index) = state.flying.front().map(Waiting::index) else {
                return;
            };
            drop(state);
            if self.is_over(index) {
                self.finish_one(&mut ended);
            }
        }
    }

    /// Blocks until a submission is over, lost with its device perhaps, or until the thread should look
    /// again.
    fn is_over(&self, index: wgpu::SubmissionIndex) -> bool {
        match self.gpu.look(wgpu::PollType::Wait {
            submission_index: Some(index),
            timeout: Some(PATIENCE),
        }) {
            Ok(()) | Err(Unseen::Lost(_)) => true,
            Err(Unseen::NotYet) => self.gpu.lost.get().is_some(),
            // It was made, but the device was gone.
            Err(Unseen::NoSuch { .. }) => {
                self.gpu.note_loss();
                true
            }
        }
    }

    /// The oldest flight has ended, or its device is lost.
    fn finish_one(&self, ended: &mut Vec<(u64, Vec<Buffer>, Outcome)>) {
        let oldest = self.lock().flying.pop_front();
        let flight = match oldest {
            Some(Waiting::Own(flight)) => flight,
            Some(Waiting::User(watch)) => return watch.tell(),
            None => return,
        };
        let mut outcome = match self.gpu.lost.get() {
            Some(fault) => Outcome::Lost(fault.clone()),
            None => Outcome::Done,
        };
        for guest in flight.guests {
            if let (Err(fault), Outcome::Done) = (guest.leave(&self.gpu), &outcome) {
                outcome = Outcome::Failed(fault);
            }
        }
        for slot in &flight.slots {
            if let (Err(fault), Outcome::Done) = (self.end_use(slot), &outcome) {
                outcome = Outcome::Failed(fault);
            }
        }
        if let (Some(fault), Outcome::Failed(_)) = (self.gpu.lost.get(), &outcome) {
            outcome = Outcome::Lost(fault.clone());
        }
        ended.push((flight.number, flight.slots, outcome));
        let mapped = |slot: &Buffer| slot.native::<Slot>().is_none_or(Slot::is_mapped);
        let mut at = 0;
        while at < ended.len() {
            let (_, slots, outcome) = &ended[at];
            if *outcome == Outcome::Done && !slots.iter().all(mapped) {
                at += 1;
                continue;
            }
            let (number, slots, outcome) = ended.remove(at);
            drop(slots);
            if let Some(sink) = self.sink.get() {
                sink.settle(Fence::new(BACKEND, number), outcome);
            }
            self.lock().pending.remove(&number);
        }
        self.changed.notify_all();
    }

    fn finish_all(&self) {
        let mut ended = Vec::new();
        loop {
            let oldest = self.lock().flying.front().map(Waiting::index);
            let Some(index) = oldest else {
                return;
            };
            if self.is_over(index) {
                self.finish_one(&mut ended);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
