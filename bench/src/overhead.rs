//! `overhead`: the time that Transload adds to the work itself.

mod allocations;
pub(crate) mod features;
mod post;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("overhead/post-4KiB", post::run),
        Case::new("overhead/allocations-host", allocations::on_the_host),
        Case::new("overhead/allocations-sim", allocations::on_the_sim),
        Case::new("overhead/features", features::run),
    ]
}
