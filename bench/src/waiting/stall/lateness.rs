//! Measures the delay until a thread learns of its transfer's end.

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use transload::{Buffer, Report, Request, TransferError};

use super::super::endpoints::payload;
use super::super::pause::pause;
use super::scene::{LATER, Scene, plain};
use crate::contest::{POISON, Random};

/// The results of [`lateness`], in its order.
pub(super) const KINDS: [&str; 5] = [
    "future of a third party",
    "deadline",
    "4 KiB copy and wait",
    "4 KiB future after an event",
    "verified 1 MiB future",
];

/// The length of the copy on the third party's backend.
const THIRD: u64 = 2000;
const SMALL: usize = 4 << 10;
const LARGE: usize = 1 << 20;

/// The engine polls a backend every 2 ms while it listens to others; the backend skips three polls.
const PASSED_OVER: Duration = Duration::from_millis(10);

type Told = Receiver<(Instant, Result<Report, TransferError>)>;

/// The time from the event to the moment at which its thread knows.
pub(super) fn lateness(scene: &Scene, random: &mut Random) -> Result<[Duration; KINDS.len()]> {
    Ok([
        third_party(scene, random)?,
        deadline(scene, random)?,
        small_wait(scene)?,
        small_future(scene, random)?,
        verified_future(scene)?,
    ])
}

/// The operation ends at a known moment, which only a call of the backend reveals.
fn third_party(scene: &Scene, random: &mut Random) -> Result<Duration> {
    scene.later.stall(THIRD);
    let [src, dst] = [7, 0].map(|byte| plain::filled(&scene.manager, LATER, THIRD, byte));
    let transfer = scene.manager.copy(&src, &dst);
    let told = elsewhere(|| pollster::block_on(transfer));
    // The backend skips the operation a few times in any case.
    pause(PASSED_OVER + some_time(random));
    let happened = Instant::now();
    scene.later.release(THIRD);
    let (knew, result) = told.recv()?;
    result?;
    ensure!(dst.read()?.iter().all(|byte| *byte == 7), "other bytes");
    Ok(knew.saturating_duration_since(happened))
}

/// Its transfer waits for an event that is not set.
fn deadline(scene: &Scene, random: &mut Random) -> Result<Duration> {
    let never = scene.manager.event();
    let (src, dst) = heap(scene, SMALL)?;
    let time = some_time(random);
    let due = Instant::now() + time;
    let at = scene.manager.now() + time;
    let request = Request::new(&src, &dst).after(&never).deadline(at);
    let transfer = scene.manager.submit(&request);
    let told = match random.next() % 2 {
        0 => elsewhere(|| transfer.wait()),
        _ => elsewhere(|| pollster::block_on(transfer)),
    };
    let (knew, result) = told.recv()?;
    let Err(TransferError::Deadline { .. }) = result else {
        bail!("a deadline passed, and the transfer ended with {result:?}");
    };
    Ok(knew.saturating_duration_since(due))
}

fn small_wait(scene: &Scene) -> Result<Duration> {
    let (src, dst) = heap(scene, SMALL)?;
    let begin = Instant::now();
    scene.manager.copy(&src, &dst).wait()?;
    let took = begin.elapsed();
    arrived(&src, &dst)?;
    Ok(took)
}

/// The event is set as a driver's callback sets it, so another thread starts the copy.
fn small_future(scene: &Scene, random: &mut Random) -> Result<Duration> {
    let gate = scene.manager.event();
    let (src, dst) = heap(scene, SMALL)?;
    let transfer = scene.manager.submit(&Request::new(&src, &dst).after(&gate));
    let told = elsewhere(|| pollster::block_on(transfer));
    pause(some_time(random));
    let happened = Instant::now();
    gate.setter()();
    let (knew, result) = told.recv()?;
    result?;
    arrived(&src, &dst)?;
    Ok(knew.saturating_duration_since(happened))
}

/// The transfer has several operations, each of which follows another's end.
fn verified_future(scene: &Scene) -> Result<Duration> {
    let (src, dst) = heap(scene, LARGE)?;
    let begin = Instant::now();
    let transfer = scene.manager.submit(&Request::new(&src, &dst).verify());
    let (knew, result) = elsewhere(|| pollster::block_on(transfer)).recv()?;
    result?;
    arrived(&src, &dst)?;
    Ok(knew.saturating_duration_since(begin))
}

fn heap(scene: &Scene, len: usize) -> Result<(Buffer, Buffer)> {
    let src = scene.manager.adopt(payload(len))?;
    Ok((src, scene.manager.adopt(vec![POISON; len])?))
}

fn arrived(src: &Buffer, dst: &Buffer) -> Result<()> {
    let same = *src.read()? == *dst.read()?;
    same.then_some(()).context("other bytes")
}

/// 3 to 8 ms: longer than the other thread takes to wait, and never in step with a timer.
fn some_time(random: &mut Random) -> Duration {
    Duration::from_micros(3000 + random.next() % 5000)
}

/// Calls `f` on a thread of its own. Sends the time of its return.
fn elsewhere(f: impl FnOnce() -> Result<Report, TransferError> + Send + 'static) -> Told {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let result = f();
        // An error means that the case has failed already.
        let _ = tell.send((Instant::now(), result));
    });
    told
}
