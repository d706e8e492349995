//! Turns the engine where there is no thread, for detached transfers and for deadlines.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use transload_core::Instant;
use wasm_bindgen::JsValue;
use wasm_bindgen::closure::Closure;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::engine::signal::Signal;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_name = setTimeout)]
    fn set_timeout(callback: &JsValue, milliseconds: i32);
}

/// A manager, as the page's task sees it.
pub(crate) trait Driven {
    fn microtask(&self) -> &Microtask;

    fn signal(&self) -> &Arc<Signal>;

    /// Turns the engine. Returns whether a transfer is under way.
    fn drive(self: &Arc<Self>) -> bool;

    /// Has the task polled again when there is something to do.
    fn ensure_wake(&self, waker: &Waker);

    /// Returns the time, and when the next deadline passes.
    fn next_deadline(&self) -> (Instant, Option<Instant>);
}

/// A task of the page, which the browser runs as a microtask after each completion, from the first transfer that needs
/// it until none is under way; and a timer while a transfer has a deadline.
#[derive(Default)]
pub(crate) struct Microtask {
    is_there: Cell<bool>,
    /// When the earliest timer wakes the tasks that wait.
    alarm: Rc<Cell<Option<Instant>>>,
}

impl Microtask {
    /// Starts the task, unless it runs.
    pub(crate) fn ensure<M: Driven + 'static>(&self, manager: &Arc<M>) {
        self.set_alarm(&**manager);
        if self.is_there.replace(true) {
            return;
        }
        // Keeps the manager alive until its transfers are over, and no longer.
        let mut held = Some(Arc::clone(manager));
        wasm_bindgen_futures::spawn_local(poll_fn(move |context| {
            let Some(manager) = &held else {
                return Poll::Ready(());
            };
            if manager.drive() {
                manager.microtask().set_alarm(&**manager);
                manager.ensure_wake(context.waker());
                return Poll::Pending;
            }
            manager.microtask().is_there.set(false);
            held = None;
            Poll::Ready(())
        }));
    }

    /// Sets a browser timer that wakes the tasks that wait when the next deadline passes, unless an earlier one is set.
    fn set_alarm(&self, manager: &impl Driven) {
        let (now, Some(at)) = manager.next_deadline() else {
            return;
        };
        if self.alarm.get().is_some_and(|alarm| alarm <= at) {
            return;
        }
        self.alarm.set(Some(at));
        let (alarm, signal) = (Rc::clone(&self.alarm), Arc::clone(manager.signal()));
        let ring = Closure::once_into_js(move || {
            if alarm.get() == Some(at) {
                alarm.set(None);
            }
            signal.notify();
        });
        // A timer that fires too early finds the deadline ahead, and is set again. No timer runs for 25 days or more.
        let left = at.0.saturating_sub(now.0).div_ceil(1_000_000);
        set_timeout(&ring, i32::try_from(left).unwrap_or(i32::MAX));
    }
}
