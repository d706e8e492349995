//! Commands for copies that wgpu's own cannot express: bytes that begin, end or lie inside words, and
//! rows of textures.

mod program;
mod shifter;
#[cfg(native)]
mod submission;
mod texels;
#[cfg(any(
    windows,
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd"
))]
mod vulkan;
#[cfg(all(
    native,
    not(any(
        windows,
        target_os = "linux",
        target_os = "android",
        target_os = "freebsd"
    ))
))]
#[path = "raw/no_vulkan.rs"]
mod vulkan;
mod window;

pub(crate) use program::{End, Program, Shifts};
#[cfg(browser)]
pub(crate) use shifter::CHUNK;
pub(crate) use shifter::Shifter;
#[cfg(native)]
pub(crate) use submission::{last_submission, number_of};
#[cfg(native)]
pub(crate) use vulkan::{Importer, Mapper, instance, open, uuid};
pub(crate) use window::Window;
