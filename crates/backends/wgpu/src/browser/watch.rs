//! Callbacks for the end of the page's own submissions.

use super::device::Wgpu;
use super::once::once;
use crate::watch::WatchError;

impl Wgpu {
    /// Calls `then` once everything that was submitted to `device` before this call, including the submission
    /// `index`, is over: done, or lost with the device. Use it with `transload::Event::setter` to start a
    /// transfer after the page's own work. The browser does not number submissions, so this watches the last one.
    ///
    /// A transfer to or from a buffer of the same device does not need this call: it takes effect after
    /// everything that was submitted to the device before. `then` runs in a task of the page, after the caller
    /// has returned to the browser.
    ///
    /// # Errors
    /// If the device does not belong to this backend or is lost.
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
