//! Runs the ways of one request in turn, so that measurements decide between them and not predictions.

use std::time::Duration;
#[cfg(not(browser))]
use std::time::Instant;

use super::report::Found;
use super::sample::{Interval, MOST};
#[cfg(browser)]
use crate::std::browser_clock::Instant;
use crate::{Candidate, Choice, Request, TransferError, TransferManager};

/// A way that was measured.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MeasuredWay {
    /// The way, with its predicted time.
    pub choice: Choice,
    /// The time of its copies, by the manager's clock, without waits for staging slots and for other transfers.
    pub found: Found,
}

/// A way that is slower than the fastest one by this factor has lost, and is timed no further.
const LOST: u64 = 2;

/// A copy that takes longer ends the measurement.
const PATIENCE: Duration = Duration::from_secs(60);

/// Each way has this many times before any has lost.
const FIRST_ROUNDS: usize = 3;

/// The median is known well enough if the interval reaches no further on either side, as a part of it.
const NARROW: f64 = 0.02;

struct Rival {
    way: Candidate,
    request: Request,
    times: Vec<u64>,
    fault: Option<TransferError>,
}

impl TransferManager {
    /// Runs every [candidate](TransferManager::candidates) of a request in turn, again and again, and returns their
    /// times: of the way that the request would go first, then of the others, the fastest first. Blocks for `budget`, or
    /// until the medians are known to 2 %.
    ///
    /// Of the request, only the two regions count. The first copy of each way is verified, except where source and
    /// destination overlap; the times are those of further copies. Each way is copied at least twice, whatever the budget.
    /// A way that takes more than twice as long as the fastest is timed three times. Other transfers at the same time
    /// disturb the results.
    ///
    /// # Errors
    /// When the request would be refused. A way that fails says so in its result. A copy that takes more than a
    /// minute ends the measurement.
    pub fn measure(
        &self,
        request: &Request,
        budget: Duration,
    ) -> Result<Vec<MeasuredWay>, TransferError> {
        let started = Instant::now();
        let is_in_place = self.check(request)?.in_place;
        let mut rivals: Vec<Rival> = self
            .candidates(request)?
            .into_iter()
            .map(|way| Rival {
                request: Request::new(request.src().clone(), request.dst().clone()).by(&way),
                way,
                times: Vec::new(),
                fault: None,
            })
            .collect();
        for rival in &mut rivals {
            rival.copy(self, !is_in_place);
            if rival.hangs() {
                break;
            }
        }
        let hangs = rivals.iter().any(Rival::hangs);
        let rounds = if hangs { 0 } else { MOST as usize };
        for round in 0..rounds {
            let fastest = { rivals.iter() }.filter_map(Rival::least).min();
            let limit = fastest.map_or(u64::MAX, |ns| ns.saturating_mul(LOST));
            let mut is_known = true;
            for rival in rivals.iter_mut().filter(|rival| rival.fault.is_none()) {
                let has_lost = rival.least().is_some_and(|least| least > limit);
                if round >= FIRST_ROUNDS && has_lost {
                    continue;
                }
                is_known &= rival.is_known();
                if round > 0 && started.elapsed() >= budget {
                    break;
                }
                let took = rival.copy(self, false);
                rival.times.extend(took);
                if rival.hangs() {
                    break;
                }
            }
            let is_late = started.elapsed() >= budget || rivals.iter().any(Rival::hangs);
            if is_late || round >= FIRST_ROUNDS && is_known {
                break;
            }
        }
        let mut ways: Vec<MeasuredWay> = rivals.into_iter().map(Rival::result).collect();
        if let Some((_, others)) = ways.split_first_mut() {
            others.sort_by_key(|way| way.median_ns().unwrap_or(u64::MAX));
        }
        Ok(ways)
    }
}

impl Rival {
    /// Copies once, and returns the time in nanoseconds.
    fn copy(&mut self, manager: &TransferManager, verify: bool) -> Option<u64> {
        let mut request = self.request.clone().deadline(manager.now() + PATIENCE);
        request.terms.verify = verify;
        match manager.submit(&request).wait() {
            Ok(report) => Some(report.elapsed_ns),
            Err(error) => {
                self.fault = Some(error);
                None
            }
        }
    }

    /// Returns whether a copy may still be under way. The other ways would wait for its bytes.
    fn hangs(&self) -> bool {
        matches!(self.fault, Some(TransferError::Deadline { .. }))
    }

    fn least(&self) -> Option<u64> {
        self.times.iter().copied().min()
    }

    fn is_known(&self) -> bool {
        Interval::of(&self.times).is_some_and(|found| found.is_within(NARROW))
    }

    fn result(self) -> MeasuredWay {
        let found = match self.fault {
            Some(TransferError::Differs { .. }) => Found::WrongBytes,
            Some(error) => Found::Failed(error.to_string()),
            None => Interval::of(&self.times).map_or(Found::NotReached, Found::Time),
        };
        MeasuredWay {
            choice: self.way.choice().clone(),
            found,
        }
    }
}

impl MeasuredWay {
    /// Returns the median of its times in nanoseconds; `None` if it has none.
    pub fn median_ns(&self) -> Option<u64> {
        match &self.found {
            Found::Time(interval) => Some(interval.median_ns),
            _ => None,
        }
    }
}
