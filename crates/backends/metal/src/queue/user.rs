//! Work of the program's own, before and after transfers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLCommandBuffer, MTLSharedEvent};
use transload_hal::{ErrorClass, Fault, Fence, run_callback};

use super::{Lane, Way};
use crate::device::{BACKEND, Metal};
use crate::raw::{Commands, EndBlock, Event, TellBlock, pooled};

/// Why work of the program's own is not ordered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// The commands were handed over already.
    #[error("the commands were committed already: nothing can be added to them")]
    Committed,
    /// The fence is another backend's.
    #[error("{fence} is no fence of this backend, so no Metal device can wait for it")]
    ForeignFence {
        /// The fence.
        fence: String,
    },
    /// The device is gone.
    #[error("{fault}")]
    Lost {
        /// How.
        fault: Fault,
    },
    /// Metal refused.
    #[error("{fault}")]
    Refused {
        /// Why.
        fault: Fault,
    },
}

impl EventError {
    /// The category of the error. Use it to decide whether to retry.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            EventError::Committed | EventError::ForeignFence { .. } => ErrorClass::Caller,
            EventError::Lost { .. } => ErrorClass::Lost,
            EventError::Refused { fault } => fault.class,
        }
    }

    fn of_fault(fault: Fault) -> EventError {
        match fault.class {
            ErrorClass::Lost => EventError::Lost { fault },
            _ => EventError::Refused { fault },
        }
    }
}

/// Called once.
struct Then(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Then {
    fn new(then: impl FnOnce() + Send + 'static) -> Then {
        Then(Mutex::new(Some(Box::new(then))))
    }

    /// A panic in one callback must not keep the other callbacks from running.
    fn tell(&self) {
        let then = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(then) = then {
            let _ = catch_unwind(AssertUnwindSafe(|| run_callback(then)));
        }
    }
}

impl Metal {
    /// Calls `then` once commands of the program's own are over, well or not. They have not been committed yet. Meant
    /// for `transload::Event::setter`, so that a transfer starts after the program's work:
    ///
    /// ```no_run
    /// # fn example(metal: &transload_metal::Metal,
    /// #     commands: &objc2::runtime::ProtocolObject<dyn objc2_metal::MTLCommandBuffer>)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use objc2_metal::MTLCommandBuffer as _;
    ///
    /// let (tell, told) = std::sync::mpsc::channel();
    /// metal.when_done(commands, move || tell.send(()).unwrap_or_default())?;
    /// commands.commit();
    /// told.recv()?;
    /// # Ok(()) }
    /// ```
    ///
    /// It runs on a thread of Metal's, and must not block: the library refuses to wait there for a transfer of a device
    /// (`TransferError::WouldBlock`).
    ///
    /// # Errors
    /// When they were committed.
    pub fn when_done(
        &self,
        commands: &ProtocolObject<dyn MTLCommandBuffer>,
        then: impl FnOnce() + Send + 'static,
    ) -> Result<(), EventError> {
        pooled(|_| {
            let commands = Commands::of(commands);
            if commands.is_committed() {
                return Err(EventError::Committed);
            }
            let then = Then::new(then);
            commands.when_over(&EndBlock::new(move |_| then.tell()));
            Ok(())
        })
    }

    /// Calls `then` once an event has reached a value: here and now where it has, else on a thread of Metal's, where it
    /// must not block. An event that never gets there is never told of.
    pub fn when_event(
        &self,
        event: &ProtocolObject<dyn MTLSharedEvent>,
        value: u64,
        then: impl FnOnce() + Send + 'static,
    ) {
        let (event, then) = (Event::of(event), Then::new(then));
        if event.value() >= value {
            return then.tell();
        }
        let block = TellBlock::new(move || then.tell());
        pooled(|_| self.listener().listen(&event, value, &block));
    }

    /// Has commands of the program's own wait, on the device, until submissions of this backend are over: what is
    /// encoded into them from now on sees their bytes. No thread waits. `transload::Transfer::fences` gives a transfer's
    /// fences, once all of it has been submitted.
    ///
    /// Where a submission fails the commands go on all the same; the transfer tells.
    ///
    /// # Errors
    /// When a fence is another backend's, or the commands were committed. They may wait for some of the fences then.
    pub fn follow(
        &self,
        commands: &ProtocolObject<dyn MTLCommandBuffer>,
        fences: &[Fence],
    ) -> Result<(), EventError> {
        pooled(|_| {
            let commands = Commands::of(commands);
            if commands.is_committed() {
                return Err(EventError::Committed);
            }
            for (lane, fence) in self.known(fences)? {
                if let Some((event, value)) = lane.order_of(fence) {
                    commands.wait_for(&event, value);
                }
            }
            Ok(())
        })
    }

    /// Sets an event of the program's own to a value once submissions of this backend are over, well or not.
    ///
    /// # Errors
    /// When a fence is another backend's, the device of the first one is lost, or Metal gives no commands.
    pub fn signal(
        &self,
        fences: &[Fence],
        event: &ProtocolObject<dyn MTLSharedEvent>,
        value: u64,
    ) -> Result<(), EventError> {
        let known = self.known(fences)?;
        let event = Event::of(event);
        let first = known.first().map(|(_, fence)| *fence);
        let Some(gpu) = first.and_then(|fence| self.gpu_of(fence)) else {
            event.set(value);
            return Ok(());
        };
        let signalled = gpu
            .lane(Way::Visible)
            .signal(known.into_iter(), &event, value);
        signalled.map_err(EventError::of_fault)
    }

    /// The lanes of fences that have not settled.
    fn known(&self, fences: &[Fence]) -> Result<Vec<(&Lane, u64)>, EventError> {
        if let Some(fence) = fences.iter().find(|fence| fence.backend() != BACKEND) {
            let fence = format!("{fence:?}");
            return Err(EventError::ForeignFence { fence });
        }
        let pending = |fence: &Fence| {
            let number = fence.number();
            let lane = self.lane(*fence)?;
            lane.is_pending(number).then_some((lane, number))
        };
        Ok(fences.iter().filter_map(pending).collect())
    }
}
