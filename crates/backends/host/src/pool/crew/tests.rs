mod stopped;

use std::cell::Cell;
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Barrier, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

use super::*;
use crate::pool::{Pool, Side};

const JOBS: usize = 4096;

thread_local! {
    /// How many further workers the system starts for this thread; `None` is any number.
    static ALLOWED: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The system's refusal to start a thread, where a test scripted it.
pub(super) fn refusal() -> io::Result<()> {
    match ALLOWED.get() {
        Some(0) => Err(io::Error::other("scripted")),
        Some(left) => {
            ALLOWED.set(Some(left - 1));
            Ok(())
        }
        None => Ok(()),
    }
}

/// Counts the pieces that ran, and the threads that ran them.
struct Counted {
    runs: Vec<AtomicU64>,
    ends: Vec<AtomicUsize>,
    panicked: Vec<AtomicBool>,
    threads: Mutex<HashSet<ThreadId>>,
    /// A job whose every piece panics.
    bad: Option<u32>,
    /// Job to start when job 0 ends.
    then: Option<u32>,
}

impl Counted {
    fn new() -> Self {
        Self {
            runs: (0..JOBS).map(|_| AtomicU64::new(0)).collect(),
            ends: (0..JOBS).map(|_| AtomicUsize::new(0)).collect(),
            panicked: (0..JOBS).map(|_| AtomicBool::new(false)).collect(),
            threads: Mutex::default(),
            bad: None,
            then: None,
        }
    }

    fn is_over(&self, job: u32) -> bool {
        self.ends[job as usize].load(Ordering::Acquire) > 0
    }

    fn runs(&self, job: u32) -> u64 {
        self.runs[job as usize].load(Ordering::Relaxed)
    }
}

impl Work for Counted {
    fn run(&self, job: u32, piece: u32) {
        let before = self.runs[job as usize].fetch_or(1 << piece, Ordering::Relaxed);
        assert_eq!(
            before & (1 << piece),
            0,
            "piece {piece} of job {job} ran twice"
        );
        self.threads
            .lock()
            .unwrap()
            .insert(std::thread::current().id());
        if self.bad == Some(job) {
            std::panic::resume_unwind(Box::new("scripted"));
        }
    }

    fn finish(&self, job: u32, end: JobEnd, crew: &Crew<Self>) {
        self.panicked[job as usize].store(end == JobEnd::Panicked, Ordering::Relaxed);
        self.ends[job as usize].fetch_add(1, Ordering::Release);
        if let (0, Some(then)) = (job, self.then) {
            crew.start_next(then, meeting(4, 2), || false);
        }
    }
}

fn limits(threads: u32) -> Limits {
    Limits {
        threads,
        linger: Duration::from_micros(5),
        jobs: 8,
    }
}

fn meeting(pieces: u32, width: u32) -> Extent {
    Extent {
        pieces,
        width,
        waiters_from: Side::Back,
    }
}

/// As if a worker had run the next piece.
fn run_one(state: &mut State) {
    let claim = state.schedule.claim(None).unwrap();
    state.schedule.complete(claim, false);
}

fn wait(pool: &Crew<Counted>, job: u32) {
    assert!(pool.help(job, true, None, || pool.work().is_over(job)));
}

#[test]
fn every_piece_runs_once_and_the_job_ends_once() {
    let pool = Pool::new(Counted::new(), limits(3));
    for job in 0..200 {
        pool.start(job, meeting(13, 3));
        wait(&pool, job);
        assert_eq!(pool.work().runs(job), (1 << 13) - 1);
    }
    assert!((0..200).all(|job| pool.work().ends[job].load(Ordering::Relaxed) == 1));
    assert!(pool.threads() <= 3);
}

#[test]
fn no_thread_starts_before_the_first_job() {
    let pool = Pool::new(Counted::new(), limits(3));
    assert_eq!(pool.threads(), 0);
    pool.start(0, meeting(1, 1));
    assert_eq!(pool.threads(), 1);
    wait(&pool, 0);
}

#[test]
#[cfg(target_os = "linux")]
fn workers_put_no_other_thread_off_its_processor() {
    let is_in_the_background = || {
        std::fs::read_dir("/proc/self/task").unwrap().any(|task| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            let (name, fields) = stat.rsplit_once(')').unwrap();
            // proc_pid_stat(5): the policy is field 41, and the first one after the name is field 3.
            let policy = fields.split_whitespace().nth(41 - 3).unwrap();
            name.contains("(transload-host") && policy == libc::SCHED_BATCH.to_string()
        })
    };
    let pool = Pool::new(Counted::new(), limits(3));
    pool.start(0, meeting(1, 1));
    // A thread that was started says so itself, some time.
    while !is_in_the_background() {
        std::thread::yield_now();
    }
    wait(&pool, 0);
}

#[test]
fn without_threads_the_starter_runs_the_job_before_start_returns() {
    let work = Counted {
        then: Some(5),
        ..Counted::new()
    };
    let pool = Pool::new(work, limits(0));
    pool.start(0, meeting(9, 4));
    assert!(pool.work().is_over(0) && pool.work().is_over(5));
    assert_eq!(
        *pool.work().threads.lock().unwrap(),
        HashSet::from([std::thread::current().id()])
    );
}

#[test]
fn a_waiting_thread_takes_part() {
    /// Two pieces that wait for each other: with one worker they end only if the waiting thread helps.
    struct Meeting(Barrier, OnceLock<JobEnd>);
    impl Work for Meeting {
        fn run(&self, _: u32, _: u32) {
            self.0.wait();
        }
        fn finish(&self, _: u32, end: JobEnd, _: &Crew<Self>) {
            self.1.set(end).unwrap();
        }
    }
    let pool = Pool::new(Meeting(Barrier::new(2), OnceLock::new()), limits(1));
    pool.start(0, meeting(2, 2));
    assert!(pool.help(0, true, None, || pool.work().1.get().is_some()));
    assert_eq!(pool.work().1.get(), Some(&JobEnd::Ran));
}

#[test]
fn a_panicking_piece_fails_its_job_and_leaves_the_pool_usable() {
    let pool = Pool::new(
        Counted {
            bad: Some(1),
            ..Counted::new()
        },
        limits(2),
    );
    pool.start(1, meeting(40, 2));
    pool.start(2, meeting(40, 2));
    wait(&pool, 1);
    wait(&pool, 2);
    assert!(pool.work().panicked[1].load(Ordering::Relaxed));
    assert!(!pool.work().panicked[2].load(Ordering::Relaxed));
    assert_eq!(pool.work().runs(2), (1 << 40) - 1);
}

#[test]
fn an_ending_may_start_the_next_job() {
    let pool = Pool::new(
        Counted {
            then: Some(77),
            ..Counted::new()
        },
        limits(2),
    );
    pool.start(0, meeting(3, 2));
    wait(&pool, 77);
    assert_eq!(pool.work().runs(77), 0b1111);
}

#[test]
fn help_returns_at_its_deadline_with_the_truth() {
    let pool = Pool::new(Counted::new(), limits(2));
    let now = Instant::now();
    assert!(!pool.help(9, true, Some(now), || pool.work().is_over(9)));
    assert!(
        !pool.help(9, true, Some(now + Duration::from_millis(2)), || {
            pool.work().is_over(9)
        })
    );
}

#[test]
fn dropping_the_pool_completes_what_is_in_flight() {
    for round in 0..50 {
        struct Shared(Arc<Counted>);
        impl Work for Shared {
            fn run(&self, job: u32, piece: u32) {
                self.0.runs[job as usize].fetch_or(1 << piece, Ordering::Relaxed);
            }
            fn finish(&self, job: u32, _: JobEnd, _: &Crew<Self>) {
                self.0.ends[job as usize].fetch_add(1, Ordering::Release);
            }
        }
        let counted = Arc::new(Counted::new());
        let pool = Pool::new(Shared(Arc::clone(&counted)), limits(round % 4));
        for job in 0..100 {
            pool.start(job, meeting(7, 2));
        }
        drop(pool);
        assert!((0..100).all(|job| counted.runs(job) == 0b111_1111 && counted.is_over(job)));
        assert_eq!(Arc::strong_count(&counted), 1, "a thread outlived its pool");
    }
}

#[test]
fn many_threads_start_and_wait_at_once() {
    let pool = Pool::new(Counted::new(), limits(4));
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let pool = &pool;
            scope.spawn(move || {
                for turn in 0..400 {
                    let job = thread * 400 + turn;
                    pool.start(job, meeting(1 + job % 31, 1 + job % 4));
                    if turn % 3 != 0 {
                        wait(pool, job);
                    }
                }
            });
        }
    });
    for job in 0..3200 {
        wait(&pool, job);
        assert_eq!(pool.work().runs(job), (1 << (1 + job % 31)) - 1);
        assert_eq!(pool.work().ends[job as usize].load(Ordering::Relaxed), 1);
    }
}

#[test]
fn nobody_is_woken_while_as_many_as_may_are_at_work() {
    let pool = Pool::new(Counted::new(), limits(2));
    let mut state = pool.lock();
    state.schedule.push(0, meeting(8, 2));
    (state.workers, state.parked, state.helping) = (2, 1, 1);
    // The worker that is awake is between two pieces of the job, so one more could take a piece.
    assert!(state.schedule.claimable() > 0);
    assert_eq!(state.next_rouse(limits(2)), Rouse::None);
    state.helping = 0;
    assert_eq!(state.next_rouse(limits(2)), Rouse::Parked);
    (state.parked, state.tickets) = (1, 0);
    // Two threads wait for jobs of their own, so that this one would wait for them.
    (state.workers, state.helping) = (1, 2);
    assert_eq!(state.next_rouse(limits(2)), Rouse::Parked);
    // Nothing runs when the pool goes.
    (state.workers, state.parked, state.tickets) = (0, 0, 0);
    for _ in 0..8 {
        run_one(&mut state);
    }
}

#[test]
fn who_stops_helping_wakes_the_worker_that_slept_meanwhile() {
    let pool = Pool::new(Counted::new(), limits(1));
    let mut state = pool.lock();
    state.schedule.push(0, meeting(2, 2));
    (state.workers, state.parked, state.helping) = (1, 1, 1);
    // The helping thread serves the job.
    let helped = state.schedule.claim_from(0).unwrap();
    assert_eq!(state.next_rouse(limits(1)), Rouse::None);
    drop(state);
    let mut part = Part {
        crew: &pool,
        helps: true,
    };
    part.stop();
    let mut state = pool.lock();
    assert_eq!((state.parked, state.tickets, state.helping), (0, 1, 0));
    (state.workers, state.tickets) = (0, 0);
    run_one(&mut state);
    state.schedule.complete(helped, false);
}

#[test]
fn where_no_thread_can_be_started_jobs_run_on_whoever_starts_or_helps() {
    ALLOWED.set(Some(0));
    let pool = Pool::new(Counted::new(), limits(3));
    for job in 0..50 {
        pool.start(job, meeting(7, 2));
        assert!(pool.work().is_over(job));
    }
    // As if another thread's start were under way, and then failed.
    let mut state = pool.lock();
    state.schedule.push(60, meeting(1, 1));
    state.schedule.push(61, meeting(3, 2));
    (state.workers, state.helping) = (0, 1);
    drop(state);
    let mut part = Part {
        crew: &pool,
        helps: true,
    };
    part.stop();
    assert!(pool.work().is_over(60) && pool.work().is_over(61));
}

#[test]
fn a_start_that_fails_wakes_those_who_parked_meanwhile() {
    let pool = Pool::new(Counted::new(), limits(2));
    ALLOWED.set(Some(0));
    let mut state = pool.lock();
    state.schedule.push(0, meeting(1, 1));
    // One worker parked while the start of another was under way.
    (state.workers, state.parked) = (1, 1);
    drop(state);
    assert_eq!(pool.rouse(Rouse::New), Duty::None);
    let mut state = pool.lock();
    assert_eq!((state.parked, state.tickets), (0, 1));
    (state.workers, state.tickets) = (0, 0);
    run_one(&mut state);
}
