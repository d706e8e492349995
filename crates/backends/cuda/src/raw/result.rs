//! The result of every function.

use core::fmt;

/// How a call ended. A number, since drivers newer than this table have numbers that it does not name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
#[must_use]
pub struct CUresult(pub u32);

impl CUresult {
    /// `Ok` of success alone.
    ///
    /// # Errors
    /// The result itself, when it is not success: `CUDA_ERROR_NOT_READY` too, which is an answer.
    pub const fn ok(self) -> Result<(), CUresult> {
        match self {
            CUresult::CUDA_SUCCESS => Ok(()),
            error => Err(error),
        }
    }
}

impl fmt::Debug for CUresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "CUresult({})", self.0),
        }
    }
}

/// Name, number and meaning.
impl fmt::Display for CUresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.meaning()) {
            (Some(name), Some(meaning)) => write!(f, "{name} ({}): {meaning}", self.0),
            _ => write!(f, "CUDA error {}, which has no name here", self.0),
        }
    }
}

impl core::error::Error for CUresult {}

macro_rules! results {
    ($( $value:literal $name:ident $meaning:literal, )*) => {
        impl CUresult {
            /// Every result that has a name here, smallest number first.
            pub const NAMED: &'static [CUresult] = &[$( CUresult($value) ),*];

            $( #[doc = concat!("Means: ", $meaning, ".")] pub const $name: CUresult = CUresult($value); )*

            /// NVIDIA's name, if the number has one here.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $value => Some(stringify!($name)), )*
                    _ => None,
                }
            }

            /// Its meaning, in a few words.
            #[must_use]
            pub const fn meaning(self) -> Option<&'static str> {
                match self.0 {
                    $( $value => Some($meaning), )*
                    _ => None,
                }
            }
        }
    };
}

results! {
    0 CUDA_SUCCESS "it worked",
    1 CUDA_ERROR_INVALID_VALUE "an argument is out of range",
    2 CUDA_ERROR_OUT_OF_MEMORY "there is not enough memory, or another resource is used up",
    3 CUDA_ERROR_NOT_INITIALIZED "cuInit was not called, or failed, or this process was forked after it",
    4 CUDA_ERROR_DEINITIALIZED "the driver is shutting down with the process",
    5 CUDA_ERROR_PROFILER_DISABLED "the profiler is not set up for this run",
    6 CUDA_ERROR_PROFILER_NOT_INITIALIZED "the profiler was not initialised",
    7 CUDA_ERROR_PROFILER_ALREADY_STARTED "the profiler runs already",
    8 CUDA_ERROR_PROFILER_ALREADY_STOPPED "the profiler does not run",
    34 CUDA_ERROR_STUB_LIBRARY "the library is the toolkit's stub for linking, not a driver",
    36 CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER "the call needs a newer driver",
    46 CUDA_ERROR_DEVICE_UNAVAILABLE "the device is in use by another process in exclusive mode, or prohibited",
    47 CUDA_ERROR_MULTICAST_RESOURCE_FULL "the hardware's multicast resources are used up",
    100 CUDA_ERROR_NO_DEVICE "the driver found no device",
    101 CUDA_ERROR_INVALID_DEVICE "no device has that ordinal, or it cannot do what was asked",
    102 CUDA_ERROR_DEVICE_NOT_LICENSED "the device has no licence for this",
    200 CUDA_ERROR_INVALID_IMAGE "the module is invalid",
    201 CUDA_ERROR_INVALID_CONTEXT "no context is current, or the context is not valid",
    202 CUDA_ERROR_CONTEXT_ALREADY_CURRENT "the context is current already",
    205 CUDA_ERROR_MAP_FAILED "mapping or registering failed",
    206 CUDA_ERROR_UNMAP_FAILED "unmapping or unregistering failed",
    207 CUDA_ERROR_ARRAY_IS_MAPPED "the array is mapped",
    208 CUDA_ERROR_ALREADY_MAPPED "the resource is mapped already",
    209 CUDA_ERROR_NO_BINARY_FOR_GPU "the module has no code for this device",
    210 CUDA_ERROR_ALREADY_ACQUIRED "the resource is acquired already",
    211 CUDA_ERROR_NOT_MAPPED "the resource is not mapped",
    212 CUDA_ERROR_NOT_MAPPED_AS_ARRAY "the resource is not mapped as an array",
    213 CUDA_ERROR_NOT_MAPPED_AS_POINTER "the resource is not mapped as a pointer",
    214 CUDA_ERROR_ECC_UNCORRECTABLE "the device's memory has an error that ECC could not correct",
    215 CUDA_ERROR_UNSUPPORTED_LIMIT "the device has no such limit",
    216 CUDA_ERROR_CONTEXT_ALREADY_IN_USE "the context is current in another thread",
    217 CUDA_ERROR_PEER_ACCESS_UNSUPPORTED "the devices do not reach each other's memory",
    218 CUDA_ERROR_INVALID_PTX "the PTX does not compile",
    219 CUDA_ERROR_INVALID_GRAPHICS_CONTEXT "the graphics context is invalid",
    220 CUDA_ERROR_NVLINK_UNCORRECTABLE "an NVLink had an error that it could not correct",
    221 CUDA_ERROR_JIT_COMPILER_NOT_FOUND "the PTX compiler's library was not found",
    222 CUDA_ERROR_UNSUPPORTED_PTX_VERSION "the PTX is of a version that this driver does not know",
    223 CUDA_ERROR_JIT_COMPILATION_DISABLED "compiling PTX is switched off",
    224 CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY "the device has no such affinity",
    225 CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC "the PTX synchronises on the device, which is no longer supported",
    226 CUDA_ERROR_CONTAINED "the device had an error that was contained",
    227 CUDA_ERROR_INSUFFICIENT_LOADER_VERSION "the loader is too old for the module",
    300 CUDA_ERROR_INVALID_SOURCE "the kernel's source is invalid",
    301 CUDA_ERROR_FILE_NOT_FOUND "the file was not found",
    302 CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND "a shared object lacks a symbol",
    303 CUDA_ERROR_SHARED_OBJECT_INIT_FAILED "a shared object could not be initialised",
    304 CUDA_ERROR_OPERATING_SYSTEM "a call of the operating system failed",
    400 CUDA_ERROR_INVALID_HANDLE "the handle is not valid",
    401 CUDA_ERROR_ILLEGAL_STATE "what was asked for needs another state",
    402 CUDA_ERROR_LOSSY_QUERY "the answer would leave out something that matters",
    500 CUDA_ERROR_NOT_FOUND "there is nothing of that name",
    600 CUDA_ERROR_NOT_READY "earlier work is still under way",
    700 CUDA_ERROR_ILLEGAL_ADDRESS "the device reached for an invalid address; the context is lost",
    701 CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES "the launch needs more than the device has",
    702 CUDA_ERROR_LAUNCH_TIMEOUT "the kernel took too long; the context is lost",
    703 CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING "the launch's texturing mode does not fit",
    704 CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED "peer access is enabled already",
    705 CUDA_ERROR_PEER_ACCESS_NOT_ENABLED "peer access is not enabled",
    708 CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE "the primary context is active already",
    709 CUDA_ERROR_CONTEXT_IS_DESTROYED "the current context was destroyed",
    710 CUDA_ERROR_ASSERT "an assertion of a kernel failed; the context is lost",
    711 CUDA_ERROR_TOO_MANY_PEERS "a device has as many peers as its hardware allows",
    712 CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED "the host memory is registered already",
    713 CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED "the host memory is not registered",
    714 CUDA_ERROR_HARDWARE_STACK_ERROR "a kernel's stack is broken; the context is lost",
    715 CUDA_ERROR_ILLEGAL_INSTRUCTION "a kernel had an illegal instruction; the context is lost",
    716 CUDA_ERROR_MISALIGNED_ADDRESS "a kernel reached for a misaligned address; the context is lost",
    717 CUDA_ERROR_INVALID_ADDRESS_SPACE "a kernel reached into the wrong address space; the context is lost",
    718 CUDA_ERROR_INVALID_PC "a kernel's program counter left its addresses; the context is lost",
    719 CUDA_ERROR_LAUNCH_FAILED "a kernel failed; the context is lost",
    720 CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE "the cooperative launch has too many blocks",
    721 CUDA_ERROR_TENSOR_MEMORY_LEAK "a kernel left tensor memory behind; the context is lost",
    800 CUDA_ERROR_NOT_PERMITTED "this is not permitted here",
    801 CUDA_ERROR_NOT_SUPPORTED "this is not supported by the system or the device",
    802 CUDA_ERROR_SYSTEM_NOT_READY "the system is not ready for CUDA: a service that it needs does not run",
    803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH "display driver and CUDA driver are of different versions",
    804 CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE "this device has no forward compatibility",
    805 CUDA_ERROR_MPS_CONNECTION_FAILED "the MPS server could not be reached",
    806 CUDA_ERROR_MPS_RPC_FAILURE "a call of the MPS server failed",
    807 CUDA_ERROR_MPS_SERVER_NOT_READY "the MPS server is not ready",
    808 CUDA_ERROR_MPS_MAX_CLIENTS_REACHED "MPS has as many clients as it can",
    809 CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED "MPS has as many connections as it can",
    810 CUDA_ERROR_MPS_CLIENT_TERMINATED "the MPS server ended this client",
    811 CUDA_ERROR_CDP_NOT_SUPPORTED "kernels cannot launch kernels here",
    812 CUDA_ERROR_CDP_VERSION_MISMATCH "the module mixes versions of launching kernels from kernels",
    900 CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED "this is not possible while the stream is captured",
    901 CUDA_ERROR_STREAM_CAPTURE_INVALIDATED "the capture was spoilt by an earlier error",
    902 CUDA_ERROR_STREAM_CAPTURE_MERGE "this would merge two captures",
    903 CUDA_ERROR_STREAM_CAPTURE_UNMATCHED "the capture did not begin in this stream",
    904 CUDA_ERROR_STREAM_CAPTURE_UNJOINED "the capture has a fork that was not joined",
    905 CUDA_ERROR_STREAM_CAPTURE_ISOLATION "this would depend on work outside the capture",
    906 CUDA_ERROR_STREAM_CAPTURE_IMPLICIT "this would depend on the capture through the default stream",
    907 CUDA_ERROR_CAPTURED_EVENT "the event was last recorded in a capture",
    908 CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD "the capture was begun by another thread",
    909 CUDA_ERROR_TIMEOUT "the wait took longer than was allowed",
    910 CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE "the graph cannot be updated like this",
    911 CUDA_ERROR_EXTERNAL_DEVICE "a device outside the GPU had an error",
    912 CUDA_ERROR_INVALID_CLUSTER_SIZE "the launch's clusters have an invalid size",
    913 CUDA_ERROR_FUNCTION_NOT_LOADED "the function is not loaded",
    914 CUDA_ERROR_INVALID_RESOURCE_TYPE "a resource is of the wrong type",
    915 CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION "resources do not suffice or do not fit",
    916 CUDA_ERROR_KEY_ROTATION "rotating keys failed",
    917 CUDA_ERROR_STREAM_DETACHED "the stream's context is gone",
    918 CUDA_ERROR_GRAPH_RECAPTURE_FAILURE "the graph could not be captured again",
    919 CUDA_ERROR_FABRIC_NOT_READY "the fabric is not ready",
    999 CUDA_ERROR_UNKNOWN "something failed inside the driver",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_result_has_name_and_meaning() {
        for pair in CUresult::NAMED.windows(2) {
            assert!(pair[0] < pair[1]);
        }
        for result in CUresult::NAMED {
            let shown = result.to_string();
            assert!(shown.starts_with("CUDA_"), "{shown}");
            assert!(shown.contains(&format!("({}): ", result.0)), "{shown}");
        }
    }

    #[test]
    fn a_number_without_a_name_is_told_as_a_number() {
        let unheard_of = CUresult(4711);
        assert_eq!(format!("{unheard_of:?}"), "CUresult(4711)");
        assert_eq!(
            unheard_of.to_string(),
            "CUDA error 4711, which has no name here"
        );
        assert_eq!(unheard_of.ok(), Err(unheard_of));
        assert_eq!(CUresult::CUDA_SUCCESS.ok(), Ok(()));
    }
}
