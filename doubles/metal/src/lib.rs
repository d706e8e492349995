//! A stand-in for Apple's Metal over host memory, and for as much of the Objective-C runtime and of Foundation as its
//! clients need.
//!
//! Programs for Apple's systems that use `objc2-metal` run with this crate on Linux: the bindings find the symbols of
//! the runtime, of Foundation and of Metal here. The README lists the modelled parts and the limits.
//!
//! A process poses as one machine. The functions of this page set the machine and its faults, and report the results:
//!
//! ```
//! use transload_metal_double::{Device, Machine, leaks, set};
//!
//! set(Machine { devices: vec![Device::unified(), Device::discrete()], ..Machine::default() })?;
//! assert!(leaks().is_empty());
//! # Ok::<(), transload_metal_double::TooLate>(())
//! ```

#[macro_use]
mod runtime;

mod bytes;
mod classes;
mod faults;
mod gpu;
mod leaks;
mod ledger;
mod machine;

pub use crate::faults::{FaultError, fault, remove};
pub use crate::gpu::{hold, release, settle, step};
pub use crate::leaks::{Leak, leaks};
pub use crate::ledger::{Counters, Misuse, Violation, counters, take_violations, violations};
pub use crate::machine::{Device, Location, Machine, TooLate, set};
