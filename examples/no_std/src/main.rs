//! Transload without an operating system: an allocator, a critical section, a backend of the program's own, and a loop
//! that turns the engine.
//!
//! ```text
//! cargo build -p transload-no-std-example --target x86_64-unknown-none
//! ```
//!
//! The program exits by Linux's system call, so that a Linux machine can run it: with code 0 if the bytes arrived, and
//! with code 1 if not. A real program would go on with its work there.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
extern crate alloc;

#[cfg(target_os = "none")]
mod backend;
#[cfg(target_os = "none")]
mod copies;
#[cfg(target_os = "none")]
mod machine;

#[cfg(not(target_os = "none"))]
fn main() {
    println!("this example is for machines without an operating system; see its documentation");
}
