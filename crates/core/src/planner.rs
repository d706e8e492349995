//! Makes plans from a topology: lists every route, its cost as a function of size, and the cheapest route for each
//! range of sizes.
//!
//! A planning is a pure function of its arguments, in three parts:
//! 1. **Survey.** The planner picks the links that can be part of a way from source to destination, and lists every way
//!    over one, two or three of them; all memories but the ends are staging memories. Of more than 4096 ways the shorter
//!    ones stay. A way is flawed, and not considered further, when a link of it is barred or does not support gaps, or
//!    there is no room for its slots.
//! 2. **Contest.** Each way enters with its cost as a function of size: in a single chunk (step after step), and in
//!    chunks of each power of two that has room (the pipeline rule). The best ways that share no engine enter together
//!    as well. The lower envelope of all those lines tells which contender wins from which byte on.
//! 3. **Plans.** Only winners are built. The rest stays a list of numbers, from which reasons and alternatives are
//!    computed on request.
//!
//! The rule for pipelines and the idea to compare cost lines per range of sizes are those by which UCX selects its
//! protocols; the code and the integers are our own.

mod assemble;
mod contest;
mod envelope;
mod key;
mod lanes;
mod pipeline;
mod reach;
mod reason;
mod set;
mod survey;
mod way;

pub use key::{Form, Limits, PlanKey, Purpose};
pub(crate) use pipeline::loaded_ns;
pub use reason::{Barred, NoPlan, Reason, Rejected};
pub use set::PlanSet;

use crate::{LinkId, Topology};

/// Makes plans for every size, over the links of `topology` for which `barred` returns no reason.
///
/// Deterministic: equal arguments give equal sets. Of two plans that cost the same the one with fewer
/// passes is taken, then the one whose links are listed earlier, then the one with smaller chunks.
/// `barred` is asked at most once for each link, and only for links that could be part of a route.
///
/// # Errors
/// [`NoPlan::UnknownMemory`] when the topology lacks the source or the destination;
/// [`NoPlan::NoRoute`], with every route and what is wrong with it, when none can be taken.
pub fn plan(
    topology: &Topology,
    key: &PlanKey,
    limits: &Limits,
    barred: &dyn Fn(LinkId) -> Option<Barred>,
) -> Result<PlanSet, NoPlan> {
    let survey = survey::Survey::new(topology, key, limits, barred)?;
    let won = contest::contest(&survey);
    if won.is_empty() {
        return Err(NoPlan::NoRoute {
            src: survey.key.src,
            dst: survey.key.dst,
            rejected: survey.all_rejected(),
        });
    }
    Ok(PlanSet::new(survey, won))
}

#[cfg(test)]
mod tests;
