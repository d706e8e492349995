//! Callbacks for the end of the user's own submissions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use transload_hal::run_callback;

use super::{Queue, Waiting};
use crate::device::Wgpu;
use crate::exit::Inside;
use crate::raw;
use crate::watch::WatchError;

/// A submission of the user's, and what to call when it is over.
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
    /// over: done, or lost with the device. Meant for `transload::Event::setter`, so that a transfer can start
    /// after the user's own work:
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
    /// A transfer to or from a buffer of the same device needs none of this: it takes effect behind
    /// everything that was submitted to the device before, in the same queue, or by the host once that
    /// queue has run dry. It is needed where a transfer touches something else that the submission
    /// makes true: the memory of another device, a file, anything that a callback of the user's fills.
    ///
    /// The other way round nothing is promised of a submission that the user makes while a transfer is
    /// under way: a transfer may still wait for others, for slots, for the host's threads, before its
    /// commands are in the queue. A submission sees the bytes of every transfer that was *over* when
    /// it was made: wait for the transfer, poll it, or look at its `then`.
    ///
    /// # Where it runs
    /// On the device's own thread, on one that waits for a transfer of the device, or here and now when
    /// the submission is over already. It must not block, nor wait for a transfer: transfers of this
    /// device end on the thread that it runs on. The library refuses to wait there
    /// (`TransferError::WouldBlock`). Nothing polls on a tick meanwhile, and the user may poll the device, or not.
    /// Callbacks of the user's own that are due may run here, as in every look at a device.
    ///
    /// # Errors
    /// When the device is none of this backend's or is lost, or has no such submission. A number that
    /// another device gave out and this one knows, too, cannot be told from its own: `then` is called
    /// when the submission of that number is over.
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
