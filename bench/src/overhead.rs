//! `overhead`: the time that Transload adds to the work itself.

mod allocations;
pub(crate) mod features;
mod learning;
mod post;

use crate::case::{Case, Effort};

pub(crate) fn cases(effort: Effort) -> Vec<Case> {
    let mut cases = vec![
        Case::new("overhead/post-4KiB", post::run),
        Case::new("overhead/learning-64B", learning::run),
        Case::new("overhead/allocations-host", allocations::on_the_host),
        Case::new("overhead/allocations-sim", allocations::on_the_sim),
    ];
    // It builds the program a second time, which alone can take minutes.
    if !effort.quick {
        cases.push(Case::new("overhead/features", features::run));
    }
    cases
}
