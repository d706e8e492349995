//! What needs an operating system: a thread, and finding out what the machine has.

mod discover;
#[cfg(threads)]
mod driver;
mod files;
mod partial;
pub mod probe;
pub mod profile;
mod verdicts;

#[cfg(threads)]
pub(crate) use driver::Driver;
pub use files::OpenError;
pub(crate) use verdicts::Keeper;
