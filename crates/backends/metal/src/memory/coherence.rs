//! Which copy of a managed buffer is the newer one.
//!
//! Host and device each have a copy of a managed buffer. The host sees the device's writes after a
//! `synchronizeResource`, which copies the whole buffer. So none is ordered if the device wrote nothing since the last
//! one, and none may run while the host writes, because it would overwrite the host's bytes with the device's old
//! ones. A copy by the host is over soon, so it is waited for. A read that needs a synchronization while a host guard
//! may write other bytes is refused, and the engine takes another route.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// The state of a buffer's copies.
#[derive(Default)]
pub(crate) struct Coherence {
    /// How many submissions have written it on the device.
    written: AtomicU64,
    /// How many of these submissions the host's copy shows.
    shown: AtomicU64,
    /// The program may write it, too.
    is_given_out: AtomicBool,
    /// Held by the host while it writes.
    users: Mutex<Users>,
    /// No synchronization is under way.
    quiet: Condvar,
}

/// The users of the host's copy.
#[derive(Default)]
struct Users {
    /// How many synchronizations are under way.
    running: u32,
    /// The number of parts that the host may write at any time.
    taken: u32,
}

/// The coherence of a device's managed buffers, by the buffers' handles: a buffer that is imported twice has the same
/// coherence.
#[derive(Default)]
pub(crate) struct CoherenceMap(Mutex<Vec<(u64, Weak<Coherence>)>>);

impl CoherenceMap {
    /// The coherence of a buffer, which is kept alive meanwhile.
    pub(crate) fn of(&self, handle: u64) -> Arc<Coherence> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, coherence)| coherence.strong_count() > 0);
        let same = all.iter().find(|(known, _)| *known == handle);
        if let Some(coherence) = same.and_then(|(_, coherence)| coherence.upgrade()) {
            return coherence;
        }
        let coherence = Arc::default();
        all.push((handle, Arc::downgrade(&coherence)));
        coherence
    }
}

/// What is needed before the host's copy can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Synchronization {
    /// Nothing.
    NotNeeded,
    /// A synchronization, which has begun: the number is for [`Coherence::end`].
    Begun(u64),
    /// A synchronization that cannot run, because it would overwrite the host's writes.
    Blocked,
}

impl Coherence {
    /// Records that the program has the buffer from now on.
    pub(crate) fn give_out(&self) {
        self.is_given_out.store(true, Ordering::Relaxed);
    }

    /// Records a committed submission that writes the buffer.
    pub(crate) fn wrote(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the host's copy may be out of date.
    pub(crate) fn is_stale(&self) -> bool {
        let written = self.written.load(Ordering::Acquire);
        let is_new = self.shown.load(Ordering::Acquire) < written;
        is_new || self.is_given_out.load(Ordering::Relaxed)
    }

    /// Begins a synchronization if one is needed.
    pub(crate) fn begin(&self) -> Synchronization {
        let mut users = self.lock();
        let written = self.written.load(Ordering::Acquire);
        match (self.is_stale(), users.taken) {
            (false, _) => Synchronization::NotNeeded,
            (true, 0) => {
                users.running += 1;
                Synchronization::Begun(written)
            }
            (true, _) => Synchronization::Blocked,
        }
    }

    /// Ends a synchronization, successful or not.
    pub(crate) fn end(&self, written: u64, is_done: bool) {
        if is_done {
            self.shown.fetch_max(written, Ordering::AcqRel);
        }
        let mut users = self.lock();
        users.running -= 1;
        if users.running == 0 {
            self.quiet.notify_all();
        }
    }

    /// Lets the host write while no synchronization runs. Blocks until running ones are over; each is a copy within
    /// the machine.
    pub(crate) fn write<T>(&self, write: impl FnOnce() -> T) -> T {
        let users = self.quiet();
        let written = write();
        drop(users);
        written
    }

    /// Gives the host a part to write; no synchronization begins until the part is back. Blocks as [`Coherence::write`]
    /// does.
    pub(crate) fn take(&self) {
        self.quiet().taken += 1;
    }

    /// Takes a part back from the host. Does nothing if the host has none.
    pub(crate) fn give_back(&self) {
        let mut users = self.lock();
        users.taken = users.taken.saturating_sub(1);
    }

    /// Locks the users once no synchronization runs.
    fn quiet(&self) -> MutexGuard<'_, Users> {
        let is_running = |users: &mut Users| users.running > 0;
        let quiet = self.quiet.wait_while(self.lock(), is_running);
        quiet.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(coherence: &Coherence) -> u64 {
        match coherence.begin() {
            Synchronization::Begun(written) => written,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_host_writes_when_no_synchronization_runs() {
        let (coherence, told) = (Coherence::default(), Mutex::new(Vec::new()));
        coherence.wrote();
        let running = begun(&coherence);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| coherence.write(|| told.lock().unwrap().push("written")));
            std::thread::yield_now();
            told.lock().unwrap().push("over");
            coherence.end(running, true);
            writer.join().unwrap();
        });
        assert_eq!(*told.lock().unwrap(), ["over", "written"]);
    }

    #[test]
    fn the_host_is_shown_what_is_new_and_no_more() {
        let coherence = Coherence::default();
        assert_eq!(
            coherence.begin(),
            Synchronization::NotNeeded,
            "the device wrote nothing"
        );
        coherence.wrote();
        let first = begun(&coherence);
        coherence.wrote();
        coherence.end(first, true);
        // It was written meanwhile.
        let second = begun(&coherence);
        coherence.end(second, false);
        // The last one failed.
        let third = begun(&coherence);
        coherence.end(third, true);
        assert_eq!(coherence.begin(), Synchronization::NotNeeded);
        coherence.give_out();
        // Writes by others cannot be seen.
        coherence.end(begun(&coherence), true);
    }

    #[test]
    fn what_the_host_has_taken_nothing_overwrites() {
        let coherence = Coherence::default();
        coherence.take();
        coherence.take();
        assert_eq!(coherence.begin(), Synchronization::NotNeeded);
        coherence.wrote();
        coherence.give_back();
        assert_eq!(coherence.begin(), Synchronization::Blocked);
        coherence.give_back();
        // One that was not taken.
        coherence.give_back();
        coherence.take();
        assert_eq!(coherence.begin(), Synchronization::Blocked);
        coherence.give_back();
        coherence.end(begun(&coherence), true);
    }
}
