//! Every function has the arguments that it has in cudarc, and is there since when the table says.

use std::collections::BTreeSet;

use transload_cuda::raw::{Table, Version};

use crate::signature::{Argument, signature_in, signature_of};
use crate::{CUDA, none};

/// Functions that the headers stopped declaring, since a macro of the same name leads to a newer signature,
/// with the last version that declares them. Drivers keep exporting them.
const RETIRED: [(&str, u32); 5] = [
    ("cuMemPrefetchAsync", 12090),
    ("cuMemAdvise", 12090),
    ("cuMemcpyBatchAsync", 12090),
    ("cuEventElapsedTime", 12090),
    ("cuCtxCreate_v2", 12090),
];

#[test]
fn arguments_and_results_are_those_of_cudarc() {
    let mut complaints = Vec::new();
    let mut compared = 0;
    for ((name, ours), (_, theirs)) in ours().into_iter().zip(theirs()) {
        let Some(theirs) = theirs else { continue };
        compared += 1;
        if ours != theirs {
            complaints.push(format!("{name} takes {ours:?}\n  in cudarc {theirs:?}"));
        }
    }
    none(&complaints);
    println!(
        "{compared} of {} functions compared",
        Table::FUNCTIONS.len()
    );
}

#[test]
fn functions_are_there_since_when_the_table_says() {
    let mut complaints = Vec::new();
    for (function, (name, theirs)) in Table::FUNCTIONS.iter().zip(theirs()) {
        assert_eq!(function.name, name);
        let until = RETIRED.iter().find(|(retired, _)| *retired == name);
        let expected =
            function.since <= Version(CUDA) && until.is_none_or(|(_, last)| CUDA <= *last);
        if theirs.is_some() != expected {
            let is = if expected { "lacks it" } else { "has it" };
            complaints.push(format!("{name}, since {}: cudarc {is}", function.since));
        }
    }
    none(&complaints);
}

#[test]
fn every_structure_in_an_argument_is_compared_by_its_layout() {
    let compared: BTreeSet<String> = crate::layouts::names();
    let named = crate::words::names();
    let mut complaints = Vec::new();
    for ((function, ours), (_, theirs)) in ours().into_iter().zip(theirs()) {
        // What this version does not have is compared with the version that has it.
        if theirs.is_none() {
            continue;
        }
        for argument in ours {
            let plain = argument.name.trim_start_matches(['*']);
            let plain = plain.rsplit(' ').next().unwrap_or(plain);
            let is_known = PLAIN.contains(&plain)
                || plain.starts_with("fn(")
                || argument.name.starts_with("Option<")
                || named.contains(plain)
                || compared.contains(plain);
            if !is_known {
                complaints.push(format!("{plain} of {function}"));
            }
        }
    }
    none(&complaints);
}

/// Arguments that are neither structures nor enumerations.
const PLAIN: [&str; 18] = [
    "i8",
    "u8",
    "u16",
    "i32",
    "u32",
    "u64",
    "usize",
    "f32",
    "c_void",
    "CUcontext",
    "CUstream",
    "CUevent",
    "CUarray",
    "CUgraph",
    "CUmemoryPool",
    "CUexternalMemory",
    "CUexternalSemaphore",
    "CUresult",
];

/// A function of each name that is in no version of cudarc.
mod absent {
    #![allow(
        dead_code,
        non_snake_case,
        clippy::too_many_arguments,
        reason = "stand-ins for what some versions lack, with the names and arguments of the header"
    )]

    use std::ffi::{c_char, c_void};

    use transload_cuda::raw::*;

    use crate::Absent;

    macro_rules! absent {
        ($( $(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $since:literal; )*) => {
            $( pub(super) unsafe fn $name($(_: $type),*) -> Absent { Absent } )*
        };
    }

    transload_cuda::for_each_cuda_function!(absent);
}

macro_rules! any {
    ($argument:ident) => {
        _
    };
}

macro_rules! both {
    ($( $(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $since:literal; )*) => {
        /// The signatures of the table, by name.
        fn ours() -> Vec<(&'static str, Vec<Argument>)> {
            vec![$( (
                stringify!($name),
                signature_in(Table::EMPTY.$name).expect("its result is CUresult"),
            ) ),*]
        }

        /// The signatures in cudarc; `None` of what it lacks in this version.
        fn theirs() -> Vec<(&'static str, Option<Vec<Argument>>)> {
            use absent::*;
            {
                // In this scope cudarc's names go before those of the stand-ins.
                use cudarc::driver::sys::*;
                vec![$( (
                    stringify!($name),
                    signature_of($name as unsafe fn($(any!($argument)),*) -> _),
                ) ),*]
            }
        }
    };
}

transload_cuda::for_each_cuda_function!(both);
