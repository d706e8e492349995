//! Memory types: where memory lies, and how host and device access it.

use ash::vk::{self, MemoryPropertyFlags};
use wgpu::hal::vulkan::Device;

/// The memory types of a device, in the driver's order, which is its order of preference.
pub(super) struct Types(Vec<MemoryPropertyFlags>);

impl Types {
    pub(super) fn of(device: &Device) -> Types {
        let instance = device.shared_instance().raw_instance();
        let physical = device.raw_physical_device();
        // SAFETY: both are of one instance, which lives.
        let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
        let types = memory.memory_types_as_slice().iter();
        Types(types.map(|kind| kind.property_flags).collect())
    }

    /// The best type, of those whose bits are set, for memory that host and device write and read
    /// in turn: each must see the other's writes without flushing, and the host's caches should
    /// hold it.
    pub(super) fn seen_by_both(&self, bits: u32) -> Option<u32> {
        let coherent = MemoryPropertyFlags::HOST_VISIBLE | MemoryPropertyFlags::HOST_COHERENT;
        self.first(bits, coherent | MemoryPropertyFlags::HOST_CACHED)
            .or(self.first(bits, coherent))
    }

    /// The type of memory that is the device's own and the host's as well, without a penalty for
    /// either; `None` where a bus lies between them.
    pub(super) fn shared(&self, bits: u32) -> Option<u32> {
        self.first(
            bits,
            MemoryPropertyFlags::DEVICE_LOCAL
                | MemoryPropertyFlags::HOST_VISIBLE
                | MemoryPropertyFlags::HOST_COHERENT
                | MemoryPropertyFlags::HOST_CACHED,
        )
    }

    fn first(&self, bits: u32, wanted: MemoryPropertyFlags) -> Option<u32> {
        let mut kinds = self.0.iter().zip(0u32..vk::MAX_MEMORY_TYPES as u32);
        let fits = |(kind, at): &(&MemoryPropertyFlags, u32)| {
            bits & (1 << at) != 0 && kind.contains(wanted)
        };
        kinds.find(fits).map(|(_, at)| at)
    }
}
