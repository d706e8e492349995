//! Transfers and the program's own commands, one after the other.

use crate::common;

use std::ptr::NonNull;
use std::sync::mpsc;

use common::hal::{Bench, fill};
use common::{FIRST, User, assert_clean, contents, metal, pattern, seen};
use objc2::rc::autoreleasepool;
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBlitCommandEncoder as _, MTLBuffer, MTLCommandBuffer as _, MTLCommandEncoder as _,
    MTLCommandQueue as _, MTLDevice as _, MTLResourceOptions, MTLSharedEvent as _,
};
use transload_hal::{BackendId, ErrorClass, External, Fence, HostSpan, Name, Outcome};
use transload_metal::{EventError, MetalBuffer};
use transload_metal_double::{Device, counters, hold, release, remove, settle};

const LEN: usize = 4096;

fn end(bench: Bench) {
    drop(bench);
    assert_clean();
}

#[test]
fn lanes_wait_for_each_others_fences_on_the_device() {
    let bench = Bench::new(metal(vec![Device::unified()]));
    let [first, last] = ["metal:0/mapped"; 2].map(|place| bench.buffer(place, LEN));
    let [a, b] = ["metal:0/device"; 2].map(|place| bench.buffer(place, LEN));
    fill(&first, &pattern(LEN));
    hold();
    // In, within and out: three queues.
    let up = bench.copy(&first, &a, &[]).unwrap();
    let across = bench.copy(&a, &b, &[up]).unwrap();
    let down = bench.copy(&b, &last, &[across, up]).unwrap();
    assert!(!bench.has_settled(up) && !bench.has_settled(down));
    let before = counters();
    release();
    assert_eq!(bench.outcome(down), Outcome::Done);
    assert_eq!(bench.outcome(across), Outcome::Done);
    settle();
    assert_eq!(counters().since(&before).waits, 3);
    assert_eq!(seen(&last), pattern(LEN));
    // The submission does not wait for a settled fence.
    let again = bench.copy(&b, &last, &[up]).unwrap();
    assert_eq!(bench.outcome(again), Outcome::Done);
    settle();
    assert_eq!(counters().since(&before).waits, 3);
    drop((first, last, a, b));
    end(bench);
}

#[test]
fn what_waits_for_commands_that_fail_goes_on() {
    for fault in ["commit=timeout", "blit=internal"] {
        let bench = Bench::new(once(fault));
        let [first, last] = ["metal:0/mapped"; 2].map(|place| bench.buffer(place, LEN));
        let private = bench.buffer("metal:0/device", LEN);
        hold();
        transload_metal_double::fault(fault).unwrap();
        let up = bench.copy(&first, &private, &[]).unwrap();
        let down = bench.copy(&private, &last, &[up]).unwrap();
        release();
        assert!(matches!(bench.outcome(up), Outcome::Failed(_)), "{fault}");
        assert_eq!(bench.outcome(down), Outcome::Done, "{fault}");
        let again = bench.copy(&first, &private, &[up, down]).unwrap();
        assert_eq!(bench.outcome(again), Outcome::Done, "{fault}");
        drop((first, last, private));
        end(bench);
    }
}

/// The first call sets the machine of the process.
fn once(fault: &str) -> transload_metal::Metal {
    match fault {
        "commit=timeout" => metal(vec![Device::unified()]),
        _ => transload_metal::Metal::discover().unwrap(),
    }
}

/// Copies a buffer to another one with the program's own commands, which are not committed.
fn commands_of(
    user: &User,
    src: &ProtocolObject<dyn MTLBuffer>,
    dst: &ProtocolObject<dyn MTLBuffer>,
) -> common::Commands {
    let commands = user.queue.commandBuffer().unwrap();
    encode(&commands, src, dst);
    commands
}

fn encode(
    commands: &common::Commands,
    src: &ProtocolObject<dyn MTLBuffer>,
    dst: &ProtocolObject<dyn MTLBuffer>,
) {
    let blit = commands.blitCommandEncoder().unwrap();
    // SAFETY: both are as long, and what else touches them waits.
    unsafe {
        blit.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(src, 0, dst, 0, LEN);
    }
    blit.endEncoding();
}

#[test]
fn a_transfer_starts_after_the_programs_commands() {
    let bench = Bench::new(metal(vec![Device::unified()]));
    let user = User::new(&bench.metal, FIRST);
    autoreleasepool(|_| {
        let (own, between) = (user.buffer(LEN), user.buffer(LEN));
        // SAFETY: nothing uses it.
        unsafe { HostSpan::of(&pattern(LEN)).copy_to(contents(&own)) };
        let (tell, told) = mpsc::channel();
        let commands = commands_of(&user, &own, &between);
        let then = move || tell.send(()).unwrap();
        bench.metal.when_done(&commands, then).unwrap();
        commands.commit();
        told.recv().unwrap();
        let late = bench.metal.when_done(&commands, || {}).unwrap_err();
        assert_eq!(
            (late.class(), late),
            (ErrorClass::Caller, EventError::Committed)
        );
        // SAFETY: the commands are over.
        let taken = unsafe { adopt(&bench, MetalBuffer::new(between)) };
        let back = bench.buffer("metal:0/mapped", LEN);
        let fence = bench.copy(&taken, &back, &[]).unwrap();
        assert_eq!(bench.outcome(fence), Outcome::Done);
        assert_eq!(seen(&back), pattern(LEN));
        // The buffer returns to its maker.
        let inner = taken.into_owner::<MetalBuffer>().unwrap().into_inner();
        assert_eq!(inner.length(), LEN);
    });
    drop(user);
    end(bench);
}

/// # Safety
/// As `Backend::import`.
unsafe fn adopt(bench: &Bench, buffer: MetalBuffer) -> transload_hal::Buffer {
    use transload_hal::{Backend as _, External, MemoryKind};
    let memory = FIRST.memory(MemoryKind::Mapped);
    let external = External::Object(Box::new(buffer));
    // SAFETY: the caller keeps the same promise.
    unsafe { bench.metal.import(memory, external) }.unwrap()
}

#[test]
fn an_event_of_the_programs_is_heard_of() {
    let bench = Bench::new(metal(vec![Device::unified()]));
    let user = User::new(&bench.metal, FIRST);
    autoreleasepool(|_| {
        let event = user.device.newSharedEvent().unwrap();
        let (tell, told) = mpsc::channel();
        let say = |what: &'static str| {
            let tell = tell.clone();
            move || tell.send(what).unwrap()
        };
        bench.metal.when_event(&event, 2, say("late"));
        bench.metal.when_event(&event, 0, say("now"));
        assert_eq!(told.recv(), Ok("now"));
        event.setSignaledValue(1);
        settle();
        assert!(told.try_recv().is_err());
        event.setSignaledValue(2);
        assert_eq!(told.recv(), Ok("late"));
    });
    drop(user);
    end(bench);
}

#[test]
fn the_programs_commands_follow_a_submission() {
    let bench = Bench::new(metal(vec![Device::unified()]));
    let user = User::new(&bench.metal, FIRST);
    autoreleasepool(|_| {
        let src = bench.buffer("metal:0/mapped", LEN);
        let private = bench.buffer("metal:0/device", LEN);
        fill(&src, &pattern(LEN));
        let after = user.buffer(LEN);
        hold();
        let fence = bench.copy(&src, &private, &[]).unwrap();
        let commands = user.queue.commandBuffer().unwrap();
        bench.metal.follow(&commands, &[fence]).unwrap();
        // SAFETY: the commands follow the transfer.
        let buffer = unsafe { private.native::<MetalBuffer>().unwrap().get() };
        encode(&commands, buffer, &after);
        commands.commit();
        let late = bench.metal.follow(&commands, &[fence]).unwrap_err();
        assert_eq!(late, EventError::Committed);
        release();
        commands.waitUntilCompleted();
        let mut bytes = vec![0; LEN];
        // SAFETY: nothing writes it any more.
        unsafe { contents(&after).copy_to(HostSpan::of_mut(&mut bytes)) };
        assert_eq!(bytes, pattern(LEN));
        assert_eq!(bench.outcome(fence), Outcome::Done);
        let foreign = Fence::new(BackendId(Name::constant("other")), 7);
        let commands = user.queue.commandBuffer().unwrap();
        let refused = bench.metal.follow(&commands, &[foreign]).unwrap_err();
        assert_eq!(refused.class(), ErrorClass::Caller);
    });
    drop(user);
    end(bench);
}

#[test]
fn an_event_of_the_programs_is_set_behind_submissions() {
    let bench = Bench::new(metal(vec![Device::unified()]));
    let user = User::new(&bench.metal, FIRST);
    autoreleasepool(|_| {
        let event = user.device.newSharedEvent().unwrap();
        let src = bench.buffer("metal:0/mapped", LEN);
        let private = bench.buffer("metal:0/device", LEN);
        hold();
        let fence = bench.copy(&src, &private, &[]).unwrap();
        bench.metal.signal(&[fence], &event, 5).unwrap();
        assert_eq!(event.signaledValue(), 0);
        release();
        settle();
        assert_eq!(event.signaledValue(), 5);
        assert_eq!(bench.outcome(fence), Outcome::Done);
        // No work is left to wait for.
        bench.metal.signal(&[fence], &event, 6).unwrap();
        assert_eq!(event.signaledValue(), 6);
    });
    drop(user);
    end(bench);
}

#[test]
fn a_transfer_of_the_engines_waits_for_the_programs_commands() {
    let manager = common::engine::manager(vec![Device::unified()]);
    let metal = manager.backend::<transload_metal::Metal>().unwrap();
    let user = User::new(&metal, FIRST);
    autoreleasepool(|_| {
        let src = common::engine::allocate(&manager, "metal:0/mapped", LEN);
        let device = common::engine::allocate(&manager, "metal:0/device", LEN);
        let own = user.buffer(LEN);
        // SAFETY: nothing uses it.
        unsafe { HostSpan::of(&pattern(LEN)).copy_to(contents(&own)) };
        // SAFETY: the transfer starts after the commands.
        let buffer = unsafe { src.native::<MetalBuffer>().unwrap().get() };
        let commands = commands_of(&user, &own, buffer);
        let event = manager.event();
        metal.when_done(&commands, event.setter()).unwrap();
        let request = transload::Request::new(&src, &device).after(&event);
        let transfer = manager.submit(&request);
        assert!(!transfer.is_over());
        commands.commit();
        transfer.wait().unwrap();
        assert_eq!(common::engine::read(&manager, &device), pattern(LEN));
    });
    drop((user, metal, manager));
    assert_clean();
}

#[test]
fn bytes_that_are_the_hosts_and_a_buffers_are_one_storage() {
    let manager = common::engine::manager(vec![Device::unified()]);
    let metal = manager.backend::<transload_metal::Metal>().unwrap();
    let user = User::new(&metal, FIRST);
    let import = |buffer| {
        let object = External::Object(Box::new(MetalBuffer::new(buffer)));
        // SAFETY: what else uses its bytes the manager knows of.
        unsafe { manager.import("metal:0/mapped".parse().unwrap(), object) }.unwrap()
    };
    autoreleasepool(|_| {
        let pages = common::engine::paged(&manager, &pattern(LEN));
        let span = pages.raw().host(0, LEN as u64).unwrap();
        let start = NonNull::new(span.as_ptr().cast()).unwrap();
        let options = MTLResourceOptions::StorageModeShared;
        // SAFETY: the pages outlive the buffer.
        let wrapped = unsafe {
            let device = &user.device;
            device.newBufferWithBytesNoCopy_length_options_deallocator(start, LEN, options, None)
        };
        let seen = import(wrapped.unwrap());
        let device = common::engine::allocate(&manager, "metal:0/device", LEN);
        let mut guard = pages.write().unwrap();
        let transfer = manager.copy(&seen, &device);
        settle();
        guard.fill(7);
        drop(guard);
        transfer.wait().unwrap();
        assert_eq!(common::engine::read(&manager, &device), [7; LEN]);
        // So are the manager's own memory, and the program's imports of it.
        let own = common::engine::allocate(&manager, "metal:0/mapped", LEN);
        // SAFETY: nothing is done with it.
        let raw = unsafe { own.native::<MetalBuffer>().unwrap().get() };
        let again = import(objc2::Message::retain(raw));
        let identity = |buffer: &transload::Buffer| {
            let raw = buffer.raw();
            (raw.storage_id(), raw.position())
        };
        assert_eq!(identity(&own), identity(&again));
        assert_ne!(identity(&own), identity(&seen));
    });
    drop((user, metal, manager));
    assert_clean();
}

#[test]
fn devices_of_the_programs_make_a_backend() {
    let found = metal(vec![Device::unified(), Device::discrete()]);
    let second = transload_hal::DeviceId::new(FIRST.kind, 1);
    let lent = User::new(&found, second).device;
    drop(found);
    let bench = Bench::new(transload_metal::Metal::with_devices([lent.clone()]).unwrap());
    assert_eq!(bench.metal.id_of(&lent), Some(FIRST));
    assert_eq!(bench.metal.has_unified_memory(FIRST), Some(false));
    let [src, dst] = ["metal:0/mapped"; 2].map(|place| bench.buffer(place, LEN));
    fill(&src, &pattern(LEN));
    let fence = bench.copy(&src, &dst, &[]).unwrap();
    assert_eq!(bench.outcome(fence), Outcome::Done);
    assert_eq!(seen(&dst), pattern(LEN));
    drop((src, dst, lent));
    end(bench);
}

#[test]
fn an_event_of_the_programs_is_set_though_the_device_is_lost() {
    let bench = Bench::new(metal(vec![Device::external()]));
    let user = User::new(&bench.metal, FIRST);
    autoreleasepool(|_| {
        let event = user.device.newSharedEvent().unwrap();
        let src = bench.buffer("metal:0/mapped", LEN);
        let private = bench.buffer("metal:0/device", LEN);
        hold();
        let fence = bench.copy(&src, &private, &[]).unwrap();
        bench.metal.signal(&[fence], &event, 5).unwrap();
        remove(0);
        release();
        assert!(matches!(bench.outcome(fence), Outcome::Lost(_)));
        settle();
        assert_eq!(event.signaledValue(), 5);
        let late = bench.metal.signal(&[fence], &event, 6);
        assert!(late.is_ok(), "there is nothing left to wait for");
    });
    drop(user);
    end(bench);
}
