//! Things that several buffers share, ended when the last user is dropped.
//!
//! Ending waits until devices are idle. It happens without the lock, so that only callers that want the same thing
//! wait meanwhile. If the last user is handed to a reaper, the reaper's thread does it.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Shared things by their keys. A thing ends when it is dropped.
pub(super) struct Uses<K, T> {
    all: Mutex<All<K, T>>,
    /// A thing has begun or ended.
    changed: Condvar,
}

pub(super) type All<K, T> = BTreeMap<K, Use<T>>;

/// A thing in use.
pub(super) struct Use<T> {
    users: usize,
    /// `None` while the thing begins, and while it ends.
    pub(super) what: Option<T>,
}

/// One user of a thing, until dropped. Dropping the last user ends the thing and blocks until that is done.
pub(super) struct User<K: Ord, T> {
    all: Arc<Uses<K, T>>,
    key: K,
}

impl<K, T> Default for Uses<K, T> {
    fn default() -> Uses<K, T> {
        Uses {
            all: Mutex::default(),
            changed: Condvar::new(),
        }
    }
}

impl<K, T> Uses<K, T> {
    pub(super) fn lock(&self) -> MutexGuard<'_, All<K, T>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something has begun or ended.
    pub(super) fn wait<'a>(&'a self, all: MutexGuard<'a, All<K, T>>) -> MutexGuard<'a, All<K, T>> {
        let waited = self.changed.wait(all);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord + Copy, T> User<K, T> {
    /// Makes the first user of a thing.
    pub(super) fn first(
        uses: &Arc<Uses<K, T>>,
        all: &mut All<K, T>,
        (key, what): (K, T),
    ) -> User<K, T> {
        let new = Use {
            users: 0,
            what: Some(what),
        };
        User::another(uses, (key, all.entry(key).or_insert(new)))
    }

    /// The first user of a thing that begins without the lock: other callers that want it wait meanwhile. The
    /// caller must bring the thing, or drop this.
    pub(super) fn before(uses: &Arc<Uses<K, T>>, all: &mut All<K, T>, key: K) -> User<K, T> {
        let new = Use {
            users: 0,
            what: None,
        };
        User::another(uses, (key, all.entry(key).or_insert(new)))
    }

    /// Stores the thing, which has begun.
    pub(super) fn bring(&self, what: T) {
        if let Some(used) = self.all.lock().get_mut(&self.key) {
            used.what = Some(what);
        }
        self.all.changed.notify_all();
    }

    /// Adds a user to an existing thing.
    pub(super) fn another(uses: &Arc<Uses<K, T>>, (key, used): (K, &mut Use<T>)) -> User<K, T> {
        used.users += 1;
        User {
            all: Arc::clone(uses),
            key,
        }
    }
}

impl<K: Ord, T> Drop for User<K, T> {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        let Some(used) = all.get_mut(&self.key) else {
            return;
        };
        used.users -= 1;
        if used.users > 0 {
            return;
        }
        let what = used.what.take();
        drop(all);
        drop(what);
        self.all.lock().remove(&self.key);
        self.all.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;

    /// Takes its time to end.
    struct Slow(Sender<()>, Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
            self.1.recv().unwrap();
        }
    }

    #[test]
    fn who_wants_what_is_ending_waits_for_that_alone() {
        let uses: Arc<Uses<u8, Slow>> = Arc::default();
        let (tell, told) = channel();
        let of_key = |key: u8| {
            let (go, gate) = channel();
            let what = Slow(tell.clone(), gate);
            (User::first(&uses, &mut uses.lock(), (key, what)), go)
        };
        let ((first, go), (other, go_on)) = (of_key(1), of_key(2));
        let again = match uses.lock().get_mut(&1) {
            Some(used) => User::another(&uses, (1, used)),
            None => panic!("it is in use"),
        };
        drop(first);
        assert!(told.try_recv().is_err(), "there is another user");
        thread::scope(|scope| {
            scope.spawn(move || drop(again));
            told.recv().unwrap();
            assert!(uses.lock()[&1].what.is_none());
            // Others come and go.
            go_on.send(()).unwrap();
            drop(other);
            assert!(!uses.lock().contains_key(&2));
            let waiting = scope.spawn(|| {
                let mut all = uses.lock();
                while all.contains_key(&1) {
                    all = uses.wait(all);
                }
            });
            go.send(()).unwrap();
            waiting.join().unwrap();
        });
    }
}
