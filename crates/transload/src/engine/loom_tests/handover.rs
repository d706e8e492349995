//! The place of the listener passes from thread to thread, and no transfer is left without one.
//!
//! A model is over when all of its threads have ended, the manager's own too, which ends with the last handle. So a
//! listener that keeps the manager alive for nothing shows as a deadlock, like a lost wake-up.

use alloc::sync::Arc;
use alloc::vec;
use core::task::Waker;

use transload_core::Shape;

use super::super::active::Stage;
use super::super::operand::Operand;
use super::super::shared::Shared;
use super::super::signal::Parker;
use super::super::state::State;
use super::super::types::TransferId;
use super::{Kept, SLOT_BYTES, engine, model, model_within, slot, spawn};
use crate::Event;

/// Returns an engine whose transfers advance by themselves, with that many of them. Each ends when the engine takes in
/// word that its event was set.
fn engine_with<const N: usize>() -> (Kept<Arc<Shared>>, [TransferId; N]) {
    let mut ids = [TransferId::NONE; N];
    let shared = engine(|state| {
        state.advances = true;
        ids = core::array::from_fn(|_| begin(state));
    });
    (shared, ids)
}

/// Returns a transfer that waits for one event.
pub(super) fn begin(state: &mut State) -> TransferId {
    let index = state.table.take();
    let active = &mut state.table[index];
    active.stage = Stage::Waiting;
    active.waits_for = 1;
    active.dst = Some(Operand {
        buffer: slot(),
        offset: 0,
        shape: Shape::contiguous(SLOT_BYTES),
        scattered: None,
    });
    state.table.enter(index, &[]);
    state.table.set_needs_listener(index, true);
    state.table.id(index)
}

/// Has a backend's thread tell that the transfers have ended.
fn tell<const N: usize>(shared: &Arc<Shared>, ids: [TransferId; N]) {
    // As a backend, it holds the queue and not the manager.
    let completions = Arc::clone(&shared.completions);
    spawn(move || {
        ids.iter()
            .for_each(|id| completions.tell(vec![*id].into_iter()))
    });
}

/// Has a thread wait for the transfer.
fn wait(shared: &Arc<Shared>, id: TransferId) {
    let shared = Arc::clone(shared);
    spawn(move || assert!(shared.block_on(id, None)));
}

/// Submits a transfer without a handle, has it end, and sleeps until its waker is called.
fn submit_and_sleep(shared: &Arc<Shared>) {
    let task = Parker::current();
    let id = shared.state.with(|state| {
        let id = begin(state);
        state.table[id.index].waker = Some(task.waker());
        id
    });
    shared.detach(id);
    shared.completions.tell(vec![id].into_iter());
    task.park(None);
}

#[test]
fn an_outcome_is_taken_in_while_a_waiter_takes_the_place_of_the_own_thread() {
    model(|| {
        let (shared, [id]) = engine_with();
        assert!(shared.poll(id, Waker::noop()));
        tell(&shared, [id]);
        assert!(shared.block_on(id, None));
    });
}

#[test]
fn a_waiter_that_leaves_hands_the_place_on() {
    model(|| {
        let (shared, [id, other]) = engine_with();
        wait(&shared, id);
        let task = Parker::current();
        assert!(shared.poll(other, &task.waker()));
        shared.completions.tell(vec![id].into_iter());
        shared.completions.tell(vec![other].into_iter());
        task.park(None);
    });
}

#[test]
fn a_waiter_that_leaves_sees_what_was_submitted_meanwhile() {
    model(|| {
        let (shared, [id]) = engine_with();
        wait(&shared, id);
        shared.completions.tell(vec![id].into_iter());
        submit_and_sleep(&shared);
    });
}

#[test]
fn a_thread_that_dismisses_the_own_one_sees_what_was_submitted_meanwhile() {
    model(|| {
        let (shared, [id]) = engine_with();
        assert!(shared.poll(id, Waker::noop()));
        let other = Arc::clone(&shared);
        spawn(move || {
            other.completions.tell(vec![id].into_iter());
            other.take_outcomes();
        });
        submit_and_sleep(&shared);
    });
}

#[test]
fn an_outcome_between_a_poll_and_the_appointment_wakes_the_task() {
    model(|| {
        let (shared, [id]) = engine_with();
        tell(&shared, [id]);
        let task = Parker::current();
        while shared.poll(id, &task.waker()) {
            task.park(None);
        }
    });
}

#[test]
fn two_waiters_beside_the_own_thread_both_wake() {
    // Five threads.
    model_within(1, || {
        let (shared, [id, other, third]) = engine_with();
        let task = Parker::current();
        assert!(shared.poll(third, &task.waker()));
        wait(&shared, id);
        wait(&shared, other);
        shared.completions.tell(vec![other, id, third].into_iter());
        task.park(None);
    });
}

#[test]
fn the_own_thread_lets_go_when_the_last_transfer_ends_elsewhere() {
    model(|| {
        let (shared, [id]) = engine_with();
        assert!(shared.poll(id, Waker::noop()));
        let other = Arc::clone(&shared);
        spawn(move || {
            other.completions.tell(vec![id].into_iter());
            other.take_outcomes();
        });
    });
}

#[test]
fn a_setter_between_looking_and_parking_starts_what_waited() {
    model(|| {
        let (shared, [id]) = engine_with();
        let event = Event::new(Arc::clone(&shared));
        assert!(event.state.subscribe(id, |_| true));
        let set = event.setter();
        drop(event);
        spawn(set);
        assert!(shared.block_on(id, None));
    });
}

#[test]
fn a_thread_that_waits_until_idle_wakes_with_the_last_transfer() {
    model(|| {
        let (shared, [id]) = engine_with();
        let ending = Arc::clone(&shared);
        spawn(move || {
            ending.change(|state| {
                state.handle_awaited(id.index);
                state.table.leave(id.index);
            });
        });
        assert!(shared.block_until_idle(None));
    });
}
