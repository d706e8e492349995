//! Makes the user's streams wait for submissions of this backend.

use transload_hal::Fence;

use super::error::StreamError;
use super::lane::Order;
use crate::device::Cuda;
use crate::ids::BACKEND;
use crate::raw::CUstream;

impl Cuda {
    /// Makes the user's stream wait, on the device, until submissions of this backend are over: later work in the stream
    /// sees their bytes. No thread waits. `transload::Transfer::fences` gives a transfer's fences, once all of it has
    /// been submitted:
    ///
    /// ```no_run
    /// # fn example(cuda: &transload_cuda::Cuda, stream: transload_cuda::raw::CUstream,
    /// #     fences: Option<Vec<transload_hal::Fence>>, wait: impl FnOnce())
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// match fences {
    ///     // SAFETY: the stream is there.
    ///     Some(fences) => unsafe { cuda.follow(stream, &fences) }?,
    ///     None => wait(),
    /// }
    /// // Launch kernels in the stream.
    /// # Ok(()) }
    /// ```
    ///
    /// If a submission fails or its device is lost, the stream still goes on, as after a failed copy of its own; the
    /// transfer reports the error.
    ///
    /// # What it does not do
    /// The stream does not wait for work that has not been submitted, because no way to do that is sound. A host
    /// function that waits may keep other host functions from running, and must not wait for work that is not before it
    /// (CUDA Driver API, cuLaunchHostFunc). The driver does not see the order that a wait on a word of memory makes, so
    /// it may put the awaited copies behind the waiting stream (cuStreamWaitValue32). Both can deadlock. The driver sees
    /// events, and the work before an event has been submitted. For a transfer that has work left to submit, because it
    /// waits for others or is staged in several steps, a thread or a task must wait and give the stream its work after
    /// that.
    ///
    /// # Errors
    /// If a fence belongs to another backend, or only a thread can wait for it; if the stream is being captured; if its
    /// context or the fence's device is lost; or if the driver refuses. The stream may then wait for some of the fences.
    ///
    /// # Safety
    /// The stream belongs to this backend's driver, and is not destroyed before the call has returned.
    pub unsafe fn follow(&self, stream: CUstream, fences: &[Fence]) -> Result<(), StreamError> {
        if let Some(fence) = fences.iter().find(|fence| fence.backend() != BACKEND) {
            let fence = format!("{fence:?}");
            return Err(StreamError::ForeignFence { fence });
        }
        // SAFETY: the caller's promise.
        let user_stream = unsafe { self.user_stream(stream) }?;
        for fence in fences.iter().filter(|fence| !fence.is_immediate()) {
            let Some(lane) = self.lane(*fence) else {
                continue;
            };
            if let Some(fault) = lane.shared.context.lost() {
                let fault = fault.clone();
                return Err(StreamError::Lost { fault });
            }
            // SAFETY: as above.
            match unsafe { lane.order_behind(fence.sequence(), stream) } {
                Ok(Order::Given | Order::Settled) => {}
                Ok(Order::OfThreads) => {
                    let fence = format!("{fence:?}");
                    return Err(StreamError::NoEvent { fence });
                }
                Err(error) => return Err(user_stream.refusal(error)),
            }
        }
        Ok(())
    }
}
