//! The base for tests of Transload and of its backends: [`sim`], a simulated machine with real
//! bytes and a virtual clock; [`conformance`], the suite that every backend passes; and
//! [`topology`], which reads machines from TOML.
//!
//! A sim is not hardware: its output contains the word "simulated".
// In builds without a second thread hooks and buffers need not be `Send`, but the counts are still atomic.
#![cfg_attr(
    any(
        transload_local,
        all(target_family = "wasm", not(target_feature = "atomics"))
    ),
    allow(clippy::arc_with_non_send_sync)
)]

pub mod conformance;
pub mod sim;
pub mod topology;
