//! The places of transfers and guards.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use super::active::{Active, Stage, TransferId};

/// A transfer has a place from the moment it is accepted until its handle is dropped. Places are reused.
///
/// A few places keep their allocations while they are free, so that a program with a steady load allocates nothing. The
/// others keep 20 bytes each: a burst of a million transfers leaves 20 MB.
pub(crate) struct Places {
    all: Vec<Place>,
    /// Free places that keep their allocations. The last one is taken first.
    warm: Vec<u32>,
    cold: Vec<u32>,
}

enum Place {
    /// Taken, or free and warm.
    Warm(Box<Active>),
    /// Free: the number of its earlier uses.
    Cold(u32),
}

/// The most free places that keep their allocations, about 2 KiB each: more transfers than most programs have under
/// way.
const WARM: usize = 256;

impl Places {
    pub(crate) fn with_capacity(room: usize) -> Places {
        Places {
            all: Vec::with_capacity(room),
            warm: Vec::with_capacity(WARM),
            cold: Vec::new(),
        }
    }

    pub(crate) fn take(&mut self) -> u32 {
        if let Some(slot) = self.warm.pop() {
            return slot;
        }
        let slot = self.cold.pop();
        let at = slot.map_or(self.all.len(), |slot| slot as usize);
        let generation = match self.all.get(at) {
            Some(Place::Cold(generation)) => *generation,
            _ => 0,
        };
        let place = Place::Warm(Box::new(Active::vacant(generation)));
        match self.all.get_mut(at) {
            Some(cold) => *cold = place,
            None => self.all.push(place),
        }
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// Takes back the place of a transfer that holds nothing of others any more.
    pub(crate) fn give_back(&mut self, slot: u32) {
        if self.warm.len() < WARM {
            return self.warm.push(slot);
        }
        self.all[slot as usize] = Place::Cold(self[slot as usize].generation);
        self.cold.push(slot);
    }

    /// Returns whether a transfer waits for events or for other transfers.
    pub(crate) fn waits(&self, id: TransferId) -> bool {
        let active = self.get(id.slot as usize);
        active.is_some_and(|active| {
            active.generation == id.generation && active.stage == Stage::Waiting
        })
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Active> {
        match self.all.get(at)? {
            Place::Warm(active) => Some(active),
            Place::Cold(_) => None,
        }
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut Active> {
        match self.all.get_mut(at)? {
            Place::Warm(active) => Some(active),
            Place::Cold(_) => None,
        }
    }
}

/// The place of a transfer that has not left it.
impl Index<usize> for Places {
    type Output = Active;

    fn index(&self, at: usize) -> &Active {
        self.get(at)
            .expect("a transfer has its place until it leaves it")
    }
}

impl IndexMut<usize> for Places {
    fn index_mut(&mut self, at: usize) -> &mut Active {
        self.get_mut(at)
            .expect("a transfer has its place until it leaves it")
    }
}
