//! What tests of Transload and of its backends stand on: [`sim`], a simulated machine with real
//! bytes and a virtual clock, and [`topology`], which reads machines from TOML.
//!
//! Nothing here is hardware, and everything here says so: what a sim prints contains the word
//! "simulated".

pub mod sim;
pub mod topology;
