//! Shared parts of the tests of the backend over the double.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod dice;
pub(crate) mod engine;
pub(crate) mod hal;

use std::ptr::NonNull;

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBlitCommandEncoder as _, MTLBuffer, MTLCommandBuffer as _, MTLCommandEncoder as _,
    MTLCommandQueue, MTLDevice, MTLResourceOptions,
};
use transload_hal::{
    BackendId, Buffer, DeviceId, HostSpan, MemoryId, Name, StorageId, StorageInfo,
};
use transload_metal::Metal;
use transload_metal_double::{Device, Machine, leaks, set, violations};

pub(crate) type Commands = Retained<ProtocolObject<dyn objc2_metal::MTLCommandBuffer>>;

/// This process poses as a machine of these devices.
pub(crate) fn pose(devices: Vec<Device>) {
    let machine = Machine {
        devices,
        ..Machine::default()
    };
    set(machine).unwrap();
}

/// The backend on a machine of these devices.
pub(crate) fn metal(devices: Vec<Device>) -> Metal {
    pose(devices);
    Metal::discover().unwrap()
}

/// Asserts that no resource is left once all threads have let go, of which one of the manager's own may be the last,
/// and that the double saw no misuse.
pub(crate) fn assert_clean() {
    while !leaks().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(violations(), []);
}

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let byte = |at: usize| (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
    (0..len).map(|at| byte(at) as u8).collect()
}

/// A user's own program: commands in a queue of its own.
pub(crate) struct User {
    pub(crate) device: Retained<ProtocolObject<dyn MTLDevice>>,
    pub(crate) queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
}

impl User {
    pub(crate) fn new(metal: &Metal, device: DeviceId) -> User {
        let device = objc2::Message::retain(metal.device(device).unwrap());
        let queue = device.newCommandQueue().unwrap();
        User { device, queue }
    }

    pub(crate) fn buffer(&self, len: usize) -> Retained<ProtocolObject<dyn MTLBuffer>> {
        let options = MTLResourceOptions::StorageModeShared;
        self.device
            .newBufferWithLength_options(len.max(1), options)
            .unwrap()
    }

    /// Copies words within the device, and waits.
    pub(crate) fn copy(
        &self,
        (src, from): (&ProtocolObject<dyn MTLBuffer>, usize),
        (dst, to): (&ProtocolObject<dyn MTLBuffer>, usize),
        len: usize,
    ) {
        autoreleasepool(|_| {
            let commands = self.queue.commandBuffer().unwrap();
            let blit = commands.blitCommandEncoder().unwrap();
            // SAFETY: the ranges lie within the buffers, which no other code uses.
            unsafe {
                blit.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                    src, from, dst, to, len,
                );
            }
            blit.endEncoding();
            commands.commit();
            commands.waitUntilCompleted();
        });
    }

    /// Brings the host's copy of a managed buffer up to date, and waits.
    pub(crate) fn synchronize(&self, buffer: &ProtocolObject<dyn MTLBuffer>) {
        autoreleasepool(|_| {
            let commands = self.queue.commandBuffer().unwrap();
            let blit = commands.blitCommandEncoder().unwrap();
            blit.synchronizeResource(ProtocolObject::from_ref(buffer));
            blit.endEncoding();
            commands.commit();
            commands.waitUntilCompleted();
        });
    }
}

/// Memory of the processors' that begins with a page.
pub(crate) fn paged(memory: MemoryId, len: usize) -> Buffer {
    let mut pages = memmap2::MmapMut::map_anon(len.max(1)).unwrap();
    let host = HostSpan::of_mut(&mut pages[..len]);
    let info = StorageInfo {
        id: StorageId::Host,
        base: host.addr(),
        len_bytes: len as u64,
        memory,
        backend: BackendId(Name::constant("elsewhere")),
        writable: true,
        host: Some(host),
    };
    // SAFETY: the mapping stays in place while the buffer owns it, and no other code touches it.
    unsafe { Buffer::new(info, Box::new(pages)) }
}

/// The first device.
pub(crate) const FIRST: DeviceId = DeviceId::new(transload_hal::DeviceKind::METAL, 0);

/// The bytes of a shared buffer.
pub(crate) fn contents(buffer: &ProtocolObject<dyn MTLBuffer>) -> HostSpan {
    let start: NonNull<u8> = buffer.contents().cast();
    HostSpan::new(start, buffer.length())
}

/// The bytes that a hal buffer shows to the host.
pub(crate) fn seen(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len() as usize];
    let span = buffer.host(0, buffer.len()).unwrap();
    // SAFETY: no code writes the buffer meanwhile, and the buffer is alive.
    unsafe { span.copy_to(HostSpan::of_mut(&mut bytes)) };
    bytes
}
