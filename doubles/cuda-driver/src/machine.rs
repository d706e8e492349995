//! The machine that the double models: its devices, and the routes of bytes between its memories.
//!
//! A [`Topology`] describes it, read from a file or put together in code; a [`Machine`] is a topology whose
//! ways run on the channels of an [engine](crate::engine).

mod read;
mod topology;

#[cfg(test)]
mod tests;

use transload_core::LinkClass;

use crate::engine::{ChannelId, Engine};
pub use topology::{DeviceDescription, Memory, Topology};

/// A topology on an engine.
#[derive(Debug)]
pub struct Machine {
    topology: Topology,
    /// One for each of the topology's, in its order.
    channels: Vec<ChannelId>,
}

/// One way for bytes, from one memory to another.
#[derive(Clone, Copy, Debug)]
pub struct Way<'a> {
    /// The channel that serialises it. Ways that share a copy engine share the channel.
    pub channel: ChannelId,
    /// The wire.
    pub class: LinkClass,
    cost: &'a transload_core::Curve,
}

impl Way<'_> {
    /// The time for that many bytes, once they start; 0 where the rate is not modelled.
    pub fn duration_ns(&self, bytes: u64) -> u64 {
        self.cost.at(bytes)
    }
}

impl Machine {
    /// Gives each copy engine of the topology a channel.
    pub fn new(topology: Topology, engine: &Engine) -> Machine {
        let names = topology.channels.iter();
        let channels = names.map(|name| engine.channel(name.clone())).collect();
        Machine { topology, channels }
    }

    /// The devices, by ordinal.
    pub fn devices(&self) -> &[DeviceDescription] {
        self.topology.devices()
    }

    /// The direct way from one memory to another; `None` where bytes have to be staged, and between two
    /// memories of the host, which no copy engine moves.
    pub fn way(&self, src: Memory, dst: Memory) -> Option<Way<'_>> {
        let row = self.topology.row(src, dst)?;
        Some(Way {
            channel: self.channels[row.channel],
            class: row.class,
            cost: &row.cost,
        })
    }

    /// Whether a device walks the host's page tables.
    pub fn walks_page_tables(&self, device: usize) -> bool {
        let device = self.devices().get(device);
        device.is_some_and(|device| device.walks_page_tables)
    }

    /// Whether a device reaches another one's memory. The reverse may be false.
    pub fn can_access(&self, device: usize, peer: usize) -> bool {
        device != peer
            && self
                .way(Memory::Device(device), Memory::Device(peer))
                .is_some()
    }
}
