//! Transfers in a page, to and from the devices of the browser.
#![cfg(all(target_family = "wasm", target_os = "unknown"))]

mod bytes;
mod fences;
mod loss;
mod mistakes;
mod nothing_blocks;
mod order;
mod page;
mod rows;
mod textures;

wasm_bindgen_test::wasm_bindgen_test_configure!(run_in_browser);
