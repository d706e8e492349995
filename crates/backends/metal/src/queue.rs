//! Submission and completion.
//!
//! Each device has a few lanes, a command queue each, so that what goes to it, what comes from it and what stays within
//! it do not wait for each other. A submission is one command buffer, whose callback tells the engine.

mod flight;
mod lane;
mod moves;
mod texels;
mod user;
mod write;

pub(crate) use lane::Lane;
pub(crate) use moves::{End, HostOperand, Move, Own, Reason};
pub use user::EventError;

use transload_hal::{Fence, MemoryKind};

/// What a lane of a device is for. The number is the device's copy engine that serves it, as links name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// From the host's memory to the device's.
    In,
    /// The other way round.
    Out,
    /// From one sort of memory to the same.
    Within,
    /// No copies between buffers: what the host is going to look at.
    Visible,
}

impl Way {
    /// Every way, in the order of declaration.
    pub(crate) const ALL: [Way; 4] = [Way::In, Way::Out, Way::Within, Way::Visible];

    /// The way between two memories of which one at least is a device's.
    pub(crate) fn between(src: MemoryKind, dst: MemoryKind) -> Way {
        let is_near = |kind| matches!(kind, MemoryKind::Device | MemoryKind::Managed);
        match (is_near(src), is_near(dst)) {
            (false, true) => Way::In,
            (true, false) => Way::Out,
            _ => Way::Within,
        }
    }
}

/// The number of a lane within the backend.
const fn lane_number(gpu: usize, way: Way) -> u64 {
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
    use crate::types::BACKEND;

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

    #[test]
    fn what_lies_in_the_hosts_memory_goes_in_and_comes_out() {
        use MemoryKind::{Device, Managed, Mapped, Pageable};
        assert_eq!(Way::between(Pageable, Device), Way::In);
        assert_eq!(Way::between(Mapped, Managed), Way::In);
        assert_eq!(Way::between(Device, Mapped), Way::Out);
        assert_eq!(Way::between(Pageable, Mapped), Way::Within);
        assert_eq!(Way::between(Device, Managed), Way::Within);
    }
}
