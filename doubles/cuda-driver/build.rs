//! Gives the library the name that clients of the real one ask for.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its own functions are its own, whatever else of their names is in the process.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Its threads outlive the code that opened it, as the real driver's do.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
