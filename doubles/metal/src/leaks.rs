//! Resources that clients did not free.

use std::fmt;

use crate::classes::ALL;
use crate::classes::device::Device;
use crate::gpu;
use crate::machine::made_already;
use crate::runtime::blocks_alive;

/// Objects that are there still.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leak {
    /// Their class; `block` for blocks, `reference to MTLDevice` for references to a device, which itself stays.
    pub class: &'static str,
    /// How many.
    pub count: usize,
}

impl fmt::Display for Leak {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.count, self.class)
    }
}

/// Resources that were not freed: objects by class, blocks, references to devices. First waits until the GPUs and the
/// threads that call handlers are idle, so that objects that they release are gone.
#[must_use]
pub fn leaks() -> Vec<Leak> {
    gpu::settle();
    let mut leaks = Vec::new();
    let mut leak = |class, count| {
        if count > 0 {
            leaks.push(Leak { class, count });
        }
    };
    let devices = made_already().map_or(&[][..], |made| &made.devices);
    let objects = || devices.iter().filter_map(|device| device.object.get());
    for class in ALL {
        let own = match class.holds::<Device>() {
            true => objects().count(),
            false => 0,
        };
        leak(class.name(), class.alive() - own);
    }
    let references = objects().map(|object| object.count() - 1).sum();
    leak("reference to MTLDevice", references);
    leak("block", blocks_alive());
    leaks
}
