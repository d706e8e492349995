//! Every structure is laid out as in cudarc: as long, aligned the same, each field at the same place.

use std::collections::BTreeSet;
use std::mem::{align_of, offset_of, size_of};

use cudarc::driver::sys;
use transload_cuda::raw;

use crate::none;

#[test]
fn every_structure_is_laid_out_as_in_cudarc() {
    let mut complaints = Vec::new();
    for layout in layouts() {
        if layout.ours != layout.theirs {
            complaints.push(format!(
                "{}: {:?}\n  in cudarc {:?}",
                layout.name, layout.ours, layout.theirs
            ));
        }
    }
    none(&complaints);
}

/// The names of the structures that are compared here.
pub(crate) fn names() -> BTreeSet<String> {
    let layouts = layouts().into_iter();
    layouts.map(|layout| layout.name.to_owned()).collect()
}

struct Layout {
    name: &'static str,
    ours: Extent,
    theirs: Extent,
}

/// Length and alignment, and of each field its place and length.
#[derive(Debug, PartialEq, Eq)]
struct Extent {
    size: usize,
    align: usize,
    fields: Vec<(&'static str, usize, usize)>,
}

/// How long a field is: the type of the field is whatever the function gives back.
const fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! extent {
    ($type:ty { $($label:ident = $($field:ident).+,)* }) => {
        Extent {
            size: size_of::<$type>(),
            align: align_of::<$type>(),
            fields: vec![$( (
                stringify!($label),
                offset_of!($type, $($field).+),
                size_of_field(|whole: &$type| &whole.$($field).+),
            ) ),*],
        }
    };
}

/// A structure whose fields have the same names in both bindings. Every field of ours must be named, or it
/// does not compile.
macro_rules! same {
    ($type:ident { $($field:ident),* }) => {
        renamed!($type: $type { $($field = $field),* })
    };
}

/// A structure whose fields are elsewhere or called otherwise in cudarc: `ours = theirs`; behind the
/// semicolon what is reserved in this version.
macro_rules! renamed {
    ($ours:ident: $theirs:ident { $($field:ident = $($path:ident).+),* $(; $($later:ident),*)? }) => {{
        fn _no_field_is_left_out(ours: &raw::$ours) {
            let raw::$ours { $($field: _,)* $($($later: _),*)? } = ours;
        }
        Layout {
            name: stringify!($ours),
            ours: extent!(raw::$ours { $($field = $field,)* }),
            theirs: extent!(sys::$theirs { $($field = $($path).+,)* }),
        }
    }};
}

/// What may be one of several things.
macro_rules! one_of {
    ($ours:ident: $theirs:ident { $($field:ident = $path:ident),* }) => {
        Layout {
            name: stringify!($ours),
            ours: Extent {
                size: size_of::<raw::$ours>(),
                align: align_of::<raw::$ours>(),
                fields: vec![$( (stringify!($field), offset_of!(raw::$ours, $field), 0) ),*],
            },
            theirs: Extent {
                size: size_of::<sys::$theirs>(),
                align: align_of::<sys::$theirs>(),
                fields: vec![$( (stringify!($field), offset_of!(sys::$theirs, $path), 0) ),*],
            },
        }
    };
}

fn layouts() -> Vec<Layout> {
    vec![
        same!(CUDA_MEMCPY2D {
            srcXInBytes,
            srcY,
            srcMemoryType,
            srcHost,
            srcDevice,
            srcArray,
            srcPitch,
            dstXInBytes,
            dstY,
            dstMemoryType,
            dstHost,
            dstDevice,
            dstArray,
            dstPitch,
            WidthInBytes,
            Height
        }),
        same!(CUDA_MEMCPY3D_PEER {
            srcXInBytes,
            srcY,
            srcZ,
            srcLOD,
            srcMemoryType,
            srcHost,
            srcDevice,
            srcArray,
            srcContext,
            srcPitch,
            srcHeight,
            dstXInBytes,
            dstY,
            dstZ,
            dstLOD,
            dstMemoryType,
            dstHost,
            dstDevice,
            dstArray,
            dstContext,
            dstPitch,
            dstHeight,
            WidthInBytes,
            Height,
            Depth
        }),
        same!(CUuuid { bytes }),
        same!(CUipcMemHandle { reserved }),
        same!(CUipcEventHandle { reserved }),
        same!(CUmemPoolPtrExportData { reserved }),
        #[cfg(feature = "from-12080")]
        same!(CUmemcpyAttributes {
            srcAccessOrder,
            srcLocHint,
            dstLocHint,
            flags
        }),
        same!(CUmemAllocationProp {
            type_,
            requestedHandleTypes,
            location,
            win32HandleMetaData,
            allocFlags
        }),
        same!(CUmemAccessDesc { location, flags }),
        same!(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS {
            p2pToken,
            vaSpaceToken
        }),
        same!(CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
            type_,
            handle,
            size,
            flags,
            reserved
        }),
        same!(CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
            offset,
            size,
            flags,
            reserved
        }),
        same!(CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
            type_,
            handle,
            flags,
            reserved
        }),
        #[cfg(not(feature = "from-13020"))]
        same!(CUmemLocation { type_, id }),
        #[cfg(feature = "from-13020")]
        renamed!(CUmemLocation: CUmemLocation { type_ = type_, id = __bindgen_anon_1 }),
        #[cfg(feature = "from-13040")]
        renamed!(CUmemLocalized: CUmemLocation_st__bindgen_ty_1__bindgen_ty_1 {
            device_id = deviceId, locality_domain_id = localityDomainId
        }),
        renamed!(CUmemAllocationPropFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType = compressionType, gpuDirectRDMACapable = gpuDirectRDMACapable, usage = usage,
            reserved = reserved
        }),
        #[cfg(not(feature = "from-12020"))]
        renamed!(CUmemPoolProps: CUmemPoolProps {
            allocType = allocType, handleTypes = handleTypes, location = location,
            win32SecurityAttributes = win32SecurityAttributes; maxSize, usage, reserved
        }),
        #[cfg(all(feature = "from-12020", not(feature = "from-12060")))]
        renamed!(CUmemPoolProps: CUmemPoolProps {
            allocType = allocType, handleTypes = handleTypes, location = location,
            win32SecurityAttributes = win32SecurityAttributes, maxSize = maxSize; usage, reserved
        }),
        #[cfg(all(feature = "from-12060", not(feature = "from-13040")))]
        same!(CUmemPoolProps {
            allocType,
            handleTypes,
            location,
            win32SecurityAttributes,
            maxSize,
            usage,
            reserved
        }),
        // The first byte of what was reserved now says that other PCI devices are to reach the memory.
        #[cfg(feature = "from-13040")]
        renamed!(CUmemPoolProps: CUmemPoolProps {
            allocType = allocType, handleTypes = handleTypes, location = location,
            win32SecurityAttributes = win32SecurityAttributes, maxSize = maxSize, usage = usage; reserved
        }),
        renamed!(CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS: CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS {
            fence = params.fence, nvSciSync = params.nvSciSync, keyedMutex = params.keyedMutex,
            reserved0 = params.reserved, flags = flags, reserved = reserved
        }),
        renamed!(FenceValue: CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_st__bindgen_ty_1__bindgen_ty_1 {
            value = value
        }),
        renamed!(KeyedMutexSignal: CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_st__bindgen_ty_1__bindgen_ty_3 {
            key = key
        }),
        renamed!(CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS: CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS {
            fence = params.fence, nvSciSync = params.nvSciSync, keyedMutex = params.keyedMutex,
            reserved0 = params.reserved, flags = flags, reserved = reserved
        }),
        renamed!(FenceValue: CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_st__bindgen_ty_1__bindgen_ty_1 {
            value = value
        }),
        renamed!(KeyedMutexWait: CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_st__bindgen_ty_1__bindgen_ty_3 {
            key = key, timeout_ms = timeoutMs
        }),
        renamed!(Win32Handle: CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st__bindgen_ty_1__bindgen_ty_1 {
            handle = handle, name = name
        }),
        renamed!(Win32Handle: CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_st__bindgen_ty_1__bindgen_ty_1 {
            handle = handle, name = name
        }),
        one_of!(ExternalHandle: CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st__bindgen_ty_1 {
            fd = fd, win32 = win32, nvSciObject = nvSciBufObject
        }),
        one_of!(ExternalHandle: CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_st__bindgen_ty_1 {
            fd = fd, win32 = win32, nvSciObject = nvSciSyncObj
        }),
    ]
}
