//! Callbacks for the end of the user's own submissions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use transload_hal::run_callback;

use super::{Queue, Waiting};
use crate::device::Wgpu;
use crate::exit::Inside;
use crate::raw;
use crate::watch::WatchError;

/// A submission of the user, and the callback for its end.
pub(super) struct Watch {
    pub(super) index: wgpu::SubmissionIndex,
    then: Box<dyn FnOnce() + Send>,
    inside: Inside,
}

impl Watch {
    pub(super) fn tell(self) {
        // The callback may end the process.
        drop(self.inside);
        // A panic in one callback must not keep the other callbacks from running.
        let _ = catch_unwind(AssertUnwindSafe(|| run_callback(self.then)));
    }
}

impl Wgpu {
    /// Calls `then` once the user's submission `index` to `device`, and with it all the device's earlier ones, is
    /// over: done, or lost with the device. Use it with `transload::Event::setter` to start a transfer after the
    /// user's own work:
    ///
    /// ```no_run
    /// # fn example(wgpu: &transload_wgpu::Wgpu, device: wgpu::Device, queue: wgpu::Queue)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// # let commands = [];
    /// let index = queue.submit(commands);
    /// let (tell, told) = std::sync::mpsc::channel();
    /// wgpu.when_done(&device, index, move || tell.send(()).unwrap_or_default())?;
    /// told.recv()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # When it is needed
    /// A transfer to or from a buffer of the same device does not need this call. Such a transfer takes effect
    /// after everything that was submitted to the device before: in the same queue, or by the host once that queue
    /// is empty. The call is needed if a transfer depends on another effect of the submission: on memory of
    /// another device, a file, or anything that a callback of the user fills.
    ///
    /// In the other direction there is no order between a transfer under way and a submission that the user makes
    /// meanwhile: the transfer may still wait for other transfers, slots or the host's threads before its commands
    /// are in the queue. A submission sees the bytes of every transfer that was *over* when the submission was
    /// made: wait for the transfer, poll it, or use its `then`.
    ///
    /// # Where it runs
    /// `then` runs on the device's own thread, on a thread that waits for a transfer of the device, or during this
    /// call if the submission is already over. It must not block or wait for a transfer, because transfers of this
    /// device end on the thread that it runs on; the library refuses to wait there (`TransferError::WouldBlock`).
    /// The backend does not poll periodically, and the user need not poll the device. Callbacks of the user that
    /// are due may run during this call, as in every poll of a device.
    ///
    /// # Errors
    /// If the device does not belong to this backend, is lost, or has no such submission. An index of another
    /// device is not detected if this device has a submission of the same number: `then` is then called when that
    /// submission is over.
    pub fn when_done(
        &self,
        device: &wgpu::Device,
        index: wgpu::SubmissionIndex,
        then: impl FnOnce() + Send + 'static,
    ) -> Result<(), WatchError> {
        let queue = self.queue_of(device).ok_or(WatchError::UnknownDevice {
            devices: self.len(),
        })?;
        queue.watch(index, Box::new(then))
    }
}

impl Queue {
    fn watch(
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
}
