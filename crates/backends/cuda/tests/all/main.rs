//! The tests over the double of the driver, as one program: linking one for each file took longer than the tests.
#![cfg(all(target_os = "linux", feature = "backend", not(transload_local)))]

mod adopt;
mod ages;
mod batches;
mod captures;
mod common;
mod contexts;
mod expected;
mod fork;
mod hints;
mod interconnect;
mod ipc;
mod lanes;
mod managed;
mod pinned;
mod pools;
mod registered;
mod streams;
