//! Memory and events of other processes.

/// Names an allocation for other processes of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct CUipcMemHandle {
    /// The driver's own.
    pub reserved: [u8; 64],
}

impl Default for CUipcMemHandle {
    fn default() -> CUipcMemHandle {
        CUipcMemHandle { reserved: [0; 64] }
    }
}

/// Names an event for other processes of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct CUipcEventHandle {
    /// The driver's own.
    pub reserved: [u8; 64],
}

impl Default for CUipcEventHandle {
    fn default() -> CUipcEventHandle {
        CUipcEventHandle { reserved: [0; 64] }
    }
}

/// Flag of `cuIpcOpenMemHandle_v2`: enables peer access where it is needed.
pub const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: u32 = 1;
