//! Adapters in the browser, where no thread may block and no mapping is an address.

pub(crate) mod device;
mod errors;
mod flight;
pub(crate) mod gpu;
pub(crate) mod inventory;
pub(crate) mod memory;
mod moves;
mod once;
mod readback;
mod upload;
mod watch;
