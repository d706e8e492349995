//! What a function takes, in words that both bindings can be brought to.

use std::any::type_name;
use std::mem::{align_of, size_of};

use crate::Absent;

/// One argument, or the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    pub(crate) name: String,
    size: usize,
    align: usize,
}

/// The arguments of a function, then its result; `None` of an absent one.
pub(crate) trait Signature {
    fn signature() -> Option<Vec<Argument>>;
}

/// The signature of this very function.
pub(crate) fn signature_of<F: Signature>(_: F) -> Option<Vec<Argument>> {
    F::signature()
}

/// The signature of the function that would be here.
pub(crate) fn signature_in<F: Signature>(_: Option<F>) -> Option<Vec<Argument>> {
    F::signature()
}

/// What a function gives back. An absent one's stand-in gives [`Absent`].
pub(crate) trait Answer {
    const IS_THERE: bool = true;
}

impl Answer for transload_cuda::raw::CUresult {}
impl Answer for cudarc::driver::sys::CUresult {}
impl Answer for Absent {
    const IS_THERE: bool = false;
}

macro_rules! signatures {
    ($(($($argument:ident)*))*) => { $(
        impl<$($argument,)* R: Answer> Signature for unsafe fn($($argument),*) -> R {
            fn signature() -> Option<Vec<Argument>> {
                R::IS_THERE.then(|| vec![$(Argument::of::<$argument>(),)* Argument::of::<R>()])
            }
        }

        impl<$($argument,)* R: Answer> Signature for unsafe extern "C" fn($($argument),*) -> R {
            fn signature() -> Option<Vec<Argument>> {
                R::IS_THERE.then(|| vec![$(Argument::of::<$argument>(),)* Argument::of::<R>()])
            }
        }
    )* };
}

signatures! {
    () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H)
    (A B C D E F G H I)
}

impl Argument {
    fn of<T>() -> Self {
        Self {
            name: spelled(type_name::<T>()),
            size: size_of::<T>(),
            align: align_of::<T>(),
        }
    }
}

/// The name of a type without its path, and with the words of `transload_cuda` for what cudarc spells
/// otherwise: its handles are pointers, its devices numbers, and its names end in `_st` and `_enum`.
pub(crate) fn spelled(name: &str) -> String {
    let mut text = words(name, |word| {
        word.rsplit("::").next().unwrap_or(word).to_owned()
    });
    for (pointer, handle) in HANDLES {
        text = text.replace(pointer, handle);
    }
    words(&text, |word| {
        let plain = word.strip_suffix("_st").or(word.strip_suffix("_enum"));
        match plain.unwrap_or(word) {
            "CUdevice" => "i32",
            "cudaError" => "CUresult",
            other => other,
        }
        .to_owned()
    })
}

/// `text` with each word, a path counting as one, replaced.
fn words(text: &str, replace: impl Fn(&str) -> String) -> String {
    let is_part = |c: char| c.is_alphanumeric() || "_:".contains(c);
    let mut written = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest
            .find(|c| is_part(c) != is_part(first))
            .unwrap_or(rest.len());
        let (piece, behind) = rest.split_at(end);
        if is_part(first) {
            written += &replace(piece);
        } else {
            written += piece;
        }
        rest = behind;
    }
    written
}

const HANDLES: [(&str, &str); 8] = [
    ("*mut CUctx_st", "CUcontext"),
    ("*mut CUstream_st", "CUstream"),
    ("*mut CUevent_st", "CUevent"),
    ("*mut CUarray_st", "CUarray"),
    ("*mut CUgraph_st", "CUgraph"),
    ("*mut CUmemPoolHandle_st", "CUmemoryPool"),
    ("*mut CUextMemory_st", "CUexternalMemory"),
    ("*mut CUextSemaphore_st", "CUexternalSemaphore"),
];

#[test]
fn both_bindings_names_come_to_the_same_words() {
    for (theirs, ours) in [
        (
            "*mut *mut cudarc::driver::sys::CUevent_st",
            "*mut transload_cuda::raw::handle::CUevent",
        ),
        (
            "cudarc::driver::sys::cudaError_enum",
            "transload_cuda::raw::result::CUresult",
        ),
        (
            "*mut cudarc::driver::sys::CUmemLocation_st",
            "*mut transload_cuda::raw::managed::CUmemLocation",
        ),
        ("*mut i32", "*mut transload_cuda::raw::handle::CUdevice"),
    ] {
        assert_eq!(spelled(theirs), spelled(ours));
    }
    assert_ne!(
        spelled("*mut cudarc::CUstream_st"),
        spelled("*mut cudarc::CUevent_st")
    );
    assert_ne!(spelled("*const u8"), spelled("*mut u8"));
}
