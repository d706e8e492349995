//! The tests of the backend, as one program: linking one for each file took longer than the tests.

mod common;
mod conformance;
mod counts;
mod failures;
mod guards;
mod mistakes;
mod model;
mod order;
mod removal;
mod stress;
mod sweep;
mod textures;
