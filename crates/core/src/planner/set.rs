//! The answer of the planner: a plan for every size, and the reason against every other route.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::contest::{Pick, alone, best_chunk};
use super::envelope::covers;
use super::survey::Survey;
use super::way::Flaw;
use super::{Barred, PlanKey, Reason, Rejected};
use crate::Plan;
use crate::defaults::MIN_CHUNK_BYTES;

/// The plans for one [`PlanKey`], by size.
///
/// Each size from 0 to 2⁶⁴ - 1 belongs to exactly one range, and each range to the plan that is the
/// cheapest at every size of it. Ranges start where the estimates of two plans cross, to the byte:
/// there are no size classes, so no plan made for one size is ever taken for another.
#[derive(Clone)]
pub struct PlanSet {
    ranges: Vec<(u64, Arc<Plan>)>,
    picks: Vec<Pick>,
    survey: Survey,
}

impl PlanSet {
    /// Builds the plans of the winners, of which there is at least one, from size 0.
    pub(super) fn new(survey: Survey, won: Vec<(u64, Pick)>) -> PlanSet {
        let mut ranges: Vec<(u64, Arc<Plan>)> = Vec::with_capacity(won.len());
        let mut picks: Vec<Pick> = Vec::with_capacity(won.len());
        for (from, pick) in won {
            let twin = picks.iter().position(|other| *other == pick);
            let plan = match twin {
                Some(twin) => ranges[twin].1.clone(),
                None => survey.assemble(&pick),
            };
            ranges.push((from, plan));
            picks.push(pick);
        }
        PlanSet {
            ranges,
            picks,
            survey,
        }
    }

    /// Returns the key of the plans.
    pub fn key(&self) -> &PlanKey {
        &self.survey.key
    }

    /// Returns the plan for `len_bytes` bytes. Allocates nothing.
    pub fn choose(&self, len_bytes: u64) -> &Arc<Plan> {
        &self.ranges[self.range(len_bytes)].1
    }

    /// Returns the plans by the first size that they are for, rising from 0. A plan may have several ranges.
    pub fn ranges(&self) -> &[(u64, Arc<Plan>)] {
        &self.ranges
    }

    /// Returns every plan that could carry `len_bytes` bytes: the chosen one, then each other route with the
    /// chunk that suits it best, the cheapest first. For when a plan fails. Each is built when the
    /// iterator comes to it.
    pub fn alternatives(&self, len_bytes: u64) -> impl Iterator<Item = Arc<Plan>> + '_ {
        let range = self.range(len_bytes);
        let chosen = &self.picks[range];
        let mut others: Vec<_> = (0..self.survey.ways.len())
            .filter(|way| !matches!(chosen, Pick::One { way: taken, .. } if taken == way))
            .filter_map(|way| best_chunk(&self.survey, way, len_bytes).map(|best| (way, best)))
            .collect();
        // Stable: equal ones stay in order.
        others.sort_by(|(_, (a, _)), (_, (b, _))| a.cmp_at(*b, len_bytes));
        let others = others.into_iter();
        let built = others.map(|(way, (_, log2))| self.survey.assemble(&Pick::One { way, log2 }));
        core::iter::once(self.ranges[range].1.clone()).chain(built)
    }

    /// Returns the plans that are worth measuring against each other for `len_bytes` bytes: the chosen one, and each
    /// route in chunks of the size that suits it best, of half and of twice that size. Each is there once; the chosen
    /// one is the first, and the others follow by their estimates.
    pub fn candidates(&self, len_bytes: u64) -> Vec<Arc<Plan>> {
        let chosen = self.range(len_bytes);
        // A chunk of the whole payload is the same as a larger one.
        let whole = len_bytes.max(1).checked_next_power_of_two();
        let whole = whole.unwrap_or(u64::MAX);
        let cut = |log2: u32| whole.min(1 << log2);
        let mut known: Vec<(usize, u64)> = match &self.picks[chosen] {
            Pick::One { way, log2 } => alloc::vec![(*way, cut(*log2))],
            Pick::Several(_) => Vec::new(),
        };
        let mut others = Vec::new();
        for (at, way) in self.survey.ways.iter().enumerate() {
            let Some(((_, best), (smallest, largest))) =
                best_chunk(&self.survey, at, len_bytes).zip(way.chunks.ok())
            else {
                continue;
            };
            let sizes =
                best.saturating_sub(1).max(smallest.into())..=(best + 1).min(largest.into());
            for log2 in sizes {
                if !known.contains(&(at, cut(log2))) {
                    known.push((at, cut(log2)));
                    others.push(self.survey.assemble(&Pick::One { way: at, log2 }));
                }
            }
        }
        others.sort_by_key(|plan| plan.estimate_ns(len_bytes));
        others.insert(0, Arc::clone(&self.ranges[chosen].1));
        others
    }

    /// Returns every route that is in no plan of the set, and why. Computed anew with each call.
    pub fn never_chosen(&self) -> Vec<Rejected> {
        let winners = self.winners();
        let losers = (0..self.survey.ways.len()).filter(|way| !self.wins(*way));
        losers
            .map(|way| self.survey.reject(way, self.lost(way, &winners), None))
            .collect()
    }

    /// Returns every route that the plan for `len_bytes` bytes does not take, with the time that it would
    /// take, and why it is not taken: the fastest first, those that cannot be taken last. Computed anew with each call.
    pub fn rejected(&self, len_bytes: u64) -> Vec<Rejected> {
        let winners = self.winners();
        let range = self.range(len_bytes);
        let chosen_ns = self.ranges[range].1.estimate_ns(len_bytes);
        let losers = (0..self.survey.ways.len()).filter(|way| !self.picks[range].takes(*way));
        let mut rejected: Vec<Rejected> = losers
            .map(|way| {
                let reason = match self.wins(way) {
                    true => self.slower(way, range),
                    false => self.lost(way, &winners),
                };
                let best = best_chunk(&self.survey, way, len_bytes);
                let estimate_ns = best.map(|(line, _)| line.at(len_bytes));
                let is_faster = estimate_ns.is_some_and(|ns| ns < chosen_ns);
                let is_simpler = match &self.picks[range] {
                    Pick::One { way: chosen, .. } => {
                        self.survey.ways[*chosen].rings() < self.survey.ways[way].rings()
                    }
                    Pick::Several(_) => false,
                };
                let reason = match is_faster && is_simpler {
                    true => Reason::Undecided,
                    false => reason,
                };
                self.survey.reject(way, reason, estimate_ns)
            })
            .collect();
        rejected.sort_by_key(|way| (way.estimate_ns.is_none(), way.estimate_ns));
        rejected
    }

    fn range(&self, len_bytes: u64) -> usize {
        // The first range starts at 0.
        self.ranges.partition_point(|(from, _)| *from <= len_bytes) - 1
    }

    fn wins(&self, way: usize) -> bool {
        self.picks.iter().any(|pick| pick.takes(way))
    }

    /// Returns the ways that are taken alone, each once.
    fn winners(&self) -> Vec<usize> {
        let mut winners = Vec::new();
        for pick in &self.picks {
            if let Pick::One { way, .. } = pick
                && !winners.contains(way)
            {
                winners.push(*way);
            }
        }
        winners
    }

    /// Returns why a way that wins elsewhere does not win in the range.
    fn slower(&self, way: usize, range: usize) -> Reason {
        let before = self.picks[..range].iter().rposition(|pick| pick.takes(way));
        let after = self.picks[range..].iter().position(|pick| pick.takes(way));
        let joins = after.is_some_and(|at| matches!(self.picks[range + at], Pick::Several(_)));
        let after = after.map(|at| self.ranges[range + at].0);
        match (before.map(|at| self.ranges[at + 1].0), after) {
            (Some(from_bytes), Some(to_bytes)) => Reason::SlowerBetween {
                from_bytes,
                to_bytes,
            },
            (Some(bytes), None) => Reason::SlowerAbove { bytes },
            (None, Some(bytes)) if joins => Reason::JoinsFrom { bytes },
            (None, Some(bytes)) => Reason::SlowerBelow { bytes },
            // Not reached for a way that wins somewhere.
            (None, None) => Reason::NeverCheapest,
        }
    }

    /// Returns why a way wins nowhere.
    fn lost(&self, way: usize, winners: &[usize]) -> Reason {
        if let Err(flaw) = self.survey.ways[way].chunks {
            return self.survey.reason(way, flaw);
        }
        let mine = alone(&self.survey, way);
        let by = winners
            .iter()
            .find(|winner| covers(&alone(&self.survey, **winner), None, &mine, None));
        match by {
            Some(by) => Reason::Dominated {
                by: self.survey.route(&self.survey.ways[*by]),
            },
            None => Reason::NeverCheapest,
        }
    }
}

impl Survey {
    /// Returns every way, when none can be taken.
    pub(super) fn all_rejected(&self) -> Vec<Rejected> {
        let flawed = self.ways.iter().enumerate();
        flawed
            .filter_map(|(at, way)| way.chunks.err().map(|flaw| (at, flaw)))
            .map(|(at, flaw)| self.reject(at, self.reason(at, flaw), None))
            .collect()
    }

    fn reject(&self, way: usize, reason: Reason, estimate_ns: Option<u64>) -> Rejected {
        let way = &self.ways[way];
        Rejected {
            method: self.method(way),
            route: self.route(way),
            estimate_ns,
            reason,
        }
    }

    fn reason(&self, way: usize, flaw: Flaw) -> Reason {
        let way = &self.ways[way];
        match flaw {
            Flaw::Barred(hop) => {
                let hop = &self.hops[usize::from(hop)];
                Reason::Barred {
                    link: hop.link.id,
                    why: hop.barred.clone().unwrap_or(Barred::Excluded),
                }
            }
            Flaw::NotPitched(hop) => Reason::NotPitched {
                link: self.hops[usize::from(hop)].link.id,
            },
            Flaw::ConvertsNothing(hop) => Reason::ConvertsNothing {
                link: self.hops[usize::from(hop)].link.id,
            },
            Flaw::NoTransform => Reason::NoTransform,
            Flaw::NoRoom => Reason::NoRoom {
                chunk_bytes: MIN_CHUNK_BYTES,
                rings: way.rings(),
                budget_bytes: self.limits.staging_bytes,
            },
            Flaw::SlotTooLarge {
                ring,
                max_alloc_bytes,
            } => {
                let hop = way.copies().nth(usize::from(ring));
                Reason::SlotTooLarge {
                    memory: hop.map_or(self.key.src, |hop| self.hops[usize::from(hop)].link.id.dst),
                    chunk_bytes: MIN_CHUNK_BYTES,
                    max_alloc_bytes,
                }
            }
        }
    }
}

impl fmt::Debug for PlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (from, plan) in &self.ranges {
            map.entry(from, &format_args!("{plan} × {} B", plan.chunk_bytes()));
        }
        map.finish()
    }
}
