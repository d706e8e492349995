//! Runs the examples for adapters. Each example checks its own bytes.
#![cfg(all(feature = "wgpu", not(any(loom, transload_local))))]

use crate::adapter;
#[path = "../../examples/adopt.rs"]
mod adopt;
#[path = "../../examples/readback.rs"]
mod readback;
#[path = "../../examples/upload.rs"]
mod upload;

use std::error::Error;

fn run(example: fn() -> Result<(), Box<dyn Error>>) {
    if transload::wgpu_backend::Wgpu::discover().is_empty() {
        return adapter::skip();
    }
    example().unwrap();
}

#[test]
fn upload_adds_up_a_file() {
    run(upload::main);
}

#[test]
fn adopt_shares_a_buffer_with_a_program() {
    run(adopt::main);
}

#[test]
fn readback_takes_every_frame() {
    run(readback::main);
}
