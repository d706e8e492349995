//! Backends and devices that a manager discovers where adapters exist.
#![cfg(adapters)]

use crate::adapter;
use std::thread;

use transload::wgpu_backend::Wgpu;
use transload::{AllocSpec, DeviceKind, Request, TransferManager};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const MIB: usize = 1 << 20;

/// A discovered manager; `None`, with a printed line, where it found no adapter.
fn discovered() -> Option<TransferManager> {
    let manager = TransferManager::discover().unwrap();
    if manager.backend::<Wgpu>().is_none() {
        adapter::skip();
        return None;
    }
    Some(manager)
}

#[test]
fn adapters_are_found_behind_the_host_and_named_by_their_drivers() {
    let Some(manager) = discovered() else { return };
    let backends = manager.backends();
    let backends: Vec<String> = backends.iter().map(|b| b.id.to_string()).collect();
    let ends = (backends.first(), backends.last());
    assert_eq!(ends, (Some(&"host".into()), Some(&"wgpu".into())));
    let mut adapters = manager.devices();
    adapters.retain(|device| device.id.kind == DeviceKind::WGPU);
    assert_eq!(
        Some(adapters.len()),
        manager.backend::<Wgpu>().map(|wgpu| wgpu.len())
    );
    for adapter in &adapters {
        assert!(!adapter.name.is_empty() && !adapter.simulated);
        assert!(
            adapter
                .driver
                .as_ref()
                .is_some_and(|driver| !driver.is_empty())
        );
    }
    // A program that takes the first adapter gets hardware if the machine has any.
    assert!(adapters.is_sorted_by_key(|adapter| adapter.software));
}

#[test]
fn a_manager_with_the_host_alone_asks_no_driver() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    assert!(manager.backend::<Wgpu>().is_none());
    let error = manager
        .allocate("wgpu:0".parse()?, AllocSpec::bytes(1))
        .unwrap_err();
    assert!(error.to_string().contains("wgpu:0"), "{error}");
    Ok(())
}

#[test]
fn managers_that_discover_side_by_side_work_and_keep_their_buffers_apart() -> Outcome {
    let (Some(one), Some(other)) = (discovered(), discovered()) else {
        return Ok(());
    };
    let there_and_back = |manager: &TransferManager, byte: u8| {
        for round in 0..8 {
            let src = manager.adopt(vec![byte ^ round; MIB + 3]).unwrap();
            let there = manager
                .allocate("wgpu:0".parse().unwrap(), AllocSpec::bytes(src.len()))
                .unwrap();
            manager
                .submit(&Request::new(&src, &there).verify())
                .wait()
                .unwrap();
            let mut back = vec![0; MIB + 3];
            manager.copy_into_slice(&there, &mut back).unwrap();
            assert!(back.iter().all(|found| *found == byte ^ round));
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| there_and_back(&one, 0x50));
        scope.spawn(|| there_and_back(&other, 0xA0));
    });
    let theirs = other.allocate("wgpu:0".parse()?, AllocSpec::bytes(8))?;
    let ours = one.adopt(vec![1u8; 8])?;
    assert!(
        one.copy(&ours, &theirs).wait().is_err(),
        "a buffer of another manager"
    );
    // The other manager goes on.
    drop((one, ours));
    there_and_back(&other, 7);
    Ok(())
}
