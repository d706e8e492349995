//! Whole transfers to and from the adapters of this machine.
#![cfg(not(any(loom, transload_local)))]

use crate::adapter;
use std::sync::Arc;

use transload::hal::ErrorClass;
use transload::probe::{Found, ProbeOptions};
use transload::{AllocSpec, Buffer, Method, Region, Request, Shape, TransferManager};
use transload_wgpu::Wgpu;

const MIB: u64 = 1 << 20;

/// Bytes without a short period.
fn pattern(len: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A manager and the first adapter; `None`, with a printed line, where there is none.
fn discovered() -> Option<TransferManager> {
    let adapters = Wgpu::discover();
    if adapters.is_empty() {
        adapter::skip();
        return None;
    }
    let manager = TransferManager::builder()
        .host()
        .backend(Arc::new(adapters));
    Some(manager.build().unwrap())
}

fn on_device(manager: &TransferManager, len: u64) -> Buffer {
    manager
        .allocate("wgpu:0".parse().unwrap(), AllocSpec::bytes(len))
        .unwrap()
}

#[test]
fn bytes_come_back_as_they_went() {
    let Some(manager) = discovered() else { return };
    for len in [1, 3, 4, 4096, 65_537, MIB, 5 * MIB + 3, 40 * MIB] {
        let sent = pattern(len, len);
        let src = manager.adopt(sent.clone()).unwrap();
        let there = on_device(&manager, len);
        let back = manager.adopt(vec![0xA5u8; len as usize]).unwrap();
        let report = manager
            .submit(&Request::new(&src, &there).verify())
            .wait()
            .unwrap();
        println!("{report}");
        assert_eq!(report.bytes(), len);
        println!("{}", manager.copy(&there, &back).wait().unwrap());
        assert!(*back.read().unwrap() == *sent, "{len} bytes");
    }
}

#[test]
fn any_offset_and_length_leaves_the_neighbours_alone() {
    let Some(manager) = discovered() else { return };
    const LEN: u64 = 300;
    let whole = on_device(&manager, LEN);
    let blank = manager.adopt(vec![0x5Au8; LEN as usize]).unwrap();
    let src = manager.adopt(pattern(LEN, 9)).unwrap();
    for (from, to, len) in [
        (0, 0, 1),
        (1, 2, 3),
        (3, 0, 9),
        (5, 7, 64),
        (2, 6, 255),
        (7, 1, 2),
    ] {
        manager.copy(&blank, &whole).wait().unwrap();
        let part = |buffer: &Buffer, at: u64| buffer.slice(at..at + len).unwrap();
        manager
            .copy(part(&src, from), part(&whole, to))
            .wait()
            .unwrap();
        let mut found = vec![0; LEN as usize];
        manager.copy_into_slice(&whole, &mut found).unwrap();
        let mut wanted = vec![0x5A; LEN as usize];
        let sent = pattern(LEN, 9);
        wanted[to as usize..(to + len) as usize]
            .copy_from_slice(&sent[from as usize..(from + len) as usize]);
        assert!(found == wanted, "{from} to {to}, {len} bytes");
    }
}

/// Long enough that pages of ordinary memory are imported where the driver allows it, and cut at any byte.
#[test]
fn pages_and_what_lies_beside_them_arrive_and_leave_others_alone() {
    let Some(manager) = discovered() else { return };
    const LEN: usize = 300_000;
    let place = "wgpu:0/device".parse().unwrap();
    let there = manager
        .allocate(place, AllocSpec::bytes(LEN as u64))
        .unwrap();
    let blank = manager.adopt(vec![0x5Au8; LEN]).unwrap();
    let sent = pattern(LEN as u64, 5);
    let src = manager.adopt(sent.clone()).unwrap();
    for (from, to, len) in [
        (0, 0, 65_536),
        (1, 1, 70_000),
        (4080, 0, 100_001),
        (16, 4, 131_072),
        (7, 2, 60_001),
        (4095, 4095, 200_000),
        (3, 0, 262_145),
    ] {
        let back = manager.adopt(vec![0xC3u8; LEN]).unwrap();
        manager.copy(&blank, &there).wait().unwrap();
        let part = |buffer: &Buffer, at: u64| buffer.slice(at..at + len).unwrap();
        let up = manager.copy(part(&src, from), part(&there, to));
        let down = manager.copy(part(&there, to), part(&back, from));
        println!("{} {}", up.wait().unwrap(), down.wait().unwrap());
        let (from, to, len) = (from as usize, to as usize, len as usize);
        let mut found = vec![0; LEN];
        manager.copy_into_slice(&there, &mut found).unwrap();
        let mut wanted = vec![0x5A; LEN];
        wanted[to..to + len].copy_from_slice(&sent[from..from + len]);
        assert!(found == wanted, "{from} to {to}, {len} bytes");
        let mut wanted = vec![0xC3; LEN];
        wanted[from..from + len].copy_from_slice(&sent[from..from + len]);
        assert!(
            *back.read().unwrap() == *wanted,
            "{to} back to {from}, {len} bytes"
        );
    }
}

#[test]
fn rows_at_a_pitch_go_there_and_back() {
    let Some(manager) = discovered() else { return };
    let (row, rows, pitch) = (37u64, 50u64, 64u64);
    let sent = pattern(pitch * rows, 3);
    let src = manager.adopt(sent.clone()).unwrap();
    let there = on_device(&manager, row * rows);
    let pitched = Shape::pitched(row, rows, pitch).unwrap();
    let from = Region::new(&src, 0, pitched).unwrap();
    manager.copy(from, &there).wait().unwrap();
    let mut found = vec![0; (row * rows) as usize];
    manager.copy_into_slice(&there, &mut found).unwrap();
    let rows_of = |at: usize| &sent[at * pitch as usize..][..row as usize];
    let wanted: Vec<u8> = (0..rows as usize).flat_map(rows_of).copied().collect();
    assert!(found == wanted);
}

#[test]
fn many_transfers_are_under_way_at_once() {
    let Some(manager) = discovered() else { return };
    let sent: Vec<Vec<u8>> = (0..32).map(|seed| pattern(MIB + seed, seed)).collect();
    let there: Vec<Buffer> = sent
        .iter()
        .map(|bytes| on_device(&manager, bytes.len() as u64))
        .collect();
    let transfers: Vec<_> = sent
        .iter()
        .zip(&there)
        .map(|(bytes, there)| {
            let src = manager.adopt(bytes.clone()).unwrap();
            manager.copy(&src, there)
        })
        .collect();
    for transfer in transfers {
        pollster::block_on(transfer).unwrap();
    }
    for (bytes, there) in sent.iter().zip(&there) {
        let mut found = vec![0; bytes.len()];
        manager.copy_into_slice(there, &mut found).unwrap();
        assert!(found == *bytes);
    }
}

#[test]
fn a_buffer_that_its_user_destroyed_fails_its_own_copies_and_bars_no_link() {
    let Some(manager) = discovered() else { return };
    let src = manager.adopt(pattern(MIB, 4)).unwrap();
    let destroyed = on_device(&manager, MIB);
    destroyed.native::<wgpu::Buffer>().unwrap().destroy();
    for _ in 0..2 {
        let error = manager.copy(&src, &destroyed).wait().unwrap_err();
        assert_eq!(error.class(), ErrorClass::Caller, "{error}");
        assert!(error.to_string().contains("has been destroyed"), "{error}");
    }
    let other = on_device(&manager, MIB);
    let report = manager.copy(&src, &other).wait().unwrap();
    assert!(report.fallbacks().is_empty(), "{report}");
}
#[test]
fn a_probe_measures_every_link_of_an_adapter_its_slots_included() {
    let Some(manager) = discovered() else { return };
    let mut options = ProbeOptions::quick();
    options.budget = std::time::Duration::from_secs(10_000);
    options.sizes = vec![4096, MIB];
    options.samples = 2;
    let found = manager.probe(&options);
    for link in &found.links {
        assert!(!link.faulty, "{link:?}");
        for (_, size) in &link.sizes {
            assert!(matches!(size, Found::Time(_)), "{link:?}");
        }
    }
    // A link may end at a memory of a backend that is not registered.
    let topology = manager.topology();
    let is_here = |memory| topology.memory(memory).is_some();
    let links = topology.links().iter();
    let whole = links.filter(|link| is_here(link.id.src) && is_here(link.id.dst));
    assert_eq!(found.links.len(), whole.count());
    for pair in &found.pairs {
        assert!(matches!(pair.found, Found::Time(_)), "{pair:?}");
        println!("{pair:?}");
    }
}

#[test]
fn a_device_that_was_opened_elsewhere_gets_the_best_that_it_can_do_and_the_reason() {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN;
    let instance = wgpu::Instance::new(descriptor);
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
    let Some(theirs) = adapters.first() else {
        return adapter::skip();
    };
    let descriptor = wgpu::DeviceDescriptor::default();
    let (device, queue) = pollster::block_on(theirs.request_device(&descriptor)).unwrap();
    let backend = Wgpu::with_devices([(device, queue)]);
    let builder = TransferManager::builder().host();
    let manager = builder.backend(Arc::new(backend)).build().unwrap();
    let src = manager.adopt(pattern(MIB, 1)).unwrap();
    let place = "wgpu:0/device".parse().unwrap();
    let dst = manager.allocate(place, AllocSpec::bytes(MIB)).unwrap();
    let request = Request::new(&src, &dst);
    let explained = manager.explain(&request).unwrap();
    assert_eq!(explained.chosen.method, Method::HostStaged, "{explained}");
    let zero_copy = explained.rejected.iter();
    let mut zero_copy = zero_copy.filter(|choice| choice.method == Method::ZeroCopy);
    let reason = zero_copy
        .next()
        .unwrap()
        .reason
        .as_ref()
        .unwrap()
        .to_string();
    assert!(reason.contains("VK_EXT_external_memory_host"), "{reason}");
    let report = manager.submit(&request.verify()).wait().unwrap();
    assert_eq!(report.method(), Method::HostStaged, "{report}");
}
