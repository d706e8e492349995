//! The lifetime of the system's drivers.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::fs;

use transload_wgpu::Wgpu;

fn libraries() -> BTreeSet<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    paths
        .filter(|path| path.contains(".so"))
        .map(str::to_owned)
        .collect()
}

/// Drivers have handlers that run when the process ends, and a thread of the library may drop a device at that moment.
#[test]
fn a_driver_stays_loaded_when_its_last_device_is_gone() {
    let wgpu = Wgpu::discover();
    let with_devices = libraries();
    drop(wgpu);
    let gone: Vec<_> = with_devices.difference(&libraries()).cloned().collect();
    assert!(gone.is_empty(), "unloaded: {gone:?}");
}
