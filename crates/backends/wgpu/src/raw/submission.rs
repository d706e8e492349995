//! The numbers of submissions, which wgpu does not show.

use std::time::Duration;

/// The number of a submission. A device counts its own from 1.
pub(crate) fn number_of(index: &wgpu::SubmissionIndex) -> u64 {
    // SAFETY: the type is a structure of one `u64` (wgpu 30, `api/queue.rs`), and any number is a value of either.
    unsafe { std::mem::transmute::<wgpu::SubmissionIndex, u64>(index.clone()) }
}

/// The number of the last submission that a device took. Does not wait, and runs no callbacks: wgpu-core first refuses to
/// wait for a number that it has not given out, and its error contains the last number.
pub(crate) fn last_submission(device: &wgpu::Device) -> Option<u64> {
    // SAFETY: as above.
    let none = unsafe { std::mem::transmute::<u64, wgpu::SubmissionIndex>(u64::MAX) };
    match device.poll(wgpu::PollType::Wait {
        submission_index: Some(none),
        timeout: Some(Duration::ZERO),
    }) {
        Err(wgpu::PollError::WrongSubmissionIndex(_, last)) => Some(last),
        _ => None,
    }
}
