//! Transfers between CUDA devices and adapters of another driver, through one buffer that both reach.

use std::sync::Arc;

use transload::{DeviceId, DeviceKind, MemoryId, MemoryKind};
use transload_wgpu::Wgpu;

use crate::adapter;
use crate::cuda::machine::{assert_clean, manager, round};

#[test]
fn no_processor_copies_between_a_device_and_an_adapter_that_imports_host_memory() {
    let adapters = Wgpu::discover();
    if adapters.is_empty() {
        return adapter::skip();
    }
    let manager = manager("no-peer");
    manager.register_shared(Arc::new(adapters)).unwrap();
    let links = manager.topology().links().to_vec();
    let pinned = DeviceId::CPU0.memory(MemoryKind::Pinned);
    let importers = manager.devices().into_iter().filter(|device| {
        let own = device.id.memory(MemoryKind::Device);
        device.id.kind == DeviceKind::WGPU
            && links
                .iter()
                .any(|link| link.id.src == pinned && link.id.dst == own)
    });
    let importers: Vec<DeviceId> = importers.map(|device| device.id).collect();
    for adapter in &importers {
        let place = format!("{adapter}/device");
        for len in [1 << 20, (5 << 20) + 3] {
            let reports = round(&manager, len, &["cuda:0", &place, "cuda:1"]);
            for report in &reports[1..3] {
                println!("{report}");
                let route: Vec<MemoryId> = report.route().collect();
                assert_eq!((route.len(), route[1]), (3, pinned), "{route:?}");
            }
        }
    }
    if importers.is_empty() {
        adapter::skip();
    }
    drop(manager);
    assert_clean();
}

/// The host's threads copy between pinned memory of CUDA and mapped memory of an adapter.
#[test]
fn a_device_and_memory_that_an_adapter_maps_exchange_bytes_by_the_way_that_was_chosen() {
    let adapters = Wgpu::discover();
    if adapters.is_empty() {
        return adapter::skip();
    }
    let manager = manager("no-peer");
    manager.register_shared(Arc::new(adapters)).unwrap();
    let mapped = manager.memories().into_iter().map(|memory| memory.id);
    let mapped: Vec<MemoryId> = mapped
        .filter(|memory| memory.kind == MemoryKind::Mapped)
        .collect();
    for memory in &mapped {
        let place = memory.to_string();
        for report in round(&manager, (1 << 20) + 3, &["cuda:0", &place, "cuda:1"]) {
            let fell_back: Vec<String> = report
                .fallbacks()
                .iter()
                .map(|fallback| fallback.fault.to_string())
                .collect();
            assert!(fell_back.is_empty(), "{report}: {fell_back:?}");
        }
    }
    if mapped.is_empty() {
        adapter::skip();
    }
    drop(manager);
    assert_clean();
}
