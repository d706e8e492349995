//! Tells the code whether there can be a second thread, a fork, adapters, a browser, CUDA devices, Metal devices, other
//! machines; and the project's first page.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(threads)");
    println!("cargo::rustc-check-cfg=cfg(forks)");
    println!("cargo::rustc-check-cfg=cfg(adapters)");
    println!("cargo::rustc-check-cfg=cfg(browser)");
    println!("cargo::rustc-check-cfg=cfg(cuda)");
    println!("cargo::rustc-check-cfg=cfg(metal)");
    println!("cargo::rustc-check-cfg=cfg(remote)");
    println!("cargo::rustc-check-cfg=cfg(first_page)");
    println!("cargo::rerun-if-changed=build.rs");
    // A package from a registry comes without the project's own.
    if std::path::Path::new("../../README.md").is_file() {
        println!("cargo::rustc-cfg=first_page");
    }
    let set = |name: &str| std::env::var_os(name).is_some();
    let family = std::env::var("CARGO_CFG_TARGET_FAMILY").unwrap_or_default();
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    let wasm = family.split(',').any(|name| name == "wasm");
    let alone = wasm && !features.split(',').any(|name| name == "atomics");
    // The same condition as `transload_hal::MaybeSend`'s, and an operating system.
    if set("CARGO_FEATURE_STD") && !alone && !set("CARGO_CFG_TRANSLOAD_LOCAL") {
        println!("cargo::rustc-cfg=threads");
    }
    // Miri has no `fork`, and these systems of the Unix family have neither.
    let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    let unforked = ["espidf", "horizon", "nuttx", "vita"].contains(&os.as_str());
    if set("CARGO_FEATURE_STD")
        && set("CARGO_CFG_UNIX")
        && !wasm
        && !unforked
        && !set("CARGO_CFG_MIRI")
    {
        println!("cargo::rustc-cfg=forks");
    }
    // The same condition as the dependencies' in `Cargo.toml`.
    let alike = set("CARGO_CFG_TRANSLOAD_LOCAL") || set("CARGO_CFG_LOOM");
    let without = wasm || alike;
    // Where the browser's callbacks end what the adapters do. Without the feature nothing says that the target is a
    // browser at all.
    let browser = set("CARGO_FEATURE_WGPU") && alone && os == "unknown" && !alike;
    if browser {
        println!("cargo::rustc-cfg=browser");
    }
    if set("CARGO_FEATURE_WGPU") && (browser || !without) {
        println!("cargo::rustc-cfg=adapters");
    }
    if set("CARGO_FEATURE_CUDA") && !without {
        println!("cargo::rustc-cfg=cuda");
    }
    // The processors that the ciphers are for.
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let has_ciphers = ["x86_64", "aarch64"].contains(&arch.as_str());
    if set("CARGO_FEATURE_REMOTE") && !without && has_ciphers {
        println!("cargo::rustc-cfg=remote");
    }
    let apple = std::env::var("CARGO_CFG_TARGET_VENDOR").is_ok_and(|vendor| vendor == "apple");
    if set("CARGO_FEATURE_METAL") && apple && !without {
        println!("cargo::rustc-cfg=metal");
    }
}
