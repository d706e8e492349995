//! Submission and completion.
//!
//! Each device has a few lanes, a stream each, so that what goes to it, what comes from it and what stays within it
//! do not wait for each other. A submission goes into one lane, and an event after it marks its end.

mod batch;
mod enqueue;
mod error;
mod follow;
mod hint;
mod join;
mod lane;
mod moves;
mod operand;
mod overlap;
mod pitched;
mod relay;
mod serve;
mod user;
mod watch;

pub(crate) use batch::LARGEST as LARGEST_IN_BATCH;
pub use error::StreamError;
pub(crate) use join::joined;
pub(crate) use lane::{Lane, Sink};
pub(crate) use moves::Move;
pub(crate) use relay::Relays;

use transload_hal::Fence;

/// The direction of a lane's copies. The number is the device's copy engine that serves the lane, as links name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// From the host to the device.
    In,
    /// From the device to the host.
    Out,
    /// Within the device.
    Within,
    /// From the device to others.
    Across,
    /// No copies: waits for all work of the device.
    Visible,
}

impl Way {
    /// Every way, in the order of declaration.
    pub(crate) const ALL: [Way; 5] = [Way::In, Way::Out, Way::Within, Way::Across, Way::Visible];
}

/// The number of a lane within the backend.
pub(crate) const fn lane_number(gpu: usize, way: Way) -> u64 {
    (gpu * Way::ALL.len() + way as usize) as u64
}

/// The device, by its position, and the lane of a fence.
pub(crate) fn lane_of(fence: Fence) -> (usize, Way) {
    let lane = fence.lane() as usize;
    (lane / Way::ALL.len(), Way::ALL[lane % Way::ALL.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::BACKEND;

    #[test]
    fn a_fence_tells_its_lane_and_its_place_in_it() {
        for gpu in [0, 1, 63, 1000] {
            for way in Way::ALL {
                let fence = Fence::in_lane(BACKEND, lane_number(gpu, way), 77);
                assert_eq!(lane_of(fence), (gpu, way));
                assert_eq!(fence.sequence(), 77);
            }
        }
    }
}
