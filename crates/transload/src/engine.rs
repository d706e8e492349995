//! The engine: turns accepted requests into moved bytes. Needs no operating system.
//!
//! Every handle points to a [`shared::Shared`]. Its lock guards [`state::State`], which never blocks and never calls a
//! backend: it fills a list of [`order::Orders`], and the thread that turns the engine carries them out after it has
//! released the lock.

pub(crate) mod accept;
pub(crate) mod active;
mod admit;
mod backlog;
pub(crate) mod batch;
pub(crate) mod clock;
mod completions;
mod deadlines;
mod digest;
pub(crate) mod event;
mod finish;
pub(crate) mod held;
pub(crate) mod hint;
pub(crate) mod kept;
pub(crate) mod listen;
#[cfg(all(test, loom))]
mod loom_tests;
mod observe;
mod order;
mod places;
mod poll;
mod proof;
pub(crate) mod routes;
mod settle;
pub(crate) mod shared;
pub(crate) mod signal;
pub(crate) mod staging;
pub(crate) mod state;
pub(crate) mod sync;
mod turn;
pub(crate) mod unwind;
mod wait;
