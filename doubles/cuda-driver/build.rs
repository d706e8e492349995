//! Gives the library the file name that clients of the real one load.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The library calls its own functions, even if the process has others of the same names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Its threads outlive the code that opened it, as the real driver's do.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
