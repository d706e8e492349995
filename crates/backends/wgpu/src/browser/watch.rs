//! Callbacks for the end of the page's own submissions.

use super::once::once;
use crate::device::Wgpu;
use crate::watch::WatchError;

impl Wgpu {
    /// Calls `then` once all that was submitted to `device` before this call is over, the submission `index` with
    /// it: done, or lost with the device. Meant for `transload::Event::setter`, so that a transfer can start
    /// after the page's own work. The browser does not number submissions, so this watches the last one.
    ///
    /// A transfer to or from a buffer of the same device needs none of this: it takes effect behind everything
    /// that was submitted to the device before. It runs in a task of the page's, after the caller has returned
    /// to the browser.
    ///
    /// # Errors
    /// When the device is none of this backend's or is lost.
    pub fn when_done(
        &self,
        device: &wgpu::Device,
        _index: wgpu::SubmissionIndex,
        then: impl FnOnce() + 'static,
    ) -> Result<(), WatchError> {
        let gpu = self.gpu_of(device).ok_or(WatchError::UnknownDevice {
            devices: self.len(),
        })?;
        if let Some(fault) = gpu.lost.get() {
            return Err(WatchError::Lost {
                device: gpu.id,
                fault: fault.clone(),
            });
        }
        let (tell, over) = once();
        gpu.queue.on_submitted_work_done(move || tell.tell(()));
        wasm_bindgen_futures::spawn_local(async move {
            over.await;
            then();
        });
        Ok(())
    }
}
