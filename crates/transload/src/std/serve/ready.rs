//! What other threads tell the thread of a session.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Wake;

use transload_core::Ticket;
use transload_remote::{Feed, SessionHandle};

/// Something that a session has to look at. All numbers are the peer's.
#[derive(Clone, Copy)]
pub(super) enum News {
    /// An operation, which may be over.
    Operation(u64),
    /// A grant, which may be over.
    Grant(u64),
    /// A reservation, which has its turn if it still is the one with that place.
    Turn(u64, Ticket),
}

/// The news of a session.
#[derive(Default)]
pub(super) struct Ready {
    news: Mutex<VecDeque<News>>,
    session: OnceLock<SessionHandle>,
}

/// Wakes the session for one of its operations.
pub(super) struct Woken {
    pub(super) ready: Arc<Ready>,
    pub(super) id: u64,
}

impl Wake for Woken {
    fn wake(self: Arc<Woken>) {
        self.ready.tell(News::Operation(self.id));
    }
}

impl Ready {
    /// Has the session look at something.
    pub(super) fn tell(&self, news: News) {
        let all = self.news.lock();
        all.unwrap_or_else(PoisonError::into_inner).push_back(news);
        if let Some(session) = self.session.get() {
            session.wake();
        }
    }

    pub(super) fn pop(&self) -> Option<News> {
        let all = self.news.lock();
        all.unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// What must know the session's handle.
pub(super) struct Link {
    pub(super) ready: Arc<Ready>,
    pub(super) feed: Arc<Feed>,
}

impl Link {
    pub(super) fn begin(&self, session: SessionHandle) {
        let _ = self.ready.session.set(session.clone());
        self.feed.begin(session);
    }
}
