//! Finds the parts of a topology by name, so that the time of a look-up does not grow with the machine.

use alloc::vec::Vec;

use hashbrown::HashMap;

use super::Inventory;
use crate::{DeviceId, MemoryId};

/// The places of devices, memories and links in the lists of a topology.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Index {
    devices: HashMap<DeviceId, usize>,
    nodes: HashMap<MemoryId, Node>,
}

/// A memory and its links.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Node {
    /// Absent while only links name the memory.
    info: Option<usize>,
    /// In the order of the list, as the arriving ones.
    leaving: Vec<usize>,
    arriving: Vec<usize>,
}

impl Index {
    /// Takes in an inventory whose parts will be the next ones of lists that have so many devices, memories and links.
    pub(super) fn add(&mut self, inventory: &Inventory, [devices, memories, links]: [usize; 3]) {
        for (at, device) in (devices..).zip(&inventory.devices) {
            self.devices.insert(device.id, at);
        }
        for (at, memory) in (memories..).zip(&inventory.memories) {
            self.nodes.entry(memory.id).or_default().info = Some(at);
        }
        for (at, link) in (links..).zip(&inventory.links) {
            self.nodes.entry(link.id.src).or_default().leaving.push(at);
            self.nodes.entry(link.id.dst).or_default().arriving.push(at);
        }
    }

    pub(super) fn device(&self, id: DeviceId) -> Option<usize> {
        self.devices.get(&id).copied()
    }

    pub(super) fn memory(&self, id: MemoryId) -> Option<usize> {
        self.nodes.get(&id)?.info
    }

    /// Returns the links that leave a memory.
    pub(super) fn leaving(&self, src: MemoryId) -> &[usize] {
        self.nodes.get(&src).map_or(&[], |node| &node.leaving)
    }

    /// Returns the links that arrive at a memory.
    pub(super) fn arriving(&self, dst: MemoryId) -> &[usize] {
        self.nodes.get(&dst).map_or(&[], |node| &node.arriving)
    }

    /// Returns the shorter one of two lists with all links from `src` to `dst`.
    pub(super) fn around(&self, src: MemoryId, dst: MemoryId) -> &[usize] {
        let (leaving, arriving) = (self.leaving(src), self.arriving(dst));
        match leaving.len() <= arriving.len() {
            true => leaving,
            false => arriving,
        }
    }
}
