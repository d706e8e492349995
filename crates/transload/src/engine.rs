//! The engine: turns checked requests into moved bytes. Needs no operating system.
//!
//! Every handle points to a [`shared::Shared`]. Its lock guards [`state::State`], which never blocks and never calls a
//! backend: it fills a list of [`command::Commands`], and the thread that turns the engine executes them after it has
//! released the lock ([`turn`]).
//!
//! Modules use others of their own group below, and of the groups above it; no two use each other.

// Words and tools.
pub(crate) mod clock;
pub(crate) mod operand;
pub(crate) mod sync;
pub(crate) mod types;
pub(crate) mod unwind;

// What threads and callbacks share without the engine's lock.
mod completions;
mod digest;
pub(crate) mod event;
pub(crate) mod signal;
pub(crate) mod trace;

// The parts of the state.
mod active;
pub(crate) mod admission;
mod backlog;
pub(crate) mod checked;
mod command;
mod deadlines;
mod errand;
mod execute;
mod in_flight;
mod observe;
pub(crate) mod planning;
mod proofs;
mod table;
pub(crate) mod verdict;

// The state, and what happens between its parts.
mod admit;
mod entering;
mod finish;
mod group;
mod proving;
mod reroute;
pub(crate) mod state;
mod step;

// The threads that call the engine.
pub(crate) mod held;
pub(crate) mod hint;
pub(crate) mod listen;
pub(crate) mod shared;
pub(crate) mod turn;

#[cfg(all(test, loom))]
mod loom_tests;
