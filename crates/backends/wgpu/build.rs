//! Tells the code whether adapters are reached through their drivers, or through the browser.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(native)");
    println!("cargo::rustc-check-cfg=cfg(browser)");
    println!("cargo::rerun-if-changed=build.rs");
    let told = |name: &str| std::env::var(name).unwrap_or_default();
    let has = |list: &str, wanted: &str| list.split(',').any(|name| name == wanted);
    let is_wasm = has(&told("CARGO_CFG_TARGET_FAMILY"), "wasm");
    // The same condition as `transload_hal::MaybeSend`'s, and a browser.
    let is_browser = is_wasm
        && told("CARGO_CFG_TARGET_OS") == "unknown"
        && !has(&told("CARGO_CFG_TARGET_FEATURE"), "atomics");
    if is_browser {
        println!("cargo::rustc-cfg=browser");
    } else if !is_wasm && std::env::var_os("CARGO_CFG_TRANSLOAD_LOCAL").is_none() {
        println!("cargo::rustc-cfg=native");
    }
}
