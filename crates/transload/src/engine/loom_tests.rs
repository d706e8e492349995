//! Every interleaving of the small concurrent parts, as far as loom's memory model goes. A wake-up
//! that is lost shows as a deadlock.

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

use super::active::{Boarded, Stage, TransferId};
use super::clock::NoClock;
use super::completions::Completions;
use super::event::Event;
use super::shared::Shared;
use super::signal::Signal;
use super::staging::{Claims, Leased, Pair, Pool, StagingBudget};
use super::state::State;
use super::sync::Lock;
use crate::TransferError;

const BACKEND: BackendId = BackendId(Name::constant("loom"));
const SLOT_BYTES: u64 = 8;

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
    // SAFETY: the vector's block stays in place until the vector is dropped, and nobody else has it.
    unsafe { Buffer::new(info, Box::new(bytes)) }
}

fn wanted(slots: usize) -> Vec<Boarded> {
    let want = |ring| Boarded {
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
        signal.park(seen, None);
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
    loom::model(|| {
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
    loom::model(|| {
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
    loom::model(|| {
        let signal = Arc::new(Signal::default());
        let completions = Arc::new(Completions::new(Arc::clone(&signal)));
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
                None => signal.park(seen, None),
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
    loom::model(|| {
        let signal = Arc::new(Signal::default());
        let completions = Arc::new(Completions::new(signal));
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
    loom::model(|| {
        let (shared, id) = engine_with_a_transfer();
        let event = Event::new(Arc::clone(&shared));
        let set = event.setter();
        let callback = thread::spawn(set);
        // Set before, or told of it.
        let mut waits = event.cell.subscribe(id);
        while waits {
            let seen = shared.signal.seen();
            match shared.completions.take_awaited() {
                Some(told) => waits = told != id,
                None => shared.signal.park(seen, None),
            }
        }
        assert!(event.is_set() && shared.completions.take_awaited().is_none());
        callback.join().unwrap();
    });
}

#[test]
fn signals_are_not_lost_between_looking_and_sleeping() {
    loom::model(|| {
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
            signal.park(seen, None);
        }
        notifier.join().unwrap();
    });
}

/// An engine with one transfer that nothing has to be done for.
fn engine_with_a_transfer() -> (Arc<Shared>, TransferId) {
    let signal = Arc::new(Signal::default());
    let pool = Pool::new(Arc::new(StagingBudget::new(0)), Arc::clone(&signal));
    let limits = Limits {
        staging_bytes: 0,
        lanes: 1,
    };
    let mut state = State::new(pool, PlanCache::new(1), limits);
    let place = state.take_place();
    state.transfers[place as usize].stage = Stage::Flying;
    state.live += 1;
    let id = state.id(place);
    (Arc::new(Shared::new(state, signal, Arc::new(NoClock))), id)
}

/// The transfer ends on a thread of its own.
fn end(shared: &Arc<Shared>, id: TransferId) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        shared.change(|state| state.finish(id.slot, Err(TransferError::BatchStopped)));
    })
}

/// A task that sleeps until its waker is called.
struct Bell {
    rung: Lock<bool>,
    signal: Signal,
}

impl Bell {
    fn new() -> Arc<Bell> {
        Arc::new(Bell {
            rung: Lock::new(false),
            signal: Signal::default(),
        })
    }

    fn wait(&self) {
        loop {
            let seen = self.signal.seen();
            if self.rung.with(|rung| *rung) {
                return;
            }
            self.signal.park(seen, None);
        }
    }
}

impl alloc::task::Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.with(|rung| *rung = true);
        self.signal.notify();
    }
}

#[test]
fn wakers_are_called_or_the_transfer_is_seen_to_be_over() {
    loom::model(|| {
        let (shared, id) = engine_with_a_transfer();
        let ending = end(&shared, id);
        let bell = Bell::new();
        if shared.poll(id, &Waker::from(Arc::clone(&bell))) {
            bell.wait();
            assert!(!shared.poll(id, &Waker::from(Arc::clone(&bell))));
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
    loom::model(|| {
        let (shared, id) = engine_with_a_transfer();
        let old = Bell::new();
        assert!(shared.poll(id, &Waker::from(old)));
        let ending = end(&shared, id);
        let new = Bell::new();
        if shared.poll(id, &Waker::from(Arc::clone(&new))) {
            new.wait();
        }
        assert!(shared.is_settled(id));
        ending.join().unwrap();
    });
}

#[test]
fn threads_that_block_on_a_transfer_see_its_end() {
    loom::model(|| {
        let (shared, id) = engine_with_a_transfer();
        let ending = end(&shared, id);
        assert!(shared.block_on(id, None));
        assert!(shared.take_result(id).is_some());
        ending.join().unwrap();
    });
}
