//! The tests of the double, as one program: linking one for each file took longer than the tests.

mod buffers;
mod common;
mod devices;
mod events;
mod faults;
mod misuse;
mod textures;
mod threads;
