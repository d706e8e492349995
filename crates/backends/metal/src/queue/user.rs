//! Work of the program's own, before and after transfers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLCommandBuffer, MTLSharedEvent};
use transload_hal::{ErrorClass, Fault, Fence, run_callback};

use super::{Lane, Way};
use crate::device::Metal;
use crate::raw::{Commands, EndBlock, Event, EventBlock, pooled};
use crate::types::BACKEND;

/// Why the program's own work could not be ordered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// The commands were already committed.
    #[error("the commands were committed already: nothing can be added to them")]
    Committed,
    /// The fence belongs to another backend.
    #[error("{fence} is no fence of this backend, so no Metal device can wait for it")]
    ForeignFence {
        /// The fence.
        fence: String,
    },
    /// The device is lost.
    #[error("{fault}")]
    Lost {
        /// How it was lost.
        fault: Fault,
    },
    /// Metal refused.
    #[error("{fault}")]
    Refused {
        /// Metal's error.
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
    /// Calls `then` once the program's own commands, which must not be committed yet, are over, successful or not. Use
    /// it with `transload::Event::setter` to start a transfer after the program's work:
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
    /// `then` runs on a thread of Metal and must not block: the library refuses to wait there for a transfer of a device
    /// (`TransferError::WouldBlock`).
    ///
    /// # Errors
    /// If the commands were already committed.
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

    /// Calls `then` once an event has reached a value: during this call if it has, else on a thread of Metal, where
    /// `then` must not block. If the event never reaches the value, `then` is never called.
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
        let block = EventBlock::new(move || then.tell());
        pooled(|_| self.listener().listen(&event, value, &block));
    }

    /// Makes the program's own commands wait, on the device, until submissions of this backend are over: commands
    /// encoded from now on see their bytes. No thread waits. `transload::Transfer::fences` gives a transfer's fences,
    /// once all of it has been submitted.
    ///
    /// If a submission fails, the commands still go on; the transfer reports the error.
    ///
    /// # Errors
    /// If a fence belongs to another backend, or the commands were committed. The commands may then wait for some of the
    /// fences.
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
                if let Some(event) = lane.event_of(fence.sequence()) {
                    commands.wait_for(&event, fence.sequence());
                }
            }
            Ok(())
        })
    }

    /// Sets an event of the program's own to a value once submissions of this backend are over, successful or not.
    ///
    /// # Errors
    /// If a fence belongs to another backend, the device of the first one is lost, or Metal gives no commands.
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
        let after = known.into_iter();
        let after = after.map(|(lane, fence)| (lane, fence.sequence()));
        let signalled = gpu.lane(Way::Visible).signal(after, &event, value);
        signalled.map_err(EventError::of_fault)
    }

    /// The lanes of fences that have not settled.
    fn known(&self, fences: &[Fence]) -> Result<Vec<(&Lane, Fence)>, EventError> {
        if let Some(fence) = fences.iter().find(|fence| fence.backend() != BACKEND) {
            let fence = format!("{fence:?}");
            return Err(EventError::ForeignFence { fence });
        }
        let pending = |fence: &Fence| {
            let lane = self.lane(*fence)?;
            lane.is_pending(fence.sequence()).then_some((lane, *fence))
        };
        Ok(fences.iter().filter_map(pending).collect())
    }
}
