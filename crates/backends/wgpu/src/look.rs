//! Polls a device that may be lost, and whose polls run callbacks of any user of the device.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use transload_hal::{ErrorClass, Fault, run_callback};

use crate::device::Gpu;
use crate::storage::{WORD, failed};

/// How long it waits for word of a mapping before it looks again: another thread that looks, a user's own,
/// may have taken the word and not passed it on yet.
const A_MOMENT: Duration = Duration::from_millis(10);

/// As a rule the first look tells.
const EAGER: u32 = 16;

/// So many moments, ten seconds, after which an idle buffer must have been mapped.
const MOST_LOOKS: u32 = 1000;

/// What a look did not find.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unseen {
    /// It is not over yet.
    NotYet,
    /// The device was never given such a submission, or was lost before.
    NoSuch {
        /// The number that was asked for.
        number: u64,
        /// The last one that there is.
        last: u64,
    },
    /// The device is gone.
    Lost(Fault),
}

impl Gpu {
    /// As `wgpu::Device::poll`, and never panics. wgpu does when the driver gives up a device that is
    /// being waited for; and it runs callbacks of the user's on whichever thread looks.
    ///
    /// No look has a time limit: a wait that runs out of time panics in wgpu-core 30 where another thread polls or submits and
    /// finds the queue empty just then, and callbacks are dropped uncalled.
    pub(crate) fn look(&self, how: wgpu::PollType) -> Result<(), Unseen> {
        // Callbacks of the user's run in here. Unwound: wgpu holds none of its locks when it calls back, nor when it gives up.
        let poll = || {
            catch_unwind(AssertUnwindSafe(|| {
                run_callback(|| self.device.poll(how.clone()))
            }))
        };
        // A driver that has given up says so again. A callback of the user's that panicked does not: then
        // what is looked for may be under way, even if the device is lost to its user.
        match poll().or_else(|_| poll()) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(wgpu::PollError::Timeout)) => Err(Unseen::NotYet),
            Ok(Err(wgpu::PollError::WrongSubmissionIndex(number, last))) => {
                Err(Unseen::NoSuch { number, last })
            }
            Err(_) => match self.probe() {
                Err(fault) => Err(Unseen::Lost(fault)),
                // A callback that is none of ours.
                Ok(()) => Err(Unseen::NotYet),
            },
        }
    }

    /// Finds out whether the device still takes work, without having to be told: the one callback that
    /// wgpu has for that is the user's. Does not poll, and waits for nothing.
    ///
    /// A lost device gives out buffers that are none and says nothing of it. One that is mapped at creation shows that.
    pub(crate) fn probe(&self) -> Result<(), Fault> {
        if let Some(fault) = self.lost.get() {
            return Err(fault.clone());
        }
        let descriptor = wgpu::BufferDescriptor {
            label: Some("transload probe"),
            size: WORD,
            usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: true,
        };
        let (made, errors) = self.scoped(|| {
            let buffer = self.device.create_buffer(&descriptor);
            buffer.get_mapped_range_mut(..).is_ok()
        });
        match made || errors.is_some() {
            true => Ok(()),
            false => Err(self.note_loss()),
        }
    }

    /// Returns the loss of the device if the device is lost, else `fault`. The fault may be the first sign of a loss: wgpu
    /// then reports a different error.
    pub(crate) fn blame(&self, fault: Fault) -> Fault {
        self.probe().err().unwrap_or(fault)
    }

    /// Maps the whole of a buffer that no command uses. Blocks until the buffer is mapped, which no work delays.
    pub(crate) fn map_idle(&self, buffer: &wgpu::Buffer, mode: wgpu::MapMode) -> Result<(), Fault> {
        let (tell, told) = mpsc::sync_channel(1);
        buffer.map_async(mode, .., move |result| {
            let _ = tell.try_send(result);
        });
        for looks in 0..MOST_LOOKS {
            let patience = match looks {
                ..EAGER => Duration::ZERO,
                _ => A_MOMENT,
            };
            match self.look(wgpu::PollType::Poll) {
                Err(Unseen::Lost(fault)) => return Err(fault),
                // Heard, or on its way on another thread that looked, or not found yet.
                _ => match told.recv_timeout(patience) {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(error)) => return Err(self.blame(failed(&error))),
                    // Another user's callback panicked before ours was called, but the buffer is mapped: the caller checks
                    // that.
                    Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                },
            }
        }
        self.probe()?;
        Err(failed(&"the driver does not map a buffer that nobody uses"))
    }

    /// The device took no work.
    pub(crate) fn note_loss(&self) -> Fault {
        let fault = || Fault::new(ErrorClass::Lost, "the device takes no more work");
        self.lost.get_or_init(fault).clone()
    }
}
