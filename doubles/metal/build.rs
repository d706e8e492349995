//! Writes the libraries that objc2 asks the linker for where it believes in GNUstep: empty ones. What would be in
//! them is in this package.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let folder =
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo tells build scripts where to write"));
    for library in ["objc", "gnustep-base"] {
        let path = folder.join(format!("lib{library}.a"));
        // An archive without members is its signature.
        fs::write(&path, "!<arch>\n").expect("cargo's folder for build scripts can be written");
    }
    println!("cargo::rustc-link-search=native={}", folder.display());
}
