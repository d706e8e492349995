//! One stream of a device, and what is under way in it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use transload_hal::{
    CompletionSink, ErrorClass, Fault, Fence, Sleepers, SubmitError, Waited, Worker,
};

use super::enqueue::{Buffers, Enqueuer, Limits};
use super::moves::Move;
use super::{Way, lane_number};
use crate::capture::relax;
use crate::context::Context;
use crate::facts::Facts;
use crate::fault::fault_of;
use crate::ids::BACKEND;
use crate::raw::{CUevent, CUevent_flags, CUstream, CUstream_flags, CallError};

/// Where outcomes go, once the engine has set it.
pub(crate) type Sink = Arc<OnceLock<Arc<dyn CompletionSink>>>;

/// A stream.
pub(crate) struct Lane {
    pub(super) shared: Arc<Shared>,
    thread: Worker,
}

pub(super) struct Shared {
    pub(super) context: Arc<Context>,
    pub(super) stream: CUstream,
    /// Its number within the backend.
    pub(super) number: u64,
    pub(super) way: Way,
    limits: Limits,
    pub(super) sink: Sink,
    /// Held from the first operation of a submission to its event, so that what two threads submit does not mix.
    gate: Mutex<Buffers>,
    pub(super) state: Mutex<State>,
    /// Something was submitted while the lane's thread was parked, and is expected now; or the lane closes.
    pub(super) work: Condvar,
    /// Something was submitted while the lane's thread was parked, and its end is not expected yet.
    is_unheard: AtomicBool,
    /// Threads that wait until something settles.
    pub(super) sleepers: Sleepers,
}

#[derive(Default)]
pub(super) struct State {
    /// Submitted to the driver, oldest first.
    pub(super) flying: VecDeque<Flight>,
    /// The sequence number of the last submission.
    pub(super) last: u64,
    /// The last submission that is over. Submissions end in order.
    pub(super) settled: u64,
    /// Events not in use.
    pub(super) idle: VecDeque<CUevent>,
    /// The lane's thread serves what is under way: it is running and not parked.
    pub(super) is_served: bool,
    pub(super) is_closing: bool,
}

/// A submission that is under way, or several that were started together.
#[derive(Clone)]
pub(super) struct Flight {
    /// The sequence number of the first one.
    pub(super) sequence: u64,
    /// The number of submissions.
    pub(super) count: u64,
    /// Occurs when the submission is over; `None` if the thread waits for the whole context or the whole stream.
    pub(super) event: Option<CUevent>,
    /// Why the rest of it was never begun. The submission ends when the begun part has ended.
    pub(super) fault: Option<Fault>,
}

/// The result of ordering a stream behind a fence.
pub(super) enum Order {
    /// The stream waits for the fence.
    Given,
    /// The fence has settled.
    Settled,
    /// Only a thread can wait for it.
    OfThreads,
}

impl Flight {
    /// Whether a submission is one of these.
    pub(super) fn has(&self, sequence: u64) -> bool {
        (self.sequence..self.sequence + self.count).contains(&sequence)
    }
}

impl Lane {
    pub(crate) fn new(
        context: &Arc<Context>,
        sink: &Sink,
        (gpu, way): (usize, Way),
        facts: &Facts,
    ) -> Result<Lane, Fault> {
        let _current = context.push().map_err(fault_of)?;
        let _relaxed = relax(&context.driver);
        let mut stream = CUstream::NULL;
        // With this flag, other users' work in the legacy default stream neither waits for this stream nor delays
        // it.
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: the place is ours.
        unsafe { context.driver.cuStreamCreate(&raw mut stream, flags) }.map_err(fault_of)?;
        Ok(Lane {
            shared: Arc::new(Shared {
                context: Arc::clone(context),
                stream,
                number: lane_number(gpu, way),
                way,
                limits: Limits {
                    max_pitch: facts.max_pitch,
                    has_batches: facts.has_batches,
                },
                sink: Arc::clone(sink),
                gate: Mutex::default(),
                state: Mutex::default(),
                work: Condvar::new(),
                is_unheard: AtomicBool::new(false),
                sleepers: Sleepers::default(),
            }),
            thread: Worker::default(),
        })
    }

    /// The fault of a failed call of the lane's device.
    pub(crate) fn blame(&self, error: CallError) -> Fault {
        self.shared.context.blame(error, self.shared.stream)
    }

    /// Starts the moves after everything that was submitted to the lane before, and after the given submissions of
    /// other lanes.
    ///
    /// # Safety
    /// As `Backend::submit`.
    pub(crate) unsafe fn submit<'a>(
        &self,
        moves: impl Iterator<Item = Move>,
        after: impl Iterator<Item = (&'a Lane, u64)>,
    ) -> Result<Fence, SubmitError> {
        // SAFETY: the caller's promise.
        let first = unsafe { self.start(moves, after, 1) }?;
        Ok(self.fence(first))
    }

    /// Starts `count` independent moves, all or none, each as a submission of its own. Returns their fences in
    /// order.
    ///
    /// # Safety
    /// As `Backend::submit`, for each of them.
    pub(crate) unsafe fn submit_each(
        &self,
        moves: impl Iterator<Item = Move>,
        count: u64,
    ) -> Result<impl Iterator<Item = Fence>, SubmitError> {
        // SAFETY: the caller's promise.
        let first = unsafe { self.start(moves, std::iter::empty(), count) }?;
        Ok((first..first + count).map(|sequence| self.fence(sequence)))
    }

    /// Starts the moves of `count` submissions. Returns the sequence number of the first.
    ///
    /// # Safety
    /// As `Backend::submit`.
    unsafe fn start<'a>(
        &self,
        moves: impl Iterator<Item = Move>,
        after: impl Iterator<Item = (&'a Lane, u64)>,
        count: u64,
    ) -> Result<u64, SubmitError> {
        let shared = &self.shared;
        let refused = SubmitError::Refused;
        let mut gate = shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fault) = shared.context.lost() {
            return Err(refused(fault.clone()));
        }
        let _current = shared.context.enter_to_submit().map_err(refused)?;
        for (other, sequence) in after {
            shared.wait_behind(other, sequence).map_err(refused)?;
        }
        if shared.way == Way::Visible {
            // Nothing goes into the stream; the lane's thread asks the driver.
            return Ok(self.fly(count, None, None));
        }
        let event = shared.take_event().map_err(refused)?;
        let mut enqueuer = Enqueuer::new(&shared.context, shared.stream, shared.limits, &mut gate);
        // SAFETY: operands are valid until the fence settles, by the caller's promise.
        let started = unsafe { enqueuer.start_all(moves) };
        // SAFETY: event and stream are of this context.
        let recorded = started
            .and_then(|()| unsafe { shared.context.driver.cuEventRecord(event, shared.stream) });
        let has_begun = enqueuer.has_begun();
        let Err(error) = recorded else {
            return Ok(self.fly(count, Some(event), None));
        };
        let fault = shared.context.blame(error, shared.stream);
        shared.lock().idle.push_back(event);
        match has_begun {
            // A refusal would mean that no byte has moved: a copy within one buffer would then be repeated on
            // overwritten bytes.
            true => Ok(self.fly(count, None, Some(fault))),
            false => Err(refused(fault)),
        }
    }

    fn fly(&self, count: u64, event: Option<CUevent>, fault: Option<Fault>) -> u64 {
        let shared = &self.shared;
        let mut state = shared.lock();
        let sequence = state.last + 1;
        state.last += count;
        shared.context.reapers.begin();
        state.flying.push_back(Flight {
            sequence,
            count,
            event,
            fault,
        });
        let is_served = state.is_served;
        drop(state);
        if !is_served {
            // Waking the lane's thread takes longer than the rest of the submission, so that is left to a caller
            // of `expect`.
            shared.is_unheard.store(true, Ordering::SeqCst);
        }
        sequence
    }

    fn fence(&self, sequence: u64) -> Fence {
        Fence::in_lane(BACKEND, self.shared.number, sequence)
    }

    /// Makes the lane's thread report the end of everything submitted so far.
    pub(crate) fn expect(&self) {
        // Sequentially consistent with the engine's count of sleepers: a submitting thread sets this before it
        // looks for sleepers, and a thread is counted as asleep before it comes here.
        let is_unheard = &self.shared.is_unheard;
        if is_unheard.load(Ordering::SeqCst) && is_unheard.swap(false, Ordering::SeqCst) {
            self.ensure_thread();
            self.shared.work.notify_one();
        }
    }

    /// Blocks until a submission has settled or the limit has passed.
    pub(crate) fn wait(&self, sequence: u64, limit: Duration) -> Waited {
        let begun = Instant::now();
        if !self.shared.poll(sequence, begun, limit) {
            self.expect();
        }
        self.shared.await_end(sequence, begun, limit)
    }

    /// Makes a stream wait for a submission of this lane, unless it has settled.
    ///
    /// # Safety
    /// The stream is the driver's, and its context the current one.
    pub(super) unsafe fn order_behind(
        &self,
        sequence: u64,
        stream: CUstream,
    ) -> Result<Order, CallError> {
        // Held, so that the event is not used for something else meanwhile.
        let state = self.shared.lock();
        let mut flying = state.flying.iter();
        let Some(flight) = flying.find(|flight| flight.has(sequence)) else {
            return Ok(Order::Settled);
        };
        let Some(event) = flight.event else {
            return Ok(Order::OfThreads);
        };
        // SAFETY: the event is alive while the state is locked; of the stream, the caller's promise.
        unsafe {
            self.shared
                .context
                .driver
                .cuStreamWaitEvent(stream, event, 0)
        }?;
        Ok(Order::Given)
    }

    /// Starts the thread, if it is not running. Called when the end of a submission is first expected.
    fn ensure_thread(&self) {
        let make = || {
            let shared = Arc::clone(&self.shared);
            let name = format!("transload-{}-{}", shared.context.id, shared.way as usize);
            (name, move || shared.run())
        };
        if self.thread.start(make).is_err() {
            // No thread could report the end later, so this thread finishes the work now.
            self.shared.finish_all();
        }
    }
}

impl Drop for Lane {
    /// The thread ends once nothing is under way. If something is, which no thread can be waiting for, the drop
    /// does not wait for it: a stream that never answers must not block the thread that drops the backend.
    fn drop(&mut self) {
        self.expect();
        let mut state = self.shared.lock();
        state.is_closing = true;
        let is_idle = state.flying.is_empty();
        drop(state);
        self.shared.work.notify_all();
        if is_idle {
            self.thread.join();
        }
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the stream wait for a submission of another lane, unless it has settled.
    ///
    /// # Errors
    /// `Unsupported` if no stream can wait for it: the caller has to wait.
    fn wait_behind(&self, other: &Lane, sequence: u64) -> Result<(), Fault> {
        // SAFETY: the stream is of the current context.
        match unsafe { other.order_behind(sequence, self.stream) } {
            Ok(Order::Given | Order::Settled) => Ok(()),
            Ok(Order::OfThreads) => {
                let message = "a fence that only a thread can wait for has not settled";
                Err(Fault::new(ErrorClass::Unsupported, message))
            }
            Err(error) => Err(self.context.blame(error, self.stream)),
        }
    }

    fn take_event(&self) -> Result<CUevent, Fault> {
        if let Some(event) = self.lock().idle.pop_front() {
            return Ok(event);
        }
        let _relaxed = relax(&self.context.driver);
        let mut event = CUevent::NULL;
        let flags =
            CUevent_flags::CU_EVENT_BLOCKING_SYNC.0 | CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
        // SAFETY: the place is ours.
        let made = unsafe { self.context.driver.cuEventCreate(&raw mut event, flags) };
        made.map_err(|error| self.context.blame(error, self.stream))?;
        Ok(event)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else {
            return;
        };
        let driver = &self.context.driver;
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for event in state.idle.drain(..) {
            // SAFETY: no other code knows the event.
            let _ = unsafe { driver.cuEventDestroy_v2(event) };
        }
        let gate = self.gate.get_mut().unwrap_or_else(PoisonError::into_inner);
        gate.free(&self.context);
        // SAFETY: no other code knows the stream, and nothing is under way in it.
        let _ = unsafe { driver.cuStreamDestroy_v2(self.stream) };
    }
}
