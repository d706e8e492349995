//! Managed memory of which the host and the device use a part each.

use crate::common;

use common::engine::{allocate, manager, read};
use common::{FIRST, User, assert_clean, pattern};
use objc2::rc::autoreleasepool;
use objc2_metal::{MTLDevice as _, MTLResourceOptions};
use transload::Method;
use transload::hal::{ErrorClass, External};
use transload_metal::{Metal, MetalBuffer};
use transload_metal_double::Device;

const LEN: usize = 4096;
const HALF: u64 = LEN as u64;

#[test]
fn what_a_guard_has_written_outlasts_a_look_at_other_bytes() {
    let manager = manager(vec![Device::discrete()]);
    let managed = allocate(&manager, "metal:0/managed", 2 * LEN);
    let device = allocate(&manager, "metal:0", LEN);
    let (first, second) = (
        managed.slice(0..HALF).unwrap(),
        managed.slice(HALF..2 * HALF).unwrap(),
    );
    let (bytes, other) = (pattern(LEN), vec![0xAB; LEN]);
    manager.copy_from_slice(&bytes, &device).unwrap();
    manager.copy(&device, &first).wait().unwrap();
    let mut guard = second.write().unwrap();
    guard.copy_from_slice(&other);
    let back = manager.adopt(vec![0u8; LEN]).unwrap();
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

#[test]
fn a_managed_buffer_that_is_taken_in_twice_is_one() {
    let manager = manager(vec![Device::discrete()]);
    let metal = manager.backend::<Metal>().unwrap();
    let user = User::new(&metal, FIRST);
    let [one, other] = autoreleasepool(|_| {
        let options = MTLResourceOptions::StorageModeManaged;
        let made = user.device.newBufferWithLength_options(2 * LEN, options);
        let made = made.unwrap();
        [made.clone(), made].map(|buffer| {
            let object = External::Object(Box::new(MetalBuffer::new(buffer)));
            let place = "metal:0/managed".parse().unwrap();
            // SAFETY: nothing else uses it.
            unsafe { manager.import(place, object) }.unwrap()
        })
    });
    let bytes = pattern(LEN);
    let second = one.slice(HALF..2 * HALF).unwrap();
    let mut guard = second.write().unwrap();
    guard.copy_from_slice(&bytes);
    let first = other.slice(0..HALF).unwrap();
    assert_eq!(read(&manager, &first), [0; LEN]);
    assert!(guard[..] == bytes[..], "the guard's bytes were overwritten");
    drop(guard);
    let device = allocate(&manager, "metal:0", LEN);
    let view = other.slice(HALF..2 * HALF).unwrap();
    manager.copy(&view, &device).wait().unwrap();
    assert_eq!(read(&manager, &device), bytes);
    drop((one, other, first, second, view, device));
    drop((user, metal, manager));
    assert_clean();
}
