//! What a flight tells of the legs behind it.

use alloc::sync::Arc;

use super::{Flight, Tried};
use crate::{Instant, Plan};

impl Flight {
    /// Returns the plan whose leg moved the payload's last byte; `None` before.
    pub fn copied_by(&self) -> Option<&Arc<Plan>> {
        self.copied.as_ref()
    }

    /// Returns when the last byte was known to have arrived; `None` before. What follows reads both ends again.
    pub fn copied_at(&self) -> Option<Instant> {
        self.copied_at
    }

    /// Returns the trial that went before the rest of the payload, once its bytes have arrived.
    pub fn tried(&self) -> Option<&Tried> {
        self.tried.as_ref()
    }

    /// Returns for each lane of the leg how many nanoseconds it took, to `now` if it is not done: from the request for slots to
    /// the last byte.
    pub fn lane_times(&self, now: Instant) -> impl Iterator<Item = u64> + '_ {
        let ends = self.leg.ends(now);
        ends.map(|end| end.since_ns(self.leg_begun))
    }

    /// Returns how many legs were begun: 1 unless a trial went first, routes failed, or the copy is verified.
    pub fn legs(&self) -> u32 {
        self.legs
    }
}
