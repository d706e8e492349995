//! Counts of each kind of operation, and the present step of each thread.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

macro_rules! kinds {
    ($($kind:ident),* $(,)?) => {
        /// A kind of operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kind { $($kind),* }

        const KINDS: &[Kind] = &[$(Kind::$kind),*];
    };
}

kinds! {
    Copy, Pitched, Overlapping, OverlapRefused, VerifyOverlapRefused, ReadOnlyRefused, LengthRefused,
    Verify, Priority, After, Then, Prepared, DeadlineFar, DeadlineNear, BatchGoOn, BatchStop, BatchRefused,
    Wait, WaitTimeout, Await, Poll, Look, Dropped, Cancel, CancelAsync, Canceller, CancelOnDrop, BatchWait, BatchAwait,
    BatchCancel, CameDone, CameStopped, CameUntouched, CameLate, CameBatchStopped,
    FromSlice, IntoSlice, IntoUninit, ReadToVec, NativeRead, Reader, Writer, TryReader, TryWriter, TryRefused,
    ReaderAsync, WriterAsync, GuardForgone, GuardRefused, GuardHeld,
    Prefetch, Advise, Share, ShareRefused, ExportImport, Place, ClearCache, WaitIdle, Statistics, Explain,
    Adopt, Allocate, OpenFile, CreateFile, FileRange, MapFile, DropBuffer, HandOver, HandOverFile, ForeignRefused,
    ClaimRefused, Whole,
    // These need an adapter.
    MappedWord, AdoptNative, HandOverNative, NativeDevice,
}

/// This kind and all later ones need an adapter.
const OF_ADAPTERS: Kind = Kind::MappedWord;

static COUNTS: [AtomicU64; KINDS.len()] = [const { AtomicU64::new(0) }; KINDS.len()];

pub(crate) fn count(kind: Kind) {
    COUNTS[kind as usize].fetch_add(1, Ordering::Relaxed);
}

/// A line of counts, and the kinds that never happened.
pub(crate) fn summary(adapters: bool) -> (String, Vec<Kind>) {
    let mut line = String::new();
    let mut missing = Vec::new();
    let mut all = 0;
    for kind in KINDS {
        let count = COUNTS[*kind as usize].load(Ordering::Relaxed);
        all += count;
        let _ = write!(line, " {kind:?}={count}");
        let is_possible = adapters || (*kind as usize) < OF_ADAPTERS as usize;
        if count == 0 && is_possible {
            missing.push(*kind);
        }
    }
    let caught = IN_WGPU.load(Ordering::Relaxed);
    let line = format!("{all} operations, {caught} panics in wgpu that were caught:{line}");
    (line, missing)
}

/// Panics of any thread, the library's included.
pub(crate) static PANICS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn has_failed() -> bool {
    PANICS.load(Ordering::Relaxed) > 0
}

/// Counts panics of wgpu itself, which occur when two threads poll a device at once, one of them with a time limit:
/// that thread has seen its submission in flight, and finds the queue empty a moment later. The backend catches these
/// panics and polls again.
static IN_WGPU: AtomicU64 = AtomicU64::new(0);

fn is_wgpu_s(info: &std::panic::PanicHookInfo<'_>) -> bool {
    let is_there = info
        .location()
        .is_some_and(|at| at.file().contains("wgpu-core"));
    let said = info.payload().downcast_ref::<String>();
    is_there
        && said.is_some_and(|said| {
            said.starts_with("If the queue is empty, the current submission index")
        })
}

pub(crate) fn count_panics() {
    static HOOKED: std::sync::Once = std::sync::Once::new();
    HOOKED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if is_wgpu_s(info) {
                IN_WGPU.fetch_add(1, Ordering::Relaxed);
                return;
            }
            PANICS.fetch_add(1, Ordering::Relaxed);
            before(info);
        }));
    });
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Workers, and the thread that starts them.
pub(crate) const SEATS: usize = 5;

struct Seat {
    steps: AtomicU64,
    /// Whether a thread works in this seat.
    busy: AtomicBool,
    doing: Mutex<String>,
}

static BOARD: [Seat; SEATS] = [const {
    Seat {
        steps: AtomicU64::new(0),
        busy: AtomicBool::new(false),
        doing: Mutex::new(String::new()),
    }
}; SEATS];

/// Records the present step of the thread in a seat.
pub(crate) fn doing(seat: usize, what: impl Into<String>) {
    *lock(&BOARD[seat].doing) = what.into();
    BOARD[seat].steps.fetch_add(1, Ordering::Relaxed);
    BOARD[seat].busy.store(true, Ordering::Relaxed);
}

pub(crate) fn idle(seat: usize) {
    BOARD[seat].busy.store(false, Ordering::Relaxed);
}

/// The seconds after which a call counts as one that never returns.
const LIMIT: u32 = 300;

/// Ends the process when a thread makes no step for five minutes, and prints the step of each thread.
pub(crate) struct Watchdog {
    ended: std::sync::Arc<(Mutex<bool>, Condvar)>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watchdog {
    pub(crate) fn new(about: String) -> Watchdog {
        let ended = std::sync::Arc::new((Mutex::new(false), Condvar::new()));
        let of_thread = std::sync::Arc::clone(&ended);
        let watch = move || {
            let mut last = [(0, 0u32); SEATS];
            let (flag, told) = &*of_thread;
            let mut over = lock(flag);
            while !*over {
                let waited = told.wait_timeout(over, Duration::from_secs(1));
                over = waited.unwrap_or_else(PoisonError::into_inner).0;
                for (seat, (steps, seconds)) in BOARD.iter().zip(&mut last) {
                    let now = seat.steps.load(Ordering::Relaxed);
                    let same = now == *steps && seat.busy.load(Ordering::Relaxed);
                    *seconds = if same { *seconds + 1 } else { 0 };
                    *steps = now;
                }
                if last.iter().any(|(_, seconds)| *seconds >= LIMIT) {
                    eprintln!("{about}: no progress for {LIMIT} s");
                    for (number, seat) in BOARD.iter().enumerate() {
                        let busy = seat.busy.load(Ordering::Relaxed);
                        eprintln!("thread {number}, busy {busy}: {}", lock(&seat.doing));
                    }
                    std::process::abort();
                }
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".into());
        Watchdog {
            ended,
            thread: Some(thread.spawn(watch).unwrap()),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *lock(&self.ended.0) = true;
        self.ended.1.notify_all();
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Waits for at most ten minutes until `ask` returns a value.
pub(crate) fn until<T: std::fmt::Debug>(what: &str, mut ask: impl FnMut() -> Result<(), T>) {
    let begun = std::time::Instant::now();
    loop {
        match ask() {
            Ok(()) => return,
            Err(found) if begun.elapsed() > Duration::from_secs(600) => {
                panic!("{what}: {found:?} after 600 s")
            }
            Err(_) => std::thread::yield_now(),
        }
    }
}
