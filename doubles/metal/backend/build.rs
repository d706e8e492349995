//! Tells the backend that the double is there.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(transload_metal_double)");
    println!("cargo::rustc-cfg=transload_metal_double");
}
