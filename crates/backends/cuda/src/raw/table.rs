//! Pointers to the driver's functions, each present or absent.
#![allow(
    non_snake_case,
    clippy::too_many_arguments,
    reason = "functions have the names and the arguments of the header"
)]

use core::ffi::{CStr, c_char, c_void};
use core::mem;
use core::ptr::NonNull;

use super::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC, CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS,
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, CUDA_MEMCPY2D, CUDA_MEMCPY3D_PEER, CUcontext, CUdevice,
    CUdevice_P2PAttribute, CUdevice_attribute, CUdeviceptr, CUdriverProcAddressQueryResult,
    CUevent, CUexternalMemory, CUexternalSemaphore, CUgraph, CUhostFn, CUipcEventHandle,
    CUipcMemHandle, CUmem_advise, CUmem_range_attribute, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemPool_attribute, CUmemPoolProps,
    CUmemPoolPtrExportData, CUmemRangeHandleType, CUmemcpyAttributes, CUmemoryPool,
    CUpointer_attribute, CUresult, CUstream, CUstreamCallback, CUstreamCaptureMode,
    CUstreamCaptureStatus, CUuuid, Version,
};

/// A function that is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Function {
    /// The name that the library exports.
    pub name: &'static str,
    /// The first CUDA version whose driver has it.
    pub since: Version,
}

macro_rules! table {
    ($( $(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $since:literal; )*) => {
        /// The driver's functions. An absent one is `None`.
        ///
        /// Filled from a library, or by hand: `Table { cuInit: Some(my_init), ..Table::EMPTY }`.
        #[derive(Clone, Copy, Debug)]
        pub struct Table {
            $( $(#[$doc])* pub $name: Option<unsafe extern "C" fn($($argument: $type),*) -> CUresult>, )*
        }

        impl Table {
            /// A table without functions.
            pub const EMPTY: Table = Table { $( $name: None, )* };

            /// Every function that is bound, in the order of the fields.
            pub const FUNCTIONS: &'static [Function] = &[
                $( Function { name: stringify!($name), since: Version($since) }, )*
            ];

            /// Fills a table, asking for each function by its name.
            ///
            /// # Safety
            /// Each symbol found must be CUDA's function of that name, and must stay valid as long as the table
            /// is used.
            #[must_use]
            pub unsafe fn from_symbols(
                mut symbol: impl FnMut(&CStr) -> Option<NonNull<c_void>>,
            ) -> Table {
                let mut table = Table::EMPTY;
                $(
                    let name = const {
                        match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("a name of a function holds no zero"),
                        }
                    };
                    table.$name = symbol(name).map(|found| {
                        // SAFETY: the caller vouches that this is the function of that name, whose signature
                        // this is: it is checked against other bindings for every version of CUDA.
                        unsafe {
                            mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($type),*) -> CUresult,
                            >(found.as_ptr())
                        }
                    });
                )*
                table
            }

            /// Whether each function is present, in the order of [`Table::FUNCTIONS`].
            pub fn present(&self) -> impl Iterator<Item = bool> + use<> {
                [$( self.$name.is_some(), )*].into_iter()
            }
        }
    };
}

crate::for_each_cuda_function!(table);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_asks_for_each_function_once_and_by_its_name() {
        let mut asked = Vec::new();
        // SAFETY: nothing is found.
        let table = unsafe {
            Table::from_symbols(|name| {
                asked.push(name.to_str().unwrap().to_owned());
                None
            })
        };
        let names: Vec<_> = Table::FUNCTIONS.iter().map(|of| of.name).collect();
        assert_eq!(asked, names);
        assert_eq!(table.present().filter(|is| *is).count(), 0);
        let mut sorted = names.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), names.len());
    }
}
