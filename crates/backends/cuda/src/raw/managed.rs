//! Managed memory, and places by number.

use core::fmt;

use super::words::words;

words! {
    /// The meaning of the number in a [`CUmemLocation`].
    CUmemLocationType: u32 {
        /// Nowhere in particular.
        CU_MEM_LOCATION_TYPE_INVALID = 0,
        /// A device, by ordinal.
        CU_MEM_LOCATION_TYPE_DEVICE = 1,
        /// The host; the number means nothing.
        CU_MEM_LOCATION_TYPE_HOST = 2,
        /// A NUMA node of the host.
        CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
        /// The calling thread's NUMA node; the number means nothing.
        CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4,
    }
}

/// A place where memory can be.
///
/// Since CUDA 13.2 the number may also be a part of a device ([`CUmemLocalized`]); the layout is the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct CUmemLocation {
    /// The meaning of the number.
    pub type_: CUmemLocationType,
    /// An ordinal or a node.
    pub id: i32,
}

impl CUmemLocation {
    /// A device.
    #[must_use]
    pub const fn device(ordinal: i32) -> CUmemLocation {
        CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: ordinal,
        }
    }

    /// The host.
    pub const HOST: CUmemLocation = CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST,
        id: 0,
    };
}

impl fmt::Display for CUmemLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.type_ {
            CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => write!(f, "device {}", self.id),
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST => f.write_str("host"),
            other => write!(f, "{other:?} {}", self.id),
        }
    }
}

/// The number of a [`CUmemLocation`] that is a part of a device, by the bytes that it lies in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct CUmemLocalized {
    /// The device's ordinal.
    pub device_id: u8,
    /// The part of it.
    pub locality_domain_id: u8,
}

words! {
    /// The streams that may use managed memory from the start.
    CUmemAttach_flags: u32 {
        /// Any stream of any device.
        CU_MEM_ATTACH_GLOBAL = 1,
        /// The host alone.
        CU_MEM_ATTACH_HOST = 2,
        /// One stream.
        CU_MEM_ATTACH_SINGLE = 4,
    }
}

words! {
    /// Hints about managed memory.
    CUmem_advise: u32 {
        /// Mostly read.
        CU_MEM_ADVISE_SET_READ_MOSTLY = 1,
        /// No longer.
        CU_MEM_ADVISE_UNSET_READ_MOSTLY = 2,
        /// Best kept there.
        CU_MEM_ADVISE_SET_PREFERRED_LOCATION = 3,
        /// No longer.
        CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION = 4,
        /// Will be used from there.
        CU_MEM_ADVISE_SET_ACCESSED_BY = 5,
        /// No longer.
        CU_MEM_ADVISE_UNSET_ACCESSED_BY = 6,
    }
}

words! {
    /// The attributes of `cuMemRangeGetAttribute`.
    CUmem_range_attribute: u32 {
        /// Whether it was said to be mostly read.
        CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY = 1,
        /// Where it is best kept, a device's ordinal.
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION = 2,
        /// From where it will be used.
        CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY = 3,
        /// Where it was last prefetched to.
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION = 4,
    }
}
