//! Which piece of which job a thread takes next: plain data, used under the pool's lock.

use std::collections::VecDeque;

use super::{Extent, JobEnd, Side};

/// One piece of one job, taken by a thread that will run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) job: u32,
    pub(super) piece: u32,
}

/// The jobs in flight, oldest first.
///
/// The oldest [`Schedule::window`] jobs are in service and share the threads: a thread takes its next
/// piece from the job in service that the fewest threads work on. Younger jobs wait, so that choosing
/// stays cheap however many there are.
#[derive(Debug)]
pub(super) struct Schedule {
    jobs: VecDeque<Job>,
    window: usize,
}

#[derive(Debug)]
struct Job {
    id: u32,
    /// The first piece that nobody has taken, and the one behind the last.
    next: u32,
    end: u32,
    running: u32,
    width: u32,
    waiters_from: Side,
    panicked: bool,
}

impl Job {
    fn is_claimable(&self) -> bool {
        self.next < self.end && self.running < self.width
    }

    fn claim(&mut self, from: Side) -> Claim {
        let piece = match from {
            Side::Front => {
                self.next += 1;
                self.next - 1
            }
            Side::Back => {
                self.end -= 1;
                self.end
            }
        };
        self.running += 1;
        Claim {
            job: self.id,
            piece,
        }
    }
}

impl Schedule {
    /// An empty schedule with room for `capacity` jobs before it allocates again.
    pub(super) fn new(capacity: usize, window: usize) -> Self {
        Self {
            jobs: VecDeque::with_capacity(capacity),
            window,
        }
    }

    pub(super) fn push(&mut self, id: u32, extent: Extent) {
        debug_assert!(
            self.jobs.iter().all(|job| job.id != id),
            "job {id} is in flight already"
        );
        self.jobs.push_back(Job {
            id,
            next: 0,
            end: extent.pieces.max(1),
            running: 0,
            width: extent.width.max(1),
            waiters_from: extent.waiters_from,
            panicked: false,
        });
    }

    /// The next piece for a worker: of the job that the fewest threads serve, then of `last` (its lines
    /// are warm), then of the oldest.
    pub(super) fn claim(&mut self, last: Option<u32>) -> Option<Claim> {
        self.jobs
            .iter_mut()
            .take(self.window)
            .filter(|job| job.is_claimable())
            .min_by_key(|job| (job.running, Some(job.id) != last))
            .map(|job| job.claim(Side::Front))
    }

    /// The next piece of `id`, for a thread that waits for just that job; in service or not.
    pub(super) fn claim_from(&mut self, id: u32) -> Option<Claim> {
        let job = self.jobs.iter_mut().find(|job| job.id == id)?;
        job.is_claimable().then(|| job.claim(job.waiters_from))
    }

    /// Whether [`Schedule::claim`] would find a piece.
    pub(super) fn has_claimable(&self) -> bool {
        self.jobs.iter().take(self.window).any(Job::is_claimable)
    }

    /// Whether a job that [`Schedule::claim`] would find is served by nobody.
    pub(super) fn has_unserved(&self) -> bool {
        let mut jobs = self.jobs.iter().take(self.window);
        jobs.any(|job| job.is_claimable() && job.running == 0)
    }

    /// Takes back a claim whose piece has run; the job's end when that was its last piece.
    pub(super) fn complete(&mut self, id: u32, panicked: bool) -> Option<JobEnd> {
        let at = self.jobs.iter().position(|job| job.id == id)?;
        let job = &mut self.jobs[at];
        job.running -= 1;
        job.panicked |= panicked;
        if panicked {
            // The rest of a job whose piece panicked would only move bytes that nobody may use.
            job.next = job.end;
        }
        if job.next < job.end || job.running > 0 {
            return None;
        }
        let end = if job.panicked {
            JobEnd::Panicked
        } else {
            JobEnd::Ran
        };
        self.jobs.remove(at);
        Some(end)
    }

    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(job: u32, piece: u32) -> Option<Claim> {
        Some(Claim { job, piece })
    }

    fn rising(pieces: u32, width: u32) -> Extent {
        Extent {
            pieces,
            width,
            waiters_from: Side::Front,
        }
    }

    #[test]
    fn a_job_hands_out_each_piece_once_and_ends_once() {
        let mut schedule = Schedule::new(4, 4);
        schedule.push(7, rising(3, 8));
        let pieces: Vec<_> = (0..4).map(|_| schedule.claim(None)).collect();
        assert_eq!(pieces, [claim(7, 0), claim(7, 1), claim(7, 2), None]);
        assert_eq!(schedule.complete(7, false), None);
        assert_eq!(schedule.complete(7, false), None);
        assert_eq!(schedule.complete(7, false), Some(JobEnd::Ran));
        assert_eq!(schedule.complete(7, false), None);
        assert_eq!(schedule.len(), 0);
    }

    #[test]
    fn no_more_threads_than_the_width_work_on_a_job() {
        let mut schedule = Schedule::new(4, 4);
        schedule.push(1, rising(10, 2));
        assert!(schedule.claim(None).is_some());
        assert!(schedule.claim_from(1).is_some());
        assert!(!schedule.has_claimable());
        assert_eq!(schedule.claim(None), None);
        assert_eq!(schedule.claim_from(1), None);
        schedule.complete(1, false);
        assert_eq!(schedule.claim(None), claim(1, 2));
    }

    #[test]
    fn jobs_in_flight_share_the_threads_evenly() {
        let mut schedule = Schedule::new(4, 4);
        schedule.push(1, rising(10, 4));
        schedule.push(2, rising(10, 4));
        let taken: Vec<_> = (0..4)
            .filter_map(|_| schedule.claim(Some(1)))
            .map(|claim| claim.job)
            .collect();
        assert_eq!(taken, [1, 2, 1, 2]);
    }

    #[test]
    fn a_worker_stays_with_its_job_when_all_are_served_alike() {
        let mut schedule = Schedule::new(4, 4);
        schedule.push(1, rising(10, 4));
        schedule.push(2, rising(10, 4));
        assert_eq!(schedule.claim(Some(2)), claim(2, 0));
    }

    #[test]
    fn jobs_past_the_window_wait_but_a_waiter_may_serve_them() {
        let mut schedule = Schedule::new(4, 1);
        schedule.push(1, rising(1, 1));
        schedule.push(2, rising(1, 1));
        assert_eq!(schedule.claim(None), claim(1, 0));
        assert_eq!(schedule.claim(None), None);
        assert_eq!(schedule.claim_from(2), claim(2, 0));
    }

    #[test]
    fn a_panicked_piece_ends_its_job_early_and_truthfully() {
        let mut schedule = Schedule::new(4, 4);
        schedule.push(1, rising(10, 2));
        schedule.claim(None);
        schedule.claim(None);
        assert_eq!(schedule.complete(1, true), None);
        assert_eq!(schedule.claim(None), None);
        assert_eq!(schedule.complete(1, false), Some(JobEnd::Panicked));
    }

    #[test]
    fn workers_and_waiters_meet_and_take_each_piece_once() {
        let mut schedule = Schedule::new(4, 4);
        let extent = Extent {
            waiters_from: Side::Back,
            ..rising(5, 8)
        };
        schedule.push(1, extent);
        let taken = [
            schedule.claim(None),
            schedule.claim_from(1),
            schedule.claim_from(1),
            schedule.claim(None),
            schedule.claim_from(1),
        ];
        let pieces = [0, 4, 3, 1, 2];
        assert_eq!(taken, pieces.map(|piece| claim(1, piece)));
        assert_eq!((schedule.claim(None), schedule.claim_from(1)), (None, None));
        for _ in 0..4 {
            assert_eq!(schedule.complete(1, false), None);
        }
        assert_eq!(schedule.complete(1, false), Some(JobEnd::Ran));
    }
}
