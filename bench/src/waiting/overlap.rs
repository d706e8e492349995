//! `waiting/overlap-*`: a copy next to work of its own thread, compared with the longer of the two alone.
//!
//! The work occupies one processor, so the copy alone is timed on one processor: all threads of the process are bound
//! to it meanwhile, those of drivers too. A second processor would also copy, and the comparison would then demand that
//! the work costs the copy nothing.
//!
//! The noise is the extra time of the work on two threads at once. A machine that is busy with other processes has no
//! free second processor, and gets no verdict.

use std::hint::black_box;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::endpoints::Endpoints;
use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{self, Contender, Random, Rules};
use crate::series::Series;
use crate::way::Way;

/// The limit, as a factor of the longer time.
const LIMIT: f64 = 1.15;
const ROUNDS: usize = 16;

pub(super) fn run(name: &str, endpoints: Endpoints, effort: Effort) -> Result<Outcome> {
    let endpoints = Rc::new(endpoints);
    endpoints.moved()?;
    let alone = (0..5).map(|_| Ok(bound(|| endpoints.timed())?.as_secs_f64()));
    let alone = alone.collect::<Result<Series>>()?.median();
    let loops = loops_in(alone);
    let way = |name: &str, turn: fn(&Endpoints, u64) -> Result<()>| {
        let [turned, poisoned, checked] = [(); 3].map(|()| Rc::clone(&endpoints));
        Way::boxed(
            name,
            move || turn(&turned, loops),
            move || poisoned.poison(),
            move || checked.are_equal(),
        )
    };
    let mut contenders: Vec<Box<dyn Contender>> = vec![
        way("copy and work", together),
        way("copy, one processor", |endpoints, _| {
            bound(|| endpoints.moved())
        }),
        work_alone("work", loops, work),
        work_alone("work on two threads at once", loops, twice),
        way("copy, work on another thread", beside),
    ];
    let rules = Rules {
        rounds: effort.rounds.min(ROUNDS),
        sample: Duration::from_millis(1),
        warm: false,
    };
    let series = contest::run(&mut contenders, rules)?;
    let mut outcome = Outcome::new(name, &series[0]);
    endpoints.describe(&mut outcome);
    for (contender, series) in contenders.iter().zip(&series).skip(1) {
        let name = contender.name().to_owned();
        outcome.baselines.insert(name, series.median());
    }
    // A machine without a free second processor shows no overlap.
    outcome.noise = series[2].difference(&series[3]);
    outcome.verified = true;
    for contender in &mut contenders {
        outcome.verified &= contender.verify()?;
    }
    let longer = series[1].median().max(series[2].median());
    let of = "of the longer one's time:";
    let verdict = Verdict::at_most(of, series[0].median() / longer, LIMIT, "");
    outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
    Ok(outcome)
}

fn together(endpoints: &Endpoints, loops: u64) -> Result<()> {
    let transfer = endpoints.submit();
    work(loops);
    transfer.wait()?;
    Ok(())
}

/// The same when the program makes the second thread by itself.
fn beside(endpoints: &Endpoints, loops: u64) -> Result<()> {
    thread::scope(|scope| {
        scope.spawn(|| work(loops));
        endpoints.moved()
    })
}

fn work_alone(name: &str, loops: u64, f: fn(u64)) -> Box<dyn Contender> {
    let turn = move || {
        f(loops);
        Ok(())
    };
    Way::boxed(name, turn, || Ok(()), || Ok(true))
}

fn twice(loops: u64) {
    thread::scope(|scope| {
        scope.spawn(|| work(loops));
        work(loops);
    });
}

/// Keeps a processor busy and leaves memory alone.
fn work(loops: u64) {
    let mut random = Random(1);
    for _ in 0..loops {
        black_box(random.next());
    }
}

/// The number of loops of work for that time.
fn loops_in(seconds: f64) -> u64 {
    const SAMPLE: u64 = 10_000_000;
    let timed = |_| {
        let begin = Instant::now();
        work(SAMPLE);
        begin.elapsed().as_secs_f64()
    };
    // The fastest: other processes only make it slower.
    let [fastest, _] = (0..8).map(timed).collect::<Series>().spread();
    (seconds / fastest * SAMPLE as f64) as u64
}

/// Calls `f` while all threads of this process share one processor. Threads that start meanwhile are bound too.
fn bound<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let all = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu));
    one.set(first.context("a thread that may run nowhere")?);
    bind(&one)?;
    let result = f();
    bind(&all)?;
    result
}

fn bind(processors: &CpuSet) -> Result<()> {
    for thread in std::fs::read_dir("/proc/self/task")? {
        let name = thread?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        let thread = number.and_then(Pid::from_raw);
        // A thread may have ended meanwhile.
        let _ = sched_setaffinity(
            Some(thread.context("a thread without a number")?),
            processors,
        );
    }
    Ok(())
}
