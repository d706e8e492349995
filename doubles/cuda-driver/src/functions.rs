//! All functions by name: as a table for Rust, and for `cuGetProcAddress`.
//!
//! Source: CUDA Driver API, Driver Entry Point Access.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use transload_cuda::raw::{
    CUdriverProcAddress_flags, CUdriverProcAddressQueryResult, CUresult, Table, Version,
};

use crate::answer::{put, put_if_wanted};
use crate::call::driver;
use crate::driver as all;
use crate::names::for_each_other_function;

/// The functions for clients in Rust. A function of the binding that is missing here would not compile.
#[must_use]
pub fn table() -> Table {
    macro_rules! fill {
        ($( $(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $since:literal; )*) => {
            Table { $( $name: Some(all::$name), )* }
        };
    }
    transload_cuda::for_each_cuda_function!(fill)
}

/// A function of one signature.
struct Signature {
    since: Version,
    name: &'static str,
    address: usize,
    /// Whether NVIDIA's driver has it a second time, with the thread's default stream in place of the legacy one.
    per_thread: bool,
}

/// The signatures of each function, by its name without suffix, oldest first.
fn by_base_name() -> &'static BTreeMap<&'static str, Vec<Signature>> {
    static BY_NAME: OnceLock<BTreeMap<&'static str, Vec<Signature>>> = OnceLock::new();
    macro_rules! list {
        ($( $(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $since:literal; )*) => {
            [$( {
                let types: &[&str] = &[$(stringify!($type)),*];
                let name = stringify!($name);
                (name, $since, all::$name as *const () as usize, is_per_thread(name, types))
            }, )*]
        };
    }
    macro_rules! list_others {
        ($($name:ident $since:literal;)*) => {
            [$( (stringify!($name), $since, all::$name as *const () as usize, false), )*]
        };
    }
    BY_NAME.get_or_init(|| {
        let mut by_name = BTreeMap::<_, Vec<_>>::new();
        let of_binding = transload_cuda::for_each_cuda_function!(list);
        let others = for_each_other_function!(list_others);
        for (name, since, address, per_thread) in of_binding.into_iter().chain(others) {
            by_name.entry(base_name(name)).or_default().push(Signature {
                since: Version(since),
                name,
                address,
                per_thread,
            });
        }
        for signatures in by_name.values_mut() {
            signatures.sort_by_key(|signature| signature.since);
        }
        by_name
    })
}

/// Whether a function uses a default stream if it is given none: functions that take a stream, and copies and fills
/// that take none. These are the 35 of the binding's functions that `cudaTypedefs.h` has with `_ptsz` and `_ptds`.
fn is_per_thread(name: &str, types: &[&str]) -> bool {
    let default_stream = types.contains(&"CUstream") && !name.starts_with("cuStreamDestroy");
    default_stream || name.starts_with("cuMemcpy") || name.starts_with("cuMemset")
}

/// `cuMemAlloc` of `cuMemAlloc_v2`.
fn base_name(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((base, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => name,
    }
}

/// Whether NVIDIA's driver would return a newer signature, which takes other arguments, for this version of CUDA.
fn is_superseded(of: &Signature, asked: Version) -> bool {
    NOT_MODELLED
        .iter()
        .any(|(name, since)| *name == base_name(of.name) && of.since < *since && *since <= asked)
}

/// Signatures that are not modelled, of functions that are; from NVIDIA's `cudaTypedefs.h`.
const NOT_MODELLED: [(&str, Version); 5] = [
    ("cuCtxCreate", Version::new(11, 4)),
    ("cuStreamGetCtx", Version::new(12, 5)),
    ("cuCtxGetDevice", Version::new(13, 0)),
    ("cuCtxSynchronize", Version::new(13, 0)),
    ("cuLaunchHostFunc", Version::new(13, 1)),
];

driver! {
    /// Finds the newest signature that the requested version has, among those of the modelled driver that are not
    /// hidden. Functions on the thread's default stream are not modelled: a request for one that NVIDIA's driver has is
    /// answered with `NOT_SUPPORTED`, and not with another function.
    always fn cuGetProcAddress_v2(
        symbol: *const c_char,
        pfn: *mut *mut c_void,
        cuda_version: c_int,
        flags: u64,
        symbol_status: *mut CUdriverProcAddressQueryResult,
    ), call => {
        use CUdriverProcAddressQueryResult as Found;
        let config = &call.world.config;
        let asked = u32::try_from(cuda_version).map(Version);
        let asked = asked.map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let known_flags = CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_LEGACY_STREAM.0
            | CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.0;
        if symbol.is_null() || flags & !known_flags != 0 || asked > config.version {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's text ends with a zero.
        let symbol = unsafe { CStr::from_ptr(symbol) };
        let signatures = symbol.to_str().ok().and_then(|name| by_base_name().get(name));
        let there: Vec<_> = signatures
            .into_iter()
            .flatten()
            .filter(|of| of.since <= config.version && !config.hidden.iter().any(|name| name == of.name))
            .collect();
        let old_enough = there.iter().rev().find(|of| of.since <= asked);
        let found = old_enough.filter(|of| !is_superseded(of, asked));
        let per_thread = CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.0;
        if flags & per_thread != 0 && found.is_some_and(|of| of.per_thread) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let status = if found.is_some() {
            Found::CU_GET_PROC_ADDRESS_SUCCESS
        } else if there.is_empty() || old_enough.is_some() {
            Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
        } else {
            Found::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
        };
        let address = found.map_or(ptr::null_mut(), |of| ptr::with_exposed_provenance_mut(of.address));
        // SAFETY: the caller passes null or a valid out-pointer for a status.
        unsafe { put_if_wanted(symbol_status, status) };
        // SAFETY: the caller passes a valid out-pointer for a pointer.
        unsafe { put(pfn, address) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::name_of;

    #[test]
    fn signatures_are_found_by_their_common_name() {
        assert_eq!(base_name("cuMemAlloc_v2"), "cuMemAlloc");
        assert_eq!(base_name("cuInit"), "cuInit");
        let names = |base| -> Vec<_> {
            let signatures = &by_base_name()[base];
            signatures.iter().map(|of| (of.name, of.since.0)).collect()
        };
        assert_eq!(
            names("cuMemPrefetchAsync"),
            [
                ("cuMemPrefetchAsync", 8000),
                ("cuMemPrefetchAsync_v2", 12020)
            ]
        );
        assert_eq!(names("cuMemAlloc"), [("cuMemAlloc_v2", 3020)]);
        let per_thread = by_base_name().values().flatten();
        assert_eq!(per_thread.filter(|of| of.per_thread).count(), 35);
        assert_eq!(names("cuMemAllocHost"), [("cuMemAllocHost_v2", 3020)]);
    }

    #[test]
    fn every_function_has_its_name_by_which_faults_find_it() {
        assert_eq!(name_of("cuInit"), Some("cuInit"));
        assert_eq!(name_of("cuMemAllocHost_v2"), Some("cuMemAllocHost_v2"));
        assert_eq!(name_of("cuMemAllocHost"), None);
    }

    #[test]
    fn no_function_of_the_binding_is_missing() {
        assert!(table().present().all(|present| present));
    }
}
