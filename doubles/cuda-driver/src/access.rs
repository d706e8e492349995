//! The access of each device to memory.

use transload_cuda::raw::{CUdevice, CUmemAccess_flags};

/// The access of each device: a bit for each, as there are 64 at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    read: u64,
    write: u64,
}

impl Access {
    /// Every device reads and writes.
    pub(crate) const ALL: Access = Access {
        read: u64::MAX,
        write: u64::MAX,
    };
    /// Every device reads, and none writes.
    pub(crate) const READ: Access = Access {
        read: u64::MAX,
        write: 0,
    };
    /// No device does anything.
    pub(crate) const NONE: Access = Access { read: 0, write: 0 };

    pub(crate) fn reads(self, device: CUdevice) -> bool {
        self.read & bit(device) != 0
    }

    pub(crate) fn writes(self, device: CUdevice) -> bool {
        self.write & bit(device) != 0
    }

    /// Whether any device reads.
    pub(crate) fn is_read(self) -> bool {
        self.read != 0
    }

    /// Whether any device writes.
    pub(crate) fn is_written(self) -> bool {
        self.write != 0
    }

    /// A device's access, as the driver's flags.
    pub(crate) fn of(self, device: CUdevice) -> CUmemAccess_flags {
        if self.writes(device) {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        } else if self.reads(device) {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ
        } else {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE
        }
    }

    /// Sets the access of one device.
    pub(crate) fn set(&mut self, device: CUdevice, flags: CUmemAccess_flags) {
        let bit = bit(device);
        let put = |set: &mut u64, on: bool| *set = if on { *set | bit } else { *set & !bit };
        put(&mut self.read, flags.0 & READ != 0);
        put(&mut self.write, flags.0 & WRITE != 0);
    }

    /// The access that both allow.
    pub(crate) fn and(self, other: Access) -> Access {
        Access {
            read: self.read & other.read,
            write: self.write & other.write,
        }
    }
}

/// The bits of `CUmemAccess_flags`.
const READ: u32 = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ.0;
const WRITE: u32 = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE.0 & !READ;

fn bit(device: CUdevice) -> u64 {
    let shift = u32::try_from(device.0).ok();
    shift.and_then(|by| 1u64.checked_shl(by)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_its_own() {
        let (read, both, none) = (
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
        );
        let mut access = Access::NONE;
        access.set(CUdevice(0), read);
        access.set(CUdevice(63), both);
        assert_eq!(
            [0, 1, 63, 64, -1].map(|at| access.of(CUdevice(at))),
            [read, none, both, none, none]
        );
        let mut other = Access::ALL;
        other.set(CUdevice(63), read);
        assert_eq!(access.and(other).of(CUdevice(63)), read);
        access.set(CUdevice(63), none);
        assert_eq!(access.of(CUdevice(63)), none);
    }
}
