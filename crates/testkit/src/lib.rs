//! What tests of Transload and of its backends stand on: [`sim`], a simulated machine with real
//! bytes and a virtual clock; [`conformance`], the suite that every backend passes; and
//! [`topology`], which reads machines from TOML.
//!
//! No sim is hardware, and every sim says so: what it prints contains the word "simulated".

pub mod conformance;
pub mod sim;
pub mod topology;
