//! The machine that this process poses as.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::runtime::{Header, Id};

/// The machine. A process has one, from the first query for a device on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Its GPUs, the system's default first. If empty, there is no Metal.
    pub devices: Vec<Device>,
    /// The alignment of address and length of memory without copies.
    pub page_size: usize,
    /// The alignment of offsets and sizes of copies and fills between buffers: "In macOS, needs to be a multiple of 4,
    /// but can be any value in iOS and tvOS" (`MTLBlitCommandEncoder`,
    /// `copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:`).
    pub copy_alignment: usize,
}

/// The properties of a GPU (`MTLDevice`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// `name`
    pub name: String,
    /// `registryID`; where it is zero, one is made up.
    pub registry_id: u64,
    /// `hasUnifiedMemory`
    pub unified: bool,
    /// `isRemovable`
    pub removable: bool,
    /// `isLowPower`
    pub low_power: bool,
    /// `isHeadless`
    pub headless: bool,
    /// `location`
    pub location: Location,
    /// `locationNumber`
    pub location_number: usize,
    /// `maxTransferRate`, in bytes per second
    pub max_transfer_rate: u64,
    /// `peerGroupID`
    pub peer_group: u64,
    /// `recommendedMaxWorkingSetSize`, in bytes. Allocations that exceed it together are refused.
    pub memory_bytes: u64,
    /// `maxBufferLength`, in bytes
    pub max_buffer_bytes: usize,
    /// `minimumLinearTextureAlignmentForPixelFormat:`, of every format
    pub linear_alignment: usize,
}

/// `MTLDeviceLocation`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// In the machine for good
    BuiltIn,
    /// In a slot of the machine
    Slot,
    /// Outside, at a cable
    External,
    /// Not known
    Unspecified,
}

impl Location {
    /// As clients get it.
    pub(crate) fn number(self) -> usize {
        match self {
            Self::BuiltIn => 0,
            Self::Slot => 1,
            Self::External => 2,
            Self::Unspecified => usize::MAX,
        }
    }
}

/// A client has already used the machine, which cannot change any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLate;

impl Default for Machine {
    /// A Mac with one GPU whose memory is the processors'.
    fn default() -> Self {
        Self {
            devices: vec![Device::unified()],
            page_size: rustix::param::page_size(),
            copy_alignment: 4,
        }
    }
}

impl Device {
    /// One as in a Mac with Apple silicon.
    #[must_use]
    pub fn unified() -> Self {
        Self {
            name: "Double of a unified GPU".into(),
            registry_id: 0,
            unified: true,
            removable: false,
            low_power: false,
            headless: false,
            location: Location::BuiltIn,
            location_number: 0,
            max_transfer_rate: 0,
            peer_group: 0,
            memory_bytes: 8 << 30,
            max_buffer_bytes: 4 << 30,
            linear_alignment: 16,
        }
    }

    /// A device as in a Mac with an Intel processor, with memory of its own.
    #[must_use]
    pub fn discrete() -> Self {
        Self {
            name: "Double of a discrete GPU".into(),
            unified: false,
            location: Location::Slot,
            max_transfer_rate: 16_000_000_000,
            linear_alignment: 256,
            ..Self::unified()
        }
    }

    /// One at a cable, which may be pulled.
    #[must_use]
    pub fn external() -> Self {
        Self {
            name: "Double of an external GPU".into(),
            removable: true,
            headless: true,
            location: Location::External,
            max_transfer_rate: 5_000_000_000,
            ..Self::discrete()
        }
    }
}

/// Makes this process pose as `machine`.
///
/// # Errors
/// [`TooLate`] when a client has asked about devices already.
pub fn set(machine: Machine) -> Result<(), TooLate> {
    let mut wanted = WANTED.lock().unwrap_or_else(PoisonError::into_inner);
    if MADE.get().is_some() {
        return Err(TooLate);
    }
    *wanted = Some(machine);
    Ok(())
}

impl fmt::Display for TooLate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the machine has been looked at already")
    }
}

impl std::error::Error for TooLate {}

/// The machine and the state of its devices, which are there as long as the process.
pub(crate) struct Made {
    pub(crate) machine: Machine,
    pub(crate) devices: Vec<DeviceState>,
}

/// One GPU.
#[derive(Debug)]
pub(crate) struct DeviceState {
    pub(crate) index: usize,
    pub(crate) is: Device,
    /// Bytes of its buffers and textures.
    pub(crate) allocated: AtomicU64,
    /// It was taken away.
    pub(crate) removed: AtomicBool,
    /// The object that clients have of it, once one asked.
    pub(crate) object: OnceLock<&'static Header>,
}

impl DeviceState {
    fn new(index: usize, device: &Device) -> Self {
        let mut is = device.clone();
        if is.registry_id == 0 {
            // As large as those of I/O Kit, so that no client mistakes it for an index.
            is.registry_id = 0x1_0000_0400 + index as u64;
        }
        Self {
            index,
            is,
            allocated: AtomicU64::new(0),
            removed: AtomicBool::new(false),
            object: OnceLock::new(),
        }
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// The object, for callers of a method: their pool releases it.
    pub(crate) fn autoreleased(&self) -> Id {
        let object = self.object.get();
        object.map_or(Id::NIL, |object| Id::forever(object).autoreleased())
    }
}

/// The machine as it is; asking settles it.
pub(crate) fn made() -> &'static Made {
    MADE.get_or_init(|| {
        let mut wanted = WANTED.lock().unwrap_or_else(PoisonError::into_inner);
        let machine = wanted.take().unwrap_or_default();
        let devices = machine.devices.iter().enumerate();
        let devices = devices.map(|(index, device)| DeviceState::new(index, device));
        let devices = devices.collect();
        Made { machine, devices }
    })
}

/// The same, or `None` before the first request for it.
pub(crate) fn made_already() -> Option<&'static Made> {
    MADE.get()
}

static WANTED: Mutex<Option<Machine>> = Mutex::new(None);
static MADE: OnceLock<Made> = OnceLock::new();
