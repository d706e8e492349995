//! Unique handles: a destroyed handle is never given out again.

use std::collections::BTreeMap;

/// Things of one kind, by handle. A handle is a number that means nothing but its place here: it is never
/// an address, so a client that looks into it fails at once.
#[derive(Debug)]
pub(crate) struct Registry<T> {
    /// The prefix of all handles of the kind, so that kinds cannot be confused.
    kind: u64,
    next: u64,
    things: BTreeMap<u64, T>,
}

/// Below this, numbers mean default streams and the like.
const FIRST: u64 = 1;
/// The distance between handles: pointers that clients align stay unchanged.
const STRIDE: u64 = 16;

impl<T> Registry<T> {
    /// An empty registry. `kind` is a small number that no other registry has.
    pub(crate) const fn new(kind: u8) -> Registry<T> {
        Registry {
            kind: (kind as u64) << 40,
            next: FIRST,
            things: BTreeMap::new(),
        }
    }

    /// Takes a thing in, and gives its handle.
    pub(crate) fn add(&mut self, thing: T) -> u64 {
        let handle = self.kind | (self.next * STRIDE);
        self.next += 1;
        self.things.insert(handle, thing);
        handle
    }

    pub(crate) fn get(&self, handle: u64) -> Option<&T> {
        self.things.get(&handle)
    }

    pub(crate) fn get_mut(&mut self, handle: u64) -> Option<&mut T> {
        self.things.get_mut(&handle)
    }

    pub(crate) fn remove(&mut self, handle: u64) -> Option<T> {
        self.things.remove(&handle)
    }

    /// Removes what is not to be kept.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.things.retain(|_, thing| keep(thing));
    }

    /// Whether the handle was issued, and its object is gone.
    pub(crate) fn was(&self, handle: u64) -> bool {
        let given = |serial: u64| serial >= FIRST && serial < self.next;
        handle & !((1 << 40) - 1) == self.kind
            && handle.is_multiple_of(STRIDE)
            && given((handle & ((1 << 40) - 1)) / STRIDE)
            && !self.things.contains_key(&handle)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        self.things
            .iter_mut()
            .map(|(handle, thing)| (*handle, thing))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.things.iter().map(|(handle, thing)| (*handle, thing))
    }

    /// Adds a line for each thing that is still there.
    pub(crate) fn leaks(&self, lines: &mut Vec<String>, what: &str) {
        lines.extend(
            self.things
                .keys()
                .map(|handle| format!("{what} {handle:#x}")),
        );
    }
}

/// The prefixes of handles, by the kind of object.
pub(crate) mod kind {
    pub(crate) const CONTEXT: u8 = 1;
    pub(crate) const PIECE: u8 = 16;
    pub(crate) const EXTERNAL: u8 = 17;
    pub(crate) const SEMAPHORE: u8 = 18;
    pub(crate) const POOL: u8 = 32;
    pub(crate) const STREAM: u8 = 2;
    pub(crate) const EVENT: u8 = 3;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_never_used_again() {
        let mut things = Registry::new(3);
        let first = things.add("a");
        assert_eq!(things.remove(first), Some("a"));
        let second = things.add("b");
        assert_ne!(first, second);
        assert!(things.was(first) && !things.was(second));
        assert_eq!(things.get(first), None);
        assert_eq!(things.get(second), Some(&"b"));
        assert_eq!(things.remove(first), None);
    }

    #[test]
    fn what_was_never_given_out_was_not() {
        let mut streams = Registry::new(1);
        let mut events = Registry::new(2);
        let stream = streams.add(());
        let event = events.add(());
        assert_ne!(stream, event);
        assert!(!streams.was(event) && !streams.was(0) && !streams.was(stream + 16));
        streams.remove(stream);
        assert!(streams.was(stream) && !streams.was(stream + 1) && !events.was(stream));
    }
}
