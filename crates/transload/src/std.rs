//! What needs an operating system: a thread, and finding out what the machine has.

mod discover;
mod driver;
mod files;

pub(crate) use driver::Driver;
pub use files::OpenError;
