//! The parts that need an operating system: threads, discovery, files, the probe.

#[cfg(browser)]
pub(crate) mod browser_clock;
mod claims;
mod discover;
#[cfg(threads)]
mod driver;
mod files;
mod fork;
#[cfg(browser)]
mod microtask;
pub mod probe;
pub mod profile;
#[cfg(remote)]
pub(crate) mod serve;
mod verdicts;

pub(crate) use claims::{claim, claim_file};
pub(crate) use discover::Kinds;

#[cfg(threads)]
pub(crate) use driver::Driver;
pub(crate) use fork::watch;
#[cfg(browser)]
pub(crate) use microtask::{Driven as PageDriven, Microtask};
pub(crate) use transload_hal::PerProcess;
pub(crate) use verdicts::VerdictWriter;
