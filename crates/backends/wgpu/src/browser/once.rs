//! A future for the one answer that a callback of the browser gives.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Both ends of one answer.
pub(super) fn once<T>() -> (Tell<T>, Told<T>) {
    let shared = Arc::new(Shared(Mutex::new(State {
        answer: None,
        is_over: false,
        waker: None,
    })));
    (Tell(Arc::clone(&shared)), Told(shared))
}

/// The callback's end.
pub(super) struct Tell<T>(Arc<Shared<T>>);

/// The future's end. The answer is `None` if the callback was dropped without a call.
pub(super) struct Told<T>(Arc<Shared<T>>);

/// A mutex although there is one thread: wgpu wants some callbacks to be `Send` even so.
struct Shared<T>(Mutex<State<T>>);

struct State<T> {
    answer: Option<T>,
    is_over: bool,
    waker: Option<Waker>,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Tell<T> {
    pub(super) fn tell(self, answer: T) {
        self.0.lock().answer = Some(answer);
    }
}

impl<T> Drop for Tell<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_over = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Told<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        if state.is_over {
            return Poll::Ready(state.answer.take());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
