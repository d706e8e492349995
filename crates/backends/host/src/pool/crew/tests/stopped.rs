//! Jobs that are stopped, and threads that only wait.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

/// Blocks some pieces until they are released, and records the pieces that ran.
struct Held {
    held: Mutex<HashSet<(u32, u32)>>,
    let_go: Condvar,
    /// The held pieces that a thread has begun.
    reached: Sender<(u32, u32)>,
    ran: Mutex<HashSet<(u32, u32)>>,
    ends: Mutex<HashMap<u32, JobEnd>>,
    /// Jobs to start when another one ends, stopped or not.
    then: Mutex<Vec<(u32, u32, bool)>>,
}

impl Held {
    fn pool(
        threads: u32,
        held: impl IntoIterator<Item = (u32, u32)>,
    ) -> (Pool<Self>, Receiver<(u32, u32)>) {
        let (reached, told) = channel();
        let work = Self {
            held: Mutex::new(held.into_iter().collect()),
            let_go: Condvar::new(),
            reached,
            ran: Mutex::default(),
            ends: Mutex::default(),
            then: Mutex::default(),
        };
        (Pool::new(work, limits(threads)), told)
    }

    fn let_go(&self, job: u32, piece: u32) {
        assert!(self.held.lock().unwrap().remove(&(job, piece)));
        self.let_go.notify_all();
    }

    fn end(&self, job: u32) -> Option<JobEnd> {
        self.ends.lock().unwrap().get(&job).copied()
    }

    fn pieces(&self, job: u32) -> Vec<u32> {
        let ran = self.ran.lock().unwrap();
        let mut pieces: Vec<u32> = ran.iter().filter(|of| of.0 == job).map(|of| of.1).collect();
        pieces.sort_unstable();
        pieces
    }
}

impl Work for Held {
    fn run(&self, job: u32, piece: u32) {
        let of = (job, piece);
        assert!(self.ran.lock().unwrap().insert(of), "{of:?} ran twice");
        let mut held = self.held.lock().unwrap();
        if held.contains(&of) {
            self.reached.send(of).unwrap();
        }
        while held.contains(&of) {
            held = self.let_go.wait(held).unwrap();
        }
    }

    fn finish(&self, job: u32, end: JobEnd, crew: &Crew<Self>) {
        let before = self.ends.lock().unwrap().insert(job, end);
        assert_eq!(before, None, "job {job} ended twice");
        let then = self.then.lock().unwrap().clone();
        for (_, next, stopped) in then.into_iter().filter(|(of, ..)| *of == job) {
            crew.start_next(next, meeting(9, 2), || stopped);
        }
    }
}

fn wait_for(pool: &Pool<Held>, job: u32) -> JobEnd {
    assert!(pool.help(job, true, None, || pool.work().end(job).is_some()));
    pool.work().end(job).unwrap()
}

fn stopped(leading: u32) -> JobEnd {
    JobEnd::Stopped { leading }
}

#[test]
fn a_stopped_job_ends_with_the_piece_that_runs() {
    let (pool, reached) = Held::pool(1, [(0, 0)]);
    pool.start(0, meeting(256, 1));
    assert_eq!(reached.recv(), Ok((0, 0)));
    assert_eq!(pool.stop(0, || true), 0);
    assert_eq!(pool.stop(0, || true), 0, "again");
    assert_eq!(pool.work().end(0), None, "the first piece runs");
    pool.work().let_go(0, 0);
    assert_eq!(wait_for(&pool, 0), stopped(1));
    assert_eq!(pool.work().pieces(0), [0]);
    assert_eq!(pool.stop(0, || true), 0, "it is over");
}

#[test]
fn pieces_out_of_order_and_from_the_back_do_not_lead() {
    let (pool, reached) = Held::pool(2, [(0, 0), (0, 3), (0, 255)]);
    pool.start(0, meeting(256, 3));
    let workers = HashSet::from([reached.recv().unwrap(), reached.recv().unwrap()]);
    assert_eq!(workers, HashSet::from([(0, 0), (0, 3)]));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| wait_for(&pool, 0));
        assert_eq!(reached.recv(), Ok((0, 255)));
        // Pieces 1 and 2 have run, and piece 0 has not.
        assert_eq!(pool.stop(0, || true), 0);
        for piece in [255, 3, 0] {
            pool.work().let_go(0, piece);
        }
        assert_eq!(waiting.join().unwrap(), stopped(4));
    });
    assert_eq!(pool.work().pieces(0), [0, 1, 2, 3, 255]);
}

#[test]
fn a_job_that_no_thread_has_begun_ends_on_the_thread_that_stops_it() {
    let (pool, reached) = Held::pool(1, [(0, 0)]);
    pool.work().then.lock().unwrap().push((1, 2, false));
    pool.start(0, meeting(1, 1));
    assert_eq!(reached.recv(), Ok((0, 0)));
    pool.start(1, meeting(9, 2));
    // The first call stops another job, the second this one. The later piece runs, though not on this thread.
    let missed = (pool.stop(1, || false), pool.work().end(1));
    let met = (pool.stop(1, || true), pool.work().end(1));
    let after = pool.work().pieces(2);
    // Dropping the pool waits for its running work, so the test asserts nothing before.
    pool.work().let_go(0, 0);
    assert_eq!((missed, met), ((0, None), (0, Some(stopped(0)))));
    assert_eq!(after, []);
    assert_eq!(wait_for(&pool, 2), JobEnd::Ran);
    assert_eq!(pool.work().pieces(1), []);
}

#[test]
fn a_job_that_was_stopped_before_its_start_ends_and_runs_nothing() {
    for threads in [0, 1, 3] {
        let (pool, _reached) = Held::pool(threads, []);
        let chain = [(0, 1, true), (1, 2, true), (2, 3, false)];
        pool.work().then.lock().unwrap().extend(chain);
        pool.start(0, meeting(9, 2));
        assert_eq!(wait_for(&pool, 3), JobEnd::Ran);
        for job in [1, 2] {
            assert_eq!(pool.work().end(job), Some(stopped(0)));
            assert_eq!(pool.work().pieces(job), []);
        }
    }
}

#[test]
fn without_threads_the_thread_that_runs_the_job_ends_it() {
    let (pool, reached) = Held::pool(0, [(0, 2)]);
    std::thread::scope(|scope| {
        scope.spawn(|| pool.start(0, meeting(256, 2)));
        assert_eq!(reached.recv(), Ok((0, 2)));
        assert_eq!(pool.stop(0, || true), 2);
        pool.work().let_go(0, 2);
    });
    assert_eq!(pool.work().end(0), Some(stopped(3)));
    assert_eq!(pool.work().pieces(0), [0, 1, 2]);
}

#[test]
fn stops_and_ends_that_meet_lose_no_job() {
    let (pool, _reached) = Held::pool(2, []);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let pool = &pool;
            scope.spawn(move || {
                for turn in 0..300 {
                    let job = thread * 300 + turn;
                    pool.start(job, meeting(1 + job % 31, 1 + job % 3));
                    // The stop comes at any moment: before a thread has begun, between pieces, after the end.
                    let known = pool.stop(job, || true);
                    match wait_for(pool, job) {
                        JobEnd::Stopped { leading } => assert!(known <= leading),
                        end => assert_eq!(end, JobEnd::Ran),
                    }
                }
            });
        }
    });
    for job in 0..1200 {
        let pieces = pool.work().pieces(job);
        let led = (0..).zip(&pieces).take_while(|(at, of)| at == *of).count() as u32;
        match pool.work().end(job) {
            Some(JobEnd::Stopped { leading }) => assert_eq!(leading, led),
            end => assert_eq!((end, led), (Some(JobEnd::Ran), 1 + job % 31)),
        }
    }
}

#[test]
fn a_thread_that_may_not_run_pieces_waits_for_the_worker() {
    let (pool, reached) = Held::pool(1, [(0, 0)]);
    pool.start(0, meeting(1, 1));
    assert_eq!(reached.recv(), Ok((0, 0)));
    pool.start(1, meeting(9, 2));
    let soon = Instant::now() + Duration::from_millis(1);
    assert!(!pool.help(1, false, Some(soon), || pool.work().end(1).is_some()));
    assert_eq!(pool.work().pieces(1), []);
    pool.work().let_go(0, 0);
    assert_eq!(wait_for(&pool, 1), JobEnd::Ran);
}

#[test]
fn a_waiting_thread_leaves_the_jobs_of_others_to_workers() {
    let (pool, _reached) = Held::pool(1, []);
    // Acts like a thread that is about to start the first worker.
    pool.lock().schedule.push(0, meeting(9, 2));
    let soon = Instant::now() + Duration::from_millis(1);
    assert!(!pool.help(1, true, Some(soon), || false));
    assert_eq!(pool.work().pieces(0), []);
    pool.drain();
    assert_eq!(pool.work().end(0), Some(JobEnd::Ran));
}
