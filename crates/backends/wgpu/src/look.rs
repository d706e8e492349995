//! Polls a device that may be lost, and whose polls run callbacks of any user of the device.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use transload_hal::{ErrorClass, Fault, run_callback};

use crate::device::Gpu;
use crate::storage::{WORD, failed};

/// How long to wait for a mapping's callback before polling again: another polling thread, such as the user's, may have
/// collected the callback and not called it yet.
const A_MOMENT: Duration = Duration::from_millis(10);

/// The number of polls without a pause; after these the thread waits between polls. The first poll usually succeeds.
const EAGER: u32 = 16;

/// The number of polls, ten seconds in all, after which an idle buffer must have been mapped.
const MOST_LOOKS: u32 = 1000;

/// Why a poll did not find a submission over.
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
    /// Polls as `wgpu::Device::poll` does, but never panics. wgpu panics if the driver gives up a device during a wait. wgpu
    /// also runs the user's callbacks on the polling thread.
    ///
    /// A poll never has a time limit: in wgpu-core 30 a wait that times out panics, and drops callbacks uncalled, if another
    /// thread polls or submits at that moment and finds the queue empty.
    pub(crate) fn look(&self, how: wgpu::PollType) -> Result<(), Unseen> {
        // Callbacks of the user run in here. Unwinding is safe: wgpu holds none of its locks when it calls back, nor when it
        // gives up.
        let poll = || {
            catch_unwind(AssertUnwindSafe(|| {
                run_callback(|| self.device.poll(how.clone()))
            }))
        };
        // A driver that has given up fails again. A user's callback that panicked does not panic again: then the submission
        // may still be under way, even if the device is lost to its user.
        match poll().or_else(|_| poll()) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(wgpu::PollError::Timeout)) => Err(Unseen::NotYet),
            Ok(Err(wgpu::PollError::WrongSubmissionIndex(number, last))) => {
                Err(Unseen::NoSuch { number, last })
            }
            Err(_) => match self.probe() {
                Err(fault) => Err(Unseen::Lost(fault)),
                // A callback of another user.
                Ok(()) => Err(Unseen::NotYet),
            },
        }
    }

    /// Checks whether the device still takes work. wgpu has one callback for a loss, and that belongs to the user. Does not
    /// poll, and does not wait.
    ///
    /// A lost device returns invalid buffers without an error. Creating a buffer mapped shows that it is invalid.
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
                // The callback has run, or is about to run on another polling thread, or the mapping is not done yet.
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
        Err(failed(
            &"the driver does not map a buffer that no operation uses",
        ))
    }

    /// The device took no work.
    pub(crate) fn note_loss(&self) -> Fault {
        let fault = || Fault::new(ErrorClass::Lost, "the device takes no more work");
        self.lost.get_or_init(fault).clone()
    }
}
