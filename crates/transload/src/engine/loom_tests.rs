//! Runs every interleaving of the small concurrent parts, as far as loom's memory model goes. A lost wake-up shows as a
//! deadlock.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::task::Waker;

use loom::thread;
use transload_core::{DeviceId, Limits, MemoryId, MemoryKind, PlanCache, StorageId};
use transload_hal::{
    BackendId, Buffer, CompletionSink, Fence, HostSpan, Name, Outcome, StorageInfo,
};

use super::active::Stage;
use super::admission::budget::{Leased, Pool, StagingBudget};
use super::admission::shares::Claims;
use super::clock::NoClock;
use super::completions::Completions;
use super::event::Awaited;
use super::shared::Shared;
use super::signal::{Listening, Parker, Signal};
use super::state::State;
use super::sync::{LOOM_STACK_WORDS, Lock};
use super::types::{FirstSlot, Pair, TransferId};
use crate::{Event, TransferError};

mod handover;
mod hardware;

const BACKEND: BackendId = BackendId(Name::constant("loom"));
const SLOT_BYTES: u64 = 8;

/// Runs the threads of `run` in every order with so many preemptions at most. Hardly any mistake needs more than two.
fn model_within(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    let run = Arc::new(run);
    model.check(move || {
        let run = Arc::clone(&run);
        // The first thread of a model has a small stack. It ends at once.
        spawn(move || run());
    });
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    model_within(2, run);
}

/// Something that is not dropped while a model fails: loom's locks are gone by then, and a panic there would end the
/// process, with the names of the tests that failed.
struct Kept<T>(Option<T>);

impl<T> Kept<T> {
    fn new(value: T) -> Kept<T> {
        Kept(Some(value))
    }
}

impl<T> core::ops::Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().unwrap()
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            core::mem::forget(self.0.take());
        }
    }
}

/// Starts a thread that may turn the engine.
fn spawn(run: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    let thread = thread::Builder::new().stack_size(LOOM_STACK_WORDS);
    thread.spawn(run).unwrap()
}

/// Sleeps until there is an event after `seen`. A thread that cannot listen lets others go first and looks again.
fn rest(signal: &Signal, seen: u64) {
    let parker = Parker::current();
    match signal.listen(&parker, seen) {
        Listening::News => {}
        Listening::Other => thread::yield_now(),
        Listening::Mine(_) => {
            parker.park(None);
            signal.leave(&parker);
        }
    }
}

fn memory() -> MemoryId {
    DeviceId::CPU0.memory(MemoryKind::Pinned)
}

/// What a backend would allocate for a slot.
fn slot() -> Buffer {
    let mut bytes = vec![0u8; SLOT_BYTES as usize];
    let host = HostSpan::of_mut(&mut bytes);
    let info = StorageInfo {
        id: StorageId::Host,
        base: host.addr(),
        len_bytes: SLOT_BYTES,
        memory: memory(),
        backend: BACKEND,
        writable: true,
        host: Some(host),
    };
    // SAFETY: the vector's block stays in place until the vector is dropped, and nothing but the buffer uses it.
    unsafe { Buffer::new(info, Box::new(bytes)) }
}

fn wanted(slots: usize) -> Vec<FirstSlot> {
    let want = |ring| FirstSlot {
        lane: 0,
        ring: ring as u8,
        memory: memory(),
        bytes: SLOT_BYTES,
        part: None,
        buffer: None,
    };
    (0..slots).map(want).collect()
}

/// Waits for so many slots, has them for a while, and gives them back.
fn lease_and_return(pool: &Pool, signal: &Signal, slots: usize, held: &Lock<u64>, limit: u64) {
    let mut leased = wanted(slots);
    loop {
        let seen = signal.seen();
        let mut evicted = Vec::new();
        let claims = &mut Claims::default();
        if pool.lease(Pair::HOST, claims, &mut leased, &mut evicted) == Leased::All {
            break;
        }
        assert!(
            leased.iter().all(|one| one.buffer.is_none()),
            "none in vain"
        );
        rest(signal, seen);
    }
    held.with(|held| {
        *held += slots as u64 * SLOT_BYTES;
        assert!(*held <= limit, "{held} of {limit} bytes");
    });
    let buffers = leased
        .into_iter()
        .map(|one| one.buffer.unwrap_or_else(slot));
    let buffers: Vec<Buffer> = buffers.collect();
    held.with(|held| *held -= slots as u64 * SLOT_BYTES);
    let give_back = |slot| pool.give_back(slot, Pair::HOST, &mut Vec::new());
    buffers.into_iter().for_each(give_back);
}

#[test]
fn leases_of_two_managers_stay_within_the_budget_and_nobody_waits_for_ever() {
    model(|| {
        let limit = 2 * SLOT_BYTES;
        let budget = Arc::new(StagingBudget::new(limit));
        let held = Arc::new(Lock::new(0));
        let threads: Vec<_> = [2, 1]
            .into_iter()
            .map(|slots| {
                let signal = Arc::new(Signal::default());
                let pool = Pool::new(Arc::clone(&budget), Arc::clone(&signal));
                let held = Arc::clone(&held);
                thread::spawn(move || {
                    lease_and_return(&pool, &signal, slots, &held, limit);
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert!(budget.peak_bytes() <= limit);
        // The pools have gone, and their idle slots with them.
        assert_eq!(budget.used_bytes(), 0);
    });
}

#[test]
fn leases_of_two_threads_of_one_manager_are_never_the_same_slot() {
    model(|| {
        let limit = SLOT_BYTES;
        let budget = Arc::new(StagingBudget::new(limit));
        let signal = Arc::new(Signal::default());
        let pool = Pool::new(Arc::clone(&budget), Arc::clone(&signal));
        let held = Arc::new(Lock::new(0));
        let other = {
            let (pool, signal) = (Arc::clone(&pool), Arc::clone(&signal));
            let held = Arc::clone(&held);
            thread::spawn(move || lease_and_return(&pool, &signal, 1, &held, limit))
        };
        lease_and_return(&pool, &signal, 1, &held, limit);
        other.join().unwrap();
        assert_eq!((budget.used_bytes(), budget.peak_bytes()), (limit, limit));
        assert_eq!(pool.trim().len(), 1);
        assert_eq!(budget.used_bytes(), 0);
    });
}

#[test]
fn completions_are_each_taken_once_and_none_is_missed() {
    model(|| {
        let signal = Arc::new(Signal::default());
        let completions = Arc::new(Completions::new(Arc::clone(&signal), None));
        let settlers: Vec<_> = [1, 2]
            .into_iter()
            .map(|number| {
                let completions = Arc::clone(&completions);
                thread::spawn(move || {
                    completions.settle(Fence::new(BACKEND, number), Outcome::Done);
                })
            })
            .collect();
        let mut taken = Vec::new();
        while taken.len() < 2 {
            let seen = signal.seen();
            match completions.take() {
                Some((fence, _)) => taken.push(fence.number()),
                None => rest(&signal, seen),
            }
        }
        settlers
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
        assert!(completions.take().is_none());
    });
}

#[test]
fn completions_are_shared_out_between_threads_that_take() {
    model(|| {
        let signal = Arc::new(Signal::default());
        let completions = Arc::new(Completions::new(signal, None));
        completions.settle(Fence::new(BACKEND, 1), Outcome::Done);
        completions.settle(Fence::new(BACKEND, 2), Outcome::Done);
        let other = {
            let completions = Arc::clone(&completions);
            thread::spawn(move || completions.take().map(|(fence, _)| fence.number()))
        };
        let mine = completions.take().map(|(fence, _)| fence.number());
        let theirs = other.join().unwrap();
        assert!(mine.is_some() && theirs.is_some());
        assert_ne!(mine, theirs);
    });
}

#[test]
fn events_that_callbacks_set_are_told_to_who_waits() {
    model(|| {
        let (shared, id) = engine_with_a_transfer();
        let event = Event::new(Arc::clone(&shared));
        let set = event.setter();
        let callback = thread::spawn(set);
        let take_told = || {
            let mut told = Awaited::default();
            shared.completions.take_awaited(&mut told);
            told.next()
        };
        // Set before, or told of it.
        let mut waits = event.state.subscribe(id, |_| true);
        while waits {
            let seen = shared.signal.seen();
            match take_told() {
                Some(told) => waits = told != id,
                None => rest(&shared.signal, seen),
            }
        }
        assert!(event.is_set() && take_told().is_none());
        callback.join().unwrap();
    });
}

#[test]
fn signals_are_not_lost_between_looking_and_sleeping() {
    model(|| {
        let signal = Arc::new(Signal::default());
        let flag = Arc::new(Lock::new(false));
        let notifier = {
            let (signal, flag) = (Arc::clone(&signal), Arc::clone(&flag));
            thread::spawn(move || {
                flag.with(|flag| *flag = true);
                signal.notify();
            })
        };
        loop {
            let seen = signal.seen();
            if flag.with(|flag| *flag) {
                break;
            }
            rest(&signal, seen);
        }
        notifier.join().unwrap();
    });
}

/// Returns an engine whose state `fill` begins.
fn engine(fill: impl FnOnce(&mut State)) -> Kept<Arc<Shared>> {
    let signal = Arc::new(Signal::default());
    let pool = Pool::new(Arc::new(StagingBudget::new(0)), Arc::clone(&signal));
    let limits = Limits {
        staging_bytes: 0,
        lanes: 1,
    };
    let mut state = State::new(pool, PlanCache::new(1), limits);
    fill(&mut state);
    Kept::new(Arc::new(Shared::new(state, signal, Arc::new(NoClock))))
}

/// Returns an engine with one transfer that nothing has to be done for.
fn engine_with_a_transfer() -> (Kept<Arc<Shared>>, TransferId) {
    let mut id = None;
    let shared = engine(|state| {
        let index = state.table.take();
        state.table[index].stage = Stage::Flying;
        state.table.enter(index, &[]);
        id = Some(state.table.id(index));
    });
    (shared, id.unwrap())
}

/// The transfer ends on a thread of its own.
fn end(shared: &Arc<Shared>, id: TransferId) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        shared.change(|state| state.finish(id.index, Err(TransferError::BatchStopped)));
        shared.turn_quickly();
    })
}

#[test]
fn wakers_are_called_or_the_transfer_is_seen_to_be_over() {
    model(|| {
        let (shared, id) = engine_with_a_transfer();
        let ending = end(&shared, id);
        let task = Parker::current();
        if shared.poll(id, &task.waker()) {
            task.park(None);
            assert!(!shared.poll(id, &task.waker()));
        }
        assert!(matches!(
            shared.take_result(id),
            Some(Err(TransferError::BatchStopped))
        ));
        ending.join().unwrap();
    });
}

#[test]
fn wakers_that_were_replaced_leave_the_new_one_to_be_called() {
    model(|| {
        let (shared, id) = engine_with_a_transfer();
        assert!(shared.poll(id, Waker::noop()));
        let ending = end(&shared, id);
        let new = Parker::current();
        if shared.poll(id, &new.waker()) {
            new.park(None);
        }
        assert!(shared.is_settled(id));
        ending.join().unwrap();
    });
}

#[test]
fn threads_that_block_on_a_transfer_see_its_end() {
    model(|| {
        let (shared, id) = engine_with_a_transfer();
        let ending = end(&shared, id);
        assert!(shared.block_on(id, None));
        assert!(shared.take_result(id).is_some());
        ending.join().unwrap();
    });
}
