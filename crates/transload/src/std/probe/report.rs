//! What a probe is asked, and what it answers.

use std::time::Duration;

use transload_core::{LinkId, MemoryId, Method};

use super::fresh::FreshMemory;
use super::sample::Interval;
use crate::std::profile::Profile;

/// The sizes and limits of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeOptions {
    /// The limit of the probe's duration by the wall clock. Measurements that were not reached by then are left out,
    /// the largest sizes first; a link that was not measured to the end keeps its default costs.
    pub budget: Duration,
    /// The sizes in bytes. The probe measures a link up to the largest piece that the planner cuts for it.
    pub sizes: Vec<u64>,
    /// The most times of one size over one link, up to 1000. A time is the mean of up to 64 copies, as many as fill 0.2 ms.
    pub samples: u32,
}

/// The results of a probe.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ProbeReport {
    /// Every link, in the topology's order.
    pub links: Vec<LinkReport>,
    /// Every ordered pair of memories that users can name, in each size, by source, destination and size.
    pub pairs: Vec<PairReport>,
    /// What new memory of each kind costs before its bytes move as fast as later ones.
    pub fresh: Vec<FreshMemory>,
    /// The costs that the planner uses from now on. Save it to use them in later processes.
    pub profile: Profile,
    /// Whether a device is simulated: its times are the model's then.
    pub simulated: bool,
}

/// The results of a probe for a link.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LinkReport {
    /// The link.
    pub id: LinkId,
    /// The link moved wrong bytes. It gets no cost, and is not used any more.
    pub faulty: bool,
    /// Each size in bytes, rising, and its result.
    pub sizes: Vec<(u64, Found)>,
}

/// The results of a probe for a pair of memories.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PairReport {
    /// The source of the bytes.
    pub src: MemoryId,
    /// Their destination.
    pub dst: MemoryId,
    /// Their number.
    pub bytes: u64,
    /// How the bytes moved; `None` where they did not.
    pub method: Option<Method>,
    /// The result.
    pub found: Found,
}

/// The result of copies of one size.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Found {
    /// The bytes were right, and the copies took this time.
    Time(Interval),
    /// The bytes that arrived were not those that were sent.
    WrongBytes,
    /// Nothing could be copied, for this reason.
    Failed(String),
    /// The time was up before the size was reached.
    NotReached,
}

/// The progress of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeProgress {
    /// The current phase.
    pub phase: ProbePhase,
    /// How much of the budget has passed.
    pub elapsed: Duration,
    /// The whole budget.
    pub budget: Duration,
}

/// The parts of a probe, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbePhase {
    /// Sends a pattern over each link.
    CheckingLinks,
    /// Times each link.
    TimingLinks,
    /// Times allocations, and the first copies into them.
    TimingFreshMemory,
    /// Sends a pattern between each two memories.
    CheckingPairs,
    /// Times each pair of memories.
    TimingPairs,
}
