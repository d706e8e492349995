//! What needs an operating system: a thread, and finding out what the machine has.

mod discover;
mod driver;

pub(crate) use driver::Driver;
