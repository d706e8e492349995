//! The properties of devices, and their number.

use crate::common;

use common::*;
use objc2_metal::{
    MTLCopyAllDevices, MTLCreateSystemDefaultDevice, MTLDevice as _, MTLDeviceLocation,
};
use transload_metal_double::{Device as Described, Machine, TooLate, leaks, set};

#[test]
fn devices_are_what_the_machine_says() {
    clean(|| {
        let devices = vec![
            Described::discrete(),
            Described::unified(),
            Described::external(),
        ];
        set(Machine {
            devices,
            ..Machine::default()
        })
        .unwrap();
        let all = MTLCopyAllDevices().to_vec();
        let unified: Vec<bool> = all.iter().map(|device| device.hasUnifiedMemory()).collect();
        assert_eq!(unified, [false, true, false]);
        let removable: Vec<bool> = all.iter().map(|device| device.isRemovable()).collect();
        assert_eq!(removable, [false, false, true]);
        assert_eq!(all[2].location(), MTLDeviceLocation::External);
        assert_eq!(all[0].location(), MTLDeviceLocation::Slot);
        assert_eq!(all[1].name().to_string(), "Double of a unified GPU");
        assert_ne!(all[0].registryID(), all[1].registryID());
        assert_eq!(all[0].maxBufferLength(), 4 << 30);
        assert_eq!(all[0].recommendedMaxWorkingSetSize(), 8 << 30);
        // The default is the first, and the same object.
        assert_eq!(device(), all[0]);
    });
}

#[test]
fn an_array_of_devices_can_be_walked() {
    clean(|| {
        let devices = vec![Described::discrete(); 20];
        set(Machine {
            devices,
            ..Machine::default()
        })
        .unwrap();
        let array = MTLCopyAllDevices();
        let ids: Vec<u64> = array.iter().map(|device| device.registryID()).collect();
        assert_eq!(ids.len(), 20);
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(array.objectAtIndex(7).registryID(), ids[7]);
    });
}

#[test]
fn a_machine_without_metal_has_no_device() {
    clean(|| {
        set(Machine {
            devices: Vec::new(),
            ..Machine::default()
        })
        .unwrap();
        assert!(MTLCreateSystemDefaultDevice().is_none());
        assert!(MTLCopyAllDevices().is_empty());
    });
}

#[test]
fn a_machine_that_was_looked_at_stays() {
    clean(|| {
        drop(device());
        assert_eq!(set(Machine::default()), Err(TooLate));
    });
}

#[test]
fn what_is_kept_is_told_by_class() {
    let (device, buffer, queue) = objc2::rc::autoreleasepool(|_| {
        let device = device();
        let buffer = buffer(&device, 64, PRIVATE);
        let queue = device.newCommandQueue().unwrap();
        (device, buffer, queue)
    });
    let told: Vec<String> = leaks().iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "1 MTLBuffer",
            "1 MTLCommandQueue",
            "1 reference to MTLDevice"
        ]
    );
    drop((device, buffer, queue));
    assert_eq!(leaks(), []);
}
