//! What completed transfers teach about the cost of routes, and when to try another one.

use alloc::sync::Arc;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::correction::scaled_ns;
use crate::{Compared, Correction, LinkId, Plan, PlanKey, PlanSet, Route};

/// Corrections of routes, from transfers that had the machine to themselves.
///
/// Each route keeps the last five of its times by power of two of the size, as factors of the predicted time. The median
/// of three or more becomes the route's [`Correction`] once it differs from the one in force by a quarter; one late
/// transfer changes no median. Now and then the leading bytes of a transfer go over another route, so that a route that
/// became faster is found: see [`Learning::trial`].
#[derive(Clone, Debug, Default)]
pub struct Learning {
    routes: HashMap<RouteKey, Sizes>,
    pairs: HashMap<PlanKey, Pair>,
}

/// A route to try, and how many leading bytes of the payload should go over it.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The route's plan.
    pub plan: Arc<Plan>,
    /// The leading bytes, from 1 to the payload's length.
    pub bytes: u64,
}

/// The links of a lane; three is the most.
type RouteKey = [Option<LinkId>; 3];

#[derive(Clone, Debug)]
struct Sizes {
    classes: [Class; CLASSES],
}

/// Sizes from 2^18 bytes up, the last one without an end.
const CLASSES: usize = 16;
const FIRST_LOG2: u32 = Learning::FROM_BYTES.ilog2();

#[derive(Clone, Copy, Debug)]
struct Class {
    /// The last factors, in parts of [`Correction::ONE`].
    recent: [u32; 5],
    /// How many there were, up to all of them, and the place of the next one.
    count: u8,
    next: u8,
    /// The factor in the correction.
    in_force: u32,
}

/// When to try another route between two memories.
#[derive(Clone, Debug)]
struct Pair {
    /// The plans that the others are of.
    plans: Arc<PlanSet>,
    /// One plan for each other route, so that a trial makes none.
    others: Vec<Arc<Plan>>,
    /// A hundredth of the time of the transfers so far, less what trials took longer.
    credit_ns: u64,
    /// The transfers until the next look for a route to try, and between two looks.
    left: u32,
    pause: u32,
    /// The place of the next route among the others.
    next: usize,
    /// What the bytes of the last trial would have taken over the route that was planned.
    planned_ns: u64,
}

/// The factor by which predictions may be off before they are corrected.
const TOLERANCE: (u64, u64) = (5, 4);
/// The most routes and pairs of memories that are told apart. Further ones stay as they are.
const MOST: usize = 256;
/// Transfers between two looks at first, and at most.
const PAUSES: (u32, u32) = (8, 32);
/// Trials may take this part of the transfers' time.
const PART: u64 = 100;
/// Credit for a trial that goes very wrong, not for many.
const MOST_CREDIT_NS: u64 = 100_000_000;

impl Learning {
    /// Transfers of fewer bytes teach nothing: noting them would take longer than a plan for them could save.
    pub const FROM_BYTES: u64 = 256 << 10;

    /// Nothing learned.
    pub fn new() -> Learning {
        Learning::default()
    }

    /// Notes that a transfer of `bytes` bytes, or a part of it, took `ns` nanoseconds over a lane where the costs of the
    /// lane's links predict `predicted_ns`. Returns the route's new correction if it changes.
    pub fn record(
        &mut self,
        route: &Route,
        bytes: u64,
        predicted_ns: u64,
        ns: u64,
    ) -> Option<Correction> {
        let sizes = self.sizes(route)?;
        let class = bytes.max(1).ilog2().saturating_sub(FIRST_LOG2) as usize;
        let factor = Correction::factor(predicted_ns, ns);
        let changed = sizes.classes[class.min(CLASSES - 1)].record(factor);
        changed.then(|| sizes.correction())
    }

    /// Notes that a transfer between two memories took `ns` nanoseconds.
    pub fn earn(&mut self, key: PlanKey, ns: u64) {
        if let Some(pair) = self.pairs.get_mut(&key) {
            pair.credit_ns = (pair.credit_ns + ns / PART).min(MOST_CREDIT_NS);
        }
    }

    /// Notes that the last trial between two memories took `ns` nanoseconds.
    pub fn charge(&mut self, key: PlanKey, ns: u64) {
        if let Some(pair) = self.pairs.get_mut(&key) {
            let lost_ns = ns.saturating_sub(pair.planned_ns);
            pair.credit_ns = pair.credit_ns.saturating_sub(lost_ns);
            if ns < pair.planned_ns {
                // It may win: the median needs more of it.
                (pair.left, pair.pause) = (1, PAUSES.0);
                pair.next = pair.next.wrapping_sub(1);
            }
        }
    }

    /// Returns a route to try with the leading bytes of a transfer, rarely. To be asked before each transfer: with new plans
    /// it notes the other routes, and later it allocates nothing.
    ///
    /// The other routes take turns, among those that `fits` accepts and whose uncorrected time is less than twice the
    /// chosen one's. An eighth of the payload goes over it, four chunks at least if that is at most a quarter; never more than what keeps the time
    /// lost in trials at a hundredth of the transfers' time, as far as it can be predicted.
    pub fn trial(
        &mut self,
        plans: &Arc<PlanSet>,
        bytes: u64,
        fits: impl Fn(&Plan) -> bool,
    ) -> Option<Trial> {
        let pair = self.pair(plans, bytes)?;
        pair.left = pair.left.saturating_sub(1);
        if pair.left > 0 {
            return None;
        }
        pair.pause = (pair.pause * 2).min(PAUSES.1);
        pair.left = pair.pause;
        let chosen = plans.choose(bytes);
        let chosen_ns = chosen.estimate_ns(bytes);
        let may_win = |plan: &&Arc<Plan>| {
            let best_ns = plan.uncorrected_ns(bytes).min(plan.estimate_ns(bytes));
            let is_taken = plan.links().eq(chosen.links());
            !is_taken && best_ns < chosen_ns.saturating_mul(2) && fits(plan)
        };
        let others = || pair.others.iter().filter(may_win);
        let place = pair.next.checked_rem(others().count())?;
        let plan = Arc::clone(others().nth(place)?);
        pair.next = pair.next.wrapping_add(1);
        let chunks = match plan.is_one_pass() {
            true => 0,
            false => plan.chunk_bytes().saturating_mul(4),
        };
        // Of a payload of few chunks a quarter.
        let chunks = chunks.min(bytes / 4);
        let part = (bytes / 8).max(chunks).next_multiple_of(4096).min(bytes);
        pair.planned_ns = scaled_ns(chosen_ns, part, bytes);
        let lost_ns = plan.estimate_ns(part).saturating_sub(pair.planned_ns);
        (lost_ns <= pair.credit_ns).then_some(Trial { plan, bytes: part })
    }

    /// Forgets all.
    pub fn forget(&mut self) {
        self.routes.clear();
        self.pairs.clear();
    }

    /// Returns what is known of two memories, for which those plans are in force.
    fn pair(&mut self, plans: &Arc<PlanSet>, bytes: u64) -> Option<&mut Pair> {
        let key = *plans.key();
        let known = self.pairs.get(&key);
        if known.is_none() && self.pairs.len() >= MOST {
            return None;
        }
        if !known.is_some_and(|pair| Arc::ptr_eq(&pair.plans, plans)) {
            let all = plans.alternatives(bytes);
            let others: Vec<_> = all.filter(|plan| plan.lanes.len() == 1).collect();
            for route in others
                .iter()
                .filter_map(|plan| plan.lanes[0].route.as_ref())
            {
                // There is room for what their transfers teach.
                let _ = self.sizes(route);
            }
            let pair = self.pairs.entry(key).or_insert_with(|| Pair::new(plans));
            (pair.plans, pair.others) = (Arc::clone(plans), others);
        }
        self.pairs.get_mut(&key)
    }

    /// Returns what is known of a route.
    fn sizes(&mut self, route: &Route) -> Option<&mut Sizes> {
        let mut key = [None; 3];
        for (place, link) in key.iter_mut().zip(route.links()) {
            *place = Some(link.id);
        }
        if self.routes.len() >= MOST && !self.routes.contains_key(&key) {
            return None;
        }
        Some(self.routes.entry(key).or_insert(Sizes {
            classes: [Class::NEW; CLASSES],
        }))
    }
}

impl Pair {
    fn new(plans: &Arc<PlanSet>) -> Pair {
        Pair {
            plans: Arc::clone(plans),
            others: Vec::new(),
            credit_ns: 0,
            left: PAUSES.0,
            pause: PAUSES.0,
            next: 0,
            planned_ns: 0,
        }
    }
}

impl Sizes {
    fn correction(&self) -> Correction {
        let known = |(at, class): (usize, &Class)| {
            let bytes = 1u64 << (FIRST_LOG2 + at as u32);
            let factor = u64::from(class.in_force);
            let known = usize::from(class.count) >= Class::ENOUGH;
            known.then(|| Compared::new(bytes + bytes / 2, u64::from(Correction::ONE), factor))
        };
        let mut known: Vec<Compared> = self.classes.iter().enumerate().filter_map(known).collect();
        // What is known of large copies says nothing about those of a sixteenth.
        if let Some(first) = known.first() {
            known.push(Compared::new(first.bytes / 16, 1, 1));
        }
        Correction::new(&known)
    }
}

impl Class {
    const NEW: Class = Class {
        recent: [0; 5],
        count: 0,
        next: 0,
        in_force: Correction::ONE,
    };

    /// The fewest samples that decide.
    const ENOUGH: usize = 3;

    /// Returns whether the factor in force changes.
    fn record(&mut self, factor: u32) -> bool {
        let len = self.recent.len();
        self.recent[usize::from(self.next)] = factor;
        self.next = (self.next + 1) % len as u8;
        self.count = (self.count + 1).min(len as u8);
        let count = usize::from(self.count);
        if count < Class::ENOUGH {
            return false;
        }
        let mut sorted = self.recent;
        let sorted = &mut sorted[..count];
        sorted.sort_unstable();
        let median = sorted[count / 2];
        if is_near(median, self.in_force) {
            return false;
        }
        self.in_force = match is_near(median, Correction::ONE) {
            true => Correction::ONE,
            false => median,
        };
        true
    }
}

fn is_near(a: u32, b: u32) -> bool {
    let (more, less) = (u64::from(a.max(b)), u64::from(a.min(b)));
    more * TOLERANCE.1 <= less * TOLERANCE.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(class: &mut Class, factors: &[u32]) -> Vec<u32> {
        let changed = factors.iter().filter(|factor| class.record(**factor));
        changed.copied().collect()
    }

    #[test]
    fn three_of_five_transfers_change_a_factor_and_one_late_one_does_not() {
        let mut class = Class::NEW;
        assert!(run(&mut class, &[1000, 1040, 16_384, 1020, 1030]).is_empty());
        assert_eq!(run(&mut class, &[10_240, 10_240, 10_240]), [10_240]);
        assert_eq!(class.in_force, 10_240);
        assert_eq!(run(&mut class, &[1050, 1024, 900]), [900]);
        assert_eq!(class.in_force, Correction::ONE);
    }

    #[test]
    fn what_was_predicted_within_a_quarter_is_not_corrected() {
        let mut class = Class::NEW;
        assert!(run(&mut class, &[1280, 1270, 1260, 820, 830]).is_empty());
    }

    #[test]
    fn a_factor_holds_for_sizes_near_those_seen_and_larger_ones() {
        let mut sizes = Sizes {
            classes: [Class::NEW; CLASSES],
        };
        let class = &mut sizes.classes[8];
        assert_eq!(run(class, &[4096; 3]).len(), 1);
        let correction = sizes.correction();
        let at = |log2: u32| correction.at(1 << log2);
        assert_eq!([at(26), at(27), at(40)], [4096; 3]);
        assert_eq!([at(12), at(20), at(23)], [Correction::ONE; 3]);
    }
}
