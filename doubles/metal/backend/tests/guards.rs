//! Managed memory of which the host and the device use a part each.

mod common;

use common::engine::{allocate, manager, read};
use common::{assert_clean, pattern};
use transload::Method;
use transload::hal::ErrorClass;
use transload_metal_double::Device;

const HALF: u64 = 4096;

#[test]
fn what_a_guard_has_written_outlasts_a_look_at_other_bytes() {
    let manager = manager(vec![Device::discrete()]);
    let managed = allocate(&manager, "metal:0/managed", 2 * HALF as usize);
    let device = allocate(&manager, "metal:0", HALF as usize);
    let (first, second) = (
        managed.slice(0..HALF).unwrap(),
        managed.slice(HALF..2 * HALF).unwrap(),
    );
    let (bytes, other) = (pattern(HALF as usize), vec![0xAB; HALF as usize]);
    manager.copy_from_slice(&bytes, &device).unwrap();
    manager.copy(&device, &first).wait().unwrap();
    let mut guard = second.write().unwrap();
    guard.copy_from_slice(&other);
    let back = manager.adopt(vec![0u8; HALF as usize]).unwrap();
    manager.copy(&device, &first).wait().unwrap();
    // All of the buffer is brought back at once, which cannot be now.
    let report = manager.copy(&first, &back).wait().unwrap();
    assert_eq!(report.method(), Method::HostStaged);
    let told = report.fallbacks()[0].fault.to_string();
    assert!(told.contains("the host is writing other bytes"), "{told}");
    let refused = first.read().err().unwrap();
    assert_eq!(refused.class(), ErrorClass::Unsupported);
    assert_eq!(read(&manager, &back), bytes);
    assert!(guard[..] == other[..], "the guard's bytes were overwritten");
    drop(guard);
    let report = manager.copy(&first, &back).wait().unwrap();
    assert_eq!(report.method(), Method::UnifiedMemory);
    assert_eq!(first.read().unwrap()[..], bytes[..]);
    assert!(second.read().unwrap()[..] == other[..]);
    manager.copy(&second, &device).wait().unwrap();
    assert!(
        read(&manager, &device) == other,
        "the device saw other bytes"
    );
    drop((managed, first, second, device, back, manager));
    assert_clean();
}
