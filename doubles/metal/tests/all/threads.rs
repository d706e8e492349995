//! Many threads at once, with queues of their own and events between them.

use crate::common;

use common::*;
use objc2::rc::autoreleasepool;
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLCommandBuffer as _, MTLCommandBufferStatus, MTLCopyAllDevices, MTLDevice as _,
};
use transload_metal_double::{Device as Described, Machine, counters, set};

/// A number that looks like chance and is the same in every run.
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

#[test]
fn bytes_arrive_whatever_is_dropped_and_when() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 100;
    clean(|| {
        let devices = vec![Described::unified(), Described::discrete()];
        set(Machine {
            devices,
            ..Machine::default()
        })
        .unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let mut dice = Dice(thread);
                    for _ in 0..ROUNDS {
                        autoreleasepool(|_| round(&mut dice));
                    }
                });
            }
        });
        assert!(counters().copies >= THREADS * ROUNDS);
    });
}

/// Bytes go to a private buffer and back, over one queue or two that an event orders; most of it is dropped before it
/// is done.
fn round(dice: &mut Dice) {
    let devices = MTLCopyAllDevices().to_vec();
    let device = &devices[dice.throw(2) as usize];
    let queues = [
        device.newCommandQueue().unwrap(),
        device.newCommandQueue().unwrap(),
    ];
    let len = 4 * (1 + dice.throw(2000) as usize);
    let bytes: Vec<u8> = (0..len).map(|_| dice.throw(256) as u8).collect();
    let (from, between, to) = (
        buffer(device, len, SHARED),
        buffer(device, len, PRIVATE),
        buffer(device, len, SHARED),
    );
    write(&from, &bytes);
    let event = device.newSharedEvent().unwrap();
    let up = encode(&queues[0], |encoder| copy(encoder, &from, &between, len));
    up.encodeSignalEvent_value(ProtocolObject::from_ref(&*event), 1);
    let down = encode(&queues[1], |encoder| copy(encoder, &between, &to, len));
    let last = encode(&queues[1], |_| ());
    // In half of the cases the last buffer is committed first.
    let gate = objc2_metal::MTLCommandQueue::commandBuffer(&*queues[1]).unwrap();
    gate.encodeWaitForEvent_value(ProtocolObject::from_ref(&*event), 1);
    gate.commit();
    if dice.throw(2) == 0 {
        up.commit();
        down.commit();
    } else {
        down.commit();
        up.commit();
    }
    if dice.throw(2) == 0 {
        drop((from, between, event, up, gate, down));
    }
    last.commit();
    drop(queues);
    last.waitUntilCompleted();
    assert_eq!(last.status(), MTLCommandBufferStatus::Completed);
    assert_eq!(read(&to), bytes);
}
